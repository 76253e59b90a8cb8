"""What the backward's kernels are told: order, grids, padded rows, and the parts of the scratch memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mock_driver import driver, toolchain
from mock_driver import launcher as at
from mock_driver.driver import MockDriver
from mock_driver.isolated import isolated
from mock_driver.launcher import Launcher, bwd_args, packed

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="the mock driver needs a C compiler")


def start(tmp_path: str, device: driver.Device = driver.HOPPER) -> tuple[MockDriver, Launcher]:
    mock = MockDriver(toolchain.mock_driver(), device)
    launcher = Launcher(toolchain.launcher())
    launcher.use_made_up_kernels(Path(tmp_path))
    return mock, launcher


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def strides(value: Any) -> tuple[int, int, int]:
    return value.batch, value.row, value.head


@isolated
def test_every_field(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    args = bwd_args(batch=3, seqlen_q=300, seqlen_k=500, nheads=6, nheads_k=2, head_dim=72, deterministic=1)
    plan = launcher.run_with_scratch(args)
    dot_do_o, main, convert_dq = mock.launches
    assert [launch.kernel for launch in mock.launches] == [
        "flash_bwd_hdim96_bf16_dot_do_o",
        "flash_bwd_hdim96_bf16",
        "flash_bwd_hdim96_bf16_convert_dq",
    ]
    assert plan.kernel.decode() == main.kernel
    assert dot_do_o.params == main.params == convert_dq.params
    assert dot_do_o.grid == convert_dq.grid == (5 * 6 * 3, 1, 1)  # ceil(300 / 64) blocks of queries
    assert main.grid == (4 * 2 * 3, 1, 1)  # ceil(500 / 128) blocks of keys, of the key heads
    assert [launch.smem_bytes for launch in mock.launches] == [0, 512 * 96, 2 * 64 * 96]
    assert {launch.block for launch in mock.launches} == {(256, 1, 1)}
    assert {launch.stream for launch in mock.launches} == {at.STREAM}

    params = main.decode()
    assert (params.q_ptr, params.k_ptr, params.v_ptr, params.o_ptr) == (at.Q, at.K, at.V, at.OUT)
    assert (params.do_ptr, params.dq_ptr, params.dk_ptr, params.dv_ptr) == (at.DOUT, at.DQ, at.DK, at.DV)
    assert (params.softmax_lse_ptr, params.softmax_d_ptr) == (at.LSE, at.SOFTMAX_D)
    for name in ("q", "o", "dout", "dq"):
        assert strides(getattr(params, name)) == (300 * 6 * 72, 6 * 72, 72)
    for name in ("k", "v", "dk", "dv"):
        assert strides(getattr(params, name)) == (500 * 2 * 72, 2 * 72, 72)
    assert (params.lse_batch_stride, params.lse_head_stride) == (6 * 300, 300)
    assert (params.padded_batch_stride, params.padded_head_stride) == (6 * 384, 384)
    assert (params.num_m_blocks, params.num_n_blocks) == (5, 4)
    assert params.heads_per_section == 3 * 2  # all of it fits into the cache
    assert (params.problem.group, params.problem.head_dim) == (3, 72)

    rows = 3 * 6 * 384
    dq_accum = at.SCRATCH + round_up(rows * 4, 256)
    dq_turn = dq_accum + round_up(rows * 96 * 4, 256)
    assert (params.lse_log2_ptr, params.dq_accum_ptr, params.dq_turn_ptr) == (at.SCRATCH, dq_accum, dq_turn)
    assert plan.scratch_bytes == dq_turn + round_up(rows // 16 * 4, 256) - at.SCRATCH


@isolated
def test_every_tensor_has_its_own_strides(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    args = bwd_args()
    names = ("dout", "q", "k", "v", "out", "dq", "dk", "dv")
    for i, name in enumerate(names):
        own = getattr(args, f"{name}_strides")
        own.batch, own.row, own.head = (8 << 40) + 8 * i, (8 << 30) + 8 * i, (8 << 20) + 8 * i
    launcher.run_with_scratch(args)
    params = mock.launches[0].decode()
    for i, name in enumerate(names):
        expected = ((8 << 40) + 8 * i, (8 << 30) + 8 * i, (8 << 20) + 8 * i)
        assert strides(getattr(params, "o" if name == "out" else name)) == expected


@isolated
def test_turns_only_when_deterministic(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    plan = launcher.run_with_scratch(bwd_args(deterministic=0))
    with_turns = launcher.plan(bwd_args(deterministic=1))
    assert mock.launches[0].decode().dq_turn_ptr == 0
    assert with_turns.scratch_bytes - plan.scratch_bytes == round_up(2 * 4 * 384 // 16 * 4, 256)


@isolated
def test_packed_sequences(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    plan = launcher.run_with_scratch(packed(bwd_args(batch=5, deterministic=1), total_q=701, total_k=900))
    params = mock.launches[1].decode()
    padded = round_up(701 + 128 * 5, 128)
    assert (params.padded_batch_stride, params.padded_head_stride) == (0, padded)
    assert (params.lse_batch_stride, params.lse_head_stride) == (0, 701)
    for name in ("q", "k", "v", "o", "dout", "dq", "dk", "dv"):
        assert getattr(params, name).batch == 0
    rows = 4 * padded
    parts = (rows * 4, rows * 64 * 4, rows // 16 * 4)
    assert plan.scratch_bytes == sum(round_up(part, 256) for part in parts)
    assert [launch.grid[0] for launch in mock.launches] == [5 * 4 * 5, 4 * 2 * 5, 5 * 4 * 5]


@isolated
def test_modified_scores(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    launcher.run_with_scratch(bwd_args(softcap=20.0))
    launcher.run_with_scratch(bwd_args(dropout_p=0.5, rng_state=at.RNG))
    launcher.run_with_scratch(bwd_args(causal=1, window_left=5, alibi_slopes=at.ALIBI))
    assert [mock.launches[i].kernel for i in (1, 4, 7)] == [
        "flash_bwd_hdim64_bf16_modified",
        "flash_bwd_hdim64_bf16_modified",
        "flash_bwd_hdim64_bf16",
    ]
    problem = mock.launches[4].decode().problem
    assert (problem.drop_flip, problem.keep_scale, problem.rng_state_ptr) == (0xFFFFFFFF, 2.0, at.RNG)
    problem = mock.launches[7].decode().problem
    assert (problem.window_left, problem.window_right, problem.alibi_slopes_ptr) == (5, 0, at.ALIBI)


@isolated
def test_what_has_no_partner_becomes_zero(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    launcher.run_with_scratch(bwd_args(seqlen_k=0, k=0, v=0, dk=0, dv=0))
    assert [launch.kernel.removeprefix("flash_bwd_hdim64_bf16") for launch in mock.launches] == [
        "_dot_do_o",
        "_convert_dq",
    ]
    plan = launcher.run_with_scratch(
        bwd_args(seqlen_q=0, q=0, out=0, dout=0, dq=0, softmax_lse=0, softmax_d=0)
    )
    assert plan.scratch_bytes == 0
    assert [launch.kernel.removeprefix("flash_bwd_hdim64_bf16") for launch in mock.launches[2:]] == [""]


@isolated
def test_sections(tmp_path: str) -> None:
    mock, launcher = start(tmp_path, driver.RTX_3090)
    launcher.run_with_scratch(bwd_args(batch=4, nheads=64, nheads_k=32, seqlen_q=2048, head_dim=128))
    # The queries of a key head need 4 MB of 3 MB: as many run as half the multiprocessors, in equal sections.
    assert mock.launches[1].decode().heads_per_section == 32
