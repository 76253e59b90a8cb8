// Dropout on P: a random byte an element, from Philox-4x32 with 7 rounds (Salmon, Moraes, Dror and Shaw 2011, "Parallel
// random numbers: as easy as 1, 2, 3").
//
// One call gives 16 bytes: those of the elements that a lane holds of 16 query rows and 32 keys in mma accumulators of S.
// The backward, which holds the transpose of S, makes the same bytes and transposes what comes of them.
#pragma once

#include "flash.h"
#include "ptx.h"

namespace flash {

struct Philox_state { uint32_t x[4]; };

// The round keys are constants: they are part of the program instead of being carried along.
template <int kRounds, typename Key>
__forceinline__ __device__ Philox_state philox(Philox_state c, Key key) {
    #pragma unroll
    for (int round = 0; round < kRounds; ++round) {
        const uint64_t a = uint64_t(0xD2511F53u) * c.x[0];
        const uint64_t b = uint64_t(0xCD9E8D57u) * c.x[2];
        const uint32_t k0 = key(0) + 0x9E3779B9u * round, k1 = key(1) + 0xBB67AE85u * round;
        c = {{uint32_t(b >> 32) ^ c.x[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ c.x[3] ^ k1, uint32_t(a)}};
    }
    return c;
}

// 0xffff in each half whose byte is at most the threshold's. Bytes compare like the subnormal fp16 that they are.
__forceinline__ __device__ uint32_t keep_mask(uint32_t bytes, uint32_t threshold) {
    uint32_t mask;
    asm("set.le.u32.f16x2 %0, %1, %2;\n" : "=r"(mask) : "r"(bytes), "r"(threshold));
    return mask;
}

struct Dropout {
    uint32_t stream[4];   // what seed, offset and head make: the counter of block (0, 0)

    static __forceinline__ __device__ Philox_state start(const Flash_problem &problem, int batch, int head) {
        const uint64_t *state = reinterpret_cast<const uint64_t *>(problem.rng_state_ptr);
        const uint64_t seed = state[0], offset = state[1];
        return philox<10>({{uint32_t(offset), uint32_t(offset >> 32), uint32_t(batch), uint32_t(head)}},
                          [&](int i) { return uint32_t(seed >> (32 * i)); });
    }
    __forceinline__ __device__ void put(const Flash_problem &problem, int batch, int head) {
        const Philox_state made = start(problem, batch, head);
        #pragma unroll
        for (int i = 0; i < 4; ++i) { stream[i] = made.x[i]; }
    }

    // The 16 bytes of lane `lane` in the block of 16 query rows and 32 keys: byte 4 * (key / 8) + 2 * (row / 8) + key % 2
    // is that of row row / 8 * 8 + lane / 4 and key key / 8 * 8 + lane % 4 * 2 + key % 2.
    static __forceinline__ __device__ Philox_state bytes(Philox_state stream, int row_block, int key_block, int lane) {
        return philox<7>({{stream.x[0] + row_block, stream.x[1] + key_block, stream.x[2] + lane, stream.x[3]}},
                         [](int i) { return i == 0 ? 0xA4093822u : 0x299F31D0u; });
    }
    // Read anew each time, from shared memory: see Row_block of the forward.
    __forceinline__ __device__ Philox_state bytes(int row_block, int key_block, int lane) const volatile {
        return bytes({{stream[0], stream[1], stream[2], stream[3]}}, row_block, key_block, lane);
    }
};

// For bytes 0 and 1, or 2 and 3, of a word: which halves of a packed pair stay.
__forceinline__ __device__ uint32_t keep_pair(uint32_t word, int pair, int threshold) {
    return keep_mask(__byte_perm(word, 0, pair == 0 ? 0x4140 : 0x4342), threshold * 0x10001u);
}

}  // namespace flash
