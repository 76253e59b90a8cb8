// A CUDA driver without a GPU: answers to the driver's names as the real one would, records what is loaded and launched,
// and fails any call on demand. Built as libcuda.so.1 or nvcuda.dll.
#include "mock_cuda.h"

#include "cuda_driver.h"
#include "flash.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
static SRWLOCK state_lock = SRWLOCK_INIT;
static void lock(void) { AcquireSRWLockExclusive(&state_lock); }
static void unlock(void) { ReleaseSRWLockExclusive(&state_lock); }
#else
#include <pthread.h>
static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static void lock(void) { pthread_mutex_lock(&state_lock); }
static void unlock(void) { pthread_mutex_unlock(&state_lock); }
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL _Thread_local
#endif

enum {
    kMaxDevices = 16,
    kMaxLibraries = 1024,
    kMaxKernels = 4096,
    kDefaultSmem = 48 * 1024,
    kFatbinMagic = (int)0xBA55ED50,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
};

struct CUctx_st { int device; };
struct CUlib_st { Mock_load load; };
struct CUkern_st {
    CUlibrary library;
    char name[kMockNameBytes];
    int smem_bytes[kMaxDevices];  // what was asked for
    bool is_in_context[kMaxDevices];
};

typedef struct Device {
    char name[kMockNameBytes];
    int compute_capability, multiprocessors, smem_optin, l2_bytes;
    bool is_retained;
} Device;

enum {
#define CALL_NUMBER(name, parameters) call_##name,
    FLASH_CUDA_CALLS(CALL_NUMBER)
#undef CALL_NUMBER
    call_cuDriverGetVersion,
    call_cuGetProcAddress_v2,
    kCalls
};

static const char *const call_names[kCalls] = {
#define CALL_NAME(name, parameters) #name,
    FLASH_CUDA_CALLS(CALL_NAME)
#undef CALL_NAME
    "cuDriverGetVersion", "cuGetProcAddress_v2"};

typedef struct Call {
    int count;
    int result;     // what it fails with
    int successes;  // before it does
    bool is_hidden;
} Call;

static struct {
    bool is_ready;
    bool is_initialised;
    int driver_version;
    int device_count;
    Device devices[kMaxDevices];
    Call calls[kCalls];
    bool is_capturing;
    bool is_recording;
    int library_count, kernel_count, launch_count, kept_count, launch_room;
    Mock_launch *launches;
} state;

// Handles keep their addresses when the state is reset.
static struct CUctx_st primary_contexts[kMaxDevices], other_contexts[kMaxDevices];
static struct CUlib_st libraries[kMaxLibraries];
static struct CUkern_st kernels[kMaxKernels];

static THREAD_LOCAL CUcontext current_context;
static THREAD_LOCAL int capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// ---- State (all under the lock) ----

static int call_number(const char *name) {
    for (int i = 0; i < kCalls; ++i) {
        if (strcmp(call_names[i], name) == 0) { return i; }
    }
    return -1;
}

static int add_device(const char *name, int compute_capability, int multiprocessors, int smem_optin, int l2_bytes) {
    if (state.device_count == kMaxDevices) { return -1; }
    const int ordinal = state.device_count++;
    state.devices[ordinal] = (Device){.compute_capability = compute_capability, .multiprocessors = multiprocessors,
                                      .smem_optin = smem_optin, .l2_bytes = l2_bytes};
    snprintf(state.devices[ordinal].name, kMockNameBytes, "%s", name);
    return ordinal;
}

static void add_devices(const char *list) {
    for (const char *entry = list; entry && *entry; entry = strchr(entry, ';') ? strchr(entry, ';') + 1 : NULL) {
        int compute_capability, multiprocessors, smem_optin, l2_bytes;
        if (sscanf(entry, "%d,%d,%d,%d", &compute_capability, &multiprocessors, &smem_optin, &l2_bytes) == 4) {
            add_device("Mock GPU", compute_capability, multiprocessors, smem_optin, l2_bytes);
        }
    }
}

