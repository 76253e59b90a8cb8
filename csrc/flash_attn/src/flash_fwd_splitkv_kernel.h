// Forward attention for few queries over a long or paged cache: the keys are split among thread blocks, and a second
// kernel combines what they found (Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding"). The queries of all heads that
// read one key head are packed into the rows of a tile: row r is query r / group of head r % group.
#pragma once

#include "block_info.h"
#include "copy.h"
#include "flash.h"
#include "gemm.h"
#include "kernel_traits.h"
#include "mask.h"
#include "ptx.h"
#include "rotary.h"
#include "softmax.h"

namespace flash {

struct Split_position {
    int m_block;
    int head_k;
    int batch;
    int split;
};

__forceinline__ __device__ Split_position split_position(const Flash_fwd_params &params, int block) {
    const int m_block = block % params.num_m_blocks, rest = block / params.num_m_blocks;
    const int head_k = rest % params.problem.nheads_k, pair = rest / params.problem.nheads_k;
    return {m_block, head_k, pair % params.problem.batch, pair / params.problem.batch};
}

// Where the rows of k and v lie that a thread copies of one block of keys.
template <int kPasses, int kRowsPerPass>
struct Key_rows {
    int page[kPasses];      // outside of the pages: the row is not there
    int in_page[kPasses];

    // Not paged, all keys lie in one "page" of any length.
    __forceinline__ __device__ void find(const int *block_table, int page_size, int num_pages, int row, int keys_left) {
        int block = 0;
        if (block_table != nullptr) {
            block = row / page_size;
            row -= block * page_size;
        }
        #pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            const bool has_key = pass * kRowsPerPass < keys_left;
            page[pass] = !has_key ? -1 : block_table != nullptr ? block_table[block] : 0;
            if (page[pass] >= num_pages) { page[pass] = -1; }
            in_page[pass] = row;
            row += kRowsPerPass;
            while (block_table != nullptr && row >= page_size) {
                row -= page_size;
                ++block;
            }
        }
    }
};

// Scores of rows that belong to different queries and heads.
template <int kSTiles>
__forceinline__ __device__ void apply_alibi_by_row(float (&acc_s)[1][kSTiles][4], const float (&slope)[2],
                                                   const int (&diagonal)[2]) {
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float distance = static_cast<float>(diagonal[half]);
        #pragma unroll
        for (int ni = 0; ni < kSTiles; ++ni) {
            #pragma unroll
            for (int j = 0; j < 2; ++j) { acc_s[0][ni][half * 2 + j] -= slope[half] * fabsf(distance - (ni * 8 + j)); }
        }
    }
}

template <int kSTiles>
__forceinline__ __device__ void apply_mask_by_row(float (&acc_s)[1][kSTiles][4], const Window &window,
                                                  const int (&query)[2], int first_key) {
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int begin = window.key_begin(query[half]) - first_key, end = window.key_end(query[half]) - first_key;
        #pragma unroll
        for (int ni = 0; ni < kSTiles; ++ni) {
            #pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int key = ni * 8 + j;
                if (key < begin || key >= end) { acc_s[0][ni][half * 2 + j] = -INFINITY; }
            }
        }
    }
}

