// Into how many parts the keys of a call are split when there are too few rows of queries to fill the GPU.
#pragma once

#include "flash_attn.h"
#include "kernels.h"

// `tiles`: thread blocks without a split.
int flash_choose_splits(const Flash_device *device, const Flash_kernel *kernel, const flash_attn_problem *problem,
                        int64_t tiles);
