#include "device.h"

#include "platform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kOldestComputeCapability = 80 };

static void *volatile devices[kMaxDevices];

static flash_attn_status count_devices(const Flash_driver *driver, int *count) {
    const CUresult result = driver->cuDeviceGetCount(count);
    return result == CUDA_SUCCESS ? FLASH_ATTN_OK
                                  : flash_cuda_error(driver, result, "cuDeviceGetCount", "counting the GPUs");
}

static flash_attn_status describe(int ordinal, flash_attn_device_info *info, CUdevice *handle) {
    const Flash_driver *driver;
    flash_attn_status status = flash_get_driver(&driver);
    if (status != FLASH_ATTN_OK) { return status; }
    int count;
    status = count_devices(driver, &count);
    if (status != FLASH_ATTN_OK) { return status; }
    if (ordinal < 0 || ordinal >= count) {
        return flash_error(FLASH_ATTN_NO_DEVICE, "There is no GPU %d: the CUDA driver shows %d, counted from 0", ordinal,
                           count);
    }
    CUresult result = driver->cuDeviceGet(handle, ordinal);
    if (result != CUDA_SUCCESS) { return flash_cuda_error(driver, result, "cuDeviceGet", "asking for a GPU"); }

    int major = 0, minor = 0;
    const struct { int attribute; int32_t *value; } wanted[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &info->multiprocessors},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &info->smem_per_block_optin},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &info->l2_bytes}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; ++i) {
        result = driver->cuDeviceGetAttribute(wanted[i].value, wanted[i].attribute, *handle);
        if (result != CUDA_SUCCESS) {
            return flash_cuda_error(driver, result, "cuDeviceGetAttribute", "asking what a GPU can do");
        }
    }
    result = driver->cuDeviceGetName(info->name, (int)sizeof info->name, *handle);
    if (result != CUDA_SUCCESS) { return flash_cuda_error(driver, result, "cuDeviceGetName", "asking for a GPU's name"); }
    info->name[sizeof info->name - 1] = '\0';
    info->compute_capability = 10 * major + minor;
    info->driver_version = driver->version;
    return FLASH_ATTN_OK;
}

int flash_attn_device_count(int32_t *count) {
    if (!count) { return flash_error(FLASH_ATTN_INVALID_ARGUMENT, "count is a null pointer: pass where to write it"); }
    *count = 0;
    const Flash_driver *driver;
    const flash_attn_status status = flash_get_driver(&driver);
    return status == FLASH_ATTN_OK ? count_devices(driver, count) : status;
}

int flash_attn_get_device_info(int32_t device, flash_attn_device_info *info) {
    if (!info || info->struct_size != sizeof *info) {
        return flash_error(FLASH_ATTN_INVALID_ARGUMENT,
                           "flash_attn_device_info has %u bytes and this library expects %u, so Python files and library are "
                           "of different versions: reinstall flash-attn", info ? info->struct_size : 0,
                           (unsigned)sizeof *info);
    }
    CUdevice handle;
    return describe(device, info, &handle);
}

static flash_attn_status open_device(int ordinal) {
    flash_attn_device_info info = {0};
    CUdevice handle;
    const flash_attn_status status = describe(ordinal, &info, &handle);
    if (status != FLASH_ATTN_OK) { return status; }
    if (info.compute_capability < kOldestComputeCapability) {
        return flash_error(FLASH_ATTN_NO_DEVICE,
                           "GPU %d (%s) has compute capability %d.%d, and flash-attn needs 8.0 (Ampere) or newer: use "
                           "another GPU", ordinal, info.name, info.compute_capability / 10, info.compute_capability % 10);
    }
    Flash_device *device = calloc(1, sizeof *device);
    if (!device) { return flash_error(FLASH_ATTN_CUDA_ERROR, "Out of host memory: free some and call again"); }
    flash_get_driver(&device->driver);
    device->ordinal = ordinal;
    device->handle = handle;
    device->compute_capability = info.compute_capability;
    device->multiprocessors = info.multiprocessors;
    device->smem_per_block_optin = info.smem_per_block_optin;
    device->l2_bytes = info.l2_bytes;

    flash_lock();
    const bool is_first = !flash_load_pointer(&devices[ordinal]);
    if (is_first) { flash_store_pointer(&devices[ordinal], device); }
    flash_unlock();
    if (!is_first) { free(device); }  // another thread was faster
    return FLASH_ATTN_OK;
}

