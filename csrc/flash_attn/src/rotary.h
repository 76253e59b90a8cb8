// Rotary embedding (Su et al. 2021, "RoFormer") of q and of new keys, and the new keys' and values' way into a cache.
#pragma once

#include "block_info.h"
#include "flash.h"
#include "ptx.h"

namespace flash {

// Eight neighbouring elements, as fp32.
template <typename Element>
__forceinline__ __device__ void load_chunk(float (&x)[8], const Element *source) {
    const uint4 packed = *reinterpret_cast<const uint4 *>(source);
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack<Element>(words[i]);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
    }
}

template <typename Element>
__forceinline__ __device__ void store_chunk(Element *destination, const float (&x)[8]) {
    *reinterpret_cast<uint4 *>(destination) = make_uint4(pack<Element>(x[0], x[1]), pack<Element>(x[2], x[3]),
                                                         pack<Element>(x[4], x[5]), pack<Element>(x[6], x[7]));
}

// Elements column to column + 7 of a row, rotated by the angles of a position.
template <typename Element>
__forceinline__ __device__ void load_rotated(float (&x)[8], const Flash_append_params &params, const Element *row,
                                             int column, int position) {
    load_chunk(x, row + column);
    if (params.rotary_cos_ptr == 0 || column >= params.rotary_dim) { return; }
    const int half = params.rotary_dim / 2;
    const int64_t angles = int64_t(clamp(position, 0, params.seqlen_rotary - 1)) * half;
    const Element *cos = reinterpret_cast<const Element *>(params.rotary_cos_ptr) + angles;
    const Element *sin = reinterpret_cast<const Element *>(params.rotary_sin_ptr) + angles;
    if (params.interleaved) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float c = static_cast<float>(cos[column / 2 + i]), s = static_cast<float>(sin[column / 2 + i]);
            const float x0 = x[2 * i], x1 = x[2 * i + 1];
            x[2 * i] = x0 * c - x1 * s;
            x[2 * i + 1] = x0 * s + x1 * c;
        }
    } else {
        const bool is_first = column < half;
        const int angle = is_first ? column : column - half;
        float partner[8];
        load_chunk(partner, row + (is_first ? column + half : column - half));
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float c = static_cast<float>(cos[angle + i]), s = static_cast<float>(sin[angle + i]);
            x[i] = is_first ? x[i] * c - partner[i] * s : x[i] * c + partner[i] * s;
        }
    }
}

// One warp a row of a head: first those of q, then those of the new keys and values.
template <typename Traits>
__forceinline__ __device__ void append(const Flash_append_params &params, int block) {
    using Element = typename Traits::Element;
    const int64_t rows_q = params.q_rotated_ptr != 0 ? int64_t(params.batch) * params.seqlen_q * params.nheads : 0;
    const int64_t rows_new = params.k_new_ptr != 0 ? int64_t(params.batch) * params.seqlen_new * params.nheads_k : 0;
    const int64_t index = int64_t(block) * Traits::kNWarps + threadIdx.x / 32;
    const int column = threadIdx.x % 32 * 8;
    if (index >= rows_q + rows_new || column >= params.head_dim) { return; }

    const bool is_q = index < rows_q;
    const int64_t in_tensor = is_q ? index : index - rows_q;
    const int heads = is_q ? params.nheads : params.nheads_k, rows = is_q ? params.seqlen_q : params.seqlen_new;
    const int head = in_tensor % heads, row = in_tensor / heads % rows, batch = in_tensor / heads / rows;
    const int in_cache = read_int(params.cache_seqlens_ptr, batch, params.cache_seqlen);
    float x[8];
    if (is_q) {
        const Element *q = reinterpret_cast<const Element *>(params.q_ptr) + batch * params.q.batch + row * params.q.row +
                           head * params.q.head;
        load_rotated(x, params, q, column, in_cache + (params.q_advances ? row : 0));
        store_chunk(reinterpret_cast<Element *>(params.q_rotated_ptr) + in_tensor * params.head_dim + column, x);
        return;
    }

    const int position = in_cache + row;
    if (position < 0 || position >= params.seqlen_cache) { return; }
    int cache_row = read_int(params.cache_batch_idx_ptr, batch, batch), in_row = position;
    int rows_of_cache = params.cache_batch_idx_ptr != 0 ? params.cache_rows : params.batch;
    if (params.block_table_ptr != 0) {
        cache_row = reinterpret_cast<const int *>(params.block_table_ptr)[batch * params.block_table_stride +
                                                                          position / params.page_size];
        in_row = position % params.page_size;
        rows_of_cache = params.num_pages;
    }
    if (cache_row < 0 || cache_row >= rows_of_cache) { return; }
    const Element *k = reinterpret_cast<const Element *>(params.k_new_ptr) + batch * params.k_new.batch +
                       row * params.k_new.row + head * params.k_new.head;
    const Element *v = reinterpret_cast<const Element *>(params.v_new_ptr) + batch * params.v_new.batch +
                       row * params.v_new.row + head * params.v_new.head;
    load_rotated(x, params, k, column, position);
    store_chunk(reinterpret_cast<Element *>(params.k_cache_ptr) + cache_row * params.k_cache.batch +
                    in_row * params.k_cache.row + head * params.k_cache.head + column, x);
    *reinterpret_cast<uint4 *>(reinterpret_cast<Element *>(params.v_cache_ptr) + cache_row * params.v_cache.batch +
                               in_row * params.v_cache.row + head * params.v_cache.head + column) =
        *reinterpret_cast<const uint4 *>(v + column);
}

}  // namespace flash
