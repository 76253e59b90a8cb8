// Which (batch, head, block of query rows) a thread block works on.
//
// Thread blocks start roughly in the order of their index. (batch, head) pairs are cut into equal sections, small enough
// that several blocks of rows share each section's keys and values in the L2 cache while they are read; within a
// section, the last query rows of all heads come first. With a causal mask those see the most keys, so that the short
// blocks are left for the end, where they even out the multiprocessors.
#pragma once

#include "flash.h"

namespace flash {

struct Tile_position {
    int m_block;
    int head;
    int batch;
};

__forceinline__ __device__ Tile_position tile_position(const Flash_fwd_params &params, int block) {
    const int pairs = params.problem.batch * params.problem.nheads;
    const int section = block / (params.heads_per_section * params.num_m_blocks);
    const int section_begin = section * params.heads_per_section;
    const int section_heads = min(params.heads_per_section, pairs - section_begin);
    const int in_section = block - section_begin * params.num_m_blocks;
    const int pair = section_begin + in_section % section_heads;
    return {params.num_m_blocks - 1 - in_section / section_heads, pair % params.problem.nheads, pair / params.problem.nheads};
}

}  // namespace flash
