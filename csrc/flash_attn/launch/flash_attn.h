// The launcher's C interface. Python reaches it through ctypes; nothing else of the launcher is exported.
//
// Every call returns a flash_attn_status. After any status but FLASH_ATTN_OK, flash_attn_last_error() gives one
// sentence for this thread: what is wrong, what was found, what to do. Nothing aborts, prints or throws.
#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define FLASH_ATTN_API __declspec(dllexport)
#else
#define FLASH_ATTN_API __attribute__((visibility("default")))
#endif

#define FLASH_ATTN_ABI_VERSION 1

typedef enum flash_attn_status {
    FLASH_ATTN_OK = 0,
    FLASH_ATTN_INVALID_ARGUMENT = 1,  // the call is wrong: shapes, sizes, struct version
    FLASH_ATTN_NO_DRIVER = 2,         // no CUDA driver, or one too old
    FLASH_ATTN_NO_DEVICE = 3,         // no such GPU, or one older than Ampere
    FLASH_ATTN_BAD_KERNELS = 4,       // a fatbin is missing, damaged or holds no code for this GPU
    FLASH_ATTN_CUDA_ERROR = 5         // the driver refused a call
} flash_attn_status;

typedef enum flash_attn_dtype { FLASH_ATTN_FP16 = 0, FLASH_ATTN_BF16 = 1 } flash_attn_dtype;

// Strides in elements of one (batch, row, head, head_dim) tensor; head_dim is contiguous. A packed tensor (row, head,
// head_dim) has batch = 0.
typedef struct flash_attn_strides {
    int64_t batch, row, head;
} flash_attn_strides;

// What is asked. Addresses are device addresses; tensors of fp16 or bf16 are 16-byte aligned and their strides are
// multiples of 8 elements.
typedef struct flash_attn_problem {
    uint64_t cu_seqlens_q;       // int32 (batch + 1): where packed sequences begin; 0: not packed
    uint64_t cu_seqlens_k;       // the same for k
    uint64_t seqused_k;          // int32 (batch): how many keys of each sequence count; 0: all
    uint64_t leftpad_k;          // int32 (batch): how many leading keys don't count; 0: none
    uint64_t alibi_slopes;       // fp32 (nheads) or (batch, nheads); 0: no ALiBi
    uint64_t rng_state;          // int64 (2), on the device: Philox seed and offset; 0 without dropout
    int64_t alibi_batch_stride;  // nheads, or 0 when all sequences share the slopes
    int32_t batch, nheads, nheads_k;
    int32_t head_dim;            // a multiple of 8, 8 to 256
    int32_t seqlen_q, seqlen_k;  // of every sequence; packed: of the longest
    int32_t total_q, total_k;    // packed: rows that q and k have; else 0
    int32_t dtype;               // flash_attn_dtype
    int32_t causal;              // 0 or 1, aligned to the bottom right
    int32_t window_left;         // -1: no limit
    int32_t window_right;
    float softmax_scale;         // positive and finite
    float softcap;               // 0: none
    float dropout_p;             // 0 to less than 1
    int32_t reserved;            // 0
} flash_attn_problem;

typedef struct flash_attn_fwd_args {
    uint32_t struct_size;        // sizeof(flash_attn_fwd_args): the version of this struct
    int32_t device;              // CUDA ordinal that all addresses belong to
    uint64_t stream;             // CUstream
    flash_attn_problem problem;
    uint64_t q, k, v, out;
    uint64_t softmax_lse;        // fp32 (batch, nheads, seqlen_q), packed (nheads, total_q)
    uint64_t s_dmask;            // as q's type, (batch, nheads, seqlen_q, seqlen_k), lengths rounded up to 128; 0: not
                                 // wanted; with dropout only
    flash_attn_strides q_strides, k_strides, v_strides, out_strides;
    uint64_t cache_batch_idx;    // int32 (batch): the row of k and v that a sequence reads; 0: its own
    uint64_t block_table;        // int32 (batch, max_blocks): pages of k and v; 0: not paged. Then k and v are
                                 // (num_pages, page_size, nheads_k, head_dim), and k_strides.batch is that of a page
    int64_t block_table_stride;
    int32_t page_size;           // a multiple of 16
    int32_t num_pages;
    int32_t cache_rows;          // rows of k and v when cache_batch_idx is given
    int32_t num_splits;          // ways to split the keys: 1: no split; 0: the launcher chooses
    uint64_t scratch;            // device memory of at least what flash_attn_fwd_plan says, 16-byte aligned; or 0
    uint64_t scratch_bytes;
} flash_attn_fwd_args;

