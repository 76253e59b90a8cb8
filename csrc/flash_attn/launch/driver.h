// The CUDA driver, found when it is first needed.
#pragma once

#include "cuda_driver.h"
#include "error.h"

typedef struct Flash_driver {
    int version;  // 13000 for CUDA 13.0
#define FLASH_CUDA_MEMBER(name, parameters) CUresult(FLASH_CUDAAPI *name) parameters;
    FLASH_CUDA_CALLS(FLASH_CUDA_MEMBER)
#undef FLASH_CUDA_MEMBER
} Flash_driver;

// The driver, initialised; free of cost after the first success. A failure is tried again by the next call.
flash_attn_status flash_get_driver(const Flash_driver **driver);

// One sentence for a call that the driver refused: which, doing what ("launching flash_fwd_hdim64_fp16"), why, and what
// to do.
flash_attn_status flash_cuda_error(const Flash_driver *driver, CUresult result, const char *call, const char *doing);