template <typename Traits>
__forceinline__ __device__ void compute_attn_1rowblock_splitkv(const Flash_fwd_params &params, int block) {
    using Element = typename Traits::Element;
    using Layout = typename Traits::Layout;
    constexpr int kBlockM = Traits::kBlockM, kBlockN = Traits::kBlockN, kHeadDim = Traits::kHeadDim;
    constexpr int kSTiles = Traits::kSTiles, kOTiles = Traits::kOTiles, kWarpsK = Traits::kWarpsK;

    extern __shared__ __align__(128) char smem[];
    const uint32_t smem_q = smem_address(smem), smem_kv = smem_q + Traits::kSmemQ;
    constexpr int kStageBytes = 2 * Traits::kSmemKV;

    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int warp_row = warp / kWarpsK * 16, warp_key = warp % kWarpsK * Traits::kKeysPerWarp;

    const Flash_problem &problem = params.problem;
    const Split_position position = split_position(params, block);
    const bool is_paged = params.block_table_ptr != 0;
    const Sequence sequence = is_paged ? sequence_of<true>(problem, position.batch)
                                       : sequence_of<false>(problem, position.batch);
    const int group = problem.group, head_begin = position.head_k * group;
    const int row_begin = position.m_block * kBlockM;
    const int rows = min(kBlockM, sequence.seqlen_q * group - row_begin);
    if (rows <= 0) { return; }  // packed sequences differ in length

    // This split's part of the blocks of keys that some row sees.
    const Window window = window_of(problem, sequence);
    const Block_range<kBlockN> blocks(window, row_begin / group, (row_begin + rows - 1) / group + 1);
    const int blocks_per_split = (max(blocks.end - blocks.begin, 0) + params.num_splits - 1) / params.num_splits;
    const int n_begin = blocks.begin + position.split * blocks_per_split;
    const int n_end = min(blocks.end, n_begin + blocks_per_split);

    const int batch_k = params.cache_batch_idx_ptr == 0
        ? (is_paged ? 0 : position.batch)
        : clamp(read_int(params.cache_batch_idx_ptr, position.batch, 0), 0, params.cache_rows - 1);
    const Element *k = reinterpret_cast<const Element *>(params.k_ptr) + batch_k * params.k.batch +
                       position.head_k * params.k.head;
    const Element *v = reinterpret_cast<const Element *>(params.v_ptr) + batch_k * params.v.batch +
                       position.head_k * params.v.head;
    const int *block_table = is_paged
        ? reinterpret_cast<const int *>(params.block_table_ptr) + position.batch * params.block_table_stride
        : nullptr;

    const Tile_copy<Traits> copy(thread, problem.head_dim);
    auto load_row = [&](uint32_t destination, const Element *row, bool has_row) {
        #pragma unroll
        for (int group_of_chunks = 0; group_of_chunks < Layout::kGroups; ++group_of_chunks) {
            cp_async_16(destination + group_of_chunks * Layout::kGroupBytes,
                        row + group_of_chunks * Layout::kChunksPerGroup * 8 + copy.chunk * 8,
                        has_row && copy.has_column(group_of_chunks) ? 16 : 0);
        }
    };
    // Pages are looked up one block of keys ahead of the copy that needs them.
    constexpr int kRowsPerPass = Tile_copy<Traits>::kRowsPerPass, kPasses = kBlockN / kRowsPerPass;
    Key_rows<kPasses, kRowsPerPass> key_rows;
    auto find_keys = [&](int n_block) {
        const int key = n_block * kBlockN + copy.row;
        key_rows.find(block_table, params.page_size, is_paged ? params.num_pages : 1, sequence.first_key + key,
                      sequence.seqlen_k - key);
    };
    auto load_keys = [&](int n_block) {
        const uint32_t stage = smem_kv + n_block % Traits::kStages * kStageBytes;
        #pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            const bool has_key = key_rows.page[pass] >= 0;
            const int page = max(key_rows.page[pass], 0), in_page = has_key ? key_rows.in_page[pass] : 0;
            const uint32_t destination = stage + Layout::offset(pass * kRowsPerPass + copy.row, copy.chunk);
            load_row(destination, k + page * params.k.batch + in_page * params.k.row, has_key);
            load_row(destination + Traits::kSmemKV, v + page * params.v.batch + in_page * params.v.row, has_key);
        }
        if (n_block > n_begin) { find_keys(n_block - 1); }
    };

    // This thread's two rows.
    int query[2], diagonal[2];
    float slope[2];
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = min(row_begin + warp_row + half * 8 + lane / 4, row_begin + rows - 1);
        query[half] = row / group;
        diagonal[half] = query[half] + sequence.seqlen_k - sequence.seqlen_q;
        slope[half] = alibi_slope(problem, position.batch, head_begin + row % group);
    }

    Softmax<1> softmax(problem.scale_log2);
    float acc_o[1][kOTiles][4] = {};
    if (n_begin < n_end) {
        const Element *q = reinterpret_cast<const Element *>(params.q_ptr) + position.batch * params.q.batch;
        #pragma unroll
        for (int pass = 0; pass < (kBlockM + kRowsPerPass - 1) / kRowsPerPass; ++pass) {
            const int in_tile = pass * kRowsPerPass + copy.row;
            const int row = row_begin + min(in_tile, rows - 1);
            if (in_tile < kBlockM) {
                load_row(smem_q + Layout::offset(in_tile, copy.chunk),
                         q + int64_t(sequence.first_row + row / group) * params.q.row +
                             (head_begin + row % group) * params.q.head,
                         in_tile < rows);
            }
        }
        find_keys(n_end - 1);
        load_keys(n_end - 1);
        cp_async_commit();

        const uint32_t lane_qv = Layout::lane_offset_by_rows(lane), lane_k = Layout::lane_offset_by_chunks(lane);
        Q_fragments<1> q_registers[Traits::kQInRegisters ? kHeadDim / 16 : 1];
        auto load_q = [&](Q_fragments<1> &fragments, int step) {
            if constexpr (Traits::kQInRegisters) {
                #pragma unroll
                for (int i = 0; i < 4; ++i) { fragments[0][i] = q_registers[step][0][i]; }
            } else {
                ldmatrix_x4(fragments[0], smem_q + warp_row * Layout::kRowBytes + Layout::at_block(lane_qv, 0, step));
            }
        };

        auto attend = [&](int n_block, auto is_first, auto is_masked) {
            constexpr bool Is_first = decltype(is_first)::value, Is_masked = decltype(is_masked)::value;
            cp_async_wait<0>();
            __syncthreads();
            if (n_block > n_begin) { load_keys(n_block - 1); }
            cp_async_commit();
            if constexpr (Is_first && Traits::kQInRegisters) {
                #pragma unroll
                for (int step = 0; step < kHeadDim / 16; ++step) {
                    ldmatrix_x4(q_registers[step][0],
                                smem_q + warp_row * Layout::kRowBytes + Layout::at_block(lane_qv, 0, step));
                }
            }
            const uint32_t stage = smem_kv + n_block % Traits::kStages * kStageBytes + warp_key * Layout::kRowBytes;
            const int key = n_block * kBlockN + warp_key + lane % 4 * 2;
            float acc_s[1][kSTiles][4];
            gemm_qk<Traits>(acc_s, stage, lane_k, load_q);
            if constexpr (Traits::kVariant == Variant::softcap) { apply_softcap(acc_s, problem.tanh_scale); }
            if (problem.alibi_slopes_ptr != 0) {
                const int from_key[2] = {diagonal[0] - key, diagonal[1] - key};
                apply_alibi_by_row(acc_s, slope, from_key);
            }
            if constexpr (Is_masked) { apply_mask_by_row(acc_s, window, query, key); }
            softmax.template softmax_rescale_o<Is_first, /*Use_rescale_threshold=*/!Is_first>(acc_s, acc_o);
            softmax_gemm_pv<Traits, /*Check_inf=*/Is_masked>(acc_o, acc_s, softmax, stage + Traits::kSmemKV, lane_qv,
                                                             Keep_all<1>{});
        };

        // As in compute_attn_1rowblock: masks at both ends.
        int n_block = n_end - 1;
        attend(n_block, True{}, True{});
        --n_block;
        int masked_end = blocks.unmasked_end;
        while (n_block >= n_begin) {
            #pragma unroll 1
            for (; n_block >= max(masked_end, n_begin); --n_block) { attend(n_block, False{}, True{}); }
            #pragma unroll 1
            for (; n_block >= max(blocks.unmasked_begin, n_begin); --n_block) { attend(n_block, False{}, False{}); }
            masked_end = n_begin;
        }
    }

    // Every warp leaves its rows of O and their sums and maxima in shared memory; what shared a row is added up from there.
    __shared__ float row_max[Traits::kNWarps * 16], row_sum[Traits::kNWarps * 16];
    __syncthreads();
    float *const o_tile = reinterpret_cast<float *>(smem);
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = warp * 16 + half * 8 + lane / 4;
        const float sum = quad_reduce(softmax.row_sum[half], [](float a, float b) { return a + b; });
        if (lane % 4 == 0) {
            row_max[row] = softmax.row_max[half];
            row_sum[row] = sum;
        }
        #pragma unroll
        for (int ni = 0; ni < kOTiles; ++ni) {
            *reinterpret_cast<float2 *>(o_tile + row * Traits::kORow + ni * 8 + lane % 4 * 2) =
                make_float2(acc_o[0][ni][half * 2], acc_o[0][ni][half * 2 + 1]);
        }
    }
    __syncthreads();

    constexpr float kLn2 = 0.693147180559945309f;
    constexpr int kChunks = kHeadDim / 8;
    #pragma unroll 1
    for (int i = thread; i < rows * kChunks; i += Traits::kNThreads) {
        const int row = i / kChunks, column = i % kChunks * 8;
        const int first = row / 16 * kWarpsK * 16 + row % 16;   // the first warp's copy of the row; the others' are 16 on
        float max = -INFINITY, sum = 0.f;
        #pragma unroll
        for (int w = 0; w < kWarpsK; ++w) { max = fmaxf(max, row_max[first + w * 16]); }
        float o[8] = {};
        #pragma unroll
        for (int w = 0; w < kWarpsK; ++w) {
            const float weight = max == -INFINITY ? 0.f : exp2_approx(row_max[first + w * 16] - max);
            sum += weight * row_sum[first + w * 16];
            #pragma unroll
            for (int c = 0; c < 8; ++c) { o[c] += weight * o_tile[(first + w * 16) * Traits::kORow + column + c]; }
        }
        const float inverse = sum == 0.f ? 0.f : 1.f / sum;
        const int packed = row_begin + row, head = head_begin + packed % group, query_row = packed / group;
        if (params.num_splits > 1) {
            const int64_t in_accum = ((int64_t(position.split) * problem.batch + position.batch) * problem.nheads + head) *
                                         problem.seqlen_q + query_row;
            float *o_accum = reinterpret_cast<float *>(params.o_accum_ptr) + in_accum * kHeadDim + column;
            #pragma unroll
            for (int c = 0; c < 8; c += 4) {
                *reinterpret_cast<float4 *>(o_accum + c) =
                    make_float4(o[c] * inverse, o[c + 1] * inverse, o[c + 2] * inverse, o[c + 3] * inverse);
            }
            if (column == 0) {
                reinterpret_cast<float *>(params.lse_accum_ptr)[in_accum] = sum == 0.f ? -INFINITY : max + log2f(sum);
            }
        } else {
            const int64_t row_in_tensor = sequence.first_row + query_row;
            if (column < problem.head_dim) {
                *reinterpret_cast<uint4 *>(reinterpret_cast<Element *>(params.o_ptr) + position.batch * params.o.batch +
                                           head * params.o.head + row_in_tensor * params.o.row + column) =
                    make_uint4(pack<Element>(o[0] * inverse, o[1] * inverse), pack<Element>(o[2] * inverse, o[3] * inverse),
                               pack<Element>(o[4] * inverse, o[5] * inverse), pack<Element>(o[6] * inverse, o[7] * inverse));
            }
            if (column == 0) {
                reinterpret_cast<float *>(params.softmax_lse_ptr)[position.batch * params.lse_batch_stride +
                                                                  head * params.lse_head_stride + row_in_tensor] =
                    sum == 0.f ? INFINITY : (max + log2f(sum)) * kLn2;
            }
        }
    }
}

