// Backward attention: dK and dV of one block of keys at a time, and what the block adds to dQ (Dao 2023,
// "FlashAttention-2", algorithm 2). Three kernels, one after another: dot_do_o, compute_dq_dk_dv_1colblock, convert_dq.
#pragma once

#include "block_info.h"
#include "copy.h"
#include "dropout.h"
#include "flash.h"
#include "gemm.h"
#include "kernel_traits.h"
#include "mask.h"
#include "ptx.h"
#include "softmax.h"

namespace flash {

// The first padded row of a (batch, head) pair; see Flash_bwd_params.
__forceinline__ __device__ int64_t padded_begin(const Flash_bwd_params &params, const Sequence &sequence, int head) {
    const int begin = params.problem.cu_seqlens_q_ptr != 0 ? (sequence.first_row / 128 + sequence.batch) * 128 : 0;
    return sequence.batch * params.padded_batch_stride + head * params.padded_head_stride + begin;
}

template <typename Element>
__forceinline__ __device__ Element *row_address(uint64_t tensor, const Flash_strides &strides, int batch, int head,
                                                int64_t row) {
    return reinterpret_cast<Element *>(tensor) + batch * strides.batch + head * strides.head + row * strides.row;
}

// Writes a warp's packed accumulators into a (keys, queries) tile.
template <typename Layout, int kMTiles, int kNTiles>
__forceinline__ __device__ void store_fragments(char *tile, const Packed_fragments<kMTiles, kNTiles> &fragments,
                                                int first_row, int first_chunk, int lane) {
    static_assert(Layout::kGroups == 1, "queries of a block fit one group of chunks");
    #pragma unroll
    for (int mi = 0; mi < kMTiles; ++mi) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            #pragma unroll
            for (int ni = 0; ni < kNTiles; ++ni) {
                const int row = first_row + mi * 16 + half * 8 + lane / 4;
                *reinterpret_cast<uint32_t *>(tile + Layout::offset(row, first_chunk + ni) + lane % 4 * 4) =
                    fragments.x[mi][ni][half];
            }
        }
    }
}

// Copies a (kRows, head_dim) tile from shared to device memory, 16 bytes a thread at a time.
template <typename Traits, int kRows>
__forceinline__ __device__ void store_tile(typename Traits::Element *destination, int64_t row_stride, const char *tile,
                                           int thread, int rows, int head_dim) {
    using Layout = typename Traits::Layout;
    const int chunk = thread % Layout::kChunksPerGroup;
    for (int row = thread / Layout::kChunksPerGroup; row < min(rows, kRows);
         row += Traits::kNThreads / Layout::kChunksPerGroup) {
        #pragma unroll
        for (int group = 0; group < Layout::kGroups; ++group) {
            const int column = (group * Layout::kChunksPerGroup + chunk) * 8;
            if (column < head_dim) {
                *reinterpret_cast<uint4 *>(destination + row * row_stride + column) =
                    *reinterpret_cast<const uint4 *>(tile + Layout::offset(row, chunk) + group * Layout::kGroupBytes);
            }
        }
    }
}

// What the loop needs rarely waits in shared memory; see Row_block of the forward.
struct Column_block {
    Window window;
    int m_begin, m_end;                 // blocks of query rows that see some of these keys
    int unmasked_begin, unmasked_end;   // those whose every row sees all of them

    __forceinline__ __device__ Window get_window() const volatile { return {window.seqlen_k, window.left, window.right}; }
};

