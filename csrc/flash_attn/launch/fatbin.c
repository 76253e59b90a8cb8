#include "fatbin.h"

#include "platform.h"
#include "sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char remedy[] = "reinstall flash-attn";

typedef struct Fatbin {
    char *name;
    char sha256[kSha256Digits + 1];
    CUlibrary library;
} Fatbin;

typedef struct Fatbin_list {
    char *folder;
    Fatbin *fatbins;
    int count;
    bool is_used;  // a fatbin has been loaded: the list stays as it is
} Fatbin_list;

static Fatbin_list installed;  // under the lock

static void free_list(Fatbin_list *list) {
    for (int i = 0; i < list->count; ++i) { free(list->fatbins[i].name); }
    free(list->fatbins);
    free(list->folder);
    *list = (Fatbin_list){0};
}

static char *copy_text(const char *text) {
    const size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

static bool is_digest(const char *text) {
    return text && strlen(text) == kSha256Digits && strspn(text, "0123456789abcdef") == kSha256Digits;
}

static flash_attn_status check_fatbin(const flash_attn_fatbin *fatbin, int index) {
    if (!fatbin->name || !*fatbin->name || strpbrk(fatbin->name, "/\\:")) {
        return flash_error(FLASH_ATTN_INVALID_ARGUMENT,
                           "Fatbin %d is named \"%s\": it must be the name of a file in the kernels' folder", index,
                           fatbin->name ? fatbin->name : "");
    }
    if (!is_digest(fatbin->sha256)) {
        return flash_error(FLASH_ATTN_INVALID_ARGUMENT,
                           "The SHA-256 of %s is \"%.80s\": it must be 64 lowercase hexadecimal digits", fatbin->name,
                           fatbin->sha256 ? fatbin->sha256 : "");
    }
    return FLASH_ATTN_OK;
}

static bool copy_list(Fatbin_list *list, const char *folder, const flash_attn_fatbin *fatbins, int count) {
    list->folder = copy_text(folder);
    list->fatbins = calloc((size_t)count + 1, sizeof *list->fatbins);
    if (!list->folder || !list->fatbins) { return false; }
    for (list->count = 0; list->count < count; ++list->count) {
        Fatbin *fatbin = &list->fatbins[list->count];
        fatbin->name = copy_text(fatbins[list->count].name);
        if (!fatbin->name) { return false; }
        memcpy(fatbin->sha256, fatbins[list->count].sha256, sizeof fatbin->sha256);
    }
    return true;
}

int flash_attn_set_kernels(const char *folder, const flash_attn_fatbin *fatbins, int32_t count) {
    if (!folder || !*folder) {
        return flash_error(FLASH_ATTN_INVALID_ARGUMENT, "The kernels' folder is not given: pass its path in UTF-8");
    }
    if (count < 0 || (count > 0 && !fatbins)) {
        return flash_error(FLASH_ATTN_INVALID_ARGUMENT, "The list of fatbins has %d entries%s: pass what the manifest lists",
                           count, fatbins ? "" : " and a null pointer");
    }
    for (int i = 0; i < count; ++i) {
        const flash_attn_status status = check_fatbin(&fatbins[i], i);
        if (status != FLASH_ATTN_OK) { return status; }
    }
    Fatbin_list list = {0};
    if (!copy_list(&list, folder, fatbins, count)) {
        free_list(&list);
        return flash_error(FLASH_ATTN_BAD_KERNELS, "Out of host memory: free some and call again");
    }
    flash_lock();
    const bool is_used = installed.is_used;
    Fatbin_list unneeded = is_used ? list : installed;
    if (!is_used) { installed = list; }
    flash_unlock();
    free_list(&unneeded);
    return is_used ? flash_error(FLASH_ATTN_INVALID_ARGUMENT,
                                 "Kernels have already been loaded: set their folder before the first launch")
                   : FLASH_ATTN_OK;
}

static flash_attn_status read_fatbin(const Fatbin *fatbin, const char *path, Flash_file *file) {
    switch (flash_read_file(path, file)) {
        case FLASH_FILE_OK: break;
        case FLASH_FILE_MISSING: return flash_error(FLASH_ATTN_BAD_KERNELS, "The kernel file %s is missing: %s", path, remedy);
        case FLASH_FILE_DENIED:
            return flash_error(FLASH_ATTN_BAD_KERNELS,
                               "The kernel file %s may not be read (permission denied): allow this user to read it", path);
        case FLASH_FILE_NO_MEMORY:
            return flash_error(FLASH_ATTN_BAD_KERNELS, "There is no host memory to read the kernel file %s: free some and "
                               "call again", path);
        default:
            return flash_error(FLASH_ATTN_BAD_KERNELS, "The kernel file %s can't be read (system error %d): %s", path,
                               file->code, remedy);
    }
    char digits[kSha256Digits + 1];
    flash_sha256(file->bytes, file->size, digits);
    if (strcmp(digits, fatbin->sha256) != 0) {
        return flash_error(FLASH_ATTN_BAD_KERNELS,
                           "The kernel file %s is damaged (its %llu bytes have SHA-256 %s instead of %s): %s", path,
                           (unsigned long long)file->size, digits, fatbin->sha256, remedy);
    }
    return FLASH_ATTN_OK;
}

static flash_attn_status load(const Flash_device *device, Fatbin *fatbin, const char *path) {
    Flash_file file = {0};
    flash_attn_status status = read_fatbin(fatbin, path, &file);
    if (status == FLASH_ATTN_OK) {
        CUlibrary library = NULL;
        // The driver keeps a copy of the code.
        const CUresult result = device->driver->cuLibraryLoadData(&library, file.bytes, NULL, NULL, 0, NULL, NULL, 0);
        if (result == CUDA_SUCCESS) {
            fatbin->library = library;
            installed.is_used = true;
        } else {
            status = flash_kernel_error(device, result, "cuLibraryLoadData", path);
        }
    }
    free(file.bytes);
    return status;
}

flash_attn_status flash_load_fatbin(const Flash_device *device, const char *name, CUlibrary *library) {
    if (!installed.folder) {
        return flash_error(FLASH_ATTN_BAD_KERNELS, "The kernels' folder is not known: call flash_attn_set_kernels first");
    }
    Fatbin *fatbin = NULL;
    for (int i = 0; i < installed.count; ++i) {
        if (strcmp(installed.fatbins[i].name, name) == 0) { fatbin = &installed.fatbins[i]; }
    }
    if (!fatbin) {
        return flash_error(FLASH_ATTN_BAD_KERNELS, "The manifest in %s does not list the kernel file %s: %s",
                           installed.folder, name, remedy);
    }
    flash_attn_status status = FLASH_ATTN_OK;
    if (!fatbin->library) {
        const size_t room = strlen(installed.folder) + strlen(name) + 2;
        char *path = malloc(room);
        if (!path) { return flash_error(FLASH_ATTN_BAD_KERNELS, "Out of host memory: free some and call again"); }
        snprintf(path, room, "%s/%s", installed.folder, name);
        status = load(device, fatbin, path);
        free(path);
    }
    *library = fatbin->library;
    return status;
}
