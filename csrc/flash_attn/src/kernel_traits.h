// What a tile is: its sizes, its layout in shared memory, and how many of it an SM is meant to hold.
#pragma once

#include <cstdint>

namespace flash {

// What a kernel is compiled for beside its tile; the names are those of kernels.json. `modified` is softcap or dropout.
enum class Variant { plain, softcap, dropout, modified };

struct True { static constexpr bool value = true; };
struct False { static constexpr bool value = false; };

// A (rows, head_dim) tile of 16-bit elements in shared memory. Rows lie one after another; within a row, 16-byte
// chunks are permuted by the row (XOR), so that the eight rows an ldmatrix reads, or eight rows of one column that
// eight lanes write, fall into different banks. Head dimensions that are no multiple of 64 permute groups of 4 chunks
// instead of 8: two rows then share a 128-byte line of banks, so the permutation changes every second row.
template <int kHeadDim>
struct Smem_layout {
    static_assert(kHeadDim % 32 == 0, "a row must be whole permuted groups of chunks");
    static constexpr int kChunksPerGroup = kHeadDim % 64 == 0 ? 8 : 4;
    static constexpr int kGroupBytes = kChunksPerGroup * 16;
    static constexpr int kGroups = kHeadDim / (kChunksPerGroup * 8);
    static constexpr int kRowBytes = kHeadDim * 2;

    static __forceinline__ __device__ int permutation(int row) {
        return kChunksPerGroup == 8 ? row & 7 : (row >> 1) & 3;
    }

    // Byte offset of a chunk whose index lies in the row's first group.
    static __forceinline__ __device__ uint32_t offset(int row, int chunk) {
        return row * kRowBytes + ((chunk ^ permutation(row)) << 4);
    }

    // Where a lane points ldmatrix in a 16x16 block, as an offset into the tile. The four 8x8 matrices must arrive in the
    // order in which mma takes them from neighbouring registers. By rows: the two of the first chunk, then those of the
    // second (Q as operand A, V transposed as operand B). By chunks: the two of the first eight rows, then those of the
    // last (K as operand B).
    static __forceinline__ __device__ uint32_t lane_offset_by_rows(int lane) { return offset(lane % 16, lane / 16); }
    static __forceinline__ __device__ uint32_t lane_offset_by_chunks(int lane) {
        return offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    }

    // The same lane's offset in the 16x16 block `row_block` down and `column_block` to the right.
    static __forceinline__ __device__ uint32_t at_block(uint32_t lane_offset, int row_block, int column_block) {
        constexpr int kBlocksPerGroup = kChunksPerGroup / 2;
        return (lane_offset ^ ((column_block % kBlocksPerGroup) << 5)) +
               (column_block / kBlocksPerGroup * kGroupBytes + row_block * 16 * kRowBytes);
    }
};

template <typename Element_, int kHeadDim_, int kBlockM_, int kBlockN_, int kNWarps_, int kSmemBytes_, Variant kVariant_>
struct Flash_fwd_kernel_traits {
    using Element = Element_;
    using Layout = Smem_layout<kHeadDim_>;
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr int kBlockM = kBlockM_;
    static constexpr int kBlockN = kBlockN_;
    static constexpr int kNWarps = kNWarps_;
    static constexpr int kNThreads = kNWarps * 32;

    static constexpr int kRowsPerWarp = kBlockM / kNWarps;
    static constexpr int kMTiles = kRowsPerWarp / 16;    // 16-row mma tiles a warp holds
    static constexpr int kSTiles = kBlockN / 8;          // 8-column mma tiles of S
    static constexpr int kOTiles = kHeadDim / 8;         // 8-column mma tiles of O
    static_assert(kRowsPerWarp % 16 == 0 && kBlockN % 16 == 0, "tiles are made of 16x16 blocks");

    static constexpr int kSmemQ = kBlockM * Layout::kRowBytes;  // holds O in the epilogue
    static constexpr int kSmemKV = kBlockN * Layout::kRowBytes;
    static constexpr int kStages = (kSmemBytes_ - kSmemQ) / (2 * kSmemKV);
    static_assert((kStages == 1 || kStages == 2) && kSmemBytes_ == kSmemQ + 2 * kStages * kSmemKV,
                  "smem_bytes in kernels.json must be Q plus one or two stages of K and V");

    static constexpr Variant kVariant = kVariant_;
    // Where there is room for it, Q is read once instead of once a block of keys. Random bits take that room for 64.
    static constexpr bool kQInRegisters = kHeadDim <= (kVariant == Variant::dropout ? 32 : 64);
    static constexpr int kMinBlocksPerSM = kNWarps == 4 ? 2 : 1;
};

// Few query rows and many keys: the warps share the keys of a block, each with 16 rows of its own or, in the tile of 16
// rows, all with the same ones.
template <typename Element_, int kHeadDim_, int kBlockM_, int kBlockN_, int kNWarps_, int kSmemBytes_, Variant kVariant_>
struct Flash_fwd_splitkv_kernel_traits {
    using Element = Element_;
    using Layout = Smem_layout<kHeadDim_>;
    static constexpr Variant kVariant = kVariant_;
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr int kBlockM = kBlockM_;
    static constexpr int kBlockN = kBlockN_;
    static constexpr int kNWarps = kNWarps_;
    static constexpr int kNThreads = kNWarps * 32;