template <typename Traits>
__forceinline__ __device__ void compute_dq_dk_dv_1colblock(const Flash_bwd_params &params, int block) {
    using Element = typename Traits::Element;
    using Layout = typename Traits::Layout;
    using Layout_ds = typename Traits::Layout_ds;
    constexpr int kBlockM = Traits::kBlockM, kBlockN = Traits::kBlockN, kHeadDim = Traits::kHeadDim;
    constexpr int kMTiles = Traits::kMTiles, kNTiles = Traits::kNTiles, kDTiles = Traits::kDTiles;
    constexpr int kWarpsD = Traits::kWarpsD;

    extern __shared__ __align__(128) char smem[];
    char *const smem_p = smem + 2 * Traits::kSmemKV;
    char *const smem_ds = smem_p + Traits::kSmemP;
    char *const smem_stages = smem_ds + Traits::kSmemDs;
    const uint32_t k_address = smem_address(smem), v_address = k_address + Traits::kSmemKV;
    const uint32_t p_address = smem_address(smem_p), ds_address = smem_address(smem_ds);

    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int warp_key = warp / kWarpsD * Traits::kKeysPerWarp, warp_query = warp % kWarpsD * Traits::kQueriesPerWarp;
    const int warp_dq_m = warp % Traits::kDqWarpsM, warp_dq_d = warp / Traits::kDqWarpsM;

    const Flash_problem &problem = params.problem;
    const int n_block = block % params.num_n_blocks;
    const int head_k = block / params.num_n_blocks % problem.nheads_k;
    const Sequence sequence = sequence_of(problem, block / params.num_n_blocks / problem.nheads_k);
    const int n_begin = n_block * kBlockN;
    if (n_begin >= sequence.seqlen_k) { return; }  // packed sequences differ in length

    const Window window = window_of(problem, sequence);
    const int m_begin = window.row_begin(n_begin) / kBlockM;
    const int m_end = (min(sequence.seqlen_q, window.row_end(n_begin + kBlockN - 1)) + kBlockM - 1) / kBlockM;
    __shared__ Column_block column_block;
    if (threadIdx.x == 0) {
        column_block.window = window;
        column_block.m_begin = m_begin;
        column_block.m_end = m_end;
        // The last row that sees the first key bounds them on the right, the first that sees the last key on the left.
        const bool ends_here = n_begin + kBlockN > sequence.seqlen_k;
        column_block.unmasked_begin = (window.row_begin(n_begin + kBlockN - 1) + kBlockM - 1) / kBlockM;
        column_block.unmasked_end = ends_here ? 0 : max(window.row_end(n_begin), 0) / kBlockM;
    }
    const volatile Column_block &stored = column_block;

    auto load_queries = [&](int head, int m_block, int stage) {
        const Tile_copy<Traits> copy(thread, problem.head_dim);
        const int row_begin = m_block * kBlockM, rows_left = sequence.seqlen_q - row_begin;
        const uint32_t address = smem_address(smem_stages) + stage * Traits::kSmemStage;
        const Element *q = row_address<const Element>(params.q_ptr, params.q, sequence.batch, head,
                                                      sequence.first_row + row_begin);
        const Element *dout = row_address<const Element>(params.do_ptr, params.dout, sequence.batch, head,
                                                         sequence.first_row + row_begin);
        copy.template load<kBlockM, false>(address, copy.source(q, params.q.row), params.q.row, rows_left);
        copy.template load<kBlockM, false>(address + Traits::kSmemQ, copy.source(dout, params.dout.row), params.dout.row,
                                           rows_left);
        if (thread < kBlockM / 2) {
            const bool is_lse = thread < kBlockM / 4;
            const int row = thread % (kBlockM / 4) * 4;
            cp_async_16(address + 2 * Traits::kSmemQ + (is_lse ? 0 : Traits::kSmemRow) + row * 4,
                        reinterpret_cast<const float *>(is_lse ? params.lse_log2_ptr : params.softmax_d_ptr) +
                            padded_begin(params, sequence, head) + row_begin + row, 16);
        }
    };

    float acc_dv[kMTiles][kDTiles][4] = {};
    float acc_dk[kMTiles][kDTiles][4] = {};

    // One block of query rows of one head.
    auto attend = [&](int head, int m_block, int stage) {
        char *const q_tile = smem_stages + stage * Traits::kSmemStage;
        const uint32_t q_address = smem_address(q_tile), do_address = q_address + Traits::kSmemQ;
        const int first_row = m_block * kBlockM + warp_query, first_key = n_begin + warp_key;

        const bool is_masked = m_block < stored.unmasked_begin || m_block >= stored.unmasked_end;
        Packed_fragments<kMTiles, kNTiles> p, ds;
        {
            float acc_s[kMTiles][kNTiles][4], acc_dp[kMTiles][kNTiles][4];
            {
                const uint32_t keys = Layout::lane_offset_by_rows(lane) + warp_key * Layout::kRowBytes;
                const uint32_t queries = Layout::lane_offset_by_chunks(lane) + warp_query * Layout::kRowBytes;
                gemm_abt<Element, Layout, kHeadDim>(acc_s, k_address, keys, q_address, queries);
                gemm_abt<Element, Layout, kHeadDim>(acc_dp, v_address, keys, do_address, queries);
            }

            const int row = first_row + lane % 4 * 2, key = first_key + lane / 4;
            constexpr bool Is_modified = Traits::kVariant == Variant::modified;
            int diagonal = 0;
            float slope = 0.f;
            if (problem.alibi_slopes_ptr != 0) {
                slope = alibi_slope(problem, sequence.batch, head);
                diagonal = row - stored.window.left + problem.window_left - key;
            }
            if (Is_modified && problem.tanh_scale != 0.f) { apply_softcap(acc_s, problem.tanh_scale); }
            if (!Is_modified && problem.alibi_slopes_ptr != 0) { apply_alibi<true>(acc_s, slope, diagonal); }
            if (is_masked) { apply_mask_transposed(acc_s, stored.get_window(), row, key); }

            const bool drops = Is_modified && problem.keep_scale != 1.f;
            Philox_state stream;
            if (drops) { stream = dropout_stream(problem, sequence.batch, head); }
            const float *const lse = reinterpret_cast<const float *>(q_tile + 2 * Traits::kSmemQ) + warp_query +
                                     lane % 4 * 2;
            #pragma unroll
            for (int ni = 0; ni < kNTiles; ++ni) {
                const float2 lse2 = *reinterpret_cast<const float2 *>(lse + ni * 8);
                const float2 d2 = *reinterpret_cast<const float2 *>(lse + kBlockM + ni * 8);
                #pragma unroll
                for (int mi = 0; mi < kMTiles; ++mi) {
                    Philox_state random;
                    if (drops) {
                        random = dropout_bytes(stream, first_row / 16 + ni / 2, (first_key + mi * 16) / 32, lane);
                    }
                    #pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        float p0 = acc_s[mi][ni][half * 2], p1 = acc_s[mi][ni][half * 2 + 1];
                        float dp0 = acc_dp[mi][ni][half * 2], dp1 = acc_dp[mi][ni][half * 2 + 1];
                        if constexpr (Is_modified) {
                            const int offset = ni * 8 - (mi * 16 + half * 8);
                            p0 -= slope * fabsf(static_cast<float>(diagonal + offset));
                            p1 -= slope * fabsf(static_cast<float>(diagonal + offset + 1));
                        }
                        scale_apply_exp2(p0, p1, problem.scale_log2, lse2.x, lse2.y);
                        uint32_t packed = pack<Element>(p0, p1);
                        if (drops) {
                            const int eight_keys = (first_key + mi * 16) / 8 % 4 + half;
                            const uint32_t word = eight_keys < 2 ? (eight_keys == 0 ? random.x[0] : random.x[1])
                                                                 : (eight_keys == 2 ? random.x[2] : random.x[3]);
                            const uint32_t keep = movmatrix_trans(keep_pair(problem, word, ni % 2));
                            packed &= keep;
                            dp0 = keep & 0xffffu ? dp0 * problem.keep_scale : 0.f;
                            dp1 = keep >> 16 ? dp1 * problem.keep_scale : 0.f;
                        }
                        p.x[mi][ni][half] = packed;
                        float ds0 = p0 * (dp0 - d2.x), ds1 = p1 * (dp1 - d2.y);
                        if (Is_modified && problem.tanh_scale != 0.f) {
                            // The derivative of softcap, 1 - tanh^2; masked scores are -inf here, and have no gradient.
                            const float t0 = acc_s[mi][ni][half * 2], t1 = acc_s[mi][ni][half * 2 + 1];
                            ds0 = t0 == -INFINITY ? 0.f : ds0 - ds0 * t0 * t0;
                            ds1 = t1 == -INFINITY ? 0.f : ds1 - ds1 * t1 * t1;
                        }
                        ds.x[mi][ni][half] = pack<Element>(ds0, ds1);
                    }
                }
            }
        }
        store_fragments<Layout_ds>(smem_ds, ds, warp_key, warp_query / 8, lane);
        if constexpr (kWarpsD > 1) { store_fragments<Layout_ds>(smem_p, p, warp_key, warp_query / 8, lane); }
        __syncthreads();

        const uint32_t lane_d = Layout::lane_offset_by_rows(lane) ^ (warp % kWarpsD << 5);  // its first 16 columns of Q
        // A warp's keys and all queries of the block, as operand A.
        const uint32_t lane_ds = Layout_ds::lane_offset_by_rows(lane) + warp_key * Layout_ds::kRowBytes;
        auto fragments_from = [&](uint32_t tile) {
            return [&, tile](uint32_t(&a)[kMTiles][4], int step) {
                #pragma unroll
                for (int mi = 0; mi < kMTiles; ++mi) { ldmatrix_x4(a[mi], tile + Layout_ds::at_block(lane_ds, mi, step)); }
            };
        };
        if constexpr (kWarpsD > 1) {
            gemm_ab<Element, Layout, kBlockM / 16, kWarpsD>(acc_dv, fragments_from(p_address), do_address, lane_d);
            gemm_ab<Element, Layout, kBlockM / 16, kWarpsD>(acc_dk, fragments_from(ds_address), q_address, lane_d);
        } else {
            gemm_ab<Element, Layout, kBlockM / 16, kWarpsD>(acc_dv, p, do_address, lane_d);
            gemm_ab<Element, Layout, kBlockM / 16, kWarpsD>(acc_dk, ds, q_address, lane_d);
        }

        const uint32_t lane_dq_d = Layout::lane_offset_by_rows(lane) ^ (warp_dq_d << 5);  // its first 16 columns of K
        const uint32_t lane_ds_trans = Layout_ds::lane_offset_by_chunks(lane) ^ (warp_dq_m * Traits::kDqMTiles << 5);
        float acc_dq[Traits::kDqMTiles][2 * Traits::kDqDBlocks][4] = {};
        gemm_ab<Element, Layout, kBlockN / 16, Traits::kDqWarpsD>(
            acc_dq,
            [&](uint32_t(&a)[Traits::kDqMTiles][4], int step) {
                #pragma unroll
                for (int mi = 0; mi < Traits::kDqMTiles; ++mi) {
                    ldmatrix_x4_trans(a[mi], ds_address + Layout_ds::at_block(lane_ds_trans, step, mi));
                }
            },
            k_address, lane_dq_d);

        const int64_t tile_row = padded_begin(params, sequence, head) + m_block * kBlockM;
        int *const turn = reinterpret_cast<int *>(params.dq_turn_ptr) + tile_row / 16;
        if (params.dq_turn_ptr != 0) {
            // Blocks of keys add in their order, which fixes the rounding. Those before this one have been started before.
            if (threadIdx.x == 0) {
                const int before = n_block - stored.get_window().key_begin(m_block * kBlockM) / kBlockN;
                while (*reinterpret_cast<volatile int *>(turn) < before) { __nanosleep(20); }
                __threadfence();
            }
            __syncthreads();
        }
        float *const dq = reinterpret_cast<float *>(params.dq_accum_ptr) + tile_row * kHeadDim + lane * 4;
        #pragma unroll
        for (int mi = 0; mi < Traits::kDqMTiles; ++mi) {
            #pragma unroll
            for (int dj = 0; dj < Traits::kDqDBlocks; ++dj) {
                const int block_index = (warp_dq_m * Traits::kDqMTiles + mi) * (kHeadDim / 16) +
                                        dj * Traits::kDqWarpsD + warp_dq_d;
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float(&x)[4] = acc_dq[mi][2 * dj + i];
                    red_add_v4(dq + block_index * 256 + i * 128, x[0], x[1], x[2], x[3]);
                }
            }
        }
        if (params.dq_turn_ptr != 0) {
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) { atomicAdd(turn, 1); }
        }
    };

    if (m_begin < m_end) {
        const Element *k = row_address<const Element>(params.k_ptr, params.k, sequence.batch, head_k,
                                                      sequence.first_key + n_begin);
        const Element *v = row_address<const Element>(params.v_ptr, params.v, sequence.batch, head_k,
                                                      sequence.first_key + n_begin);
        const int keys_left = sequence.seqlen_k - n_begin;
        const Tile_copy<Traits> copy(thread, problem.head_dim);
        copy.template load<kBlockN, false>(k_address, copy.source(k, params.k.row), params.k.row, keys_left);
        copy.template load<kBlockN, false>(v_address, copy.source(v, params.v.row), params.v.row, keys_left);
        load_queries(head_k * problem.group, m_begin, 0);
        cp_async_commit();

        int m_block = m_begin, head = head_k * problem.group;
        const int head_end = head + problem.group;
        #pragma unroll 1
        for (int stage = 0; head < head_end; stage = Traits::kStages == 2 ? stage ^ 1 : 0) {
            cp_async_wait<0>();
            __syncthreads();
            const bool is_last_block = m_block + 1 == stored.m_end;
            const int next_m_block = is_last_block ? stored.m_begin : m_block + 1;
            const int next_head = is_last_block ? head + 1 : head;
            if (Traits::kStages == 2 && next_head < head_end) { load_queries(next_head, next_m_block, stage ^ 1); }
            cp_async_commit();
            attend(head, m_block, stage);
            if constexpr (Traits::kStages == 1) {
                __syncthreads();
                if (next_head < head_end) { load_queries(next_head, next_m_block, 0); }
                cp_async_commit();
            }
            m_block = next_m_block;
            head = next_head;
        }
    }

    // dK and dV leave over K and V, which nobody reads any more.
    __syncthreads();
    auto to_smem = [&](char *tile, const float(&acc)[kMTiles][kDTiles][4], float scale) {
        #pragma unroll
        for (int mi = 0; mi < kMTiles; ++mi) {
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t row = Layout::offset(warp_key + mi * 16 + half * 8 + lane / 4, 0);
                #pragma unroll
                for (int ni = 0; ni < kDTiles; ++ni) {
                    const int chunk = (ni / 2 * kWarpsD + warp % kWarpsD) * 2 + ni % 2;
                    *reinterpret_cast<uint32_t *>(tile + (row ^ (chunk % Layout::kChunksPerGroup << 4)) +
                                                  chunk / Layout::kChunksPerGroup * Layout::kGroupBytes + lane % 4 * 4) =
                        pack<Element>(acc[mi][ni][half * 2] * scale, acc[mi][ni][half * 2 + 1] * scale);
                }
            }
        }
    };
    to_smem(smem, acc_dk, problem.softmax_scale);
    to_smem(smem + Traits::kSmemKV, acc_dv, problem.keep_scale);
    __syncthreads();
    Element *dk = row_address<Element>(params.dk_ptr, params.dk, sequence.batch, head_k, sequence.first_key + n_begin);
    Element *dv = row_address<Element>(params.dv_ptr, params.dv, sequence.batch, head_k, sequence.first_key + n_begin);
    store_tile<Traits, kBlockN>(dk, params.dk.row, smem, thread, sequence.seqlen_k - n_begin, problem.head_dim);
    store_tile<Traits, kBlockN>(dv, params.dv.row, smem + Traits::kSmemKV, thread, sequence.seqlen_k - n_begin,
                                problem.head_dim);
}

