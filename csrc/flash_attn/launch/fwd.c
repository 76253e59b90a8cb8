// Forward: flash_fwd, and flash_fwd_splitkv for paged caches and for few queries over many keys.
#include "launch.h"
#include "problem.h"
#include "split.h"

#define INVALID(...) flash_error(FLASH_ATTN_INVALID_ARGUMENT, __VA_ARGS__)

enum {
    kMostSplits = 128,
    kSplitkvRows = 64,  // up to here the packed queries of a key head are one tile of flash_fwd_splitkv
    kDecodeRows = 32,   // up to here they go into its small tiles
    kDecodeBlockM = 16
};

// How a call is done.
typedef struct Fwd_plan {
    Flash_device *device;
    const Flash_kernel *kernel;
    const Flash_kernel *combine;  // NULL: there is nothing to combine
    int64_t num_m_blocks;
    int64_t grid;
    int32_t num_splits;
    uint64_t o_accum_bytes, lse_accum_bytes;
} Fwd_plan;

static flash_attn_status check_cache(const flash_attn_fwd_args *args) {
    const flash_attn_problem *problem = &args->problem;
    if (args->num_splits < 0 || args->num_splits > kMostSplits) {
        return INVALID("num_splits is %d: it must be from 1 to %d, or 0 to let it be chosen", args->num_splits, kMostSplits);
    }
    if (problem->dropout_p > 0.f && args->num_splits > 1) {
        return INVALID("num_splits is %d and dropout_p is %g: keys can't be split with dropout, so set num_splits to 1",
                       args->num_splits, (double)problem->dropout_p);
    }
    if (args->s_dmask && !(problem->dropout_p > 0.f)) {
        return INVALID("s_dmask is given and dropout_p is 0: the dropout mask exists with dropout only, so set s_dmask to 0");
    }
    if (args->cache_batch_idx && args->cache_rows < 1) {
        return INVALID("cache_rows is %d: with cache_batch_idx it must be the number of rows of the cache", args->cache_rows);
    }
    if (!args->block_table) { return FLASH_ATTN_OK; }
    if (problem->dropout_p > 0.f) {
        return INVALID("block_table is given and dropout_p is %g: a paged cache has no dropout, so set it to 0",
                       (double)problem->dropout_p);
    }
    if (args->cache_batch_idx) {
        return INVALID("block_table and cache_batch_idx are both given: the pages already say where each sequence lies, so "
                       "give one of them");
    }
    if (args->page_size < 16 || args->page_size % 16) {
        return INVALID("page_size is %d: it must be a multiple of 16", args->page_size);
    }
    if (args->num_pages < 0) { return INVALID("num_pages is %d: it must not be negative", args->num_pages); }
    if (args->block_table_stride < 0) {
        return INVALID("block_table_stride is %lld: it must not be negative", (long long)args->block_table_stride);
    }
    return FLASH_ATTN_OK;
}

static flash_attn_status check_keys(const flash_attn_fwd_args *args) {
    const flash_attn_problem *problem = &args->problem;
    int64_t batch = flash_tensor_batch(problem), rows = flash_rows_k(problem);
    if (args->block_table) {
        batch = args->num_pages;
        rows = args->page_size;
    } else if (args->cache_batch_idx) {
        batch = args->cache_rows;
    }
    FLASH_TRY(flash_check_tensor(args->k, args->k_strides, batch, rows, problem->nheads_k, "k"));
    return flash_check_tensor(args->v, args->v_strides, batch, rows, problem->nheads_k, "v");
}

static flash_attn_status check_addresses(const flash_attn_fwd_args *args) {
    const flash_attn_problem *problem = &args->problem;
    const int64_t batch = flash_tensor_batch(problem), rows = flash_rows_q(problem);
    FLASH_TRY(flash_check_problem_addresses(problem));
    FLASH_TRY(flash_check_tensor(args->q, args->q_strides, batch, rows, problem->nheads, "q"));
    FLASH_TRY(flash_check_tensor(args->out, args->out_strides, batch, rows, problem->nheads, "out"));
    FLASH_TRY(check_keys(args));
    if (batch > 0 && rows > 0) { FLASH_TRY(flash_check_address(args->softmax_lse, 4, "softmax_lse")); }
    if (args->s_dmask) { FLASH_TRY(flash_check_address(args->s_dmask, 16, "s_dmask")); }
    if (args->cache_batch_idx) { FLASH_TRY(flash_check_address(args->cache_batch_idx, 4, "cache_batch_idx")); }
    return args->block_table ? flash_check_address(args->block_table, 4, "block_table") : FLASH_ATTN_OK;
}

