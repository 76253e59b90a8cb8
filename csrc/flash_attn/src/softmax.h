// Online softmax in base 2 (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao 2023,
// "FlashAttention-2"): a row keeps a reference maximum, the sum of 2^(score - maximum) and the output weighted alike.
#pragma once

#include <cmath>

#include "ptx.h"

namespace flash {

// how far, in base-2 exponents, a row's maximum may grow before the row is rescaled. Until then the row keeps its
// old maximum, which is exact: all of its terms stay weighted by the same power of two. The bound only keeps P small
// enough for fp16 (2^8 of at most 2^16) and the sums far from overflow. docs/numerics.md shows how it was chosen.
constexpr float kRescaleThreshold = 8.f;

// (d0, d1) = (a0 * b0 + c0, a1 * b1 + c1), one FFMA2 on sm_100; later assemblers split it where there is none.
__forceinline__ __device__ void fma_f32x2(float &d0, float &d1, float a0, float a1, float b0, float b1, float c0,
                                          float c1) {
#if __CUDA_ARCH__ >= 1000 && !defined(UNFUSE_FMA)
    asm("{\n"
        ".reg .b64 a, b, c, d;\n"
        "mov.b64 a, {%2, %3};\n"
        "mov.b64 b, {%4, %5};\n"
        "mov.b64 c, {%6, %7};\n"
        "fma.rn.f32x2 d, a, b, c;\n"
        "mov.b64 {%0, %1}, d;\n"
        "}\n"
        : "=f"(d0), "=f"(d1) : "f"(a0), "f"(a1), "f"(b0), "f"(b1), "f"(c0), "f"(c1));
#else
    d0 = fmaf(a0, b0, c0);
    d1 = fmaf(a1, b1, c1);
#endif
}

// x = 2^(x * scale - max_scaled) for two neighbours in an mma tile: of one row in the forward, of one column of S, and so
// of two rows, in the backward.
__forceinline__ __device__ void scale_apply_exp2(float &x0, float &x1, float scale, float max0_scaled,
                                                 float max1_scaled) {
    float t0, t1;
    fma_f32x2(t0, t1, x0, x1, scale, scale, -max0_scaled, -max1_scaled);
    x0 = exp2_approx(t0);
    x1 = exp2_approx(t1);
}

// The four lanes that share a row of an mma accumulator.
template <typename Op>
__forceinline__ __device__ float quad_reduce(float x, Op op) {
    x = op(x, __shfl_xor_sync(0xffffffff, x, 2));
    return op(x, __shfl_xor_sync(0xffffffff, x, 1));
}

// State of the rows that a thread holds: rows 8 apart, two to an mma tile.
template <int kMTiles>
struct Softmax {
    static constexpr int kRows = 2 * kMTiles;
    float scale_log2;         // softmax_scale * log2(e)
    float row_max[kRows];     // reference maximum, times scale_log2; the same in the four lanes of a row
    float row_sum[kRows];     // this lane's share

    __forceinline__ __device__ explicit Softmax(float scale_log2_) : scale_log2(scale_log2_) {
        #pragma unroll
        for (int r = 0; r < kRows; ++r) {
            row_max[r] = -INFINITY;
            row_sum[r] = 0.f;
        }
    }

    // Takes a new block of raw scores into the rows' maxima and rescales what has been summed so far. Is_first: nothing
    // has been. Use_rescale_threshold: A-1, see kRescaleThreshold.
    template <bool Is_first, bool Use_rescale_threshold, int kSTiles, int kOTiles>
    __forceinline__ __device__ void softmax_rescale_o(const float (&acc_s)[kMTiles][kSTiles][4],
                                                      float (&acc_o)[kMTiles][kOTiles][4]) {
        float block_max[kRows];
        bool grows[kRows];
        bool any_grows = false;
        #pragma unroll
        for (int r = 0; r < kRows; ++r) {
            float x = -INFINITY;
            #pragma unroll
            for (int ni = 0; ni < kSTiles; ++ni) {
                x = fmaxf(x, fmaxf(acc_s[r / 2][ni][r % 2 * 2], acc_s[r / 2][ni][r % 2 * 2 + 1]));
            }
            block_max[r] = quad_reduce(x, fmaxf) * scale_log2;
            // Not so for -inf after -inf: a row that has seen no key stays as it is.
            grows[r] = block_max[r] - row_max[r] > (Use_rescale_threshold ? kRescaleThreshold : 0.f);
            any_grows |= grows[r];
        }
        if constexpr (Is_first) {
            #pragma unroll
            for (int r = 0; r < kRows; ++r) { row_max[r] = block_max[r]; }
        } else if (__any_sync(0xffffffff, any_grows)) {
            // A branch for the whole warp: rows that keep their maximum ride along with a factor of one.
            #pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const float scores_scale = grows[r] ? exp2_approx(row_max[r] - block_max[r]) : 1.f;
                row_max[r] = grows[r] ? block_max[r] : row_max[r];
                row_sum[r] *= scores_scale;
                #pragma unroll
                for (int ni = 0; ni < kOTiles; ++ni) {
                    acc_o[r / 2][ni][r % 2 * 2] *= scores_scale;
                    acc_o[r / 2][ni][r % 2 * 2 + 1] *= scores_scale;
                }
            }
        }
    }

    // P for one column of mma tiles: weights the scores and adds them to the rows' sums. Check_inf: a row may have seen
    // no key yet.
    template <bool Check_inf, int kSTiles>
    __forceinline__ __device__ void weigh(float (&acc_s)[kMTiles][kSTiles][4], int ni) {
        #pragma unroll
        for (int r = 0; r < kRows; ++r) {
            float &x0 = acc_s[r / 2][ni][r % 2 * 2];
            float &x1 = acc_s[r / 2][ni][r % 2 * 2 + 1];
            const float max = Check_inf && row_max[r] == -INFINITY ? 0.f : row_max[r];
            scale_apply_exp2(x0, x1, scale_log2, max, max);
            row_sum[r] += x0 + x1;
        }
    }

    // Divides O by the rows' sums, times `scale`, and gives each row's natural log-sum-exp; a row that saw no key gets 0
    // and +inf.
    template <int kOTiles>
    __forceinline__ __device__ void normalize(float (&acc_o)[kMTiles][kOTiles][4], float (&lse)[kRows], float scale) {
        constexpr float kLn2 = 0.693147180559945309f;
        #pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const float sum = quad_reduce(row_sum[r], [](float a, float b) { return a + b; });
            const bool sees_nothing = sum == 0.f;
            const float inverse = sees_nothing ? 0.f : scale / sum;
            lse[r] = sees_nothing ? INFINITY : row_max[r] * kLn2 + logf(sum);
            #pragma unroll
            for (int ni = 0; ni < kOTiles; ++ni) {
                acc_o[r / 2][ni][r % 2 * 2] *= inverse;
                acc_o[r / 2][ni][r % 2 * 2 + 1] *= inverse;
            }
        }
    }
};

}  // namespace flash