// Where a thread block of the two kernels over blocks of query rows works.
struct Query_block {
    int m_block;
    int head;
    Sequence sequence;

    __forceinline__ __device__ Query_block(const Flash_bwd_params &params, int block)
        : m_block(block % params.num_m_blocks), head(block / params.num_m_blocks % params.problem.nheads),
          sequence(sequence_of(params.problem, block / params.num_m_blocks / params.problem.nheads)) {}
};

// softmax_d = rowsum(dO * O) and the LSE in base 2, for padded rows; clears dq_accum and dq_turn.
template <typename Traits>
__forceinline__ __device__ void dot_do_o(const Flash_bwd_params &params, int block) {
    using Element = typename Traits::Element;
    constexpr float kLog2E = 1.44269504088896341f;
    constexpr int kBlockM = Traits::kBlockM, kChunks = Traits::kHeadDim / 8;
    constexpr int kLanes = kChunks <= 4 ? 4 : kChunks <= 8 ? 8 : kChunks <= 16 ? 16 : 32;   // that share a row
    constexpr int kRowsAtOnce = Traits::kNThreads / kLanes;
    static_assert(kBlockM % kRowsAtOnce == 0, "all lanes take part in every shuffle");
    const Query_block position(params, block);
    const Sequence &sequence = position.sequence;
    const int row_begin = position.m_block * kBlockM;
    if (row_begin >= sequence.seqlen_q) { return; }
    const int64_t padded_row = padded_begin(params, sequence, position.head) + row_begin;
    const int thread = threadIdx.x, column = thread % kLanes * 8;

    #pragma unroll 4
    for (int row = thread / kLanes; row < kBlockM; row += kRowsAtOnce) {
        const bool has_row = row_begin + row < sequence.seqlen_q;
        const int64_t row_in_tensor = sequence.first_row + row_begin + row;
        float sum = 0.f;
        if (has_row && column < params.problem.head_dim) {
            const uint4 o = *reinterpret_cast<const uint4 *>(
                row_address<const Element>(params.o_ptr, params.o, sequence.batch, position.head, row_in_tensor) + column);
            const uint4 dout = *reinterpret_cast<const uint4 *>(
                row_address<const Element>(params.do_ptr, params.dout, sequence.batch, position.head, row_in_tensor) +
                column);
            const uint32_t a[4] = {o.x, o.y, o.z, o.w}, b[4] = {dout.x, dout.y, dout.z, dout.w};
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 x = unpack<Element>(a[i]), y = unpack<Element>(b[i]);
                sum += x.x * y.x + x.y * y.y;
            }
        }
        #pragma unroll
        for (int offset = kLanes / 2; offset > 0; offset /= 2) { sum += __shfl_xor_sync(0xffffffff, sum, offset); }
        if (column == 0) {
            reinterpret_cast<float *>(params.softmax_d_ptr)[padded_row + row] = sum;
            reinterpret_cast<float *>(params.lse_log2_ptr)[padded_row + row] = has_row
                ? reinterpret_cast<const float *>(params.softmax_lse_ptr)[sequence.batch * params.lse_batch_stride +
                                                                          position.head * params.lse_head_stride +
                                                                          row_in_tensor] * kLog2E
                : INFINITY;
        }
    }
    uint4 *const dq = reinterpret_cast<uint4 *>(params.dq_accum_ptr) + padded_row * Traits::kHeadDim / 4;
    for (int i = thread; i < kBlockM * Traits::kHeadDim / 4; i += Traits::kNThreads) { dq[i] = make_uint4(0, 0, 0, 0); }
    if (params.dq_turn_ptr != 0 && thread < kBlockM / 16) {
        reinterpret_cast<int *>(params.dq_turn_ptr)[padded_row / 16 + thread] = 0;
    }
}