static int64_t packed_rows(const flash_attn_problem *problem) {
    return (int64_t)problem->seqlen_q * (problem->nheads / problem->nheads_k);
}

// Variant of either family.
static Flash_variant variant_of(const flash_attn_problem *problem) {
    return problem->softcap > 0.f ? FLASH_SOFTCAP : problem->dropout_p > 0.f ? FLASH_DROPOUT : FLASH_PLAIN;
}

static bool uses_splitkv(const flash_attn_fwd_args *args) {
    const flash_attn_problem *problem = &args->problem;
    if (args->block_table) { return true; }
    if (flash_is_packed(problem) || problem->dropout_p > 0.f || args->num_splits == 1) { return false; }
    if (args->num_splits > 1) { return true; }
    return packed_rows(problem) <= kSplitkvRows &&
        flash_first_kernel(FLASH_FWD_SPLITKV, variant_of(problem), problem->dtype, problem->head_dim);
}

static flash_attn_status plan_fwd(const flash_attn_fwd_args *args, Fwd_plan *plan) {
    const flash_attn_problem *problem = &args->problem;
    FLASH_TRY(flash_find_kernel(plan->device, FLASH_FWD, variant_of(problem), problem->dtype, problem->head_dim,
                                &plan->kernel));
    plan->num_splits = 1;
    plan->num_m_blocks = flash_ceil_div(problem->seqlen_q, plan->kernel->block_m);
    plan->grid = plan->num_m_blocks * problem->nheads * problem->batch;
    return FLASH_ATTN_OK;
}

// For few rows the small tile, for many the first; whichever fits if the one that is wanted doesn't.
static flash_attn_status find_splitkv_tile(const flash_attn_fwd_args *args, Fwd_plan *plan) {
    const flash_attn_problem *problem = &args->problem;
    const Flash_variant variant = variant_of(problem);
    FLASH_TRY(flash_find_kernel(plan->device, FLASH_FWD_SPLITKV, variant, problem->dtype, problem->head_dim, &plan->kernel));
    const bool wants_decode = packed_rows(problem) <= kDecodeRows;
    const int head_dim = plan->kernel->head_dim;
    for (const Flash_kernel *tile = plan->kernel; tile && tile->head_dim == head_dim; tile = flash_next_kernel(tile)) {
        if (flash_kernel_fits(plan->device, tile) && (tile->block_m <= kDecodeBlockM) == wants_decode) {
            plan->kernel = tile;
            break;
        }
    }
    return FLASH_ATTN_OK;
}

static flash_attn_status plan_splitkv(const flash_attn_fwd_args *args, Fwd_plan *plan) {
    const flash_attn_problem *problem = &args->problem;
    FLASH_TRY(find_splitkv_tile(args, plan));
    plan->num_m_blocks = flash_ceil_div(packed_rows(problem), plan->kernel->block_m);
    const int64_t tiles = plan->num_m_blocks * problem->nheads_k * problem->batch;
    if (flash_is_packed(problem) || tiles == 0) {
        plan->num_splits = 1;
    } else if (args->num_splits > 0) {
        plan->num_splits = args->num_splits;
    } else {
        plan->num_splits = flash_choose_splits(plan->device, plan->kernel, problem, tiles);
    }
    plan->grid = tiles * plan->num_splits;
    if (plan->num_splits > 1) {
        const uint64_t rows = (uint64_t)plan->num_splits * (uint64_t)problem->batch * (uint64_t)problem->nheads *
            (uint64_t)problem->seqlen_q;
        plan->o_accum_bytes = rows * (uint64_t)plan->kernel->head_dim * sizeof(float);
        plan->lse_accum_bytes = rows * sizeof(float);
        FLASH_TRY(flash_find_common_stage(FLASH_FWD_SPLITKV, FLASH_COMBINE, problem->dtype, plan->kernel->head_dim,
                                          &plan->combine));
    }
    return FLASH_ATTN_OK;
}

