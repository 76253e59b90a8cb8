// What every call asks, checked and turned into what every kernel is told.
#pragma once

#include "error.h"
#include "flash.h"

#include <stdbool.h>

#define FLASH_TRY(call)                                        \
    do {                                                       \
        const flash_attn_status try_status = (call);           \
        if (try_status != FLASH_ATTN_OK) { return try_status; } \
    } while (0)

static inline int64_t flash_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t flash_round_up(int64_t a, int64_t multiple) { return flash_ceil_div(a, multiple) * multiple; }

// A struct of another size comes from another version of the Python package.
flash_attn_status flash_check_struct(const void *arguments, uint32_t struct_size, size_t expected, const char *name);

// An address that must be given and a multiple of `alignment`.
flash_attn_status flash_check_address(uint64_t address, int alignment, const char *name);

// 16-byte alignment and strides for a tensor of batch x rows x heads; nothing is asked of one without elements, nor of
// the stride of a dimension of size 1.
flash_attn_status flash_check_tensor(uint64_t address, flash_attn_strides strides, int64_t batch, int64_t rows,
                                     int64_t heads, const char *name);

// The memory that a plan asked for; `plan` names the function that says how much.
flash_attn_status flash_check_scratch(uint64_t scratch, uint64_t scratch_bytes, uint64_t needed, const char *plan);

flash_attn_status flash_check_flag(int32_t value, const char *name);
flash_attn_status flash_check_heads(int32_t batch, int32_t nheads, int32_t nheads_k);
flash_attn_status flash_check_head_dim(int32_t head_dim, int32_t dtype);

// Everything but the addresses.
flash_attn_status flash_check_problem(const flash_attn_problem *problem);
// The addresses in the problem itself.
flash_attn_status flash_check_problem_addresses(const flash_attn_problem *problem);

static inline bool flash_is_packed(const flash_attn_problem *problem) { return problem->cu_seqlens_q != 0; }

// Rows that q and k have.
static inline int64_t flash_rows_q(const flash_attn_problem *problem) {
    return flash_is_packed(problem) ? problem->total_q : problem->seqlen_q;
}
static inline int64_t flash_rows_k(const flash_attn_problem *problem) {
    return flash_is_packed(problem) ? problem->total_k : problem->seqlen_k;
}
static inline int64_t flash_tensor_batch(const flash_attn_problem *problem) {
    return flash_is_packed(problem) ? 1 : problem->batch;
}

void flash_fill_problem(const flash_attn_problem *from, Flash_problem *to);
Flash_strides flash_fill_strides(flash_attn_strides strides, bool is_packed);

// (batch, head) pairs that run side by side: as many as find room for `bytes_per_head` of `heads` heads in half of the
// L2 cache, in equal sections. `group` pairs share a head's bytes.
int32_t flash_heads_per_section(int64_t pairs, int group, int64_t bytes_per_head, int64_t l2_bytes, int multiprocessors);
