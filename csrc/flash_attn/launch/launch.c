#include "launch.h"

#include "problem.h"

#include <limits.h>
#include <stdio.h>

enum { kMaxLaunches = 3 };

static flash_attn_status check_grid(const Flash_launch *launch) {
    return launch->grid <= INT_MAX
        ? FLASH_ATTN_OK
        : flash_error(FLASH_ATTN_INVALID_ARGUMENT,
                      "%s would need %lld thread blocks, and a launch has at most %d: split the batch or the heads over "
                      "several calls", launch->kernel->name, (long long)launch->grid, INT_MAX);
}

static flash_attn_status launch_one(Flash_device *device, uint64_t stream, const Flash_launch *launch, CUkernel handle,
                                    void *parameters) {
    void *arguments[] = {parameters};
    const CUresult result = device->driver->cuLaunchKernel(
        (CUfunction)(void *)handle, (unsigned)launch->grid, 1, 1, (unsigned)launch->kernel->warps * 32, 1, 1,
        (unsigned)launch->smem_bytes, (CUstream)(uintptr_t)stream, arguments, NULL);
    if (result == CUDA_SUCCESS) { return FLASH_ATTN_OK; }
    char doing[256];
    snprintf(doing, sizeof doing, "launching %s", launch->kernel->name);
    return flash_cuda_error(device->driver, result, "cuLaunchKernel", doing);
}

static flash_attn_status launch_in_context(Flash_device *device, uint64_t stream, const Flash_launch *launches, int count,
                                           void *parameters) {
    CUkernel handles[kMaxLaunches] = {0};
    for (int i = 0; i < count; ++i) {
        if (launches[i].grid > 0) { FLASH_TRY(flash_load_kernel(device, launches[i].kernel, &handles[i])); }
    }
    for (int i = 0; i < count; ++i) {
        if (launches[i].grid > 0) { FLASH_TRY(launch_one(device, stream, &launches[i], handles[i], parameters)); }
    }
    return FLASH_ATTN_OK;
}

flash_attn_status flash_launch_all(Flash_device *device, uint64_t stream, const Flash_launch *launches, int count,
                                   void *parameters) {
    bool is_empty = true;
    for (int i = 0; i < count; ++i) {
        FLASH_TRY(check_grid(&launches[i]));
        is_empty = is_empty && launches[i].grid == 0;
    }
    if (is_empty) { return FLASH_ATTN_OK; }
    Flash_context_scope scope;
    FLASH_TRY(flash_enter_device(device, &scope));
    const flash_attn_status status = launch_in_context(device, stream, launches, count, parameters);
    flash_leave_device(device, &scope);
    return status;
}
