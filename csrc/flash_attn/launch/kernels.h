// The kernels that the build made: which there are, which one answers a call, and its handle on a device.
#pragma once

#include "device.h"

#include <stdbool.h>

typedef enum Flash_family { FLASH_FWD, FLASH_FWD_SPLITKV, FLASH_BWD, kFamilies } Flash_family;

// What kernels.json calls variants and stages.
typedef enum Flash_variant {
    FLASH_PLAIN,
    FLASH_SOFTCAP,
    FLASH_DROPOUT,
    FLASH_MODIFIED,
    FLASH_COMBINE,
    FLASH_APPEND,
    FLASH_DOT_DO_O,
    FLASH_CONVERT_DQ,
    kVariants
} Flash_variant;

typedef struct Flash_kernel {
    const char *name, *family, *dtype, *variant;
    int head_dim;
    int block_m, block_n, warps;
    int smem_bytes;
} Flash_kernel;

// The tiles that can answer a call come in this order: smallest head dimension first, then as kernels.json lists them.
// flash_first_kernel gives the first, flash_next_kernel the one after; NULL: there is none.
const Flash_kernel *flash_first_kernel(Flash_family family, Flash_variant variant, int dtype, int head_dim);
const Flash_kernel *flash_next_kernel(const Flash_kernel *kernel);

// Whether the device, with the limit that was set, has the shared memory for the tile.
bool flash_kernel_fits(const Flash_device *device, const Flash_kernel *kernel);

// The first kernel that fits. Errors say that the build or the device lacks one.
flash_attn_status flash_find_kernel(const Flash_device *device, Flash_family family, Flash_variant variant, int dtype,
                                    int head_dim, const Flash_kernel **kernel);

// The kernel that does another step for the same tile.
flash_attn_status flash_find_stage(const Flash_kernel *main_kernel, Flash_family family, Flash_variant stage, int dtype,
                                   const Flash_kernel **kernel);

// The kernel that does another step for every tile of a head dimension alike.
flash_attn_status flash_find_common_stage(Flash_family family, Flash_variant stage, int dtype, int head_dim,
                                          const Flash_kernel **kernel);

flash_attn_status flash_no_kernel(Flash_family family, Flash_variant variant, int dtype, int head_dim);

// The kernel's handle, ready to be launched with its shared memory; loads its fatbin when it is first asked for. The
// device's context must be current.
flash_attn_status flash_load_kernel(Flash_device *device, const Flash_kernel *kernel, CUkernel *handle);
