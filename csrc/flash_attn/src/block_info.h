// Which keys a block of query rows sees.
#pragma once

namespace flash {

template <bool Is_causal, int kBlockM, int kBlockN>
struct BlockInfo {
    int seqlen_q;
    int seqlen_k;
    int row_begin;  // first query row of this block

    __forceinline__ __device__ BlockInfo(int seqlen_q_, int seqlen_k_, int m_block)
        : seqlen_q(seqlen_q_), seqlen_k(seqlen_k_), row_begin(m_block * kBlockM) {}

    // Row i sees the keys before this one: the mask is aligned to the bottom right.
    __forceinline__ __device__ int key_end(int row) const {
        return Is_causal ? min(seqlen_k, row + 1 + seqlen_k - seqlen_q) : seqlen_k;
    }

    // Blocks of keys that some row of this block sees; 0 or less if there are none.
    __forceinline__ __device__ int n_block_max() const {
        return (key_end(min(row_begin + kBlockM, seqlen_q) - 1) + kBlockN - 1) / kBlockN;
    }

    // Leading blocks of keys that every row sees whole: no mask is needed there.
    __forceinline__ __device__ int n_block_unmasked() const { return max(key_end(row_begin), 0) / kBlockN; }
};

}  // namespace flash
