// The last error of each thread.
#pragma once

#include "flash_attn.h"

#if defined(__GNUC__)
#define FLASH_PRINTF(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))
#else
#define FLASH_PRINTF(format_index, first_argument)
#endif

// Keeps the sentence for flash_attn_last_error() and returns the status, so that a check can return it at once.
FLASH_PRINTF(2, 3) flash_attn_status flash_error(flash_attn_status status, const char *format, ...);
