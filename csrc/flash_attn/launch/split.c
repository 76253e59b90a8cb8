#include "split.h"

#include "problem.h"

enum {
    kMaxSplits = 128,
    kMinKeysPerSplit = 256,        // less costs more in combining than it wins
    kBlocksPerMultiprocessor = 2,  // shared memory has room for two blocks of every tile
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Keys that some query sees: with a window, those near the end.
static int64_t visible_keys(const flash_attn_problem *problem) {
    const int64_t keys = problem->seqlen_k;
    return problem->window_left < 0 ? keys : smaller(keys, (int64_t)problem->window_left + problem->seqlen_q);
}

int flash_choose_splits(const Flash_device *device, const Flash_kernel *kernel, const flash_attn_problem *problem,
                        int64_t tiles) {
    const int64_t keys = visible_keys(problem);
    const int64_t slots = (int64_t)kBlocksPerMultiprocessor * device->multiprocessors;
    const int64_t most = smaller(smaller(keys / kMinKeysPerSplit, kMaxSplits), tiles > 0 ? slots / tiles : 1);
    if (most <= 1) { return 1; }
    // Splits are whole blocks of keys: of the numbers that leave the longest split as long as it is, the smallest.
    const int64_t blocks = flash_ceil_div(keys, kernel->block_n);
    return (int)flash_ceil_div(blocks, flash_ceil_div(blocks, most));
}
