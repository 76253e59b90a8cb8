// Forward attention: O = softmax(scale * Q K^T) V for one block of query rows at a time (Dao 2023, "FlashAttention-2",
// algorithm 1).
#pragma once

#include "block_info.h"
#include "copy.h"
#include "dropout.h"
#include "flash.h"
#include "gemm.h"
#include "kernel_traits.h"
#include "mask.h"
#include "ptx.h"
#include "softmax.h"
#include "tile_scheduler.h"

namespace flash {

// What the loop over unmasked blocks has no use for waits in shared memory meanwhile and occupies no registers. Reads are
// volatile, or the compiler would take them out of the loop again.
struct Row_block {
    Window window;
    float slope;
    int begin;         // first query row
    int rows_left;     // of the sequence, from there on
    uint64_t k_ptr;    // of the sequence and head; with dropout
    uint64_t o_ptr;    // of that row
    uint64_t lse_ptr;

    __forceinline__ __device__ Window get_window() const volatile { return {window.seqlen_k, window.left, window.right}; }

    template <typename Element>
    __forceinline__ __device__ void put(const Flash_fwd_params &params, const Tile_position &position,
                                        const Sequence &sequence, const Window &window_, int begin_) {
        const int64_t row = sequence.first_row + begin_;
        window = window_;
        slope = alibi_slope(params.problem, position.batch, position.head);
        begin = begin_;
        rows_left = sequence.seqlen_q - begin_;
        o_ptr = params.o_ptr + (position.batch * params.o.batch + position.head * params.o.head + row * params.o.row) *
                                   sizeof(Element);
        lse_ptr = params.softmax_lse_ptr + (position.batch * params.lse_batch_stride +
                                            position.head * params.lse_head_stride + row) * sizeof(float);
    }
};

// S_dmask, which only tests ask for: P as it is weighted in the end, negative where it is dropped. A pass of its own after
// all others: anything more in the loop over the keys costs every call a tenth of its time.
template <typename Traits, int kRowBlocks, int kMTiles, typename Load_q>
__forceinline__ __device__ void write_s_dmask(const Flash_fwd_params &params, const Tile_position &position,
                                              const volatile Row_block &stored, const Dropout_tile<kRowBlocks> &dropout,
                                              const Tile_copy<Traits> &copy, Load_q load_q, uint32_t smem_k,
                                              const Softmax<kMTiles> &softmax, int n_block_begin, int n_block_end) {
    using Element = typename Traits::Element;
    constexpr int kBlockN = Traits::kBlockN;
    const Flash_problem &problem = params.problem;
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * Traits::kRowsPerWarp;
    const int row = stored.begin + warp_row + lane / 4;
    const Window window = stored.get_window();
    const int64_t rows = (problem.seqlen_q + 127) / 128 * 128, keys = (problem.seqlen_k + 127) / 128 * 128;
    uint16_t *s_dmask = reinterpret_cast<uint16_t *>(params.s_dmask_ptr) +
                        ((int64_t(position.batch) * problem.nheads + position.head) * rows + row) * keys;
    const Element *const k = copy.source(reinterpret_cast<const Element *>(stored.k_ptr), params.k.row);

    #pragma unroll 1
    for (int n_block = n_block_begin; n_block < n_block_end; ++n_block) {
        __syncthreads();
        copy.template load<kBlockN, false>(smem_k, k + int64_t(n_block) * kBlockN * params.k.row, params.k.row,
                                           window.seqlen_k - n_block * kBlockN);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        float acc_s[kMTiles][Traits::kSTiles][4];
        gemm_qk<Traits>(acc_s, smem_k, Traits::Layout::lane_offset_by_chunks(lane), load_q);
        const int key = n_block * kBlockN + lane % 4 * 2;
        if (problem.alibi_slopes_ptr != 0) {
            apply_alibi<false>(acc_s, stored.slope, row - window.left + problem.window_left - key);
        }
        apply_mask(acc_s, window, row, key);
        #pragma unroll
        for (int ni = 0; ni < Traits::kSTiles; ++ni) {
            const auto column = dropout.column((n_block * kBlockN + ni * 8) / 32, lane);
            #pragma unroll
            for (int r = 0; r < 2 * kMTiles; ++r) {
                float(&x)[4] = acc_s[r / 2][ni];
                const float max = softmax.row_max[r] == -INFINITY ? 0.f : softmax.row_max[r];
                scale_apply_exp2(x[r % 2 * 2], x[r % 2 * 2 + 1], softmax.scale_log2, max, max);
                const Philox_state random = dropout.bytes(warp_row / 16 + r / 2, column);
                const uint32_t keep = keep_pair(problem, random.x[ni % 4], r % 2);
                *reinterpret_cast<uint32_t *>(s_dmask + (r / 2 * 16 + r % 2 * 8) * keys + key + ni * 8) =
                    pack<Element>(x[r % 2 * 2], x[r % 2 * 2 + 1]) | (~keep & 0x80008000u);
            }
        }
    }
}

template <typename Traits>
__forceinline__ __device__ void compute_attn_1rowblock(const Flash_fwd_params &params, const Tile_position &position) {
    using Element = typename Traits::Element;
    using Layout = typename Traits::Layout;
    constexpr int kBlockM = Traits::kBlockM, kBlockN = Traits::kBlockN;
    constexpr int kMTiles = Traits::kMTiles, kOTiles = Traits::kOTiles, kSTiles = Traits::kSTiles;

    extern __shared__ __align__(128) char smem[];
    const uint32_t smem_q = smem_address(smem);
    const uint32_t smem_kv = smem_q + Traits::kSmemQ;  // K and V, stage by stage

    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int warp_row = warp * Traits::kRowsPerWarp;
    const Flash_problem &problem = params.problem;
    const Sequence sequence = sequence_of(problem, position.batch);
    const int row_begin = position.m_block * kBlockM;
    const int rows_left = sequence.seqlen_q - row_begin;
    if (rows_left <= 0) { return; }  // packed sequences differ in length
    const Window window = window_of(problem, sequence);
    const Block_range<kBlockN> blocks(window, row_begin, row_begin + min(rows_left, kBlockM));
    __shared__ Row_block row_block;
    if (thread == 0) { row_block.put<Element>(params, position, sequence, window, row_begin); }
    const volatile Row_block &stored = row_block;
    constexpr bool Is_dropout = Traits::kVariant == Variant::dropout;
    __shared__ Dropout_tile<Is_dropout ? kBlockM / 16 : 1> dropout;
    if (Is_dropout && warp == 0) { dropout.put(problem, position.batch, position.head, row_begin / 16, lane); }

    const Tile_copy<Traits> copy(thread, problem.head_dim);
    const int head_k = position.head / problem.group;
    const int batch_k = params.cache_batch_idx_ptr == 0
        ? position.batch
        : clamp(read_int(params.cache_batch_idx_ptr, position.batch, 0), 0, params.cache_rows - 1);
    const Element *q = reinterpret_cast<const Element *>(params.q_ptr) + position.batch * params.q.batch +
                       position.head * params.q.head + int64_t(sequence.first_row + row_begin) * params.q.row;
    const Element *k = reinterpret_cast<const Element *>(params.k_ptr) + batch_k * params.k.batch +
                       head_k * params.k.head + int64_t(sequence.first_key) * params.k.row;
    const Element *v = reinterpret_cast<const Element *>(params.v_ptr) + batch_k * params.v.batch +
                       head_k * params.v.head + int64_t(sequence.first_key) * params.v.row;
    if (Is_dropout && thread == 0) { row_block.k_ptr = reinterpret_cast<uint64_t>(k); }

    const uint32_t lane_qv = Layout::lane_offset_by_rows(lane), lane_k = Layout::lane_offset_by_chunks(lane);
    constexpr int kStageBytes = 2 * Traits::kSmemKV;

    Softmax<kMTiles> softmax(problem.scale_log2);
    Philox_state random[Is_dropout ? kMTiles : 1];
    float acc_o[kMTiles][kOTiles][4] = {};

    if (blocks.begin < blocks.end) {
        // Blocks of keys are taken from the last to the first.
        const Element *next_k = copy.source(k, params.k.row) + int64_t(blocks.end - 1) * kBlockN * params.k.row;
        const Element *next_v = copy.source(v, params.v.row) + int64_t(blocks.end - 1) * kBlockN * params.v.row;
        auto load_k = [&](int n_block, auto is_even) {
            copy.template load<kBlockN, decltype(is_even)::value>(smem_kv + n_block % Traits::kStages * kStageBytes, next_k,
                                                                  params.k.row, sequence.seqlen_k - n_block * kBlockN);
            next_k -= kBlockN * params.k.row;
        };
        auto load_v = [&](int n_block, auto is_even) {
            copy.template load<kBlockN, decltype(is_even)::value>(
                smem_kv + n_block % Traits::kStages * kStageBytes + Traits::kSmemKV, next_v, params.v.row,
                sequence.seqlen_k - n_block * kBlockN);
            next_v -= kBlockN * params.v.row;
        };

        copy.template load<kBlockM, false>(smem_q, copy.source(q, params.q.row), params.q.row, rows_left);
        load_k(blocks.end - 1, False{});
        if constexpr (Traits::kStages == 2) { load_v(blocks.end - 1, False{}); }
        cp_async_commit();

        Q_fragments<kMTiles> q_registers[Traits::kQInRegisters ? Traits::kHeadDim / 16 : 1];
        auto load_q = [&](Q_fragments<kMTiles> &fragments, int step) {
            #pragma unroll
            for (int mi = 0; mi < kMTiles; ++mi) {
                if constexpr (Traits::kQInRegisters) {
                    #pragma unroll
                    for (int i = 0; i < 4; ++i) { fragments[mi][i] = q_registers[step][mi][i]; }
                } else {
                    ldmatrix_x4(fragments[mi], smem_q + warp_row * Layout::kRowBytes +
                                                   Layout::at_block(lane_qv, mi, step));
                }
            }
        };
        if constexpr (Traits::kQInRegisters) {
            cp_async_wait<0>();
            __syncthreads();
            #pragma unroll
            for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
                #pragma unroll
                for (int mi = 0; mi < kMTiles; ++mi) {
                    ldmatrix_x4(q_registers[step][mi], smem_q + warp_row * Layout::kRowBytes +
                                                           Layout::at_block(lane_qv, mi, step));
                }
            }
        }

        // Which elements of P of one block of keys are dropped before they meet V.
        auto drop = [&](int n_block) {
            if constexpr (Is_dropout) {
                return [&, n_block](uint32_t(&p)[kMTiles][4], int step) {
                    if (step % 2 == 0) {
                        const auto column = dropout.column(n_block * (kBlockN / 32) + step / 2, lane);
                        #pragma unroll
                        for (int mi = 0; mi < kMTiles; ++mi) { random[mi] = dropout.bytes(warp_row / 16 + mi, column); }
                    }
                    #pragma unroll
                    for (int mi = 0; mi < kMTiles; ++mi) {
                        #pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            p[mi][i] &= keep_pair(problem, random[mi].x[step % 2 * 2 + i / 2], i % 2);
                        }
                    }
                };
            } else {
                return Keep_all<kMTiles>{};
            }
        };
        auto attend = [&](int n_block, auto is_first, auto is_masked) {
            constexpr bool Is_first = decltype(is_first)::value, Is_masked = decltype(is_masked)::value;
            const uint32_t smem_k = smem_kv + n_block % Traits::kStages * kStageBytes;
            // A warp none of whose rows sees this block has nothing to do but to help loading.
            float acc_s[kMTiles][kSTiles][4];

            cp_async_wait<0>();
            __syncthreads();
            bool sees_block = true;
            if constexpr (Is_masked) {
                const Window window = stored.get_window();
                const int first_row = stored.begin + warp_row;
                sees_block = window.key_end(first_row + Traits::kRowsPerWarp - 1) > n_block * kBlockN &&
                             window.key_begin(first_row) < (n_block + 1) * kBlockN;
            }
            if constexpr (Traits::kStages == 1) {
                if constexpr (Is_first) { load_v(n_block, False{}); } else { load_v(n_block, True{}); }
            } else if (n_block > blocks.begin) {
                load_k(n_block - 1, True{});
                load_v(n_block - 1, True{});
            }
            cp_async_commit();
            if (sees_block) { gemm_qk<Traits>(acc_s, smem_k, lane_k, load_q); }
            if constexpr (Traits::kStages == 1) {
                cp_async_wait<0>();
                __syncthreads();
                if (n_block > blocks.begin) { load_k(n_block - 1, True{}); }
                cp_async_commit();
            }
            if (sees_block) {
                const int row = stored.begin + warp_row + lane / 4, key = n_block * kBlockN + lane % 4 * 2;
                if constexpr (Traits::kVariant == Variant::softcap) { apply_softcap(acc_s, problem.tanh_scale); }
                if (problem.alibi_slopes_ptr != 0) {
                    apply_alibi<false>(acc_s, stored.slope, row - stored.window.left + problem.window_left - key);
                }
                if constexpr (Is_masked) { apply_mask(acc_s, stored.get_window(), row, key); }
                softmax.template softmax_rescale_o<Is_first, /*Use_rescale_threshold=*/!Is_first>(acc_s, acc_o);
                softmax_gemm_pv<Traits, /*Check_inf=*/Is_masked>(acc_o, acc_s, softmax, smem_k + Traits::kSmemKV,
                                                                 lane_qv, drop(n_block));
            }
        };