static void set_failure(const char *name, int result, int successes) {
    const int call = call_number(name);
    if (call >= 0) {
        state.calls[call].result = result;
        state.calls[call].successes = successes;
    }
}

static void hide(const char *name) {
    const int call = call_number(name);
    if (call >= 0) { state.calls[call].is_hidden = true; }
}

static void read_environment(void) {
    const char *devices = getenv("MOCK_CUDA_DEVICES"), *version = getenv("MOCK_CUDA_DRIVER_VERSION");
    const char *failure = getenv("MOCK_CUDA_FAIL"), *hidden = getenv("MOCK_CUDA_HIDE");
    add_devices(devices ? devices : "90,132,232448,62914560");
    state.driver_version = version ? atoi(version) : 13000;
    if (hidden) { hide(hidden); }
    const char *result = failure ? strchr(failure, '=') : NULL;
    if (result) {
        char name[kMockNameBytes];
        snprintf(name, sizeof name, "%.*s", (int)(result - failure), failure);
        set_failure(name, atoi(result + 1), 0);
    }
}

static void make_ready(void) {
    if (state.is_ready) { return; }
    state.is_ready = true;
    state.is_recording = true;
    for (int i = 0; i < kMaxDevices; ++i) { primary_contexts[i].device = other_contexts[i].device = i; }
    read_environment();
}

static Device *device_of(CUdevice device) {
    return device >= 0 && device < state.device_count ? &state.devices[device] : NULL;
}

// Begins a call: takes the lock, counts it, and says whether it is to fail.
static CUresult begin(int number) {
    lock();
    make_ready();
    Call *call = &state.calls[number];
    ++call->count;
    if (call->result == CUDA_SUCCESS) { return CUDA_SUCCESS; }
    if (call->successes > 0) { --call->successes; return CUDA_SUCCESS; }
    return call->result;
}

static CUresult end(CUresult result) {
    unlock();
    return result;
}

