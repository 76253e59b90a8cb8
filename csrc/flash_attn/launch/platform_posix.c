#define _POSIX_C_SOURCE 200809L
#include "platform.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

void *flash_open_driver_library(void) { return dlopen(FLASH_DRIVER_LIBRARY, RTLD_NOW | RTLD_LOCAL); }

void *flash_find_symbol(void *library, const char *name) { return dlsym(library, name); }

static Flash_file_error failed(Flash_file *file, int code) {
    file->code = code;
    switch (code) {
        case ENOENT:
        case ENOTDIR: return FLASH_FILE_MISSING;
        case EACCES:
        case EPERM: return FLASH_FILE_DENIED;
        case ENOMEM: return FLASH_FILE_NO_MEMORY;
        default: return FLASH_FILE_UNREADABLE;
    }
}

static Flash_file_error read_open_file(int descriptor, Flash_file *file) {
    // Not fstat, which is a symbol of glibc 2.33: a wheel runs on older ones too.
    char first;
    if (read(descriptor, &first, 1) < 0) { return failed(file, errno); }  // a folder: EISDIR
    const off_t end = lseek(descriptor, 0, SEEK_END);
    if (end < 0 || lseek(descriptor, 0, SEEK_SET) < 0) { return failed(file, errno); }
    const size_t size = (size_t)end;
    file->bytes = malloc(size + 1);  // an empty file gets an address too
    if (!file->bytes) { return failed(file, ENOMEM); }
    while (file->size < size) {
        const ssize_t count = read(descriptor, file->bytes + file->size, size - file->size);
        if (count < 0 && errno == EINTR) { continue; }
        if (count < 0) {
            const int code = errno;
            free(file->bytes);
            file->bytes = NULL;
            return failed(file, code);
        }
        if (count == 0) { break; }  // the file has become shorter; its digest will tell
        file->size += (size_t)count;
    }
    return FLASH_FILE_OK;
}

Flash_file_error flash_read_file(const char *path, Flash_file *file) {
    *file = (Flash_file){0};
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) { return failed(file, errno); }
    const Flash_file_error result = read_open_file(descriptor, file);
    close(descriptor);
    return result;
}

static pthread_mutex_t once_lock = PTHREAD_MUTEX_INITIALIZER;

void flash_lock(void) { pthread_mutex_lock(&once_lock); }
void flash_unlock(void) { pthread_mutex_unlock(&once_lock); }
