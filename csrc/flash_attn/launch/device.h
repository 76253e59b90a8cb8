// GPUs: what the driver says of them, and their contexts.
#pragma once

#include "driver.h"

#include <stdbool.h>

enum { kMaxDevices = 64 };

typedef struct Flash_device {
    const Flash_driver *driver;
    int ordinal;
    CUdevice handle;
    int compute_capability;    // 10 * major + minor
    int multiprocessors;
    int smem_per_block_optin;  // bytes
    int64_t l2_bytes;
    void *volatile context;    // the primary context, retained by the first launch
} Flash_device;

// An Ampere or newer GPU. Free of cost after the first success.
flash_attn_status flash_get_device(int ordinal, Flash_device **device);

// One sentence for a call on a fatbin or kernel that the driver refused: a kernel that suits no GPU of this kind, or any
// other reason.
flash_attn_status flash_kernel_error(const Flash_device *device, CUresult result, const char *call, const char *name);

// Makes the device's primary context this thread's current one; leave_device puts back the one that was.
typedef struct Flash_context_scope {
    CUcontext previous;
    bool changed;
} Flash_context_scope;

flash_attn_status flash_enter_device(Flash_device *device, Flash_context_scope *scope);
void flash_leave_device(Flash_device *device, const Flash_context_scope *scope);
