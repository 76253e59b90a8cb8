#include "problem.h"

#include <math.h>

#define INVALID(...) flash_error(FLASH_ATTN_INVALID_ARGUMENT, __VA_ARGS__)

static const double kLog2E = 1.4426950408889634;

flash_attn_status flash_check_struct(const void *arguments, uint32_t struct_size, size_t expected, const char *name) {
    if (!arguments) { return INVALID("%s is a null pointer: pass the struct", name); }
    if (struct_size != expected) {
        return INVALID("%s has %u bytes and this library expects %u, so Python files and library are of different versions: "
                       "reinstall flash-attn", name, struct_size, (unsigned)expected);
    }
    return FLASH_ATTN_OK;
}

flash_attn_status flash_check_address(uint64_t address, int alignment, const char *name) {
    if (!address) { return INVALID("%s is not given: pass its device address", name); }
    if (address % (uint64_t)alignment) {
        return INVALID("%s is at address 0x%llx: it must be aligned to %d bytes", name, (unsigned long long)address,
                       alignment);
    }
    return FLASH_ATTN_OK;
}

static flash_attn_status check_stride(int64_t stride, int64_t size, const char *tensor, const char *dimension) {
    if (size > 1 && (stride < 0 || stride % 8)) {
        return INVALID("The %s stride of %s is %lld elements: it must be a multiple of 8, so that rows begin at 16-byte "
                       "boundaries", dimension, tensor, (long long)stride);
    }
    return FLASH_ATTN_OK;
}

flash_attn_status flash_check_tensor(uint64_t address, flash_attn_strides strides, int64_t batch, int64_t rows,
                                     int64_t heads, const char *name) {
    if (batch == 0 || rows == 0 || heads == 0) { return FLASH_ATTN_OK; }
    FLASH_TRY(flash_check_address(address, 16, name));
    FLASH_TRY(check_stride(strides.batch, batch, name, "batch"));
    FLASH_TRY(check_stride(strides.row, rows, name, "row"));
    return check_stride(strides.head, heads, name, "head");
}

flash_attn_status flash_check_scratch(uint64_t scratch, uint64_t scratch_bytes, uint64_t needed, const char *plan) {
    if (needed == 0) { return FLASH_ATTN_OK; }
    if (!scratch || scratch_bytes < needed) {
        return INVALID("scratch has %llu bytes and this call needs %llu: allocate what %s says",
                       (unsigned long long)(scratch ? scratch_bytes : 0), (unsigned long long)needed, plan);
    }
    return flash_check_address(scratch, 16, "scratch");
}

flash_attn_status flash_check_flag(int32_t value, const char *name) {
    return value == 0 || value == 1 ? FLASH_ATTN_OK : INVALID("%s is %d: it must be 0 or 1", name, value);
}

flash_attn_status flash_check_heads(int32_t batch, int32_t nheads, int32_t nheads_k) {
    if (batch < 0) { return INVALID("batch is %d: it must not be negative", batch); }
    if (nheads < 1) { return INVALID("nheads is %d: there must be at least one head", nheads); }
    if (nheads_k < 1 || nheads % nheads_k) {
        return INVALID("nheads is %d and nheads_k is %d: the query heads must be a multiple of the key heads", nheads,
                       nheads_k);
    }
    return FLASH_ATTN_OK;
}

flash_attn_status flash_check_head_dim(int32_t head_dim, int32_t dtype) {
    if (head_dim < 8 || head_dim > 256 || head_dim % 8) {
        return INVALID("head_dim is %d: it must be a multiple of 8 from 8 to 256", head_dim);
    }
    if (dtype != FLASH_ATTN_FP16 && dtype != FLASH_ATTN_BF16) {
        return INVALID("dtype is %d: it must be %d (fp16) or %d (bf16)", dtype, FLASH_ATTN_FP16, FLASH_ATTN_BF16);
    }
    return FLASH_ATTN_OK;
}

static flash_attn_status check_length(int32_t length, const char *name) {
    if (length < 0 || length > FLASH_UNLIMITED) {
        return INVALID("%s is %d: it must be from 0 to %d", name, length, FLASH_UNLIMITED);
    }
    return FLASH_ATTN_OK;
}

static flash_attn_status check_lengths(const flash_attn_problem *problem) {
    FLASH_TRY(check_length(problem->seqlen_q, "seqlen_q"));
    FLASH_TRY(check_length(problem->seqlen_k, "seqlen_k"));
    if (!problem->cu_seqlens_q != !problem->cu_seqlens_k) {
        return INVALID("cu_seqlens_%s is given without cu_seqlens_%s: packed sequences need both",
                       problem->cu_seqlens_q ? "q" : "k", problem->cu_seqlens_q ? "k" : "q");
    }
    if (problem->total_q < 0 || problem->total_k < 0) {
        return INVALID("total_q is %d and total_k is %d: a number of rows must not be negative", problem->total_q,
                       problem->total_k);
    }
    if (!flash_is_packed(problem) && (problem->total_q || problem->total_k)) {
        return INVALID("total_q is %d and total_k is %d without cu_seqlens: they are for packed sequences, and 0 otherwise",
                       problem->total_q, problem->total_k);
    }
    return FLASH_ATTN_OK;
}

