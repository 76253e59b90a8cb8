// Tiles between device and shared memory, 16 bytes a thread at a time.
#pragma once

#include "ptx.h"

namespace flash {

// A thread's place in the copy of a (rows, head_dim) tile: the threads of one group of chunks lie side by side along
// the row, so that a warp reads whole 64- or 128-byte segments.
template <typename Traits>
struct Tile_copy {
    using Element = typename Traits::Element;
    using Layout = typename Traits::Layout;
    static constexpr int kRowsPerPass = Traits::kNThreads / Layout::kChunksPerGroup;
    static_assert(kRowsPerPass % 8 == 0, "a thread's chunk must be permuted alike in every pass");

    int row;
    int chunk;
    int head_dim;

    __forceinline__ __device__ Tile_copy(int thread, int head_dim_)
        : row(thread / Layout::kChunksPerGroup), chunk(thread % Layout::kChunksPerGroup), head_dim(head_dim_) {}

    __forceinline__ __device__ bool has_column(int group) const {
        return (group * Layout::kChunksPerGroup + chunk) * 8 < head_dim;
    }

    // The first element of a tile that this thread copies.
    __forceinline__ __device__ const Element *source(const Element *tile, int64_t row_stride) const {
        return tile + row * row_stride + chunk * 8;
    }

    // Starts the copy of kRows rows, from this thread's source on; rows from rows_left on (unless Is_even) and columns
    // from head_dim on become zeros.
    template <int kRows, bool Is_even>
    __forceinline__ __device__ void load(uint32_t smem, const Element *source, int64_t row_stride, int rows_left) const {
        static_assert(kRows % kRowsPerPass == 0, "a tile is a whole number of passes");
        const uint32_t destination = smem + Layout::offset(row, chunk);
        #pragma unroll
        for (int pass = 0; pass < kRows / kRowsPerPass; ++pass) {
            const bool has_row = Is_even || pass * kRowsPerPass + row < rows_left;
            #pragma unroll
            for (int group = 0; group < Layout::kGroups; ++group) {
                cp_async_16(destination + pass * kRowsPerPass * Layout::kRowBytes + group * Layout::kGroupBytes,
                            source + group * Layout::kChunksPerGroup * 8, has_row && has_column(group) ? 16 : 0);
            }
            source += kRowsPerPass * row_stride;
        }
    }
};

}  // namespace flash
