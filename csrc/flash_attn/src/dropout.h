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

constexpr uint32_t kPhilox_m0 = 0xD2511F53u, kPhilox_m1 = 0xCD9E8D57u;

struct Product { uint32_t low, high; };

// One IMAD.WIDE; of C++ the compiler makes two products, of which it needs half each.
__forceinline__ __device__ Product wide_product(uint32_t a, uint32_t b) {
    Product p;
    asm("{\n.reg .b64 p;\nmul.wide.u32 p, %2, %3;\nmov.b64 {%0, %1}, p;\n}\n"
        : "=r"(p.low), "=r"(p.high) : "r"(a), "r"(b));
    return p;
}

// Rounds kFirst to kEnd - 1; key(i, round) is word i of a round's key.
template <int kFirst, int kEnd, typename Key>
__forceinline__ __device__ Philox_state philox(Philox_state c, Key key) {
    #pragma unroll
    for (int round = kFirst; round < kEnd; ++round) {
        const Product a = wide_product(kPhilox_m0, c.x[0]), b = wide_product(kPhilox_m1, c.x[2]);
        c = {{b.high ^ c.x[1] ^ key(0, round), b.low, a.high ^ c.x[3] ^ key(1, round), a.low}};
    }
    return c;
}

__forceinline__ __device__ constexpr uint32_t round_key(uint32_t key, int i, int round) {
    return key + (i == 0 ? 0x9E3779B9u : 0xBB67AE85u) * round;
}

// Which halves of a packed pair of P stay: bytes 0 and 2 of a word of random bits decide, or 1 and 3. A half of the word is
// compared as the fp16 that it is, with the byte in question on top: then no mask has to come first, and the other byte
// decides nothing but ties. flash_fill_problem of the launcher chooses what it is compared with.
__forceinline__ __device__ uint32_t keep_pair(const Flash_problem &problem, uint32_t word, int pair) {
    uint32_t found;
    asm("set.le.u32.f16x2 %0, %1, %2;\n"
        : "=r"(found) : "r"(pair == 0 ? __byte_perm(word, 0, 0x2301) : word), "r"(problem.drop_up_to));
    return found ^ problem.drop_flip;
}

// What seed, offset and head make: the counter of block (0, 0).
__forceinline__ __device__ Philox_state dropout_stream(const Flash_problem &problem, int batch, int head) {
    const uint64_t *state = reinterpret_cast<const uint64_t *>(problem.rng_state_ptr);
    const uint64_t seed = state[0], offset = state[1];
    return philox<0, 10>({{uint32_t(offset), uint32_t(offset >> 32), uint32_t(batch), uint32_t(head)}},
                         [&](int i, int round) { return round_key(uint32_t(seed >> (32 * i)), i, round); });
}

// These keys are part of the program instead of being carried along.
__forceinline__ __device__ constexpr uint32_t dropout_key(int i, int round) {
    return round_key(i == 0 ? 0xA4093822u : 0x299F31D0u, i, round);
}
constexpr int kDropoutRounds = 7;

// The 16 bytes of lane `lane` in the block of 16 query rows and 32 keys: byte 4 * (key / 8) + 2 * (key % 2) + row / 8
// is that of row row / 8 * 8 + lane / 4 and key key / 8 * 8 + lane % 4 * 2 + key % 2.
__forceinline__ __device__ Philox_state dropout_bytes(Philox_state stream, int row_block, int key_block, int lane) {
    return philox<0, kDropoutRounds>(
        {{stream.x[0] + row_block, stream.x[1] + key_block, stream.x[2] + lane, stream.x[3]}}, dropout_key);
}

// The same bytes for the kRowBlocks row blocks of a tile. In the first rounds most products depend on the row block alone
// or on the lane alone: those are made once and wait in shared memory, which leaves 21 of 28 products for two row blocks.
template <int kRowBlocks>
struct Dropout_tile {
    uint4 rows[kRowBlocks];
    uint2 lanes[32];
    uint32_t key_stream;

    struct Column {       // of 32 keys
        uint32_t lane;    // word 1 after the first round
        Product product;  // of the second round
    };

    // For the first warp or more.
    __forceinline__ __device__ void put(const Flash_problem &problem, int batch, int head, int row_block, int thread) {
        const Philox_state stream = dropout_stream(problem, batch, head);
        if (thread < 32) {
            const Product b = wide_product(kPhilox_m1, stream.x[2] + thread);
            lanes[thread] = {b.high ^ dropout_key(0, 0), b.low};
            key_stream = stream.x[1];
        }
        if (thread < kRowBlocks) {
            const Product a = wide_product(kPhilox_m0, stream.x[0] + row_block + thread);
            const Product b = wide_product(kPhilox_m1, a.high ^ stream.x[3] ^ dropout_key(1, 0));
            rows[thread] = {b.high ^ dropout_key(0, 1), a.low ^ dropout_key(1, 1), b.low ^ dropout_key(0, 2), 0};
        }
    }
    __forceinline__ __device__ Column column(int key_block, int lane) const {
        const uint2 own = load_shared_again(lanes[lane]);
        return {own.y, wide_product(kPhilox_m0, own.x ^ (load_shared_again(key_stream) + key_block))};
    }
    __forceinline__ __device__ Philox_state bytes(int row_block, Column column) const {
        const uint4 row = load_shared_again(rows[row_block]);
        const Product a = wide_product(kPhilox_m0, row.x ^ column.lane);
        const Product b = wide_product(kPhilox_m1, column.product.high ^ row.y);
        return philox<3, kDropoutRounds>(
            {{b.high ^ row.z, b.low, a.high ^ column.product.low ^ dropout_key(1, 2), a.low}}, dropout_key);
    }
};

}  // namespace flash
