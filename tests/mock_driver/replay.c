// Makes recorded calls to a launcher over the mock driver and prints every launch and every fatbin loaded, one line each,
// so that launchers of different platforms can be compared, also where no Python runs.
//
//   replay LAUNCHER MOCK_DRIVER KERNELS_FOLDER CALLS
//
// CALLS is a file of the host's byte order: the number of fatbins and for each its name (64 bytes) and SHA-256 (65),
// then for each call its kind (0: fwd, 1: append, 2: bwd, 3: set_smem_limit), the size of its struct and the struct. What a
// call asks for as scratch it gets, at kScratch. Prints "kernel grid block smem device stream parameters", or a call's error,
// and in the end "loaded bytes hash" for each fatbin.
#include "flash_attn.h"
#include "mock_cuda.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
static void *open_library(const char *path) { return (void *)LoadLibraryA(path); }
static void *find_symbol(void *library, const char *name) {
    FARPROC function = GetProcAddress((HMODULE)library, name);
    void *address;
    memcpy(&address, &function, sizeof address);
    return address;
}
#else
#include <dlfcn.h>
static void *open_library(const char *path) { return dlopen(path, RTLD_NOW | RTLD_GLOBAL); }
static void *find_symbol(void *library, const char *name) { return dlsym(library, name); }
#endif

enum { kMaxFatbins = 512, kNameBytes = 64, kDigestBytes = 65, kMaxStruct = 4096 };
static const uint64_t kScratch = 0x7f0a00000000u;

typedef union Any_args {
    flash_attn_fwd_args fwd;
    flash_attn_append_args append;
    flash_attn_bwd_args bwd;
    int32_t smem_limit;
    char bytes[kMaxStruct];
} Any_args;

static const char *(*last_error)(void);
static int (*set_kernels)(const char *, const flash_attn_fatbin *, int32_t);
static int (*fwd_plan)(const flash_attn_fwd_args *, flash_attn_plan *);
static int (*fwd)(const flash_attn_fwd_args *);
static int (*append)(const flash_attn_append_args *);
static int (*bwd_plan)(const flash_attn_bwd_args *, flash_attn_plan *);
static int (*bwd)(const flash_attn_bwd_args *);
static int (*set_smem_limit)(int32_t);
static int (*get_launch)(int, Mock_launch *);
static int (*get_load)(int, Mock_load *);

static void find(void *library, const char *name, void *function) {
    void *address = find_symbol(library, name);
    if (!address) { fprintf(stderr, "replay: there is no %s\n", name); exit(2); }
    memcpy(function, &address, sizeof address);
}

static void *open_or_exit(const char *path) {
    void *library = open_library(path);
    if (!library) { fprintf(stderr, "replay: %s does not load\n", path); exit(2); }
    return library;
}

static bool read_bytes(FILE *file, void *to, size_t size) { return fread(to, 1, size, file) == size; }

static void announce_kernels(FILE *calls, const char *folder) {
    static char names[kMaxFatbins][kNameBytes], digests[kMaxFatbins][kDigestBytes];
    static flash_attn_fatbin fatbins[kMaxFatbins];
    uint32_t count = 0;
    if (!read_bytes(calls, &count, sizeof count) || count > kMaxFatbins) { fputs("replay: bad file of calls\n", stderr); exit(2); }
    for (uint32_t i = 0; i < count; ++i) {
        if (!read_bytes(calls, names[i], kNameBytes) || !read_bytes(calls, digests[i], kDigestBytes)) { exit(2); }
        fatbins[i] = (flash_attn_fatbin){names[i], digests[i]};
    }
    if (set_kernels(folder, fatbins, (int32_t)count) != FLASH_ATTN_OK) { printf("error: %s\n", last_error()); }
}

static int call(uint32_t kind, Any_args *args) {
    flash_attn_plan plan = {.struct_size = sizeof plan};
    int status;
    switch (kind) {
        case 0:
            status = fwd_plan(&args->fwd, &plan);
            args->fwd.scratch = plan.scratch_bytes ? kScratch : 0;
            args->fwd.scratch_bytes = plan.scratch_bytes;
            return status != FLASH_ATTN_OK ? status : fwd(&args->fwd);
        case 1: return append(&args->append);
        case 2:
            status = bwd_plan(&args->bwd, &plan);
            args->bwd.scratch = plan.scratch_bytes ? kScratch : 0;
            args->bwd.scratch_bytes = plan.scratch_bytes;
            return status != FLASH_ATTN_OK ? status : bwd(&args->bwd);
        case 3: return set_smem_limit(args->smem_limit);
        default: fputs("replay: unknown kind of call\n", stderr); exit(2);
    }
}

static void print_launches(int *printed) {
    Mock_launch launch;
    for (; get_launch(*printed, &launch) == 0; ++*printed) {
        printf("%s %u,%u,%u %u,%u,%u %u %d %llx ", launch.kernel, launch.grid[0], launch.grid[1], launch.grid[2],
               launch.block[0], launch.block[1], launch.block[2], launch.smem_bytes, launch.device,
               (unsigned long long)launch.stream);
        for (uint32_t i = 0; i < launch.param_bytes; ++i) { printf("%02x", launch.params[i]); }
        putchar('\n');
    }
}

int main(int argc, char **argv) {
    if (argc != 5) { fputs("usage: replay LAUNCHER MOCK_DRIVER KERNELS_FOLDER CALLS\n", stderr); return 2; }
    void *mock = open_or_exit(argv[2]);  // first, so that the launcher finds it already there
    void *launcher = open_or_exit(argv[1]);
    find(mock, "mock_cuda_get_launch", &get_launch);
    find(mock, "mock_cuda_get_load", &get_load);
    find(launcher, "flash_attn_last_error", &last_error);
    find(launcher, "flash_attn_set_kernels", &set_kernels);
    find(launcher, "flash_attn_set_smem_limit", &set_smem_limit);
    find(launcher, "flash_attn_fwd_plan", &fwd_plan);
    find(launcher, "flash_attn_fwd", &fwd);
    find(launcher, "flash_attn_append", &append);
    find(launcher, "flash_attn_bwd_plan", &bwd_plan);
    find(launcher, "flash_attn_bwd", &bwd);

    FILE *calls = fopen(argv[4], "rb");
    if (!calls) { fprintf(stderr, "replay: %s does not open\n", argv[4]); return 2; }
    announce_kernels(calls, argv[3]);
    int printed = 0;
    uint32_t header[2];
    while (read_bytes(calls, header, sizeof header)) {
        Any_args args;
        memset(&args, 0, sizeof args);
        if (header[1] > sizeof args || !read_bytes(calls, &args, header[1])) { fputs("replay: bad file of calls\n", stderr); return 2; }
        if (call(header[0], &args) != FLASH_ATTN_OK) { printf("error: %s\n", last_error()); }
        print_launches(&printed);
    }
    fclose(calls);
    Mock_load load;
    for (int i = 0; get_load(i, &load) == 0; ++i) {
        printf("loaded %llu %llx\n", (unsigned long long)load.bytes, (unsigned long long)load.hash);
    }
    return 0;
}
