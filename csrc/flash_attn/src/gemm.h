// Matrix products of a warp: 16x16 blocks from shared memory or registers, sums in registers as mma accumulators.
#pragma once

#include "kernel_traits.h"
#include "ptx.h"
#include "softmax.h"

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
        for (int nj = 0; nj < Traits::kSTiles / 2; ++nj) {
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

// Says nothing about P: what softmax_gemm_pv calls for every 16 keys unless there is dropout.
template <int kMTiles>
struct Keep_all {
    __forceinline__ __device__ void operator()(uint32_t (&)[kMTiles][4], int) const {}
};

// O += P V, 16 keys at a time: the exponentials of the next keys are computed while the tensor cores multiply these.
// drop(p, step) may clear elements of P, which then lack in O but not in the rows' sums.
template <typename Traits, bool Check_inf, typename Drop>
__forceinline__ __device__ void softmax_gemm_pv(float (&acc_o)[Traits::kMTiles][Traits::kOTiles][4],
                                                float (&acc_s)[Traits::kMTiles][Traits::kSTiles][4],
                                                Softmax<Traits::kMTiles> &softmax, uint32_t smem_v, uint32_t lane_v,
                                                Drop drop) {
    using Element = typename Traits::Element;
    #pragma unroll
    for (int step = 0; step < Traits::kSTiles / 2; ++step) {
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
        drop(p, step);
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

// D = A B^T for 16x16 blocks: rows of A from lane_a on, rows of B from lane_b on, both in shared memory.
template <typename Element, typename Layout, int kHeadDim, int kMTiles, int kNTiles>
__forceinline__ __device__ void gemm_abt(float (&acc)[kMTiles][kNTiles][4], uint32_t smem_a, uint32_t lane_a,
                                         uint32_t smem_b, uint32_t lane_b) {
    #pragma unroll
    for (int mi = 0; mi < kMTiles; ++mi) {
        #pragma unroll
        for (int ni = 0; ni < kNTiles; ++ni) {
            #pragma unroll
            for (int i = 0; i < 4; ++i) { acc[mi][ni][i] = 0.f; }
        }
    }
    #pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
        uint32_t a[kMTiles][4];
        #pragma unroll
        for (int mi = 0; mi < kMTiles; ++mi) { ldmatrix_x4(a[mi], smem_a + Layout::at_block(lane_a, mi, step)); }
        #pragma unroll
        for (int nj = 0; nj < kNTiles / 2; ++nj) {
            uint32_t b[4];
            ldmatrix_x4(b, smem_b + Layout::at_block(lane_b, nj, step));
            #pragma unroll
            for (int mi = 0; mi < kMTiles; ++mi) {
                mma_m16n8k16<Element>(acc[mi][2 * nj], a[mi], b[0], b[1]);
                mma_m16n8k16<Element>(acc[mi][2 * nj + 1], a[mi], b[2], b[3]);
            }
        }
    }
}

// D += A B over kSteps times 16: load_a(a, step) gives the fragments of A; B has every kColumnStep-th 16 columns.
template <typename Element, typename Layout, int kSteps, int kColumnStep, int kMTiles, int kNTiles, typename Load_a>
__forceinline__ __device__ void gemm_ab(float (&acc)[kMTiles][kNTiles][4], Load_a load_a, uint32_t smem_b,
                                        uint32_t lane_b) {
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        uint32_t a[kMTiles][4];
        load_a(a, step);
        #pragma unroll
        for (int dj = 0; dj < kNTiles / 2; ++dj) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, smem_b + Layout::at_block(lane_b, step, dj * kColumnStep));
            #pragma unroll
            for (int mi = 0; mi < kMTiles; ++mi) {
                mma_m16n8k16<Element>(acc[mi][2 * dj], a[mi], b[0], b[1]);
                mma_m16n8k16<Element>(acc[mi][2 * dj + 1], a[mi], b[2], b[3]);
            }
        }
    }
}

// The fragments of operand A for 16 columns of accumulators that have been packed in pairs.
template <int kMTiles, int kNTiles>
struct Packed_fragments {
    uint32_t x[kMTiles][kNTiles][2];

    __forceinline__ __device__ void operator()(uint32_t (&a)[kMTiles][4], int step) const {
        #pragma unroll
        for (int mi = 0; mi < kMTiles; ++mi) {
            #pragma unroll
            for (int i = 0; i < 4; ++i) { a[mi][i] = x[mi][2 * step + i / 2][i % 2]; }
        }
    }
};

}  // namespace flash
