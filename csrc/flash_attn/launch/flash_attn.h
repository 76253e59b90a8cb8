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

// Strides in elements of one (batch, seqlen, nheads, head_dim) tensor; head_dim is contiguous.
typedef struct flash_attn_strides {
    int64_t batch, row, head;
} flash_attn_strides;

typedef struct flash_attn_fwd_args {
    uint32_t struct_size;  // sizeof(flash_attn_fwd_args): the version of this struct
    int32_t device;        // CUDA ordinal that all pointers belong to
    uint64_t stream;       // CUstream
    uint64_t q, k, v, out; // 16-byte aligned device addresses; strides are multiples of 8 elements
    uint64_t softmax_lse;  // fp32 (batch, nheads, seqlen_q)
    flash_attn_strides q_strides, k_strides, v_strides, out_strides;
    int32_t batch, nheads, nheads_k, seqlen_q, seqlen_k;
    int32_t head_dim;      // a multiple of 8, 8 to 256
    int32_t dtype;         // flash_attn_dtype
    int32_t causal;        // 0 or 1, aligned to the bottom right
    float softmax_scale;
    int32_t reserved;      // 0
} flash_attn_fwd_args;

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

// The name of the kernel that flash_attn_fwd would launch for these arguments on their device.
FLASH_ATTN_API int flash_attn_fwd_kernel_name(const flash_attn_fwd_args *args, const char **name);

FLASH_ATTN_API int flash_attn_fwd(const flash_attn_fwd_args *args);
