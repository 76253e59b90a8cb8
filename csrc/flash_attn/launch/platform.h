// What the operating system gives: libraries, files, a lock, and words that threads share.
#pragma once

#include <stddef.h>

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#define FLASH_THREAD_LOCAL __declspec(thread)
#else
#define FLASH_THREAD_LOCAL _Thread_local
#endif

#if defined(_WIN32)
#define FLASH_DRIVER_LIBRARY "nvcuda.dll"
#else
#define FLASH_DRIVER_LIBRARY "libcuda.so.1"
#endif

// Opens the CUDA driver where the system keeps it. NULL if it is not there.
void *flash_open_driver_library(void);
void *flash_find_symbol(void *library, const char *name);

typedef enum Flash_file_error {
    FLASH_FILE_OK,
    FLASH_FILE_MISSING,
    FLASH_FILE_DENIED,
    FLASH_FILE_UNREADABLE,  // any other reason; `code` has the system's
    FLASH_FILE_NO_MEMORY
} Flash_file_error;

typedef struct Flash_file {
    unsigned char *bytes;  // the caller frees them
    size_t size;
    int code;              // errno or GetLastError() of what went wrong
} Flash_file;

// Reads a whole file; `path` is UTF-8.
Flash_file_error flash_read_file(const char *path, Flash_file *file);

// One lock for everything that happens once: finding the driver, opening a device, loading a fatbin.
void flash_lock(void);
void flash_unlock(void);

// A pointer that is written under the lock and read without it: who sees the pointer also sees what it points to.
static inline void *flash_load_pointer(void *volatile *shared) {
#if defined(_MSC_VER) && !defined(__clang__)
    return _InterlockedCompareExchangePointer(shared, NULL, NULL);
#else
    return __atomic_load_n(shared, __ATOMIC_ACQUIRE);
#endif
}

static inline void flash_store_pointer(void *volatile *shared, void *value) {
#if defined(_MSC_VER) && !defined(__clang__)
    _InterlockedExchangePointer(shared, value);
#else
    __atomic_store_n(shared, value, __ATOMIC_RELEASE);
#endif
}