// dQ = softmax_scale * dq_accum, out of the order of mma accumulators.
template <typename Traits>
__forceinline__ __device__ void convert_dq(const Flash_bwd_params &params, int block) {
    using Element = typename Traits::Element;
    using Layout = typename Traits::Layout;
    constexpr int kBlockM = Traits::kBlockM, kHeadDim = Traits::kHeadDim;
    extern __shared__ __align__(128) char smem[];
    const Query_block position(params, block);
    const Sequence &sequence = position.sequence;
    const int row_begin = position.m_block * kBlockM;
    if (row_begin >= sequence.seqlen_q) { return; }
    const int64_t padded_row = padded_begin(params, sequence, position.head) + row_begin;
    const int thread = threadIdx.x, lane = thread % 32;
    const float scale = params.problem.softmax_scale;

    #pragma unroll 4
    for (int i = thread / 32; i < kBlockM / 16 * (kHeadDim / 16) * 2; i += Traits::kNWarps) {
        const float4 x = *reinterpret_cast<const float4 *>(reinterpret_cast<const float *>(params.dq_accum_ptr) +
                                                           padded_row * kHeadDim + i * 128 + lane * 4);
        const int row = i / 2 / (kHeadDim / 16) * 16 + lane / 4, chunk = i % (kHeadDim / 8);
        const uint32_t group = chunk / Layout::kChunksPerGroup * Layout::kGroupBytes + lane % 4 * 4;
        *reinterpret_cast<uint32_t *>(smem + Layout::offset(row, chunk % Layout::kChunksPerGroup) + group) =
            pack<Element>(x.x * scale, x.y * scale);
        *reinterpret_cast<uint32_t *>(smem + Layout::offset(row + 8, chunk % Layout::kChunksPerGroup) + group) =
            pack<Element>(x.z * scale, x.w * scale);
    }
    __syncthreads();
    Element *dq = row_address<Element>(params.dq_ptr, params.dq, sequence.batch, position.head,
                                       sequence.first_row + row_begin);
    store_tile<Traits, kBlockM>(dq, params.dq.row, smem, thread, sequence.seqlen_q - row_begin, params.problem.head_dim);
}

}  // namespace flash

// One entry point a tile and variant or stage, all from kernels.json.
#define FLASH_BODY_plain flash::compute_dq_dk_dv_1colblock
#define FLASH_BODY_modified flash::compute_dq_dk_dv_1colblock
#define FLASH_BODY_dot_do_o flash::dot_do_o
#define FLASH_BODY_convert_dq flash::convert_dq
#define FLASH_VARIANT_plain flash::Variant::plain
#define FLASH_VARIANT_modified flash::Variant::modified
#define FLASH_VARIANT_dot_do_o flash::Variant::plain
#define FLASH_VARIANT_convert_dq flash::Variant::plain
#define FLASH_KERNEL(name, element, head_dim, block_m, block_n, warps, smem_bytes, variant)                            \
    using name##_traits = flash::Flash_bwd_kernel_traits<element, head_dim, block_m, block_n, warps, smem_bytes,       \
                                                         FLASH_VARIANT_##variant>;                                     \
    extern "C" __global__ void __launch_bounds__(name##_traits::kNThreads, name##_traits::kMinBlocksPerSM)             \
        name(const __grid_constant__ Flash_bwd_params params) {                                                        \
        FLASH_BODY_##variant<name##_traits>(params, static_cast<int>(blockIdx.x));                                     \
    }
