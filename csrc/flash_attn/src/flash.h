// Parameters that cross from the launcher to the kernels. Windows and Linux hosts and every GPU must agree on them
// byte for byte: fixed-width integers, floats and 64-bit addresses only, and no padding. Plain C, for both sides.
#pragma once

#ifdef __cplusplus
#include <cstddef>
#include <cstdint>
#define FLASH_STATIC_ASSERT static_assert
#else
#include <stddef.h>
#include <stdint.h>
#define FLASH_STATIC_ASSERT _Static_assert
#endif
#define FLASH_SAME_LAYOUT(condition) FLASH_STATIC_ASSERT(condition, "parameters must have the same layout everywhere")

// A window that ends nowhere: larger than any sequence, and small enough to be added to a position.
#define FLASH_UNLIMITED (1 << 29)

// Strides of one (batch, row, head, head_dim) tensor, in elements; head_dim is contiguous. Packed sequences have no
// batch: their stride is 0.
typedef struct Flash_strides {
    int64_t batch;
    int64_t row;
    int64_t head;
} Flash_strides;

// What is asked, whichever kernel answers it.
typedef struct Flash_problem {
    uint64_t cu_seqlens_q_ptr;   // int32 (batch + 1): where packed sequences begin; 0: all have seqlen_q rows
    uint64_t cu_seqlens_k_ptr;   // the same for k
    uint64_t seqused_k_ptr;      // int32 (batch): how many keys of each sequence count; 0: all
    uint64_t leftpad_k_ptr;      // int32 (batch): how many leading keys don't count; 0: none
    uint64_t alibi_slopes_ptr;   // fp32 (nheads) or (batch, nheads); 0: no ALiBi
    uint64_t rng_state_ptr;      // uint64 (2): Philox seed and offset; dropout only
    int64_t alibi_batch_stride;  // nheads or 0
    int32_t batch;
    int32_t nheads;
    int32_t nheads_k;
    int32_t group;               // nheads / nheads_k
    int32_t seqlen_q;            // of every sequence; packed: at most this
    int32_t seqlen_k;
    int32_t total_q;             // packed: rows that q has; a sequence is cut off there
    int32_t total_k;
    int32_t head_dim;            // a multiple of 8, at most the kernel's
    int32_t window_left;         // query i sees keys from i + seqlen_k - seqlen_q - window_left on ...
    int32_t window_right;        // ... to i + seqlen_k - seqlen_q + window_right; 0 if causal
    float softmax_scale;
    float scale_log2;            // what turns a score into a base-2 exponent: softmax_scale * log2(e), or
                                 // softcap * log2(e) with softcap
    float tanh_scale;            // softmax_scale / softcap; 0: no softcap
    float keep_scale;            // 1 / (1 - dropout probability)
    uint32_t drop_up_to;         // fp16 twice: random bits that are at most this drop their element; a NaN: nothing is dropped
    uint32_t drop_flip;          // all ones; 0: they keep it instead, and all others are dropped
} Flash_problem;

FLASH_SAME_LAYOUT(sizeof(Flash_problem) == 128);
FLASH_SAME_LAYOUT(offsetof(Flash_problem, batch) == 56);

// Families flash_fwd and flash_fwd_splitkv.
typedef struct Flash_fwd_params {
    Flash_problem problem;
    uint64_t q_ptr;
    uint64_t k_ptr;
    uint64_t v_ptr;
    uint64_t o_ptr;
    uint64_t softmax_lse_ptr;       // fp32, natural logarithm; (batch, nheads, seqlen_q), packed (nheads, total_q)
    uint64_t s_dmask_ptr;           // (batch, nheads, seqlen_q, seqlen_k), lengths rounded up to 128; 0: not wanted
    Flash_strides q;
    Flash_strides k;                // paged: `batch` is the stride of a page
    Flash_strides v;
    Flash_strides o;
    int64_t lse_batch_stride;       // packed: 0
    int64_t lse_head_stride;
    int32_t num_m_blocks;           // ceil(query rows / kBlockM)
    int32_t heads_per_section;      // (batch, head) pairs that run side by side; see tile_scheduler.h
    uint64_t cache_batch_idx_ptr;   // int32 (batch): the row of k and v that a sequence reads; 0: its own
    // From here on flash_fwd_splitkv only.
    uint64_t block_table_ptr;       // int32 (batch, max_blocks): the pages of each sequence; 0: k and v are not paged
    uint64_t o_accum_ptr;           // fp32 (num_splits, batch, nheads, seqlen_q, head dimension of the kernel)
    uint64_t lse_accum_ptr;         // fp32 (num_splits, batch, nheads, seqlen_q); base 2
    int64_t block_table_stride;
    int32_t page_size;              // rows of a page
    int32_t num_pages;              // pages there are; an entry outside is never read
    int32_t cache_rows;             // rows of k and v that cache_batch_idx may name
    int32_t num_splits;
} Flash_fwd_params;

