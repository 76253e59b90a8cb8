// The mock driver's own controls, beside the CUDA names that it answers to.
//
// It starts with one device like an H200 and the driver of CUDA 13.0, or with what the environment says:
//   MOCK_CUDA_DEVICES         "compute_capability,multiprocessors,smem_optin,l2_bytes;..." ("" : no device)
//   MOCK_CUDA_DRIVER_VERSION  "13000"
//   MOCK_CUDA_FAIL            "call=result": every such call fails with this CUresult
//   MOCK_CUDA_HIDE            "call": cuGetProcAddress does not find it
#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define MOCK_API __declspec(dllexport)
#else
#define MOCK_API __attribute__((visibility("default")))
#endif

enum { kMockNameBytes = 128, kMockParamBytes = 512 };

typedef struct Mock_launch {
    char kernel[kMockNameBytes];
    uint32_t grid[3], block[3];
    uint32_t smem_bytes;
    int32_t device;        // of the context that was current
    uint64_t stream;
    uint64_t thread;       // address that is the calling thread's own
    uint32_t param_bytes;  // 0 for a kernel whose parameters the mock does not know
    uint32_t reserved;
    uint8_t params[kMockParamBytes];
} Mock_launch;

typedef struct Mock_load {
    uint64_t bytes;  // as the fatbin's header says
    uint64_t hash;   // FNV-1a of them
} Mock_load;

MOCK_API void mock_cuda_reset(void);  // back to the beginning; forgets every library, kernel and launch
MOCK_API void mock_cuda_set_driver_version(int version);
MOCK_API void mock_cuda_clear_devices(void);
MOCK_API int mock_cuda_add_device(const char *name, int compute_capability, int multiprocessors, int smem_optin,
                                  int l2_bytes);  // its ordinal, or -1

// From now on `call` fails with `result`, after it has succeeded `successes` more times; 0: it works again.
MOCK_API void mock_cuda_fail(const char *call, int result, int successes);
// cuGetProcAddress no longer finds it.
MOCK_API void mock_cuda_hide(const char *call);
// As if some thread were capturing a stream in the global mode: what allocates fails in every thread that has not
// chosen the relaxed mode.
MOCK_API void mock_cuda_set_capturing(int is_capturing);
// A context of the device that is not its primary one, for cuCtxSetCurrent.
MOCK_API void *mock_cuda_other_context(int device);

MOCK_API int mock_cuda_call_count(const char *call);
MOCK_API int mock_cuda_launch_count(void);
MOCK_API int mock_cuda_get_launch(int index, Mock_launch *launch);  // 0, or -1 if there is none
MOCK_API void mock_cuda_set_recording(int is_on);                   // off: launches are counted, not kept
MOCK_API int mock_cuda_load_count(void);
MOCK_API int mock_cuda_get_load(int index, Mock_load *load);
