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

// Strides of one (batch, row, head, head_dim) tensor, in elements; head_dim is contiguous.
typedef struct Flash_strides {
    int64_t batch;
    int64_t row;
    int64_t head;
} Flash_strides;

typedef struct Flash_fwd_params {
    uint64_t q_ptr;
    uint64_t k_ptr;
    uint64_t v_ptr;
    uint64_t o_ptr;
    uint64_t softmax_lse_ptr;  // fp32 (batch, nheads, seqlen_q), contiguous; natural logarithm
    Flash_strides q;
    Flash_strides k;
    Flash_strides v;
    Flash_strides o;
    int32_t batch;
    int32_t nheads;
    int32_t nheads_k;
    int32_t seqlen_q;
    int32_t seqlen_k;
    int32_t head_dim;           // a multiple of 8, at most the kernel's
    float softmax_scale;
    float softmax_scale_log2;   // softmax_scale * log2(e)
    int32_t num_m_blocks;       // ceil(seqlen_q / kBlockM)
    int32_t heads_per_section;  // (batch, head) pairs that run side by side; see tile_scheduler.h
} Flash_fwd_params;

FLASH_STATIC_ASSERT(sizeof(Flash_fwd_params) == 176, "Flash_fwd_params must have the same layout everywhere");
FLASH_STATIC_ASSERT(offsetof(Flash_fwd_params, q) == 40, "Flash_fwd_params must have the same layout everywhere");
FLASH_STATIC_ASSERT(offsetof(Flash_fwd_params, batch) == 136, "Flash_fwd_params must have the same layout everywhere");
