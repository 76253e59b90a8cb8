// The part of the CUDA driver API that the launcher calls, declared here so that no CUDA toolkit is needed to build it.
// Types, values and signatures are those of CUDA 13.0.
#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define FLASH_CUDAAPI __stdcall
#else
#define FLASH_CUDAAPI
#endif

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_JIT_COMPILATION_DISABLED = 223,
    CUDA_ERROR_INVALID_SOURCE = 300,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803
};

enum {
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
};
enum { CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
enum { CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };

// X(name, parameters): every entry point but the two that find the others.
#define FLASH_CUDA_CALLS(X)                                                                                            \
    X(cuInit, (unsigned flags))                                                                                        \
    X(cuGetErrorName, (CUresult error, const char **text))                                                             \
    X(cuGetErrorString, (CUresult error, const char **text))                                                           \
    X(cuDeviceGetCount, (int *count))                                                                                  \
    X(cuDeviceGet, (CUdevice * device, int ordinal))                                                                   \
    X(cuDeviceGetName, (char *name, int size, CUdevice device))                                                        \
    X(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))                                              \
    X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                                \
    X(cuCtxGetCurrent, (CUcontext * context))                                                                          \
    X(cuCtxSetCurrent, (CUcontext context))                                                                            \
    X(cuThreadExchangeStreamCaptureMode, (int *mode))                                                                  \
    X(cuLibraryLoadData, (CUlibrary * library, const void *code, int *jit_options, void **jit_values,                  \
                          unsigned jit_count, int *library_options, void **library_values, unsigned library_count))    \
    X(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name))                                    \
    X(cuKernelSetAttribute, (int attribute, int value, CUkernel kernel, CUdevice device))                              \
    X(cuKernelGetFunction, (CUfunction * function, CUkernel kernel))                                                   \
    X(cuLaunchKernel, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,       \
                       unsigned block_y, unsigned block_z, unsigned smem_bytes, CUstream stream, void **parameters,    \
                       void **extra))

typedef CUresult(FLASH_CUDAAPI *cuDriverGetVersion_t)(int *version);
typedef CUresult(FLASH_CUDAAPI *cuGetProcAddress_v2_t)(const char *symbol, void **function, int cuda_version,
                                                       uint64_t flags, int *status);