// O and LSE from those of the splits; one warp a row.
template <typename Traits>
__forceinline__ __device__ void combine(const Flash_fwd_params &params, int block) {
    using Element = typename Traits::Element;
    constexpr float kLn2 = 0.693147180559945309f;
    constexpr int kHeadDim = Traits::kHeadDim;
    const Flash_problem &problem = params.problem;
    const int64_t row = int64_t(block) * Traits::kNWarps + threadIdx.x / 32;
    const int64_t rows = int64_t(problem.batch) * problem.nheads * problem.seqlen_q;
    if (row >= rows) { return; }
    const int lane = threadIdx.x % 32;
    const float *lse = reinterpret_cast<const float *>(params.lse_accum_ptr) + row;
    float max = -INFINITY;
    for (int split = lane; split < params.num_splits; split += 32) { max = fmaxf(max, lse[split * rows]); }
    #pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) { max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, offset)); }

    const int column = lane * 8;
    float o[8] = {}, sum = 0.f;
    const float *o_accum = reinterpret_cast<const float *>(params.o_accum_ptr) + row * kHeadDim + column;
    #pragma unroll 4
    for (int split = 0; split < params.num_splits; ++split) {
        const float weight = max == -INFINITY ? 0.f : exp2_approx(lse[split * rows] - max);
        sum += weight;
        if (column < kHeadDim) {
            const float4 a = *reinterpret_cast<const float4 *>(o_accum + split * rows * kHeadDim);
            const float4 b = *reinterpret_cast<const float4 *>(o_accum + split * rows * kHeadDim + 4);
            const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            #pragma unroll
            for (int c = 0; c < 8; ++c) { o[c] += weight * x[c]; }
        }
    }
    const float inverse = sum == 0.f ? 0.f : 1.f / sum;
    const int query_row = row % problem.seqlen_q;
    const int head = row / problem.seqlen_q % problem.nheads, batch = row / problem.seqlen_q / problem.nheads;
    if (column < problem.head_dim) {
        *reinterpret_cast<uint4 *>(reinterpret_cast<Element *>(params.o_ptr) + batch * params.o.batch + head * params.o.head +
                                   query_row * params.o.row + column) =
            make_uint4(pack<Element>(o[0] * inverse, o[1] * inverse), pack<Element>(o[2] * inverse, o[3] * inverse),
                       pack<Element>(o[4] * inverse, o[5] * inverse), pack<Element>(o[6] * inverse, o[7] * inverse));
    }
    if (lane == 0) {
        reinterpret_cast<float *>(params.softmax_lse_ptr)[batch * params.lse_batch_stride + head * params.lse_head_stride +
                                                          query_row] = sum == 0.f ? INFINITY : (max + log2f(sum)) * kLn2;
    }
}

}  // namespace flash

