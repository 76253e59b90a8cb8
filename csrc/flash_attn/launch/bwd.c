// Backward: dot_do_o prepares, flash_bwd computes dK, dV and the sum of dQ, convert_dq rounds that sum.
#include "launch.h"
#include "problem.h"

#define INVALID(...) flash_error(FLASH_ATTN_INVALID_ARGUMENT, __VA_ARGS__)

enum {
    kPadding = 128,      // sequences begin at multiples of so many padded rows
    kRowsPerTurn = 16,   // rows of dQ that are added to in turns
    kPartAlignment = 256
};

typedef struct Bwd_plan {
    Flash_device *device;
    const Flash_kernel *dot_do_o, *main, *convert_dq;
    int64_t padded_batch_stride, padded_head_stride;  // rows
    uint64_t dq_accum_offset, dq_turn_offset;         // into scratch, which begins with lse_log2
    uint64_t scratch_bytes;
} Bwd_plan;

static flash_attn_status check_bwd(const flash_attn_bwd_args *args) {
    FLASH_TRY(flash_check_struct(args, args ? args->struct_size : 0, sizeof *args, "flash_attn_bwd_args"));
    FLASH_TRY(flash_check_problem(&args->problem));
    FLASH_TRY(flash_check_flag(args->deterministic, "deterministic"));
    if (args->problem.seqused_k || args->problem.leftpad_k) {
        return INVALID("%s is given: it has no backward, so pass sequences without unused keys",
                       args->problem.seqused_k ? "seqused_k" : "leftpad_k");
    }
    return args->reserved == 0 ? FLASH_ATTN_OK : INVALID("reserved is %d: it must be 0", args->reserved);
}

static flash_attn_status check_addresses(const flash_attn_bwd_args *args) {
    const flash_attn_problem *problem = &args->problem;
    const int64_t batch = flash_tensor_batch(problem), rows_q = flash_rows_q(problem), rows_k = flash_rows_k(problem);
    FLASH_TRY(flash_check_problem_addresses(problem));
    const struct { uint64_t address; const flash_attn_strides *strides; const char *name; } of_q[] = {
        {args->dout, &args->dout_strides, "dout"}, {args->q, &args->q_strides, "q"},
        {args->out, &args->out_strides, "out"}, {args->dq, &args->dq_strides, "dq"}};
    const struct { uint64_t address; const flash_attn_strides *strides; const char *name; } of_k[] = {
        {args->k, &args->k_strides, "k"}, {args->v, &args->v_strides, "v"},
        {args->dk, &args->dk_strides, "dk"}, {args->dv, &args->dv_strides, "dv"}};
    for (size_t i = 0; i < sizeof of_q / sizeof *of_q; ++i) {
        FLASH_TRY(flash_check_tensor(of_q[i].address, *of_q[i].strides, batch, rows_q, problem->nheads, of_q[i].name));
    }
    for (size_t i = 0; i < sizeof of_k / sizeof *of_k; ++i) {
        FLASH_TRY(flash_check_tensor(of_k[i].address, *of_k[i].strides, batch, rows_k, problem->nheads_k, of_k[i].name));
    }
    if (batch == 0 || rows_q == 0) { return FLASH_ATTN_OK; }
    FLASH_TRY(flash_check_address(args->softmax_lse, 4, "softmax_lse"));
    return flash_check_address(args->softmax_d, 4, "softmax_d");
}

