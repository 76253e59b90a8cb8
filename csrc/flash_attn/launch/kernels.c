#include "kernels.h"

#include "fatbin.h"
#include "platform.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
    kDtypes = 2,
    kMaxHeadDim = 256,
    kSlots = kMaxHeadDim / 8 + 1,   // one for every multiple of 8
    kStaticSmem = 1024,             // bytes that kernels declare statically, at most; they count beside smem_bytes
    kSmemWithoutOptin = 48 * 1024,  // bytes that every kernel may use unasked
};

static const char *const family_names[kFamilies] = {"flash_fwd", "flash_fwd_splitkv", "flash_bwd"};
static const char *const dtype_names[kDtypes] = {"fp16", "bf16"};
static const char *const variant_names[kVariants] = {"plain",   "softcap", "dropout",  "modified",
                                                     "combine", "append",  "dot_do_o", "convert_dq"};

static const Flash_kernel kernels[] = {
#define FLASH_ATTN_KERNEL(name, family, head_dim, dtype, variant, block_m, block_n, warps, smem_bytes)                  \
    {name, family, dtype, variant, head_dim, block_m, block_n, warps, smem_bytes},
#include "flash_attn_kernel_table.inc"
#undef FLASH_ATTN_KERNEL
};
enum { kKernels = sizeof kernels / sizeof *kernels };
_Static_assert(kKernels < SHRT_MAX, "rows are counted in 16 bits");

// CUkernel by device and row of the table, once it may be launched there.
static void *volatile handles[kMaxDevices][kKernels];

// For every question the row that answers it, and for every row the next best one; -1: none. Made once.
typedef struct Kernel_index {
    short first[kFamilies][kVariants][kDtypes][kSlots];
    short next[kKernels];
} Kernel_index;

static Kernel_index built_index;
static void *volatile ready_index;

// Links the kernels of one family, variant and dtype from the smallest head dimension to the largest.
static void index_group(Kernel_index *index, Flash_family family, Flash_variant variant, int dtype) {
    short *first = index->first[family][variant][dtype];
    for (int slot = 0; slot < kSlots; ++slot) { first[slot] = -1; }
    short next = -1;
    for (int head_dim = kMaxHeadDim; head_dim > 0; head_dim -= 8) {
        for (int row = kKernels - 1; row >= 0; --row) {
            const Flash_kernel *kernel = &kernels[row];
            if (kernel->head_dim == head_dim && strcmp(kernel->family, family_names[family]) == 0 &&
                strcmp(kernel->variant, variant_names[variant]) == 0 && strcmp(kernel->dtype, dtype_names[dtype]) == 0) {
                index->next[row] = next;
                next = (short)row;
            }
        }
        first[head_dim / 8] = next;
    }
}

static const Kernel_index *kernel_index(void) {
    const Kernel_index *index = flash_load_pointer(&ready_index);
    if (index) { return index; }
    flash_lock();
    if (!flash_load_pointer(&ready_index)) {
        for (int family = 0; family < kFamilies; ++family) {
            for (int variant = 0; variant < kVariants; ++variant) {
                for (int dtype = 0; dtype < kDtypes; ++dtype) {
                    index_group(&built_index, (Flash_family)family, (Flash_variant)variant, dtype);
                }
            }
        }
        flash_store_pointer(&ready_index, &built_index);
    }
    flash_unlock();
    return &built_index;
}

const Flash_kernel *flash_first_kernel(Flash_family family, Flash_variant variant, int dtype, int head_dim) {
    const int row = kernel_index()->first[family][variant][dtype][(head_dim + 7) / 8];
    return row < 0 ? NULL : &kernels[row];
}

const Flash_kernel *flash_next_kernel(const Flash_kernel *kernel) {
    const int row = kernel_index()->next[kernel - kernels];
    return row < 0 ? NULL : &kernels[row];
}

static volatile int32_t smem_limit;  // bytes; 0: what the device has

int flash_attn_set_smem_limit(int32_t bytes) {
    if (bytes < 0) {
        return flash_error(FLASH_ATTN_INVALID_ARGUMENT,
                           "The shared memory limit is %d bytes: it must be positive, or 0 for what the GPU has", bytes);
    }
    smem_limit = bytes;
    return FLASH_ATTN_OK;
}

static int smem_available(const Flash_device *device) {
    const int32_t limit = smem_limit;
    return limit > 0 && limit < device->smem_per_block_optin ? limit : device->smem_per_block_optin;
}

bool flash_kernel_fits(const Flash_device *device, const Flash_kernel *kernel) {
    return kernel->smem_bytes + kStaticSmem <= smem_available(device);
}

flash_attn_status flash_no_kernel(Flash_family family, Flash_variant variant, int dtype, int head_dim) {
    return flash_error(FLASH_ATTN_BAD_KERNELS,
                       "This build has no %s kernel \"%s\" for %s and head dimension %d: install a complete flash-attn wheel",
                       family_names[family], variant_names[variant], dtype_names[dtype], head_dim);
}

