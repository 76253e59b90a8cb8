// New keys and values into a cache, and rotary embedding: the stage "append" of flash_fwd_splitkv.
#include "launch.h"
#include "problem.h"

#define INVALID(...) flash_error(FLASH_ATTN_INVALID_ARGUMENT, __VA_ARGS__)

static flash_attn_status check_not_negative(int32_t value, const char *name) {
    return value >= 0 ? FLASH_ATTN_OK : INVALID("%s is %d: it must not be negative", name, value);
}

static bool rotates_q(const flash_attn_append_args *args) { return args->q_rotated != 0; }
static bool appends(const flash_attn_append_args *args) { return args->k_new != 0; }

static flash_attn_status check_lengths(const flash_attn_append_args *args) {
    FLASH_TRY(check_not_negative(args->seqlen_q, "seqlen_q"));
    FLASH_TRY(check_not_negative(args->seqlen_new, "seqlen_new"));
    FLASH_TRY(check_not_negative(args->seqlen_cache, "seqlen_cache"));
    FLASH_TRY(check_not_negative(args->cache_seqlen, "cache_seqlen"));
    if (args->seqlen_cache > FLASH_UNLIMITED) {
        return INVALID("seqlen_cache is %d: it must be at most %d", args->seqlen_cache, FLASH_UNLIMITED);
    }
    // What lies on the GPU is the kernel's to check.
    if (appends(args) && !args->cache_seqlens &&
        (int64_t)args->cache_seqlen + args->seqlen_new > args->seqlen_cache) {
        return INVALID("The cache has room for %d keys, holds %d and is to take %d more: enlarge it", args->seqlen_cache,
                       args->cache_seqlen, args->seqlen_new);
    }
    return FLASH_ATTN_OK;
}

static flash_attn_status check_rotary(const flash_attn_append_args *args) {
    if (!args->rotary_cos != !args->rotary_sin) {
        return INVALID("rotary_%s is given without rotary_%s: rotation needs both", args->rotary_cos ? "cos" : "sin",
                       args->rotary_cos ? "sin" : "cos");
    }
    if (!args->rotary_cos) {
        return rotates_q(args) ? INVALID("q_rotated is given without rotary_cos and rotary_sin: rotation needs them")
                               : FLASH_ATTN_OK;
    }
    if (args->rotary_dim < 16 || args->rotary_dim % 16 || args->rotary_dim > args->head_dim) {
        return INVALID("rotary_dim is %d: it must be a multiple of 16 and at most head_dim (%d)", args->rotary_dim,
                       args->head_dim);
    }
    if (args->seqlen_rotary < 1) {
        return INVALID("seqlen_rotary is %d: rotary_cos and rotary_sin must have a row for every position",
                       args->seqlen_rotary);
    }
    FLASH_TRY(flash_check_flag(args->interleaved, "interleaved"));
    FLASH_TRY(flash_check_flag(args->q_advances, "q_advances"));
    FLASH_TRY(flash_check_address(args->rotary_cos, 16, "rotary_cos"));
    return flash_check_address(args->rotary_sin, 16, "rotary_sin");
}

static flash_attn_status check_cache(const flash_attn_append_args *args) {
    int64_t batch = args->batch, rows = args->seqlen_cache;
    if (args->block_table) {
        if (args->cache_batch_idx) {
            return INVALID("block_table and cache_batch_idx are both given: the pages already say where each sequence lies, "
                           "so give one of them");
        }
        if (args->page_size < 16 || args->page_size % 16) {
            return INVALID("page_size is %d: it must be a multiple of 16", args->page_size);
        }
        FLASH_TRY(check_not_negative(args->num_pages, "num_pages"));
        if (args->block_table_stride < 0) {
            return INVALID("block_table_stride is %lld: it must not be negative", (long long)args->block_table_stride);
        }
        FLASH_TRY(flash_check_address(args->block_table, 4, "block_table"));
        batch = args->num_pages;
        rows = args->page_size;
    } else if (args->cache_batch_idx) {
        if (args->cache_rows < 1) {
            return INVALID("cache_rows is %d: with cache_batch_idx it must be the number of rows of the cache",
                           args->cache_rows);
        }
        FLASH_TRY(flash_check_address(args->cache_batch_idx, 4, "cache_batch_idx"));
        batch = args->cache_rows;
    }
    FLASH_TRY(flash_check_tensor(args->k_cache, args->k_cache_strides, batch, rows, args->nheads_k, "k_cache"));
    return flash_check_tensor(args->v_cache, args->v_cache_strides, batch, rows, args->nheads_k, "v_cache");
}

