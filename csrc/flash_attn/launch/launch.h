// Launching kernels on a device's stream.
#pragma once

#include "kernels.h"

// One launch: a 1-D grid of `kernel->warps` warps, with one struct of parameters by value.
typedef struct Flash_launch {
    const Flash_kernel *kernel;
    int64_t grid;  // thread blocks; nothing is launched for 0
    int smem_bytes;
} Flash_launch;

// Launches one after the other on the stream. Every kernel is loaded before the first is launched, so that a missing one
// leaves nothing half done.
flash_attn_status flash_launch_all(Flash_device *device, uint64_t stream, const Flash_launch *launches, int count,
                                   void *parameters);