flash_attn_status flash_find_kernel(const Flash_device *device, Flash_family family, Flash_variant variant, int dtype,
                                    int head_dim, const Flash_kernel **kernel) {
    const Flash_kernel *first = flash_first_kernel(family, variant, dtype, head_dim);
    if (!first) { return flash_no_kernel(family, variant, dtype, head_dim); }
    const Flash_kernel *candidate = first;
    while (candidate && !flash_kernel_fits(device, candidate)) { candidate = flash_next_kernel(candidate); }
    if (!candidate) {
        return flash_error(FLASH_ATTN_NO_DEVICE,
                           "GPU %d offers a block %d bytes of shared memory, too few for every %s tile of head dimension "
                           "%d: use a larger GPU or raise the limit that was set", device->ordinal, smem_available(device),
                           family_names[family], head_dim);
    }
    *kernel = candidate;
    return FLASH_ATTN_OK;
}

flash_attn_status flash_find_stage(const Flash_kernel *main_kernel, Flash_family family, Flash_variant stage, int dtype,
                                   const Flash_kernel **kernel) {
    const Flash_kernel *candidate = flash_first_kernel(family, stage, dtype, main_kernel->head_dim);
    while (candidate && !(candidate->head_dim == main_kernel->head_dim && candidate->block_m == main_kernel->block_m &&
                          candidate->block_n == main_kernel->block_n && candidate->warps == main_kernel->warps &&
                          candidate->smem_bytes == main_kernel->smem_bytes)) {
        candidate = flash_next_kernel(candidate);
    }
    *kernel = candidate;
    return candidate ? FLASH_ATTN_OK : flash_no_kernel(family, stage, dtype, main_kernel->head_dim);
}

flash_attn_status flash_find_common_stage(Flash_family family, Flash_variant stage, int dtype, int head_dim,
                                          const Flash_kernel **kernel) {
    *kernel = flash_first_kernel(family, stage, dtype, head_dim);
    return *kernel ? FLASH_ATTN_OK : flash_no_kernel(family, stage, dtype, head_dim);
}

static flash_attn_status prepare(Flash_device *device, const Flash_kernel *kernel, CUkernel *handle) {
    const Flash_driver *driver = device->driver;
    char fatbin[160];
    snprintf(fatbin, sizeof fatbin, "%s_hdim%d_%s.fatbin", kernel->family, kernel->head_dim, kernel->dtype);
    CUlibrary library;
    const flash_attn_status status = flash_load_fatbin(device, fatbin, &library);
    if (status != FLASH_ATTN_OK) { return status; }

    CUresult result = driver->cuLibraryGetKernel(handle, library, kernel->name);
    if (result != CUDA_SUCCESS) { return flash_kernel_error(device, result, "cuLibraryGetKernel", kernel->name); }
    if (kernel->smem_bytes + kStaticSmem > kSmemWithoutOptin) {
        result = driver->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel->smem_bytes, *handle,
                                              device->handle);
        if (result != CUDA_SUCCESS) { return flash_kernel_error(device, result, "cuKernelSetAttribute", kernel->name); }
    }
    // The driver loads lazily: asking for the function brings the code into the context now, where a failure can be
    // explained, and not in the launch.
    CUfunction function;
    result = driver->cuKernelGetFunction(&function, *handle);
    return result == CUDA_SUCCESS ? FLASH_ATTN_OK
                                  : flash_kernel_error(device, result, "cuKernelGetFunction", kernel->name);
}

// Loading allocates, which a stream capture in this thread or another one may forbid; the relaxed mode allows it, and
// nothing of it belongs into the captured graph.
static flash_attn_status prepare_relaxed(Flash_device *device, const Flash_kernel *kernel, CUkernel *handle) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const CUresult result = device->driver->cuThreadExchangeStreamCaptureMode(&mode);
    if (result != CUDA_SUCCESS) {
        return flash_kernel_error(device, result, "cuThreadExchangeStreamCaptureMode", kernel->name);
    }
    const flash_attn_status status = prepare(device, kernel, handle);
    device->driver->cuThreadExchangeStreamCaptureMode(&mode);
    return status;
}

flash_attn_status flash_load_kernel(Flash_device *device, const Flash_kernel *kernel, CUkernel *handle) {
    void *volatile *shared = &handles[device->ordinal][kernel - kernels];
    *handle = flash_load_pointer(shared);
    if (*handle) { return FLASH_ATTN_OK; }
    flash_attn_status status = FLASH_ATTN_OK;
    flash_lock();
    *handle = flash_load_pointer(shared);
    if (!*handle) {
        status = prepare_relaxed(device, kernel, handle);
        if (status == FLASH_ATTN_OK) { flash_store_pointer(shared, *handle); }
    }
    flash_unlock();
    return status;
}
