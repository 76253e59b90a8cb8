// What happens to the scores S = Q K^T before the softmax: softcap, ALiBi, mask.
#pragma once

#include <cmath>

#include "block_info.h"
#include "ptx.h"

namespace flash {

// S becomes tanh(tanh_scale * S); the factor softcap is part of scale_log2.
template <int kMTiles, int kSTiles>
__forceinline__ __device__ void apply_softcap(float (&acc_s)[kMTiles][kSTiles][4], float tanh_scale) {
    #pragma unroll
    for (int mi = 0; mi < kMTiles; ++mi) {
        #pragma unroll
        for (int ni = 0; ni < kSTiles; ++ni) {
            #pragma unroll
            for (int i = 0; i < 4; ++i) { acc_s[mi][ni][i] = tanh_approx(acc_s[mi][ni][i] * tanh_scale); }
        }
    }
}

// One head's slope, in the unit of the scores before scale_log2; 0 without ALiBi.
__forceinline__ __device__ float alibi_slope(const Flash_problem &problem, int batch, int head) {
    constexpr float kLog2E = 1.44269504088896341f;
    if (problem.alibi_slopes_ptr == 0) { return 0.f; }
    return reinterpret_cast<const float *>(problem.alibi_slopes_ptr)[batch * problem.alibi_batch_stride + head] *
           (kLog2E / problem.scale_log2);
}

// Adds -slope * |distance from the diagonal|. diagonal: first_row + seqlen_k - seqlen_q - first_key, where first_row and
// first_key are those of this thread's upper left element. Is_transposed: the tiles have keys for rows.
template <bool Is_transposed, int kMTiles, int kNTiles>
__forceinline__ __device__ void apply_alibi(float (&acc)[kMTiles][kNTiles][4], float slope, int diagonal) {
    const float distance = static_cast<float>(diagonal);
    #pragma unroll
    for (int mi = 0; mi < kMTiles; ++mi) {
        #pragma unroll
        for (int ni = 0; ni < kNTiles; ++ni) {
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int offset = mi * 16 + i / 2 * 8 - (ni * 8 + i % 2);
                acc[mi][ni][i] -= slope * fabsf(distance + (Is_transposed ? -offset : offset));
            }
        }
    }
}

// Scores that a query may not see become -inf.
template <int kMTiles, int kSTiles>
__forceinline__ __device__ void apply_mask(float (&acc_s)[kMTiles][kSTiles][4], const Window &window, int first_row,
                                           int first_key) {
    #pragma unroll
    for (int mi = 0; mi < kMTiles; ++mi) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + mi * 16 + half * 8;
            const int begin = window.key_begin(row) - first_key;
            const int end = window.key_end(row) - first_key;
            #pragma unroll
            for (int ni = 0; ni < kSTiles; ++ni) {
                #pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int key = ni * 8 + j;
                    if (key < begin || key >= end) { acc_s[mi][ni][half * 2 + j] = -INFINITY; }
                }
            }
        }
    }
}

// The same for the transpose of S, whose tiles have keys for rows.
template <int kMTiles, int kNTiles>
__forceinline__ __device__ void apply_mask_transposed(float (&acc_st)[kMTiles][kNTiles][4], const Window &window,
                                                      int first_row, int first_key) {
    #pragma unroll
    for (int ni = 0; ni < kNTiles; ++ni) {
        #pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int row = first_row + ni * 8 + j;
            const int begin = window.key_begin(row) - first_key;
            const int end = window.key_end(row) - first_key;
            #pragma unroll
            for (int mi = 0; mi < kMTiles; ++mi) {
                #pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int key = mi * 16 + half * 8;
                    if (key < begin || key >= end) { acc_st[mi][ni][half * 2 + j] = -INFINITY; }
                }
            }
        }
    }
}

}  // namespace flash
