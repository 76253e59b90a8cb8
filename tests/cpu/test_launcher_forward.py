"""What the forward's kernels are told: every field of the parameter block, the grid, the split of keys."""

from __future__ import annotations

import ctypes
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from mock_driver import driver, toolchain
from mock_driver import launcher as at
from mock_driver.driver import Launch, MockDriver
from mock_driver.isolated import isolated
from mock_driver.launcher import Launcher, fwd_args, packed

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="the mock driver needs a C compiler")

LOG2_E = math.log2(math.e)


def start(tmp_path: str, device: driver.Device = driver.HOPPER) -> tuple[MockDriver, Launcher]:
    mock = MockDriver(toolchain.mock_driver(), device)
    launcher = Launcher(toolchain.launcher())
    launcher.use_made_up_kernels(Path(tmp_path))
    return mock, launcher


def last(mock: MockDriver, launcher: Launcher, args: Any) -> tuple[Launch, Any]:
    launcher.run_with_scratch(args)
    launch = mock.launches[-1]
    return launch, launch.decode()


def rounded(value: float) -> float:
    """To fp32."""
    return ctypes.c_float(value).value


def strides(value: Any) -> tuple[int, int, int]:
    return value.batch, value.row, value.head


@isolated
def test_every_field_of_a_plain_call(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    args = fwd_args(
        batch=3, seqlen_q=300, seqlen_k=500, nheads=6, nheads_k=2, head_dim=72, alibi_slopes=at.ALIBI
    )
    args.problem.alibi_batch_stride = 6
    launch, params = last(mock, launcher, args)
    problem = params.problem
    assert launch.kernel == "flash_fwd_hdim96_bf16"
    assert launch.stream == at.STREAM
    assert launch.grid == (3 * 3 * 6, 1, 1)
    assert launch.block == (128, 1, 1)
    assert (params.q_ptr, params.k_ptr, params.v_ptr, params.o_ptr) == (at.Q, at.K, at.V, at.OUT)
    assert (params.softmax_lse_ptr, params.s_dmask_ptr) == (at.LSE, 0)
    assert strides(params.q) == strides(params.o) == (300 * 6 * 72, 6 * 72, 72)
    assert strides(params.k) == strides(params.v) == (500 * 2 * 72, 2 * 72, 72)
    assert (params.lse_batch_stride, params.lse_head_stride) == (6 * 300, 300)
    assert (params.num_m_blocks, params.num_splits) == (3, 1)
    assert (params.o_accum_ptr, params.lse_accum_ptr, params.block_table_ptr) == (0, 0, 0)
    assert (problem.batch, problem.nheads, problem.nheads_k, problem.group) == (3, 6, 2, 3)
    assert (problem.seqlen_q, problem.seqlen_k, problem.total_q, problem.total_k) == (300, 500, 0, 0)
    assert problem.head_dim == 72
    assert (problem.window_left, problem.window_right) == (at.UNLIMITED, at.UNLIMITED)
    assert problem.softmax_scale == rounded(72**-0.5)
    assert problem.scale_log2 == pytest.approx(72**-0.5 * LOG2_E, rel=1e-6)
    assert (problem.tanh_scale, problem.keep_scale) == (0, 1)
    assert (problem.drop_up_to, problem.drop_flip) == (0xFFFFFFFF, 0xFFFFFFFF)  # NaN: nothing is dropped
    assert (problem.alibi_slopes_ptr, problem.alibi_batch_stride) == (at.ALIBI, 6)
    assert (problem.rng_state_ptr, problem.cu_seqlens_q_ptr, problem.cu_seqlens_k_ptr) == (0, 0, 0)


@isolated
def test_strides_cross_as_they_are(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    args = fwd_args()
    for i, name in enumerate(("q", "k", "v", "out")):
        own = getattr(args, f"{name}_strides")
        own.batch, own.row, own.head = (8 << 40) + 8 * i, (8 << 30) + 8 * i, (8 << 20) + 8 * i
    _, params = last(mock, launcher, args)
    for i, name in enumerate("qkvo"):
        assert strides(getattr(params, name)) == ((8 << 40) + 8 * i, (8 << 30) + 8 * i, (8 << 20) + 8 * i)


@isolated
def test_masks(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    unlimited = at.UNLIMITED
    for causal, left, right, expected in (
        (0, -1, -1, (unlimited, unlimited)),
        (1, -1, -1, (unlimited, 0)),
        (1, 7, 9, (7, 0)),
        (0, 7, 9, (7, 9)),
        (0, 0, -1, (0, unlimited)),
        (0, unlimited + 1, 2**31 - 1, (unlimited, unlimited)),
    ):
        args = fwd_args(causal=causal, window_left=left, window_right=right)
        _, params = last(mock, launcher, args)
        assert (params.problem.window_left, params.problem.window_right) == expected


@isolated
def test_softcap(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    launch, params = last(mock, launcher, fwd_args(softcap=30.0, softmax_scale=0.25))
    assert launch.kernel == "flash_fwd_hdim64_bf16_softcap"
    assert params.problem.tanh_scale == rounded(0.25 / 30)
    assert params.problem.scale_log2 == rounded(30 * LOG2_E)
    assert params.problem.softmax_scale == 0.25


@isolated
def test_dropout_drops_the_share_it_is_asked_for(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    everything = struct.unpack("<65536e", struct.pack("<65536H", *range(65536)))
    for p in (1e-9, *(1 - (kept - 0.5) / 255 for kept in (*range(1, 256, 11), *range(124, 134), 254, 255))):
        _, params = last(mock, launcher, fwd_args(dropout_p=p, rng_state=at.RNG))
        kept = math.floor(rounded(rounded(1 - rounded(p)) * 255)) + 1
        low, high = struct.unpack("<2e", struct.pack("<I", params.problem.drop_up_to))
        assert low == high or (math.isnan(low) and math.isnan(high))
        found = sum(bits <= low for bits in everything)  # as the kernels compare them; never a NaN
        assert found == {0xFFFFFFFF: 256 - kept, 0: kept}[params.problem.drop_flip] * 256, f"dropout_p={p}"


@isolated
def test_dropout(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    for p in (0.1, 0.2, 0.5, 0.9, 1e-6, 0.999):
        args = fwd_args(dropout_p=p, rng_state=at.RNG, s_dmask=at.S_DMASK)
        launch, params = last(mock, launcher, args)
        keep = rounded(1 - rounded(p))
        assert launch.kernel == "flash_fwd_hdim64_bf16_dropout"
        assert params.problem.keep_scale == rounded(1 / keep)
        assert (params.problem.rng_state_ptr, params.s_dmask_ptr) == (at.RNG, at.S_DMASK)


@isolated
def test_packed_sequences(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    launch, params = last(mock, launcher, packed(fwd_args(batch=5), total_q=700, total_k=900))
    assert launch.grid == (3 * 4 * 5, 1, 1)
    for name in "qkvo":
        assert getattr(params, name).batch == 0
    assert (params.lse_batch_stride, params.lse_head_stride) == (0, 700)
    assert (params.problem.total_q, params.problem.total_k) == (700, 900)
    assert params.problem.cu_seqlens_q_ptr == at.CU_SEQLENS_Q
    assert params.problem.cu_seqlens_k_ptr == at.CU_SEQLENS_K
    args = packed(fwd_args(batch=5, num_splits=0, seqlen_q=1, seqlen_k=100000), total_q=5, total_k=500000)
    args.problem.seqused_k, args.problem.leftpad_k = at.SEQUSED_K, at.LEFTPAD_K
    launch, params = last(mock, launcher, args)
    assert launch.kernel == "flash_fwd_hdim64_bf16"  # packed keys are not split
    assert (params.problem.seqused_k_ptr, params.problem.leftpad_k_ptr) == (at.SEQUSED_K, at.LEFTPAD_K)


@isolated
def test_no_keys_still_write_the_output(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    launch, params = last(mock, launcher, fwd_args(seqlen_k=0, k=0, v=0))
    assert launch.grid == (3 * 4 * 2, 1, 1)
    assert params.problem.seqlen_k == 0
    launch, _ = last(mock, launcher, fwd_args(seqlen_k=0, k=0, v=0, num_splits=0, seqlen_q=1))
    assert launch.kernel == "flash_fwd_splitkv_hdim64_bf16_decode"


def sections(
    batch: int, nheads: int, nheads_k: int, seqlen_k: int, head_dim: int, device: driver.Device
) -> int:
    """As many (batch, head) pairs as find their keys and values in half of L2, in equal sections."""
    pairs = batch * nheads
    key_heads = device.l2_bytes // 2 // (4 * seqlen_k * head_dim) if seqlen_k else pairs
    most = max(key_heads * (nheads // nheads_k), device.multiprocessors // 2, 1)
    return math.ceil(pairs / math.ceil(pairs / most))


@pytest.mark.parametrize("index", range(len(driver.DEVICES)))
@isolated
def test_heads_per_section(index: int, tmp_path: str) -> None:
    device = driver.DEVICES[index]
    mock, launcher = start(tmp_path, device)
    for batch, nheads, nheads_k, seqlen_k in (
        (1, 1, 1, 16384),
        (1, 16, 16, 16384),
        (8, 16, 16, 2048),
        (32, 32, 8, 512),
        (7, 30, 10, 8192),
        (64, 64, 1, 3),
        (2, 128, 128, 65536),
        (3, 5, 5, 0),
    ):
        args = fwd_args(batch=batch, nheads=nheads, nheads_k=nheads_k, seqlen_k=seqlen_k, head_dim=128)
        _, params = last(mock, launcher, args)
        assert params.heads_per_section == sections(batch, nheads, nheads_k, seqlen_k, 128, device)


@isolated
def test_decoding_packs_the_heads_of_a_group_and_splits_the_keys(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    args = fwd_args(batch=16, seqlen_q=1, seqlen_k=16384, nheads=32, nheads_k=8, head_dim=128, num_splits=0)
    args.problem.seqused_k = at.SEQUSED_K
    plan = launcher.run_with_scratch(args)
    main, combine = mock.launches
    assert (main.kernel, combine.kernel) == (
        "flash_fwd_splitkv_hdim128_bf16_decode",
        "flash_fwd_splitkv_hdim128_bf16_combine",
    )
    assert plan.kernel.decode() == main.kernel
    # 128 tiles without a split and room for 264 blocks: two splits are one full wave.
    assert plan.num_splits == 2
    assert main.grid == (1 * 8 * 16 * 2, 1, 1)
    assert combine.grid == (16 * 32 * 1 // 4, 1, 1)
    assert (main.smem_bytes, combine.smem_bytes) == (256 * 128, 0)
    assert (main.block, combine.block) == ((128, 1, 1), (128, 1, 1))
    assert main.params == combine.params
    params = main.decode()
    rows = 2 * 16 * 32
    assert plan.scratch_bytes == rows * (128 + 1) * 4
    assert (params.o_accum_ptr, params.lse_accum_ptr) == (at.SCRATCH, at.SCRATCH + rows * 128 * 4)
    assert (params.num_m_blocks, params.num_splits) == (1, 2)
    assert params.problem.seqused_k_ptr == at.SEQUSED_K


@isolated
def test_which_calls_are_split(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)

    def kernel(**changes: Any) -> str:
        return str(launcher.plan(fwd_args(**changes)).kernel.decode()).removeprefix("flash_fwd_")

    assert kernel(num_splits=0, seqlen_q=16) == "splitkv_hdim64_bf16_decode"  # 16 queries of 2 heads: 32 rows
    assert kernel(num_splits=0, seqlen_q=17) == "splitkv_hdim64_bf16"
    assert kernel(num_splits=0, seqlen_q=32) == "splitkv_hdim64_bf16"
    assert kernel(num_splits=0, seqlen_q=33) == "hdim64_bf16"
    assert kernel(num_splits=1, seqlen_q=1) == "hdim64_bf16"
    assert kernel(num_splits=3, seqlen_q=500) == "splitkv_hdim64_bf16"
    assert kernel(num_splits=0, seqlen_q=1, softcap=3.0) == "splitkv_hdim64_bf16_softcap_decode"
    assert kernel(num_splits=0, seqlen_q=1, dropout_p=0.5, rng_state=at.RNG) == "hdim64_bf16_dropout"
    assert mock.launch_count == 0


@isolated
def test_num_splits(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)

    def splits(**changes: Any) -> int:
        return int(launcher.plan(fwd_args(**{"seqlen_q": 1, "num_splits": 0, **changes})).num_splits)

    one_tile = {"batch": 1, "nheads": 8, "nheads_k": 1}
    assert splits(**one_tile, seqlen_k=511) == 1  # at least 256 keys a split
    assert splits(**one_tile, seqlen_k=512) == 2
    assert splits(**one_tile, seqlen_k=1 << 20) == 128  # and at most 128 splits
    assert (
        splits(**one_tile, seqlen_k=128 * 300) == 100
    )  # 300 blocks of keys, 3 to each of 100, not 2.3 to each of 128
    assert splits(batch=264, nheads=8, nheads_k=1, seqlen_k=1 << 20) == 1  # full without a split
    assert splits(batch=132, nheads=8, nheads_k=1, seqlen_k=1 << 20) == 2
    assert splits(**one_tile, seqlen_k=1 << 20, window_left=1023) == 4  # 1,024 keys are seen
    assert splits(num_splits=77) == 77
    for given in (1, 77):
        args = fwd_args(seqlen_q=1, num_splits=given)
        plan = launcher.run_with_scratch(args)
        assert mock.launches[-1].decode().num_splits == given
        assert bool(plan.scratch_bytes) == (given > 1)


@isolated
def test_few_multiprocessors_split_less(tmp_path: str) -> None:
    _, launcher = start(tmp_path, driver.THOR)
    args = fwd_args(batch=1, nheads=8, nheads_k=4, seqlen_q=1, seqlen_k=1 << 20, num_splits=0)
    assert launcher.plan(args).num_splits == 2 * 20 // 4


@isolated
def test_paged_cache(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    pages: dict[str, Any] = {
        "block_table": at.BLOCK_TABLE,
        "block_table_stride": 9,
        "page_size": 256,
        "num_pages": 40,
    }
    args = fwd_args(batch=2, seqlen_q=500, seqlen_k=9 * 256, **pages)
    launch, params = last(mock, launcher, args)
    assert launch.kernel == "flash_fwd_splitkv_hdim64_bf16"
    assert launch.grid == (math.ceil(500 * 2 / 64) * 2 * 2, 1, 1)
    assert (params.block_table_ptr, params.block_table_stride) == (at.BLOCK_TABLE, 9)
    assert (params.page_size, params.num_pages, params.num_splits) == (256, 40, 1)
    # Packed queries over pages: a page keeps its stride, keys are not split whatever is asked.
    for num_splits in (0, 1, 8):
        args = packed(fwd_args(batch=2, seqlen_q=1, seqlen_k=9 * 256, num_splits=num_splits, **pages), 2, 0)
        args.k_strides.batch = args.v_strides.batch = 8192
        launch, params = last(mock, launcher, args)
        assert launch.kernel == "flash_fwd_splitkv_hdim64_bf16_decode"
        assert (params.k.batch, params.v.batch, params.q.batch, params.o.batch) == (8192, 8192, 0, 0)
        assert params.num_splits == 1


@isolated
def test_cache_rows(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    _, params = last(
        mock, launcher, fwd_args(seqlen_q=1, num_splits=0, cache_batch_idx=at.BATCH_IDX, cache_rows=7)
    )
    assert (params.cache_batch_idx_ptr, params.cache_rows) == (at.BATCH_IDX, 7)


@isolated
def test_small_devices_get_a_split_tile_that_fits(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    launcher.set_smem_limit(
        70 * 1024
    )  # the first tile of head dimension 256 has 96 KB, the one for decoding 64 KB
    launcher.run_with_scratch(fwd_args(head_dim=256, seqlen_q=100, num_splits=2))
    assert [launch.kernel for launch in mock.launches] == [
        "flash_fwd_splitkv_hdim256_bf16_decode",
        "flash_fwd_splitkv_hdim256_bf16_combine",
    ]
