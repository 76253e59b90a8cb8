// Forward attention: O = softmax(scale * Q K^T) V for one block of query rows at a time (Dao 2023, "FlashAttention-2",
// algorithm 1).
#pragma once

#include "block_info.h"
#include "copy.h"
#include "flash.h"
#include "kernel_traits.h"
#include "mask.h"
#include "ptx.h"
#include "softmax.h"
#include "tile_scheduler.h"

namespace flash {

// A warp's 16-row tiles of Q for 16 of the head dimension, as the A operand of mma.
template <int kMTiles>
using Q_fragments = uint32_t[kMTiles][4];

// S = Q K^T for this warp's rows and one block of keys. load_q(q, step) gives the fragments of Q.
template <typename Traits, typename Load_q>
__forceinline__ __device__ void gemm_qk(float (&acc_s)[Traits::kMTiles][Traits::kSTiles][4], uint32_t smem_k,
                                        uint32_t lane_k, Load_q load_q) {
    #pragma unroll
    for (int mi = 0; mi < Traits::kMTiles; ++mi) {
        #pragma unroll
        for (int ni = 0; ni < Traits::kSTiles; ++ni) {
            #pragma unroll
            for (int i = 0; i < 4; ++i) { acc_s[mi][ni][i] = 0.f; }
        }
    }
    #pragma unroll
    for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
        Q_fragments<Traits::kMTiles> q;
        load_q(q, step);
        #pragma unroll
        for (int nj = 0; nj < Traits::kBlockN / 16; ++nj) {
            uint32_t k[4];
            ldmatrix_x4(k, smem_k + Traits::Layout::at_block(lane_k, nj, step));
            #pragma unroll
            for (int mi = 0; mi < Traits::kMTiles; ++mi) {
                mma_m16n8k16<typename Traits::Element>(acc_s[mi][2 * nj], q[mi], k[0], k[1]);
                mma_m16n8k16<typename Traits::Element>(acc_s[mi][2 * nj + 1], q[mi], k[2], k[3]);
            }
        }
    }
}

// O += P V, 16 keys at a time: the exponentials of the next keys are computed while the tensor cores multiply these.
template <typename Traits, bool Check_inf>
__forceinline__ __device__ void softmax_gemm_pv(float (&acc_o)[Traits::kMTiles][Traits::kOTiles][4],
                                                float (&acc_s)[Traits::kMTiles][Traits::kSTiles][4],
                                                Softmax<Traits::kMTiles> &softmax, uint32_t smem_v,
                                                uint32_t lane_v) {
    using Element = typename Traits::Element;
    #pragma unroll
    for (int step = 0; step < Traits::kBlockN / 16; ++step) {
        softmax.template weigh<Check_inf>(acc_s, 2 * step);
        softmax.template weigh<Check_inf>(acc_s, 2 * step + 1);
        uint32_t p[Traits::kMTiles][4];
        #pragma unroll
        for (int mi = 0; mi < Traits::kMTiles; ++mi) {
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float(&x)[4] = acc_s[mi][2 * step + i / 2];
                p[mi][i] = pack<Element>(x[i % 2 * 2], x[i % 2 * 2 + 1]);
            }
        }
        #pragma unroll
        for (int dj = 0; dj < Traits::kHeadDim / 16; ++dj) {
            uint32_t v[4];
            ldmatrix_x4_trans(v, smem_v + Traits::Layout::at_block(lane_v, step, dj));
            #pragma unroll
            for (int mi = 0; mi < Traits::kMTiles; ++mi) {
                mma_m16n8k16<Element>(acc_o[mi][2 * dj], p[mi], v[0], v[1]);
                mma_m16n8k16<Element>(acc_o[mi][2 * dj + 1], p[mi], v[2], v[3]);
            }
        }
    }
}

