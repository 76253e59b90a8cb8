#define WIN32_LEAN_AND_MEAN
#if !defined(_WIN32_WINNT)
#define _WIN32_WINNT 0x0A00
#endif
#include <windows.h>

#include "platform.h"

#include <stdlib.h>
#include <string.h>
#include <wchar.h>

// The driver's full path in System32: a bare name would find a planted file, or a library of that name that is
// already loaded.
void *flash_open_driver_library(void) {
    wchar_t path[MAX_PATH + 16];
    const UINT length = GetSystemDirectoryW(path, MAX_PATH);
    if (length == 0 || length >= MAX_PATH) { return NULL; }
    wcscpy(path + length, L"\\nvcuda.dll");
    // No message box if the file is broken.
    DWORD old_mode = 0;
    SetThreadErrorMode(SEM_FAILCRITICALERRORS | SEM_NOOPENFILEERRORBOX, &old_mode);
    HMODULE library = LoadLibraryExW(path, NULL, LOAD_LIBRARY_SEARCH_SYSTEM32);
    SetThreadErrorMode(old_mode, NULL);
    return (void *)library;
}

void *flash_find_symbol(void *library, const char *name) {
    FARPROC function = GetProcAddress((HMODULE)library, name);
    void *address;
    memcpy(&address, &function, sizeof address);
    return address;
}

static Flash_file_error failed(Flash_file *file, DWORD code) {
    file->code = (int)code;
    switch (code) {
        case ERROR_FILE_NOT_FOUND:
        case ERROR_PATH_NOT_FOUND:
        case ERROR_INVALID_NAME: return FLASH_FILE_MISSING;
        case ERROR_ACCESS_DENIED:
        case ERROR_SHARING_VIOLATION:
        case ERROR_LOCK_VIOLATION: return FLASH_FILE_DENIED;
        case ERROR_NOT_ENOUGH_MEMORY: return FLASH_FILE_NO_MEMORY;
        default: return FLASH_FILE_UNREADABLE;
    }
}

// The absolute path in UTF-16 with the prefix that lifts the limit of 260 characters. NULL with GetLastError() set.
static wchar_t *long_path(const char *path) {
    static const wchar_t prefix[] = L"\\\\?\\", unc_prefix[] = L"\\\\?\\UNC\\";
    enum { kRoom = 8 };  // characters of the longer prefix
    const int wide_length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    if (wide_length == 0) { return NULL; }
    wchar_t *wide = malloc((size_t)wide_length * sizeof *wide);
    if (!wide) { SetLastError(ERROR_NOT_ENOUGH_MEMORY); return NULL; }
    MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, wide_length);

    const DWORD full_length = GetFullPathNameW(wide, 0, NULL, NULL);
    wchar_t *full = full_length ? malloc((kRoom + (size_t)full_length) * sizeof *full) : NULL;
    if (!full || GetFullPathNameW(wide, full_length, full + kRoom, NULL) == 0) {
        const DWORD code = full ? GetLastError() : ERROR_NOT_ENOUGH_MEMORY;
        free(full);
        free(wide);
        SetLastError(code);
        return NULL;
    }
    free(wide);
    const wchar_t *absolute = full + kRoom;
    const size_t characters = wcslen(absolute) + 1;
    if (wcsncmp(absolute, L"\\\\?\\", 4) == 0 || wcsncmp(absolute, L"\\\\.\\", 4) == 0) {
        memmove(full, absolute, characters * sizeof *full);
    } else if (wcsncmp(absolute, L"\\\\", 2) == 0) {
        memmove(full + wcslen(unc_prefix), absolute + 2, (characters - 2) * sizeof *full);
        memcpy(full, unc_prefix, wcslen(unc_prefix) * sizeof *full);
    } else {
        memmove(full + wcslen(prefix), absolute, characters * sizeof *full);
        memcpy(full, prefix, wcslen(prefix) * sizeof *full);
    }
    return full;
}

static Flash_file_error read_open_file(HANDLE handle, Flash_file *file) {
    LARGE_INTEGER size;
    if (!GetFileSizeEx(handle, &size)) { return failed(file, GetLastError()); }
    file->bytes = malloc((size_t)size.QuadPart + 1);  // an empty file gets an address too
    if (!file->bytes) { return failed(file, ERROR_NOT_ENOUGH_MEMORY); }
    while (file->size < (size_t)size.QuadPart) {
        const size_t left = (size_t)size.QuadPart - file->size;
        DWORD count = 0;
        if (!ReadFile(handle, file->bytes + file->size, left > (1u << 30) ? 1u << 30 : (DWORD)left, &count, NULL)) {
            const DWORD code = GetLastError();
            free(file->bytes);
            file->bytes = NULL;
            return failed(file, code);
        }
        if (count == 0) { break; }  // the file has become shorter; its digest will tell
        file->size += count;
    }
    return FLASH_FILE_OK;
}

Flash_file_error flash_read_file(const char *path, Flash_file *file) {
    *file = (Flash_file){0};
    wchar_t *wide = long_path(path);
    if (!wide) { return failed(file, GetLastError()); }
    HANDLE handle = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, OPEN_EXISTING,
                                FILE_ATTRIBUTE_NORMAL, NULL);
    const DWORD code = GetLastError();
    free(wide);
    if (handle == INVALID_HANDLE_VALUE) { return failed(file, code); }
    const Flash_file_error result = read_open_file(handle, file);
    CloseHandle(handle);
    return result;
}

static SRWLOCK once_lock = SRWLOCK_INIT;

void flash_lock(void) { AcquireSRWLockExclusive(&once_lock); }
void flash_unlock(void) { ReleaseSRWLockExclusive(&once_lock); }
