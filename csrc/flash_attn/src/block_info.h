// Which rows and keys belong to a sequence, and which keys a block of query rows sees.
#pragma once

#include "flash.h"

namespace flash {

// An entry of an int32 array in device memory, or `otherwise` where there is no array.
__forceinline__ __device__ int read_int(uint64_t array, int index, int otherwise) {
    return array != 0 ? reinterpret_cast<const int *>(array)[index] : otherwise;
}

__forceinline__ __device__ int clamp(int x, int low, int high) { return max(low, min(x, high)); }

// Where a sequence lies. What the arrays say is cut to what the tensors hold: no value there can lead outside.
struct Sequence {
    int batch;
    int first_row;   // packed: where its queries begin in q
    int first_key;   // packed, or with left padding: where its keys begin in k
    int seqlen_q;
    int seqlen_k;
};

// Is_paged: cu_seqlens_k gives the lengths alone, pages say where keys lie.
template <bool Is_paged = false>
__forceinline__ __device__ Sequence sequence_of(const Flash_problem &problem, int batch) {
    Sequence sequence = {batch, 0, 0, problem.seqlen_q, problem.seqlen_k};
    if (problem.cu_seqlens_q_ptr != 0) {
        const int *begin = reinterpret_cast<const int *>(problem.cu_seqlens_q_ptr) + batch;
        sequence.first_row = clamp(begin[0], 0, problem.total_q);
        sequence.seqlen_q = clamp(min(begin[1], problem.total_q) - sequence.first_row, 0, problem.seqlen_q);
    }
    if (problem.cu_seqlens_k_ptr != 0) {
        const int *begin = reinterpret_cast<const int *>(problem.cu_seqlens_k_ptr) + batch;
        const int total_k = Is_paged ? FLASH_UNLIMITED : problem.total_k;
        const int first_key = clamp(begin[0], 0, total_k);
        sequence.seqlen_k = clamp(min(begin[1], total_k) - first_key, 0, problem.seqlen_k);
        if (!Is_paged) { sequence.first_key = first_key; }
    }
    sequence.seqlen_k = clamp(read_int(problem.seqused_k_ptr, batch, sequence.seqlen_k), 0, sequence.seqlen_k);
    const int leftpad = clamp(read_int(problem.leftpad_k_ptr, batch, 0), 0, sequence.seqlen_k);
    sequence.first_key += leftpad;
    sequence.seqlen_k -= leftpad;
    return sequence;
}

// The keys that a query row sees: a window around the diagonal, which ends in the bottom right corner.
struct Window {
    int seqlen_k;
    int left;    // row i sees keys from i - left on ...
    int right;   // ... and before i + right

    __forceinline__ __device__ int key_begin(int row) const { return max(0, row - left); }
    __forceinline__ __device__ int key_end(int row) const { return min(seqlen_k, row + right); }

    // The other way round: the rows that see a key, as far as the window tells.
    __forceinline__ __device__ int row_begin(int key) const { return max(0, key - right + 1); }
    __forceinline__ __device__ int row_end(int key) const { return key + left + 1; }
};

__forceinline__ __device__ Window window_of(const Flash_problem &problem, const Sequence &sequence) {
    const int shift = sequence.seqlen_k - sequence.seqlen_q;
    return {sequence.seqlen_k, problem.window_left - shift, problem.window_right + shift + 1};
}

// Blocks of kBlockN keys for the rows from row_begin up to row_end, not counting row_end.
template <int kBlockN>
struct Block_range {
    int begin, end;                      // those that some row sees
    int unmasked_begin, unmasked_end;    // those that every row sees whole: no mask is needed there

    __forceinline__ __device__ Block_range(const Window &window, int row_begin, int row_end)
        : begin(window.key_begin(row_begin) / kBlockN), end((window.key_end(row_end - 1) + kBlockN - 1) / kBlockN),
          unmasked_begin((window.key_begin(row_end - 1) + kBlockN - 1) / kBlockN),
          unmasked_end(max(window.key_end(row_begin), 0) / kBlockN) {}
};

}  // namespace flash