FLASH_SAME_LAYOUT(sizeof(Flash_fwd_params) == 352);
FLASH_SAME_LAYOUT(offsetof(Flash_fwd_params, q) == 176);
FLASH_SAME_LAYOUT(offsetof(Flash_fwd_params, num_m_blocks) == 288);

// Family flash_fwd_splitkv, stage append: writes new keys and values into a cache and rotates q and the new keys.
typedef struct Flash_append_params {
    uint64_t q_ptr;                 // (batch, seqlen_q, nheads, head_dim)
    uint64_t q_rotated_ptr;         // the same, contiguous; 0: q is not rotated
    uint64_t k_new_ptr;             // (batch, seqlen_new, nheads_k, head_dim); 0: nothing to append
    uint64_t v_new_ptr;
    uint64_t k_cache_ptr;
    uint64_t v_cache_ptr;
    uint64_t rotary_cos_ptr;        // (seqlen_rotary, rotary_dim / 2), contiguous; 0: no rotation
    uint64_t rotary_sin_ptr;
    uint64_t cache_seqlens_ptr;     // int32 (batch): keys in the cache before this call; 0: cache_seqlen for all
    uint64_t leftpad_k_ptr;
    uint64_t cache_batch_idx_ptr;
    uint64_t block_table_ptr;
    int64_t block_table_stride;
    Flash_strides q;
    Flash_strides k_new;
    Flash_strides v_new;
    Flash_strides k_cache;
    Flash_strides v_cache;
    int32_t batch;
    int32_t nheads;
    int32_t nheads_k;
    int32_t head_dim;
    int32_t seqlen_q;
    int32_t seqlen_new;
    int32_t seqlen_cache;           // rows of the cache; paged: page_size * max_blocks
    int32_t seqlen_rotary;
    int32_t rotary_dim;
    int32_t interleaved;            // rotate neighbouring pairs; 0: the two halves of rotary_dim
    int32_t q_advances;             // query i is rotated by its own position; 0: all by the cache's length
    int32_t page_size;
    int32_t num_pages;
    int32_t cache_rows;
    int32_t cache_seqlen;
    int32_t reserved;
} Flash_append_params;

FLASH_SAME_LAYOUT(sizeof(Flash_append_params) == 288);
FLASH_SAME_LAYOUT(offsetof(Flash_append_params, batch) == 224);

// Family flash_bwd and its stages dot_do_o and convert_dq. "Padded rows": every sequence begins at a multiple of 128
// rows, (cu_seqlens_q[b] / 128 + b) * 128 when packed, so that tiles never share a row.
typedef struct Flash_bwd_params {
    Flash_problem problem;
    uint64_t q_ptr;
    uint64_t k_ptr;
    uint64_t v_ptr;
    uint64_t o_ptr;
    uint64_t do_ptr;
    uint64_t dq_ptr;
    uint64_t dk_ptr;
    uint64_t dv_ptr;
    uint64_t softmax_lse_ptr;       // as the forward wrote it
    uint64_t softmax_d_ptr;         // fp32, padded rows: rowsum(dO * O); written by dot_do_o
    uint64_t lse_log2_ptr;          // fp32, padded rows: LSE in base 2, +inf where there is no row; written by dot_do_o
    uint64_t dq_accum_ptr;          // fp32, padded rows x head dimension of the kernel; zeroed by dot_do_o
    uint64_t dq_turn_ptr;           // int32, padded rows / 16: whose turn it is to add to a tile; 0: not deterministic
    Flash_strides q;
    Flash_strides k;
    Flash_strides v;
    Flash_strides o;
    Flash_strides dout;
    Flash_strides dq;
    Flash_strides dk;
    Flash_strides dv;
    int64_t lse_batch_stride;       // packed: 0
    int64_t lse_head_stride;
    int64_t padded_batch_stride;    // in rows; packed: 0
    int64_t padded_head_stride;     // in rows
    int32_t num_m_blocks;           // ceil(seqlen_q / kBlockM)
    int32_t num_n_blocks;           // ceil(seqlen_k / kBlockN)
    int32_t heads_per_section;
    int32_t reserved;
} Flash_bwd_params;

FLASH_SAME_LAYOUT(sizeof(Flash_bwd_params) == 472);
FLASH_SAME_LAYOUT(offsetof(Flash_bwd_params, q) == 232);
FLASH_SAME_LAYOUT(offsetof(Flash_bwd_params, num_m_blocks) == 456);
