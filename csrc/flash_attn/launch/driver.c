#include "driver.h"

#include "platform.h"

#include <string.h>

enum { kCudaVersion = 13000 };  // the signatures in cuda_driver.h, and the oldest driver that loads the fatbins

static Flash_driver loaded_driver;
static void *volatile ready_driver;  // &loaded_driver once it is whole

// dlsym and cuGetProcAddress give data pointers; C converts them to functions by copying only.
static void set_function(void *function, void *address) { memcpy(function, &address, sizeof address); }

static flash_attn_status missing_entry_point(const char *name) {
    return flash_error(FLASH_ATTN_NO_DRIVER,
                       "The CUDA driver (%s) lacks the entry point %s: reinstall the NVIDIA driver, version 580 or newer",
                       FLASH_DRIVER_LIBRARY, name);
}

static flash_attn_status find_entry_points(void *library, Flash_driver *driver) {
    cuDriverGetVersion_t cuDriverGetVersion = NULL;
    set_function(&cuDriverGetVersion, flash_find_symbol(library, "cuDriverGetVersion"));
    if (!cuDriverGetVersion) { return missing_entry_point("cuDriverGetVersion"); }
    const CUresult result = cuDriverGetVersion(&driver->version);
    if (result != CUDA_SUCCESS) {
        return flash_error(FLASH_ATTN_NO_DRIVER,
                           "The CUDA driver does not tell its version (cuDriverGetVersion failed with error %d): "
                           "reinstall the NVIDIA driver, version 580 or newer", result);
    }
    if (driver->version < kCudaVersion) {
        return flash_error(FLASH_ATTN_NO_DRIVER,
                           "The NVIDIA driver is too old: it supports CUDA %d.%d, and flash-attn needs driver 580 or newer "
                           "(CUDA 13.0); update the driver", driver->version / 1000, driver->version % 1000 / 10);
    }
    cuGetProcAddress_v2_t cuGetProcAddress = NULL;
    set_function(&cuGetProcAddress, flash_find_symbol(library, "cuGetProcAddress_v2"));
    if (!cuGetProcAddress) { return missing_entry_point("cuGetProcAddress_v2"); }

    void *address;
#define FLASH_CUDA_FIND(name, parameters)                                                                              \
    address = NULL;                                                                                                    \
    if (cuGetProcAddress(#name, &address, kCudaVersion, 0, NULL) != CUDA_SUCCESS || !address) {                        \
        return missing_entry_point(#name);                                                                             \
    }                                                                                                                  \
    set_function(&driver->name, address);
    FLASH_CUDA_CALLS(FLASH_CUDA_FIND)
#undef FLASH_CUDA_FIND
    return FLASH_ATTN_OK;
}

static flash_attn_status initialise(const Flash_driver *driver) {
    const CUresult result = driver->cuInit(0);
    switch (result) {
        case CUDA_SUCCESS: return FLASH_ATTN_OK;
        case CUDA_ERROR_NO_DEVICE:
            return flash_error(FLASH_ATTN_NO_DEVICE,
                               "No NVIDIA GPU was found (cuInit returned CUDA_ERROR_NO_DEVICE): see whether nvidia-smi "
                               "lists one and CUDA_VISIBLE_DEVICES does not hide it");
        case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
            return flash_error(FLASH_ATTN_NO_DRIVER,
                               "The NVIDIA kernel module and %s are of different versions "
                               "(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH): reboot, or reinstall the driver", FLASH_DRIVER_LIBRARY);
        default: return flash_cuda_error(driver, result, "cuInit", "starting the CUDA driver");
    }
}

static flash_attn_status open_driver(void) {
    void *library = flash_open_driver_library();
    if (!library) {
        return flash_error(FLASH_ATTN_NO_DRIVER,
                           "No CUDA driver was found (%s does not load): install the NVIDIA driver, version 580 or newer",
                           FLASH_DRIVER_LIBRARY);
    }
    Flash_driver driver = {0};
    flash_attn_status status = find_entry_points(library, &driver);
    if (status == FLASH_ATTN_OK) { status = initialise(&driver); }
    if (status == FLASH_ATTN_OK) {
        loaded_driver = driver;
        flash_store_pointer(&ready_driver, &loaded_driver);
    }
    return status;
}

flash_attn_status flash_get_driver(const Flash_driver **driver) {
    *driver = flash_load_pointer(&ready_driver);
    if (*driver) { return FLASH_ATTN_OK; }
    flash_lock();
    const flash_attn_status status = flash_load_pointer(&ready_driver) ? FLASH_ATTN_OK : open_driver();
    flash_unlock();
    *driver = flash_load_pointer(&ready_driver);
    return status;
}

static const char *remedy(CUresult result) {
    switch (result) {
        case CUDA_ERROR_OUT_OF_MEMORY: return "free some GPU memory and call again";
        case CUDA_ERROR_NOT_INITIALIZED:
            return "the CUDA driver does not survive a fork, so start worker processes with the spawn method";
        case CUDA_ERROR_INVALID_HANDLE: return "see that the stream belongs to the tensors' GPU";
        default: break;
    }
    if (result >= CUDA_ERROR_ILLEGAL_ADDRESS && result <= CUDA_ERROR_LAUNCH_FAILED) {
        return "a kernel that ran before has failed, so find it with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer, and "
               "restart the process";
    }
    return "see whether nvidia-smi reports a healthy GPU and driver";
}

flash_attn_status flash_cuda_error(const Flash_driver *driver, CUresult result, const char *call, const char *doing) {
    const char *name = NULL, *text = NULL;
    if (driver->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name) { name = "an unknown error"; }
    if (driver->cuGetErrorString(result, &text) != CUDA_SUCCESS || !text) { text = "no description"; }
    return flash_error(FLASH_ATTN_CUDA_ERROR, "%s failed with %s (%d, %s) while %s: %s", call, name, result, text, doing,
                       remedy(result));
}