static uint64_t round_up_part(uint64_t bytes) {
    return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

static void plan_scratch(const flash_attn_bwd_args *args, Bwd_plan *plan) {
    const flash_attn_problem *problem = &args->problem;
    int64_t padded_rows;
    if (flash_is_packed(problem)) {
        plan->padded_batch_stride = 0;
        plan->padded_head_stride = flash_round_up((int64_t)problem->total_q + (int64_t)kPadding * problem->batch, kPadding);
        padded_rows = problem->nheads * plan->padded_head_stride;
    } else {
        plan->padded_head_stride = flash_round_up(problem->seqlen_q, kPadding);
        plan->padded_batch_stride = problem->nheads * plan->padded_head_stride;
        padded_rows = problem->batch * plan->padded_batch_stride;
    }
    if (problem->seqlen_q == 0 || problem->batch == 0) { padded_rows = 0; }
    const uint64_t rows = (uint64_t)padded_rows;
    plan->dq_accum_offset = round_up_part(rows * sizeof(float));
    plan->dq_turn_offset = plan->dq_accum_offset + round_up_part(rows * (uint64_t)plan->main->head_dim * sizeof(float));
    plan->scratch_bytes = plan->dq_turn_offset +
        (args->deterministic ? round_up_part(rows / kRowsPerTurn * sizeof(int32_t)) : 0);
}

static flash_attn_status make_plan(const flash_attn_bwd_args *args, Bwd_plan *plan) {
    *plan = (Bwd_plan){0};
    FLASH_TRY(check_bwd(args));
    FLASH_TRY(flash_get_device(args->device, &plan->device));
    const flash_attn_problem *problem = &args->problem;
    const Flash_variant variant = problem->softcap > 0.f || problem->dropout_p > 0.f ? FLASH_MODIFIED : FLASH_PLAIN;
    FLASH_TRY(flash_find_kernel(plan->device, FLASH_BWD, variant, problem->dtype, problem->head_dim, &plan->main));
    FLASH_TRY(flash_find_stage(plan->main, FLASH_BWD, FLASH_DOT_DO_O, problem->dtype, &plan->dot_do_o));
    FLASH_TRY(flash_find_stage(plan->main, FLASH_BWD, FLASH_CONVERT_DQ, problem->dtype, &plan->convert_dq));
    plan_scratch(args, plan);
    return FLASH_ATTN_OK;
}

int flash_attn_bwd_plan(const flash_attn_bwd_args *args, flash_attn_plan *result) {
    FLASH_TRY(flash_check_struct(result, result ? result->struct_size : 0, sizeof *result, "flash_attn_plan"));
    Bwd_plan plan;
    FLASH_TRY(make_plan(args, &plan));
    result->num_splits = 1;
    result->scratch_bytes = plan.scratch_bytes;
    result->kernel = plan.main->name;
    return FLASH_ATTN_OK;
}

static void fill_params(const flash_attn_bwd_args *args, const Bwd_plan *plan, Flash_bwd_params *params) {
    const flash_attn_problem *problem = &args->problem;
    const bool is_packed = flash_is_packed(problem);
    const int group = problem->nheads / problem->nheads_k;
    // A block of keys reads Q and dO of its group's heads and adds to their dQ in fp32.
    const int64_t bytes_per_head = (int64_t)group * problem->seqlen_q * problem->head_dim * (2 + 2 + 4);
    *params = (Flash_bwd_params){
        .q_ptr = args->q,
        .k_ptr = args->k,
        .v_ptr = args->v,
        .o_ptr = args->out,
        .do_ptr = args->dout,
        .dq_ptr = args->dq,
        .dk_ptr = args->dk,
        .dv_ptr = args->dv,
        .softmax_lse_ptr = args->softmax_lse,
        .softmax_d_ptr = args->softmax_d,
        .lse_log2_ptr = args->scratch,
        .dq_accum_ptr = args->scratch + plan->dq_accum_offset,
        .dq_turn_ptr = args->deterministic ? args->scratch + plan->dq_turn_offset : 0,
        .q = flash_fill_strides(args->q_strides, is_packed),
        .k = flash_fill_strides(args->k_strides, is_packed),
        .v = flash_fill_strides(args->v_strides, is_packed),
        .o = flash_fill_strides(args->out_strides, is_packed),
        .dout = flash_fill_strides(args->dout_strides, is_packed),
        .dq = flash_fill_strides(args->dq_strides, is_packed),
        .dk = flash_fill_strides(args->dk_strides, is_packed),
        .dv = flash_fill_strides(args->dv_strides, is_packed),
        .lse_batch_stride = is_packed ? 0 : (int64_t)problem->nheads * problem->seqlen_q,
        .lse_head_stride = is_packed ? problem->total_q : problem->seqlen_q,
        .padded_batch_stride = plan->padded_batch_stride,
        .padded_head_stride = plan->padded_head_stride,
        .num_m_blocks = (int32_t)flash_ceil_div(problem->seqlen_q, plan->main->block_m),
        .num_n_blocks = (int32_t)flash_ceil_div(problem->seqlen_k, plan->main->block_n),
        .heads_per_section = flash_heads_per_section((int64_t)problem->batch * problem->nheads_k, 1, bytes_per_head,
                                                     plan->device->l2_bytes, plan->device->multiprocessors),
    };
    flash_fill_problem(problem, &params->problem);
}

int flash_attn_bwd(const flash_attn_bwd_args *args) {
    Bwd_plan plan;
    FLASH_TRY(make_plan(args, &plan));
    FLASH_TRY(check_addresses(args));
    FLASH_TRY(flash_check_scratch(args->scratch, args->scratch_bytes, plan.scratch_bytes, "flash_attn_bwd_plan"));

    Flash_bwd_params params;
    fill_params(args, &plan, &params);
    const flash_attn_problem *problem = &args->problem;
    // Without keys dQ becomes 0, without queries dK and dV do: each launch depends on its own rows only.
    const int64_t grid_m = (int64_t)params.num_m_blocks * problem->nheads * problem->batch;
    const int64_t grid_n = (int64_t)params.num_n_blocks * problem->nheads_k * problem->batch;
    // A tile of dQ, in 16 bits, is all that convert_dq holds in shared memory: less leaves room for more blocks of it.
    const int32_t dq_tile_bytes = 2 * plan.convert_dq->block_m * plan.convert_dq->head_dim;
    const Flash_launch launches[] = {
        {.kernel = plan.dot_do_o, .grid = grid_m},
        {.kernel = plan.main, .grid = grid_n, .smem_bytes = plan.main->smem_bytes},
        {.kernel = plan.convert_dq, .grid = grid_m, .smem_bytes = dq_tile_bytes}};
    return flash_launch_all(plan.device, args->stream, launches, 3, &params);
}