static flash_attn_status check_numbers(const flash_attn_problem *problem) {
    if (problem->window_left < -1 || problem->window_right < -1) {
        return INVALID("The window is (%d, %d): each side must be -1, for no limit, or not negative", problem->window_left,
                       problem->window_right);
    }
    if (!(problem->softmax_scale > 0.f && isfinite(problem->softmax_scale))) {
        return INVALID("softmax_scale is %g: it must be positive and finite", (double)problem->softmax_scale);
    }
    if (!(problem->softcap >= 0.f && isfinite(problem->softcap))) {
        return INVALID("softcap is %g: it must be positive and finite, or 0 for none", (double)problem->softcap);
    }
    if (!(problem->dropout_p >= 0.f && problem->dropout_p < 1.f)) {
        return INVALID("dropout_p is %g: it must be at least 0 and less than 1", (double)problem->dropout_p);
    }
    if (problem->softcap > 0.f && problem->dropout_p > 0.f) {
        return INVALID("softcap is %g and dropout_p is %g: they do not go together, so set one of them to 0",
                       (double)problem->softcap, (double)problem->dropout_p);
    }
    return FLASH_ATTN_OK;
}

flash_attn_status flash_check_problem(const flash_attn_problem *problem) {
    FLASH_TRY(flash_check_heads(problem->batch, problem->nheads, problem->nheads_k));
    FLASH_TRY(flash_check_head_dim(problem->head_dim, problem->dtype));
    FLASH_TRY(check_lengths(problem));
    FLASH_TRY(flash_check_flag(problem->causal, "causal"));
    FLASH_TRY(check_numbers(problem));
    if (problem->alibi_slopes && problem->alibi_batch_stride != 0 && problem->alibi_batch_stride != problem->nheads) {
        return INVALID("alibi_batch_stride is %lld: it must be 0 or nheads (%d)", (long long)problem->alibi_batch_stride,
                       problem->nheads);
    }
    if (problem->reserved != 0) { return INVALID("reserved is %d: it must be 0", problem->reserved); }
    return FLASH_ATTN_OK;
}

static flash_attn_status check_optional(uint64_t address, int alignment, const char *name) {
    return address ? flash_check_address(address, alignment, name) : FLASH_ATTN_OK;
}

flash_attn_status flash_check_problem_addresses(const flash_attn_problem *problem) {
    FLASH_TRY(check_optional(problem->cu_seqlens_q, 4, "cu_seqlens_q"));
    FLASH_TRY(check_optional(problem->cu_seqlens_k, 4, "cu_seqlens_k"));
    FLASH_TRY(check_optional(problem->seqused_k, 4, "seqused_k"));
    FLASH_TRY(check_optional(problem->leftpad_k, 4, "leftpad_k"));
    FLASH_TRY(check_optional(problem->alibi_slopes, 4, "alibi_slopes"));
    return problem->dropout_p > 0.f ? flash_check_address(problem->rng_state, 8, "rng_state") : FLASH_ATTN_OK;
}

static int32_t window_side(int32_t side) { return side < 0 || side > FLASH_UNLIMITED ? FLASH_UNLIMITED : side; }

// The largest fp16, twice, for which `share` in 256 of all fp16 are at most as large, in the order -inf, ..., -0 = 0, ...; a
// NaN for none. Good for up to half of them: among the rest are the NaNs.
static uint32_t fp16_up_to(int32_t share) {
    if (share == 0) { return 0xffffffffu; }
    const int32_t count = share * 256, negatives = 0x7c00;  // with -inf and without -0
    return (uint32_t)(count <= negatives ? 0xfc01 - count : count - negatives - 2) * 0x10001u;
}

void flash_fill_problem(const flash_attn_problem *from, Flash_problem *to) {
    *to = (Flash_problem){
        .cu_seqlens_q_ptr = from->cu_seqlens_q,
        .cu_seqlens_k_ptr = from->cu_seqlens_k,
        .seqused_k_ptr = from->seqused_k,
        .leftpad_k_ptr = from->leftpad_k,
        .alibi_slopes_ptr = from->alibi_slopes,
        .rng_state_ptr = from->rng_state,
        .alibi_batch_stride = from->alibi_batch_stride,
        .batch = from->batch,
        .nheads = from->nheads,
        .nheads_k = from->nheads_k,
        .group = from->nheads / from->nheads_k,
        .seqlen_q = from->seqlen_q,
        .seqlen_k = from->seqlen_k,
        .total_q = from->total_q,
        .total_k = from->total_k,
        .head_dim = from->head_dim,
        .window_left = window_side(from->window_left),
        .window_right = from->causal ? 0 : window_side(from->window_right),
        .softmax_scale = from->softmax_scale,
        .scale_log2 = (float)((double)from->softmax_scale * kLog2E),
        .keep_scale = 1.f,
        .drop_up_to = fp16_up_to(0),
        .drop_flip = 0xffffffffu,
    };
    if (from->softcap > 0.f) {
        to->tanh_scale = from->softmax_scale / from->softcap;
        to->scale_log2 = (float)((double)from->softcap * kLog2E);
    }
    if (from->dropout_p > 0.f) {
        const float keep = 1.f - from->dropout_p;
        to->keep_scale = 1.f / keep;
        // Random bits are searched for what is rarer, what they keep or what they drop.
        const int32_t kept = (int32_t)(keep * 255.f) + 1;  // in 256
        to->drop_up_to = fp16_up_to(kept < 128 ? kept : 256 - kept);
        to->drop_flip = kept < 128 ? 0 : 0xffffffffu;
    }
}

Flash_strides flash_fill_strides(flash_attn_strides strides, bool is_packed) {
    return (Flash_strides){.batch = is_packed ? 0 : strides.batch, .row = strides.row, .head = strides.head};
}

int32_t flash_heads_per_section(int64_t pairs, int group, int64_t bytes_per_head, int64_t l2_bytes, int multiprocessors) {
    int64_t most = bytes_per_head > 0 ? l2_bytes / 2 / bytes_per_head * group : pairs;
    if (most < multiprocessors / 2) { most = multiprocessors / 2; }
    if (most < 1) { most = 1; }
    const int64_t sections = flash_ceil_div(pairs, most);
    return sections > 0 ? (int32_t)flash_ceil_div(pairs, sections) : 1;
}
