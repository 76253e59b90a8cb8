"""What the kernel that appends to a cache and rotates is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from mock_driver import driver, toolchain
from mock_driver import launcher as at
from mock_driver.driver import MockDriver
from mock_driver.isolated import isolated
from mock_driver.launcher import Launcher, append_args

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="the mock driver needs a C compiler")


def start(tmp_path: str) -> tuple[MockDriver, Launcher]:
    mock = MockDriver(toolchain.mock_driver(), driver.HOPPER)
    launcher = Launcher(toolchain.launcher())
    launcher.use_made_up_kernels(Path(tmp_path))
    return mock, launcher


@isolated
def test_every_field(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    launcher.run(
        append_args(
            batch=5,
            seqlen_q=3,
            seqlen_new=2,
            nheads=6,
            nheads_k=2,
            head_dim=120,
            cache_seqlens=at.CACHE_SEQLENS,
            leftpad_k=at.LEFTPAD_K,
            cache_batch_idx=at.BATCH_IDX,
            cache_rows=11,
            interleaved=0,
        )
    )
    (launch,) = mock.launches
    params = launch.decode()
    assert launch.kernel == "flash_fwd_splitkv_hdim128_bf16_append"
    rows = 5 * 3 * 6 + 5 * 2 * 2
    assert launch.grid == (-(-rows // 4), 1, 1)
    assert (launch.block, launch.smem_bytes, launch.stream) == ((128, 1, 1), 0, at.STREAM)
    assert (params.q_ptr, params.q_rotated_ptr) == (at.Q, at.Q_ROTATED)
    assert (params.k_new_ptr, params.v_new_ptr, params.k_cache_ptr, params.v_cache_ptr) == (
        at.K_NEW,
        at.V_NEW,
        at.K,
        at.V,
    )
    assert (params.rotary_cos_ptr, params.rotary_sin_ptr) == (at.COS, at.SIN)
    assert (params.cache_seqlens_ptr, params.leftpad_k_ptr) == (at.CACHE_SEQLENS, at.LEFTPAD_K)
    assert (params.cache_batch_idx_ptr, params.block_table_ptr) == (at.BATCH_IDX, 0)
    assert (params.batch, params.nheads, params.nheads_k, params.head_dim) == (5, 6, 2, 120)
    assert (params.seqlen_q, params.seqlen_new, params.seqlen_cache) == (3, 2, 500)
    assert (params.seqlen_rotary, params.rotary_dim) == (1024, 32)
    assert (params.interleaved, params.q_advances, params.cache_rows, params.cache_seqlen) == (0, 1, 11, 100)
    assert (params.q.batch, params.q.row, params.q.head) == (3 * 6 * 120, 6 * 120, 120)
    for name in ("k_new", "v_new"):
        own = getattr(params, name)
        assert (own.batch, own.row, own.head) == (2 * 2 * 120, 2 * 120, 120)
    for name in ("k_cache", "v_cache"):
        own = getattr(params, name)
        assert (own.batch, own.row, own.head) == (500 * 2 * 120, 2 * 120, 120)


@isolated
def test_one_half_of_the_work(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    launcher.run(append_args(q_rotated=0))
    launcher.run(append_args(k_new=0, v_new=0))
    launcher.run(append_args(q_rotated=0, rotary_cos=0, rotary_sin=0))
    assert [launch.grid[0] for launch in mock.launches] == [3, 6, 3]
    launcher.run(append_args(q_rotated=0, k_new=0, v_new=0))
    assert len(mock.launches) == 3


@isolated
def test_pages(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    launcher.run(
        append_args(
            seqlen_cache=9 * 256,
            block_table=at.BLOCK_TABLE,
            block_table_stride=9,
            page_size=256,
            num_pages=40,
        )
    )
    params = mock.launches[0].decode()
    assert (params.block_table_ptr, params.block_table_stride) == (at.BLOCK_TABLE, 9)
    assert (params.page_size, params.num_pages, params.seqlen_cache) == (256, 40, 9 * 256)
