// The few PTX instructions that the kernels are made of, one function each. Operand layouts are those of the PTX ISA,
// sections "Matrix Fragments for mma.m16n8k16 with floating point type" and "ldmatrix".
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace flash {

// Shared-memory window address of a generic pointer, as ldmatrix and cp.async take it.
__forceinline__ __device__ uint32_t smem_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// From shared memory, each time anew: a plain load would be taken out of a loop and would occupy registers there.
__forceinline__ __device__ uint32_t load_shared_again(const uint32_t &x) {
    uint32_t r;
    asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(r) : "r"(smem_address(&x)));
    return r;
}
__forceinline__ __device__ uint2 load_shared_again(const uint2 &x) {
    uint2 r;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(r.x), "=r"(r.y) : "r"(smem_address(&x)));
    return r;
}
__forceinline__ __device__ uint4 load_shared_again(const uint4 &x) {
    uint4 r;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(smem_address(&x)));
    return r;
}

// Four 8x8 matrices of 16-bit elements; lanes 8i to 8i+7 give the addresses of the rows of matrix i.
__forceinline__ __device__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

__forceinline__ __device__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

// d += a * b for one 16x8 tile of d, with 16 products a cell; accumulated in fp32.
template <typename Element>
__forceinline__ __device__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__forceinline__ __device__ void mma_m16n8k16<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__forceinline__ __device__ void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                            uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two fp32 values rounded to nearest and packed, `low` in the lower half.
template <typename Element>
__forceinline__ __device__ uint32_t pack(float low, float high);

template <>
__forceinline__ __device__ uint32_t pack<__half>(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

template <>
__forceinline__ __device__ uint32_t pack<__nv_bfloat16>(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

template <typename Element>
__forceinline__ __device__ float2 unpack(uint32_t packed);

template <>
__forceinline__ __device__ float2 unpack<__half>(uint32_t packed) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&packed));
}

template <>
__forceinline__ __device__ float2 unpack<__nv_bfloat16>(uint32_t packed) {
    return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u));
}

// Copies 16 bytes from device to shared memory behind the program's back; with source_bytes = 0 it writes zeros and
// reads nothing.
__forceinline__ __device__ void cp_async_16(uint32_t destination, const void *source, int source_bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n"
                 :: "r"(destination), "l"(source), "r"(source_bytes) : "memory");
}

__forceinline__ __device__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most kPending of this thread's latest groups are still under way.
template <int kPending>
__forceinline__ __device__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" :: "n"(kPending) : "memory");
}

// 2^x to within 2 ulp; 2^-inf = 0.
__forceinline__ __device__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// tanh(x) to within 2^-11 relative, one instruction.
__forceinline__ __device__ float tanh_approx(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// The transpose of an 8x8 matrix of 16-bit elements that lies across a warp as mma fragments do.
__forceinline__ __device__ uint32_t movmatrix_trans(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
    return y;
}

// Adds four floats to 16-byte aligned device memory.
__forceinline__ __device__ void red_add_v4(float *address, float x, float y, float z, float w) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n"
                 :: "l"(address), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
#else
    asm volatile("red.global.add.f32 [%0], %1;\nred.global.add.f32 [%0 + 4], %2;\n"
                 "red.global.add.f32 [%0 + 8], %3;\nred.global.add.f32 [%0 + 12], %4;\n"
                 :: "l"(address), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
#endif
}

}  // namespace flash