static flash_attn_status make_plan(const flash_attn_fwd_args *args, Fwd_plan *plan) {
    *plan = (Fwd_plan){0};
    FLASH_TRY(flash_check_struct(args, args ? args->struct_size : 0, sizeof *args, "flash_attn_fwd_args"));
    FLASH_TRY(flash_check_problem(&args->problem));
    FLASH_TRY(check_cache(args));
    FLASH_TRY(flash_get_device(args->device, &plan->device));
    return uses_splitkv(args) ? plan_splitkv(args, plan) : plan_fwd(args, plan);
}

static uint64_t scratch_bytes(const Fwd_plan *plan) { return plan->o_accum_bytes + plan->lse_accum_bytes; }

int flash_attn_fwd_plan(const flash_attn_fwd_args *args, flash_attn_plan *result) {
    FLASH_TRY(flash_check_struct(result, result ? result->struct_size : 0, sizeof *result, "flash_attn_plan"));
    Fwd_plan plan;
    FLASH_TRY(make_plan(args, &plan));
    result->num_splits = plan.num_splits;
    result->scratch_bytes = scratch_bytes(&plan);
    result->kernel = plan.kernel->name;
    return FLASH_ATTN_OK;
}

static void fill_params(const flash_attn_fwd_args *args, const Fwd_plan *plan, Flash_fwd_params *params) {
    const flash_attn_problem *problem = &args->problem;
    const bool is_packed = flash_is_packed(problem);
    *params = (Flash_fwd_params){
        .q_ptr = args->q,
        .k_ptr = args->k,
        .v_ptr = args->v,
        .o_ptr = args->out,
        .softmax_lse_ptr = args->softmax_lse,
        .s_dmask_ptr = args->s_dmask,
        .q = flash_fill_strides(args->q_strides, is_packed),
        .k = flash_fill_strides(args->k_strides, is_packed && !args->block_table),
        .v = flash_fill_strides(args->v_strides, is_packed && !args->block_table),
        .o = flash_fill_strides(args->out_strides, is_packed),
        .lse_batch_stride = is_packed ? 0 : (int64_t)problem->nheads * problem->seqlen_q,
        .lse_head_stride = is_packed ? problem->total_q : problem->seqlen_q,
        .num_m_blocks = (int32_t)plan->num_m_blocks,
        .heads_per_section = flash_heads_per_section(
            (int64_t)problem->batch * problem->nheads, problem->nheads / problem->nheads_k,
            (int64_t)2 * 2 * problem->seqlen_k * problem->head_dim, plan->device->l2_bytes, plan->device->multiprocessors),
        .cache_batch_idx_ptr = args->cache_batch_idx,
        .block_table_ptr = args->block_table,
        .o_accum_ptr = plan->num_splits > 1 ? args->scratch : 0,
        .lse_accum_ptr = plan->num_splits > 1 ? args->scratch + plan->o_accum_bytes : 0,
        .block_table_stride = args->block_table_stride,
        .page_size = args->page_size,
        .num_pages = args->num_pages,
        .cache_rows = args->cache_rows,
        .num_splits = plan->num_splits,
    };
    flash_fill_problem(problem, &params->problem);
}

int flash_attn_fwd(const flash_attn_fwd_args *args) {
    Fwd_plan plan;
    FLASH_TRY(make_plan(args, &plan));
    FLASH_TRY(check_addresses(args));
    FLASH_TRY(flash_check_scratch(args->scratch, args->scratch_bytes, scratch_bytes(&plan), "flash_attn_fwd_plan"));

    Flash_fwd_params params;
    fill_params(args, &plan, &params);
    Flash_launch launches[2] = {{.kernel = plan.kernel, .grid = plan.grid, .smem_bytes = plan.kernel->smem_bytes}};
    if (plan.combine) {
        const int64_t rows = (int64_t)args->problem.batch * args->problem.nheads * args->problem.seqlen_q;
        launches[1] = (Flash_launch){.kernel = plan.combine, .grid = flash_ceil_div(rows, plan.combine->warps)};
    }
    return flash_launch_all(plan.device, args->stream, launches, plan.combine ? 2 : 1, &params);
}
