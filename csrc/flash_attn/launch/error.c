#include "error.h"

#include "platform.h"

#include <stdarg.h>
#include <stdio.h>

// Room for a sentence with two long paths; what is longer is cut off.
static FLASH_THREAD_LOCAL char message[8192];

flash_attn_status flash_error(flash_attn_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return status;
}

const char *flash_attn_last_error(void) { return message; }