template <typename Traits, bool Is_causal>
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
    const int head_k = position.head / (params.problem.nheads / params.problem.nheads_k);
    const BlockInfo<Is_causal, kBlockM, kBlockN> info(params.problem.seqlen_q, params.problem.seqlen_k, position.m_block);
    const int rows_left = params.problem.seqlen_q - info.row_begin;

    const Tile_copy<Traits> copy(thread, params.problem.head_dim);
    const Element *q = reinterpret_cast<const Element *>(params.q_ptr) + position.batch * params.q.batch +
                       position.head * params.q.head + info.row_begin * params.q.row;
    const Element *k = reinterpret_cast<const Element *>(params.k_ptr) + position.batch * params.k.batch +
                       head_k * params.k.head;
    const Element *v = reinterpret_cast<const Element *>(params.v_ptr) + position.batch * params.v.batch +
                       head_k * params.v.head;

    const uint32_t lane_qv = Layout::lane_offset_by_rows(lane), lane_k = Layout::lane_offset_by_chunks(lane);
    constexpr int kStageBytes = 2 * Traits::kSmemKV;

    const int n_block_max = info.n_block_max();
    Softmax<kMTiles> softmax(params.problem.scale_log2);
    float acc_o[kMTiles][kOTiles][4] = {};

    if (n_block_max > 0) {
        // Blocks of keys are taken from the last to the first.
        const Element *next_k = copy.source(k, params.k.row) + int64_t(n_block_max - 1) * kBlockN * params.k.row;
        const Element *next_v = copy.source(v, params.v.row) + int64_t(n_block_max - 1) * kBlockN * params.v.row;
        auto load_k = [&](int n_block, auto is_even) {
            copy.template load<kBlockN, decltype(is_even)::value>(smem_kv + n_block % Traits::kStages * kStageBytes, next_k,
                                                                  params.k.row, params.problem.seqlen_k - n_block * kBlockN);
            next_k -= kBlockN * params.k.row;
        };
        auto load_v = [&](int n_block, auto is_even) {
            copy.template load<kBlockN, decltype(is_even)::value>(
                smem_kv + n_block % Traits::kStages * kStageBytes + Traits::kSmemKV, next_v, params.v.row,
                params.problem.seqlen_k - n_block * kBlockN);
            next_v -= kBlockN * params.v.row;
        };

        copy.template load<kBlockM, false>(smem_q, copy.source(q, params.q.row), params.q.row, rows_left);
        load_k(n_block_max - 1, False{});
        if constexpr (Traits::kStages == 2) { load_v(n_block_max - 1, False{}); }
        cp_async_commit();

        // Kept in registers where there is room: Q is read once instead of once a block of keys.
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

        auto attend = [&](int n_block, auto is_first, auto is_masked) {
            constexpr bool Is_first = decltype(is_first)::value, Is_masked = decltype(is_masked)::value;
            const uint32_t smem_k = smem_kv + n_block % Traits::kStages * kStageBytes;
            // A warp whose rows all end before this block has nothing to do but to help loading.
            const bool sees_block = !(Is_masked && Is_causal) ||
                info.key_end(info.row_begin + warp_row + Traits::kRowsPerWarp - 1) > n_block * kBlockN;
            float acc_s[kMTiles][kSTiles][4];

            cp_async_wait<0>();
            __syncthreads();
            if constexpr (Traits::kStages == 1) {
                if constexpr (Is_first) { load_v(n_block, False{}); } else { load_v(n_block, True{}); }
            } else if (n_block > 0) {
                load_k(n_block - 1, True{});
                load_v(n_block - 1, True{});
            }
            cp_async_commit();
            if (sees_block) { gemm_qk<Traits>(acc_s, smem_k, lane_k, load_q); }
            if constexpr (Traits::kStages == 1) {
                cp_async_wait<0>();
                __syncthreads();
                if (n_block > 0) { load_k(n_block - 1, True{}); }
                cp_async_commit();
            }
            if (sees_block) {
                if constexpr (Is_masked) {
                    apply_mask(acc_s, info, info.row_begin + warp_row + lane / 4, n_block * kBlockN + lane % 4 * 2);
                }
                softmax.template softmax_rescale_o<Is_first, /*Use_rescale_threshold=*/!Is_first>(acc_s, acc_o);
                softmax_gemm_pv<Traits, /*Check_inf=*/Is_masked>(acc_o, acc_s, softmax, smem_k + Traits::kSmemKV,
                                                                 lane_qv);
            }
        };

        // The last block may end behind the keys, and with a causal mask the last blocks cross the diagonal.
        const int n_block_unmasked = min(info.n_block_unmasked(), n_block_max - 1);
        int n_block = n_block_max - 1;
        attend(n_block, True{}, True{});
        for (--n_block; Is_causal && n_block >= n_block_unmasked; --n_block) { attend(n_block, False{}, True{}); }
        #pragma unroll 1
        for (; n_block >= 0; --n_block) { attend(n_block, False{}, False{}); }
    }

    float lse[2 * kMTiles];
    softmax.normalize(acc_o, lse);
    #pragma unroll
    for (int r = 0; r < 2 * kMTiles; ++r) {
        const int row = warp_row + lane / 4 + r / 2 * 16 + r % 2 * 8;
        if (lane % 4 == 0 && row < rows_left) {
            reinterpret_cast<float *>(params.softmax_lse_ptr)
                [(int64_t(position.batch) * params.problem.nheads + position.head) * params.problem.seqlen_q + info.row_begin + row] =
                    lse[r];
        }
    }

    // A warp writes its rows of O over its own rows of Q, which it has read, and from there in whole chunks.
    __syncwarp();
    const int first_row = warp_row + lane / 4;
    #pragma unroll
    for (int mi = 0; mi < kMTiles; ++mi) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t row_offset = Layout::offset(first_row, 0) + (mi * 16 + half * 8) * Layout::kRowBytes;
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
    Element *o = reinterpret_cast<Element *>(params.o_ptr) + position.batch * params.o.batch +
                 position.head * params.o.head + info.row_begin * params.o.row;
    constexpr int kRowsPerPass = 32 / Layout::kChunksPerGroup;
    const int chunk = lane % Layout::kChunksPerGroup;
    #pragma unroll
    for (int pass = 0; pass < Traits::kRowsPerWarp / kRowsPerPass; ++pass) {
        const int row = warp_row + pass * kRowsPerPass + lane / Layout::kChunksPerGroup;
        #pragma unroll
        for (int group = 0; group < Layout::kGroups; ++group) {
            const int column = (group * Layout::kChunksPerGroup + chunk) * 8;
            if (row < rows_left && column < params.problem.head_dim) {
                *reinterpret_cast<uint4 *>(o + row * params.o.row + column) = *reinterpret_cast<const uint4 *>(
                    smem + Layout::offset(row, chunk) + group * Layout::kGroupBytes);
            }
        }
    }
}

}  // namespace flash

// One entry point a tile. `variant` is a name from kernels.json.
#define FLASH_VARIANT_full false
#define FLASH_VARIANT_causal true
#define FLASH_KERNEL(name, element, head_dim, block_m, block_n, warps, smem_bytes, variant)                            \
    using name##_traits = flash::Flash_fwd_kernel_traits<element, head_dim, block_m, block_n, warps, smem_bytes>;      \
    extern "C" __global__ void __launch_bounds__(name##_traits::kNThreads, name##_traits::kMinBlocksPerSM)             \
        name(const __grid_constant__ Flash_fwd_params params) {                                                        \
        flash::compute_attn_1rowblock<name##_traits, FLASH_VARIANT_##variant>(                                         \
            params, flash::tile_position(params, static_cast<int>(blockIdx.x)));                                       \
    }