// As begin(), for what needs cuInit first.
static CUresult begin_initialised(int number) {
    const CUresult result = begin(number);
    return result != CUDA_SUCCESS ? result : state.is_initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

// As begin_initialised(), for what a stream capture forbids.
static CUresult begin_allocating(int number) {
    const CUresult result = begin_initialised(number);
    if (result != CUDA_SUCCESS) { return result; }
    return state.is_capturing && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                                               : CUDA_SUCCESS;
}

// ---- The driver's names ----

#define CUDA_CALL MOCK_API CUresult FLASH_CUDAAPI
#define TRY(call)                                              \
    do {                                                       \
        const CUresult try_result = (call);                    \
        if (try_result != CUDA_SUCCESS) { return end(try_result); } \
    } while (0)

CUDA_CALL cuDriverGetVersion(int *version) {
    TRY(begin(call_cuDriverGetVersion));
    *version = state.driver_version;
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuInit(unsigned flags) {
    TRY(begin(call_cuInit));
    if (flags != 0) { return end(CUDA_ERROR_INVALID_VALUE); }
    if (state.device_count == 0) { return end(CUDA_ERROR_NO_DEVICE); }
    state.is_initialised = true;
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuGetErrorName(CUresult error, const char **text) {
    TRY(begin(call_cuGetErrorName));
    switch (error) {
        case CUDA_SUCCESS: *text = "CUDA_SUCCESS"; break;
        case CUDA_ERROR_INVALID_VALUE: *text = "CUDA_ERROR_INVALID_VALUE"; break;
        case CUDA_ERROR_OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; break;
        case CUDA_ERROR_NOT_INITIALIZED: *text = "CUDA_ERROR_NOT_INITIALIZED"; break;
        case CUDA_ERROR_INVALID_CONTEXT: *text = "CUDA_ERROR_INVALID_CONTEXT"; break;
        case CUDA_ERROR_INVALID_HANDLE: *text = "CUDA_ERROR_INVALID_HANDLE"; break;
        case CUDA_ERROR_ILLEGAL_ADDRESS: *text = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
        case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: *text = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
        default: *text = NULL; return end(CUDA_ERROR_INVALID_VALUE);
    }
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuGetErrorString(CUresult error, const char **text) {
    TRY(begin(call_cuGetErrorString));
    (void)error;
    *text = "as the mock driver was told";
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuDeviceGetCount(int *count) {
    TRY(begin_initialised(call_cuDeviceGetCount));
    *count = state.device_count;
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuDeviceGet(CUdevice *device, int ordinal) {
    TRY(begin_initialised(call_cuDeviceGet));
    if (!device_of(ordinal)) { return end(CUDA_ERROR_INVALID_DEVICE); }
    *device = ordinal;
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuDeviceGetName(char *name, int size, CUdevice device) {
    TRY(begin_initialised(call_cuDeviceGetName));
    if (!device_of(device)) { return end(CUDA_ERROR_INVALID_DEVICE); }
    snprintf(name, (size_t)size, "%s", device_of(device)->name);
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuDeviceGetAttribute(int *value, int attribute, CUdevice handle) {
    TRY(begin_initialised(call_cuDeviceGetAttribute));
    const Device *device = device_of(handle);
    if (!device) { return end(CUDA_ERROR_INVALID_DEVICE); }
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = device->multiprocessors; break;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = device->l2_bytes; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = device->compute_capability / 10; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = device->compute_capability % 10; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = device->smem_optin; break;
        default: return end(CUDA_ERROR_INVALID_VALUE);
    }
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice handle) {
    TRY(begin_initialised(call_cuDevicePrimaryCtxRetain));
    Device *device = device_of(handle);
    if (!device) { return end(CUDA_ERROR_INVALID_DEVICE); }
    device->is_retained = true;
    *context = &primary_contexts[handle];
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuCtxGetCurrent(CUcontext *context) {
    TRY(begin_initialised(call_cuCtxGetCurrent));
    *context = current_context;
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuCtxSetCurrent(CUcontext context) {
    TRY(begin_initialised(call_cuCtxSetCurrent));
    current_context = context;
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuThreadExchangeStreamCaptureMode(int *mode) {
    TRY(begin_initialised(call_cuThreadExchangeStreamCaptureMode));
    const int previous = capture_mode;
    capture_mode = *mode;
    *mode = previous;
    return end(CUDA_SUCCESS);
}

// The fatbin's header: magic, version, header size, and the bytes that follow the header.
static bool read_fatbin(const unsigned char *code, Mock_load *load) {
    uint32_t magic;
    uint16_t header_bytes;
    uint64_t body_bytes;
    memcpy(&magic, code, sizeof magic);
    if (magic != (uint32_t)kFatbinMagic) { return false; }
    memcpy(&header_bytes, code + 6, sizeof header_bytes);
    memcpy(&body_bytes, code + 8, sizeof body_bytes);
    load->bytes = header_bytes + body_bytes;
    load->hash = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < load->bytes; ++i) { load->hash = (load->hash ^ code[i]) * 0x100000001b3u; }
    return true;
}

CUDA_CALL cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options, void **jit_values, unsigned jit_count,
                            int *library_options, void **library_values, unsigned library_count) {
    TRY(begin_allocating(call_cuLibraryLoadData));
    (void)jit_options, (void)jit_values, (void)library_options, (void)library_values;
    if (!code || jit_count || library_count) { return end(CUDA_ERROR_INVALID_VALUE); }
    if (state.library_count == kMaxLibraries) { return end(CUDA_ERROR_OUT_OF_MEMORY); }
    struct CUlib_st *loaded = &libraries[state.library_count];
    if (!read_fatbin(code, &loaded->load)) { return end(CUDA_ERROR_INVALID_IMAGE); }
    ++state.library_count;
    *library = loaded;
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    TRY(begin_initialised(call_cuLibraryGetKernel));
    if (library < libraries || library >= libraries + state.library_count) { return end(CUDA_ERROR_INVALID_HANDLE); }
    for (int i = 0; i < state.kernel_count; ++i) {
        if (kernels[i].library == library && strcmp(kernels[i].name, name) == 0) {
            *kernel = &kernels[i];
            return end(CUDA_SUCCESS);
        }
    }
    if (state.kernel_count == kMaxKernels) { return end(CUDA_ERROR_OUT_OF_MEMORY); }
    *kernel = &kernels[state.kernel_count++];
    **kernel = (struct CUkern_st){.library = library};
    snprintf((*kernel)->name, kMockNameBytes, "%s", name);
    return end(CUDA_SUCCESS);
}

static bool is_kernel(CUkernel kernel) { return kernel >= kernels && kernel < kernels + state.kernel_count; }

CUDA_CALL cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device) {
    TRY(begin_allocating(call_cuKernelSetAttribute));
    if (!is_kernel(kernel)) { return end(CUDA_ERROR_INVALID_HANDLE); }
    if (!device_of(device)) { return end(CUDA_ERROR_INVALID_DEVICE); }
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
        value > device_of(device)->smem_optin) {
        return end(CUDA_ERROR_INVALID_VALUE);
    }
    kernel->smem_bytes[device] = value;
    return end(CUDA_SUCCESS);
}

CUDA_CALL cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    TRY(begin_allocating(call_cuKernelGetFunction));
    if (!current_context) { return end(CUDA_ERROR_INVALID_CONTEXT); }
    if (!is_kernel(kernel)) { return end(CUDA_ERROR_INVALID_HANDLE); }
    kernel->is_in_context[current_context->device] = true;
    *function = (CUfunction)(void *)kernel;
    return end(CUDA_SUCCESS);
}

static size_t param_bytes(const char *kernel) {
    if (strncmp(kernel, "flash_bwd", 9) == 0) { return sizeof(Flash_bwd_params); }
    if (strstr(kernel, "_append")) { return sizeof(Flash_append_params); }
    return strncmp(kernel, "flash_fwd", 9) == 0 ? sizeof(Flash_fwd_params) : 0;
}

static CUresult check_launch(CUkernel kernel, const Mock_launch *launch) {
    const int device = current_context->device;
    const uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    const int most_smem = kernel->smem_bytes[device] > kDefaultSmem ? kernel->smem_bytes[device] : kDefaultSmem;
    for (int i = 0; i < 3; ++i) {
        if (launch->grid[i] == 0 || launch->grid[i] > 0x7fffffff || (i > 0 && launch->grid[i] > 0xffff)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return threads == 0 || threads > 1024 || launch->smem_bytes > (uint32_t)most_smem ? CUDA_ERROR_INVALID_VALUE
                                                                                     : CUDA_SUCCESS;
}

static CUresult keep(const Mock_launch *launch) {
    ++state.launch_count;
    if (!state.is_recording) { return CUDA_SUCCESS; }
    if (state.kept_count == state.launch_room) {
        const int room = state.launch_room ? 2 * state.launch_room : 64;
        Mock_launch *launches = realloc(state.launches, (size_t)room * sizeof *launches);
        if (!launches) { return CUDA_ERROR_OUT_OF_MEMORY; }
        state.launches = launches;
        state.launch_room = room;
    }
    state.launches[state.kept_count++] = *launch;
    return CUDA_SUCCESS;
}

CUDA_CALL cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z, unsigned smem_bytes, CUstream stream, void **parameters,
                         void **extra) {
    TRY(begin_initialised(call_cuLaunchKernel));
    const CUkernel kernel = (CUkernel)(void *)function;
    if (!current_context) { return end(CUDA_ERROR_INVALID_CONTEXT); }
    if (!is_kernel(kernel)) { return end(CUDA_ERROR_INVALID_HANDLE); }
    // The real driver would load the code now, which a capture forbids.
    if (state.is_capturing && !kernel->is_in_context[current_context->device]) {
        return end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if (!parameters || extra) { return end(CUDA_ERROR_INVALID_VALUE); }
    Mock_launch launch = {.grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z},
                          .smem_bytes = smem_bytes, .device = current_context->device,
                          .stream = (uint64_t)(uintptr_t)stream, .thread = (uint64_t)(uintptr_t)&current_context,
                          .param_bytes = (uint32_t)param_bytes(kernel->name)};
    snprintf(launch.kernel, sizeof launch.kernel, "%s", kernel->name);
    memcpy(launch.params, parameters[0], launch.param_bytes);
    TRY(check_launch(kernel, &launch));
    return end(keep(&launch));
}

#if !defined(MOCK_CUDA_WITHOUT_GET_PROC_ADDRESS)
static void *address_of(const char *name) {
    void *address = NULL;
#define FIND(call, parameters)                                                     \
    if (strcmp(name, #call) == 0) {                                                \
        CUresult(FLASH_CUDAAPI * function) parameters = call;                      \
        memcpy(&address, &function, sizeof address);                               \
    }
    FLASH_CUDA_CALLS(FIND)
#undef FIND
    return address;
}

CUDA_CALL cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, uint64_t flags, int *status) {
    TRY(begin(call_cuGetProcAddress_v2));
    const int call = call_number(symbol);
    *function = call < 0 || state.calls[call].is_hidden || cuda_version > state.driver_version || flags
        ? NULL : address_of(symbol);
    if (status) { *status = *function ? 0 : 1; }
    return end(*function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}
#endif

// ---- Controls ----

void mock_cuda_reset(void) {
    lock();
    free(state.launches);
    memset(&state, 0, sizeof state);
    make_ready();
    unlock();
    current_context = NULL;
    capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
}

#define CHANGE(statement) \
    do {                  \
        lock();           \
        make_ready();     \
        statement;        \
        unlock();         \
    } while (0)

void mock_cuda_set_driver_version(int version) { CHANGE(state.driver_version = version); }
void mock_cuda_clear_devices(void) { CHANGE(state.device_count = 0); }
void mock_cuda_fail(const char *call, int result, int successes) { CHANGE(set_failure(call, result, successes)); }
void mock_cuda_set_capturing(int is_capturing) { CHANGE(state.is_capturing = is_capturing); }
void mock_cuda_set_recording(int is_on) { CHANGE(state.is_recording = is_on); }

int mock_cuda_add_device(const char *name, int compute_capability, int multiprocessors, int smem_optin, int l2_bytes) {
    int ordinal;
    CHANGE(ordinal = add_device(name, compute_capability, multiprocessors, smem_optin, l2_bytes));
    return ordinal;
}

void mock_cuda_hide(const char *call) { CHANGE(hide(call)); }

void *mock_cuda_other_context(int device) { return &other_contexts[device]; }

int mock_cuda_call_count(const char *call) {
    const int number = call_number(call);
    int count = -1;
    if (number >= 0) { CHANGE(count = state.calls[number].count); }
    return count;
}

int mock_cuda_launch_count(void) {
    int count;
    CHANGE(count = state.launch_count);
    return count;
}

int mock_cuda_get_launch(int index, Mock_launch *launch) {
    int result = -1;
    CHANGE(if (index >= 0 && index < state.kept_count) { *launch = state.launches[index]; result = 0; });
    return result;
}

int mock_cuda_load_count(void) {
    int count;
    CHANGE(count = state.library_count);
    return count;
}

int mock_cuda_get_load(int index, Mock_load *load) {
    int result = -1;
    CHANGE(if (index >= 0 && index < state.library_count) { *load = libraries[index].load; result = 0; });
    return result;
}