// New keys and values into a cache, in place, and rotary embedding of q and of the new keys.
typedef struct flash_attn_append_args {
    uint32_t struct_size;
    int32_t device;
    uint64_t stream;
    uint64_t q, q_rotated;       // q_rotated (batch, seqlen_q, nheads, head_dim), contiguous; 0: q is not rotated
    uint64_t k_new, v_new;       // (batch, seqlen_new, nheads_k, head_dim); 0: nothing to append
    uint64_t k_cache, v_cache;   // as k and v of flash_attn_fwd_args
    uint64_t rotary_cos, rotary_sin;  // as q's type, (seqlen_rotary, rotary_dim / 2), contiguous; 0: no rotation
    uint64_t cache_seqlens;      // int32 (batch): keys in the cache before this call; 0: cache_seqlen for all
    uint64_t leftpad_k, cache_batch_idx, block_table;
    int64_t block_table_stride;
    flash_attn_strides q_strides, k_new_strides, v_new_strides, k_cache_strides, v_cache_strides;
    int32_t batch, nheads, nheads_k, head_dim, dtype;
    int32_t seqlen_q, seqlen_new;
    int32_t seqlen_cache;        // rows of a sequence in the cache; paged: page_size * max_blocks
    int32_t seqlen_rotary, rotary_dim;
    int32_t interleaved;         // rotate neighbouring pairs; 0: the two halves of rotary_dim
    int32_t q_advances;          // query i is rotated by its own position; 0: all by the cache's length
    int32_t page_size, num_pages, cache_rows, cache_seqlen;
} flash_attn_append_args;

typedef struct flash_attn_bwd_args {
    uint32_t struct_size;
    int32_t device;
    uint64_t stream;
    flash_attn_problem problem;
    uint64_t dout, q, k, v, out, softmax_lse;
    uint64_t dq, dk, dv;
    uint64_t softmax_d;          // fp32; (batch, nheads, seqlen_q rounded up to 128), packed (nheads, total_q
                                 // + 128 * batch rounded up to 128)
    flash_attn_strides dout_strides, q_strides, k_strides, v_strides, out_strides, dq_strides, dk_strides, dv_strides;
    int32_t deterministic;       // 0 or 1
    int32_t reserved;            // 0
    uint64_t scratch;            // device memory of at least what flash_attn_bwd_plan says, 16-byte aligned
    uint64_t scratch_bytes;
} flash_attn_bwd_args;

// What a call would do.
typedef struct flash_attn_plan {
    uint32_t struct_size;
    int32_t num_splits;
    uint64_t scratch_bytes;      // device memory to hand over, 0 if none
    const char *kernel;          // name of the kernel that does the work; lives as long as the library
} flash_attn_plan;

// One fatbin that the build wrote: its file name inside the kernels' folder and the SHA-256 its bytes must have.
typedef struct flash_attn_fatbin {
    const char *name;      // "flash_fwd_hdim128_bf16.fatbin"
    const char *sha256;    // 64 lowercase hexadecimal digits
} flash_attn_fatbin;

// What the driver says of one GPU.
typedef struct flash_attn_device_info {
    uint32_t struct_size;
    int32_t driver_version;       // as cuDriverGetVersion gives it: 13000 for CUDA 13.0
    int32_t compute_capability;   // 10 * major + minor: 90
    int32_t multiprocessors;
    int32_t smem_per_block_optin; // bytes
    int32_t l2_bytes;
    char name[128];
} flash_attn_device_info;

FLASH_ATTN_API uint32_t flash_attn_abi_version(void);
FLASH_ATTN_API const char *flash_attn_last_error(void);

// Says where the fatbins lie (UTF-8 path of a folder) and what their bytes must be. Copies what it is given; opens
// nothing yet. Call it once, before the first launch.
FLASH_ATTN_API int flash_attn_set_kernels(const char *folder, const flash_attn_fatbin *fatbins, int32_t count);

// Lowers the shared memory a block may use (bytes; 0: what the device reports), so that a large GPU runs the tiles
// of a small one.
FLASH_ATTN_API int flash_attn_set_smem_limit(int32_t bytes);

FLASH_ATTN_API int flash_attn_device_count(int32_t *count);
FLASH_ATTN_API int flash_attn_get_device_info(int32_t device, flash_attn_device_info *info);

// The plan functions check the arguments and launch nothing; addresses may be 0 there.
FLASH_ATTN_API int flash_attn_fwd_plan(const flash_attn_fwd_args *args, flash_attn_plan *plan);
FLASH_ATTN_API int flash_attn_fwd(const flash_attn_fwd_args *args);
FLASH_ATTN_API int flash_attn_append(const flash_attn_append_args *args);
FLASH_ATTN_API int flash_attn_bwd_plan(const flash_attn_bwd_args *args, flash_attn_plan *plan);
FLASH_ATTN_API int flash_attn_bwd(const flash_attn_bwd_args *args);