    static constexpr int kWarpsM = kBlockM / 16;
    static constexpr int kWarpsK = kNWarps / kWarpsM;          // warps that share their rows
    static constexpr int kKeysPerWarp = kBlockN / kWarpsK;
    static constexpr int kMTiles = 1;
    static constexpr int kSTiles = kKeysPerWarp / 8;
    static constexpr int kOTiles = kHeadDim / 8;
    static_assert(kWarpsM * kWarpsK == kNWarps && kKeysPerWarp % 16 == 0, "tiles are made of 16x16 blocks");

    static constexpr int kSmemQ = kBlockM * Layout::kRowBytes;
    static constexpr int kSmemKV = kBlockN * Layout::kRowBytes;
    static constexpr int kStages = 2;
    static_assert(kSmemBytes_ == kSmemQ + 2 * kStages * kSmemKV,
                  "smem_bytes in kernels.json must be Q plus two stages of K and V");
    // In the end O lies there in fp32, once for each warp that shares its rows; a row is padded against bank conflicts.
    static constexpr int kORow = kHeadDim + 8;
    static_assert(kNWarps * 16 * kORow * 4 <= kSmemBytes_, "O must fit in place of Q, K and V");

    static constexpr bool kQInRegisters = kHeadDim <= 128;
    static constexpr int kMinBlocksPerSM = 2;
};

// The backward holds S and dP transposed, keys for rows, so that P and dS are operand A of dV and dK as they are.
// kWarpsD warps share their keys: each takes a part of the queries in S and dP, and a part of the head dimension in dV
// and dK; P and dS go from one to the other through shared memory.
template <typename Element_, int kHeadDim_, int kBlockM_, int kBlockN_, int kNWarps_, int kSmemBytes_, Variant kVariant_>
struct Flash_bwd_kernel_traits {
    using Element = Element_;
    using Layout = Smem_layout<kHeadDim_>;    // Q, dO, K, V
    using Layout_ds = Smem_layout<kBlockM_>;  // P and dS: (keys, queries)
    static constexpr Variant kVariant = kVariant_;
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr int kBlockM = kBlockM_;
    static constexpr int kBlockN = kBlockN_;
    static constexpr int kNWarps = kNWarps_;
    static constexpr int kNThreads = kNWarps * 32;

    static constexpr int kWarpsWanted = kHeadDim >= 192 ? 4 : kHeadDim >= 128 ? 2 : 1;
    static constexpr int kWarpsD = kWarpsWanted < kBlockM / 16 ? kWarpsWanted : kBlockM / 16;  // 16 queries a warp at least
    static constexpr int kKeysPerWarp = kBlockN / (kNWarps / kWarpsD);
    static constexpr int kQueriesPerWarp = kBlockM / kWarpsD;
    static constexpr int kMTiles = kKeysPerWarp / 16;          // of S, dP, dV and dK
    static constexpr int kNTiles = kQueriesPerWarp / 8;        // of S and dP
    static constexpr int kDTiles = kHeadDim / kWarpsD / 8;     // of dV and dK
    static_assert(kKeysPerWarp % 16 == 0 && kQueriesPerWarp % 16 == 0, "tiles are made of 16x16 blocks");

    // dQ is cut among the warps along queries and head dimension.
    static constexpr int kDqWarpsM = kBlockM >= 64 && kHeadDim % 64 == 0 ? 2 : kBlockM / 16;
    static constexpr int kDqWarpsD = kNWarps / kDqWarpsM;
    static constexpr int kDqMTiles = kBlockM / 16 / kDqWarpsM;
    static constexpr int kDqDBlocks = kHeadDim / 16 / kDqWarpsD;
    static_assert(kDqWarpsD * kDqDBlocks * 16 == kHeadDim, "dQ must divide among the warps");

    static constexpr int kSmemKV = kBlockN * Layout::kRowBytes;
    static constexpr int kSmemDs = kBlockN * Layout_ds::kRowBytes;
    static constexpr int kSmemP = kWarpsD > 1 ? kSmemDs : 0;
    static constexpr int kSmemQ = kBlockM * Layout::kRowBytes;
    static constexpr int kSmemRow = kBlockM * 4;               // one float a query
    static constexpr int kSmemStage = 2 * kSmemQ + 2 * kSmemRow;
    static constexpr int kStages = (kSmemBytes_ - 2 * kSmemKV - kSmemP - kSmemDs) / kSmemStage;
    static_assert((kStages == 1 || kStages == 2) &&
                      kSmemBytes_ == 2 * kSmemKV + kSmemP + kSmemDs + kStages * kSmemStage,
                  "smem_bytes in kernels.json must be K, V, dS, P if warps share keys, and one or two stages of Q and dO");

    static constexpr int kMinBlocksPerSM = kNWarps == 4 ? 2 : 1;
};

}  // namespace flash