// One entry point a tile and variant or stage, all from kernels.json.
#define FLASH_PARAMS_plain Flash_fwd_params
#define FLASH_PARAMS_softcap Flash_fwd_params
#define FLASH_PARAMS_combine Flash_fwd_params
#define FLASH_PARAMS_append Flash_append_params
#define FLASH_BODY_plain flash::compute_attn_1rowblock_splitkv
#define FLASH_BODY_softcap flash::compute_attn_1rowblock_splitkv
#define FLASH_BODY_combine flash::combine
#define FLASH_BODY_append flash::append
#define FLASH_VARIANT_plain flash::Variant::plain
#define FLASH_VARIANT_softcap flash::Variant::softcap
#define FLASH_VARIANT_combine flash::Variant::plain
#define FLASH_VARIANT_append flash::Variant::plain
#define FLASH_KERNEL(name, element, head_dim, block_m, block_n, warps, smem_bytes, variant)                            \
    using name##_traits = flash::Flash_fwd_splitkv_kernel_traits<element, head_dim, block_m, block_n, warps,           \
                                                                 smem_bytes, FLASH_VARIANT_##variant>;                 \
    extern "C" __global__ void __launch_bounds__(name##_traits::kNThreads, name##_traits::kMinBlocksPerSM)             \
        name(const __grid_constant__ FLASH_PARAMS_##variant params) {                                                  \
        FLASH_BODY_##variant<name##_traits>(params, static_cast<int>(blockIdx.x));                                     \
    }
