// The files that hold the kernels: where they lie, what their bytes must be, and what the driver made of them.
#pragma once

#include "device.h"

// The library of the fatbin `name`, loaded by the first call that asks for it. The lock must be held.
flash_attn_status flash_load_fatbin(const Flash_device *device, const char *name, CUlibrary *library);
