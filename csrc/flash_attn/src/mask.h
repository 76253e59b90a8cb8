// Scores that a query may not see become -inf before the softmax.
#pragma once

#include <cmath>

namespace flash {

// acc_s: this warp's rows of S = Q K^T for one block of keys, as mma accumulators. first_row and first_key are those of
// this thread's upper left element.
template <typename Block_info, int kMTiles, int kSTiles>
__forceinline__ __device__ void apply_mask(float (&acc_s)[kMTiles][kSTiles][4], const Block_info &info, int first_row,
                                           int first_key) {
    #pragma unroll
    for (int mi = 0; mi < kMTiles; ++mi) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int keys_left = info.key_end(first_row + mi * 16 + half * 8) - first_key;
            #pragma unroll
            for (int ni = 0; ni < kSTiles; ++ni) {
                #pragma unroll
                for (int j = 0; j < 2; ++j) {
                    if (ni * 8 + j >= keys_left) { acc_s[mi][ni][half * 2 + j] = -INFINITY; }
                }
            }
        }
    }
}

}  // namespace flash