static flash_attn_status check_append(const flash_attn_append_args *args) {
    FLASH_TRY(flash_check_struct(args, args ? args->struct_size : 0, sizeof *args, "flash_attn_append_args"));
    FLASH_TRY(flash_check_heads(args->batch, args->nheads, args->nheads_k));
    FLASH_TRY(flash_check_head_dim(args->head_dim, args->dtype));
    if (!args->k_new != !args->v_new) {
        return INVALID("%s is given without %s: new keys and values come together", args->k_new ? "k_new" : "v_new",
                       args->k_new ? "v_new" : "k_new");
    }
    FLASH_TRY(check_lengths(args));
    FLASH_TRY(check_rotary(args));
    if (args->cache_seqlens) { FLASH_TRY(flash_check_address(args->cache_seqlens, 4, "cache_seqlens")); }
    if (args->leftpad_k) { FLASH_TRY(flash_check_address(args->leftpad_k, 4, "leftpad_k")); }
    if (rotates_q(args)) {
        FLASH_TRY(flash_check_tensor(args->q, args->q_strides, args->batch, args->seqlen_q, args->nheads, "q"));
        FLASH_TRY(flash_check_address(args->q_rotated, 16, "q_rotated"));
    }
    if (!appends(args)) { return FLASH_ATTN_OK; }
    FLASH_TRY(flash_check_tensor(args->k_new, args->k_new_strides, args->batch, args->seqlen_new, args->nheads_k, "k_new"));
    FLASH_TRY(flash_check_tensor(args->v_new, args->v_new_strides, args->batch, args->seqlen_new, args->nheads_k, "v_new"));
    return check_cache(args);
}

static void fill_params(const flash_attn_append_args *args, Flash_append_params *params) {
    *params = (Flash_append_params){
        .q_ptr = args->q,
        .q_rotated_ptr = args->q_rotated,
        .k_new_ptr = args->k_new,
        .v_new_ptr = args->v_new,
        .k_cache_ptr = args->k_cache,
        .v_cache_ptr = args->v_cache,
        .rotary_cos_ptr = args->rotary_cos,
        .rotary_sin_ptr = args->rotary_sin,
        .cache_seqlens_ptr = args->cache_seqlens,
        .leftpad_k_ptr = args->leftpad_k,
        .cache_batch_idx_ptr = args->cache_batch_idx,
        .block_table_ptr = args->block_table,
        .block_table_stride = args->block_table_stride,
        .q = flash_fill_strides(args->q_strides, false),
        .k_new = flash_fill_strides(args->k_new_strides, false),
        .v_new = flash_fill_strides(args->v_new_strides, false),
        .k_cache = flash_fill_strides(args->k_cache_strides, false),
        .v_cache = flash_fill_strides(args->v_cache_strides, false),
        .batch = args->batch,
        .nheads = args->nheads,
        .nheads_k = args->nheads_k,
        .head_dim = args->head_dim,
        .seqlen_q = args->seqlen_q,
        .seqlen_new = args->seqlen_new,
        .seqlen_cache = args->seqlen_cache,
        .seqlen_rotary = args->seqlen_rotary,
        .rotary_dim = args->rotary_dim,
        .interleaved = args->interleaved,
        .q_advances = args->q_advances,
        .page_size = args->page_size,
        .num_pages = args->num_pages,
        .cache_rows = args->cache_rows,
        .cache_seqlen = args->cache_seqlen,
    };
}

int flash_attn_append(const flash_attn_append_args *args) {
    FLASH_TRY(check_append(args));
    Flash_device *device;
    FLASH_TRY(flash_get_device(args->device, &device));
    const Flash_kernel *kernel;
    FLASH_TRY(flash_find_common_stage(FLASH_FWD_SPLITKV, FLASH_APPEND, args->dtype, args->head_dim, &kernel));

    Flash_append_params params;
    fill_params(args, &params);
    // One warp a row of a head.
    const int64_t rows_q = rotates_q(args) ? (int64_t)args->batch * args->seqlen_q * args->nheads : 0;
    const int64_t rows_k = appends(args) ? (int64_t)args->batch * args->seqlen_new * args->nheads_k : 0;
    const Flash_launch launch = {.kernel = kernel, .grid = flash_ceil_div(rows_q + rows_k, kernel->warps)};
    return flash_launch_all(device, args->stream, &launch, 1, &params);
}