        // The last block may end behind the keys, and the first and last blocks may cross an edge of the window.
        int n_block = blocks.end - 1;
        attend(n_block, True{}, True{});
        --n_block;
        int masked_end = blocks.unmasked_end;
        while (n_block >= blocks.begin) {
            #pragma unroll 1
            for (; n_block >= masked_end; --n_block) { attend(n_block, False{}, True{}); }
            #pragma unroll 1
            for (; n_block >= max(blocks.unmasked_begin, blocks.begin); --n_block) { attend(n_block, False{}, False{}); }
            masked_end = blocks.begin;
        }
        if constexpr (Is_dropout) {
            if (params.s_dmask_ptr != 0) {
                write_s_dmask<Traits>(params, position, stored, dropout, copy, load_q, smem_kv, softmax, blocks.begin,
                                      blocks.end);
            }
        }
    }

    float lse[2 * kMTiles];
    softmax.normalize(acc_o, lse, Is_dropout ? problem.keep_scale : 1.f);
    if (blocks.begin >= blocks.end) { __syncthreads(); }  // nobody has waited for row_block yet
    const int rows = stored.rows_left;
    #pragma unroll
    for (int r = 0; r < 2 * kMTiles; ++r) {
        const int row = warp_row + lane / 4 + r / 2 * 16 + r % 2 * 8;
        if (lane % 4 == 0 && row < rows) {
            reinterpret_cast<float *>(stored.lse_ptr)[row] = lse[r];
        }
    }

    // A warp writes its rows of O over its own rows of Q, which it has read, and from there in whole chunks.
    __syncwarp();
    #pragma unroll
    for (int mi = 0; mi < kMTiles; ++mi) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t row_offset = Layout::offset(warp_row + lane / 4, 0) + (mi * 16 + half * 8) * Layout::kRowBytes;
            #pragma unroll
            for (int ni = 0; ni < kOTiles; ++ni) {
                const uint32_t chunk = ((ni % Layout::kChunksPerGroup) << 4);
                *reinterpret_cast<uint32_t *>(smem + (row_offset ^ chunk) +
                                              ni / Layout::kChunksPerGroup * Layout::kGroupBytes + lane % 4 * 4) =
                    pack<Element>(acc_o[mi][ni][half * 2], acc_o[mi][ni][half * 2 + 1]);
            }
        }
    }
    __syncwarp();
    Element *o = reinterpret_cast<Element *>(stored.o_ptr);
    constexpr int kRowsPerPass = 32 / Layout::kChunksPerGroup;
    const int chunk = lane % Layout::kChunksPerGroup;
    #pragma unroll
    for (int pass = 0; pass < Traits::kRowsPerWarp / kRowsPerPass; ++pass) {
        const int row = warp_row + pass * kRowsPerPass + lane / Layout::kChunksPerGroup;
        #pragma unroll
        for (int group = 0; group < Layout::kGroups; ++group) {
            const int column = (group * Layout::kChunksPerGroup + chunk) * 8;
            if (row < rows && column < problem.head_dim) {
                *reinterpret_cast<uint4 *>(o + row * params.o.row + column) = *reinterpret_cast<const uint4 *>(
                    smem + Layout::offset(row, chunk) + group * Layout::kGroupBytes);
            }
        }
    }
}

}  // namespace flash

// One entry point a tile and variant, both from kernels.json.
#define FLASH_KERNEL(name, element, head_dim, block_m, block_n, warps, smem_bytes, variant)                            \
    using name##_traits = flash::Flash_fwd_kernel_traits<element, head_dim, block_m, block_n, warps, smem_bytes,       \
                                                         flash::Variant::variant>;                                     \
    extern "C" __global__ void __launch_bounds__(name##_traits::kNThreads, name##_traits::kMinBlocksPerSM)             \
        name(const __grid_constant__ Flash_fwd_params params) {                                                        \
        flash::compute_attn_1rowblock<name##_traits>(params,                                                           \
                                                     flash::tile_position(params, static_cast<int>(blockIdx.x)));      \
    }