flash_attn_status flash_get_device(int ordinal, Flash_device **device) {
    *device = NULL;
    if (ordinal < 0 || ordinal >= kMaxDevices) {
        return flash_error(FLASH_ATTN_NO_DEVICE, "There is no GPU %d: device must be 0 to %d", ordinal, kMaxDevices - 1);
    }
    *device = flash_load_pointer(&devices[ordinal]);
    if (*device) { return FLASH_ATTN_OK; }
    const flash_attn_status status = open_device(ordinal);
    *device = flash_load_pointer(&devices[ordinal]);
    return status;
}

flash_attn_status flash_kernel_error(const Flash_device *device, CUresult result, const char *call, const char *name) {
    const int major = device->compute_capability / 10, minor = device->compute_capability % 10;
    switch (result) {
        case CUDA_ERROR_NO_BINARY_FOR_GPU:
        case CUDA_ERROR_INVALID_PTX:
        case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
        case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
        case CUDA_ERROR_JIT_COMPILATION_DISABLED:
            return flash_error(FLASH_ATTN_BAD_KERNELS,
                               "%s holds no code that GPU %d (compute capability %d.%d) can run (%s gave error %d): install "
                               "a flash-attn wheel built for it, or a newer NVIDIA driver", name, device->ordinal, major,
                               minor, call, result);
        case CUDA_ERROR_INVALID_IMAGE:
        case CUDA_ERROR_INVALID_SOURCE:
        case CUDA_ERROR_NOT_FOUND:
            return flash_error(FLASH_ATTN_BAD_KERNELS,
                               "%s is not what the CUDA driver expects (%s gave error %d): install a complete flash-attn "
                               "wheel and an NVIDIA driver of version 580 or newer", name, call, result);
        default: break;
    }
    char doing[1024];
    snprintf(doing, sizeof doing, "loading %s", name);
    return flash_cuda_error(device->driver, result, call, doing);
}

static flash_attn_status retain_context(Flash_device *device) {
    CUcontext context = NULL;
    flash_lock();
    const CUresult result = flash_load_pointer(&device->context)
        ? CUDA_SUCCESS : device->driver->cuDevicePrimaryCtxRetain(&context, device->handle);
    if (context) { flash_store_pointer(&device->context, context); }
    flash_unlock();
    return result == CUDA_SUCCESS ? FLASH_ATTN_OK
                                  : flash_cuda_error(device->driver, result, "cuDevicePrimaryCtxRetain", "opening a GPU");
}

flash_attn_status flash_enter_device(Flash_device *device, Flash_context_scope *scope) {
    const Flash_driver *driver = device->driver;
    if (!flash_load_pointer(&device->context)) {
        const flash_attn_status status = retain_context(device);
        if (status != FLASH_ATTN_OK) { return status; }
    }
    CUcontext context = flash_load_pointer(&device->context);
    CUresult result = driver->cuCtxGetCurrent(&scope->previous);
    if (result != CUDA_SUCCESS) {
        return flash_cuda_error(driver, result, "cuCtxGetCurrent", "asking for the current CUDA context");
    }
    scope->changed = scope->previous != context;
    if (!scope->changed) { return FLASH_ATTN_OK; }
    result = driver->cuCtxSetCurrent(context);
    return result == CUDA_SUCCESS ? FLASH_ATTN_OK
                                  : flash_cuda_error(driver, result, "cuCtxSetCurrent", "switching to the tensors' GPU");
}

void flash_leave_device(Flash_device *device, const Flash_context_scope *scope) {
    if (scope->changed) { device->driver->cuCtxSetCurrent(scope->previous); }
}
