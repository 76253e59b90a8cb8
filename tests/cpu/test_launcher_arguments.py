"""Calls that are wrong: one sentence each, before anything is loaded or launched."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import pytest
from mock_driver import driver, toolchain
from mock_driver import launcher as at
from mock_driver.driver import MockDriver
from mock_driver.isolated import isolated
from mock_driver.launcher import (
    INVALID_ARGUMENT,
    Launcher,
    LauncherError,
    append_args,
    bwd_args,
    change,
    fwd_args,
    new,
    packed,
)

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="the mock driver needs a C compiler")

PAGES: dict[str, Any] = {
    "block_table": at.BLOCK_TABLE,
    "page_size": 256,
    "num_pages": 4,
    "block_table_stride": 2,
}

# Of flash_attn_problem, so of both passes.
PROBLEM: list[tuple[dict[str, Any], str]] = [
    ({"batch": -1}, "batch is -1: it must not be negative"),
    ({"nheads": 0}, "nheads is 0: there must be at least one head"),
    ({"nheads": -4}, "nheads is -4: there must be at least one head"),
    ({"nheads_k": 3}, "nheads is 4 and nheads_k is 3: the query heads must be a multiple of the key heads"),
    ({"nheads_k": 0}, "nheads is 4 and nheads_k is 0"),
    ({"nheads_k": -2}, "nheads is 4 and nheads_k is -2"),
    ({"nheads_k": 8}, "nheads is 4 and nheads_k is 8"),
    ({"head_dim": 0}, "head_dim is 0: it must be a multiple of 8 from 8 to 256"),
    ({"head_dim": 60}, "head_dim is 60: "),
    ({"head_dim": 264}, "head_dim is 264: "),
    ({"head_dim": -8}, "head_dim is -8: "),
    ({"dtype": 2}, r"dtype is 2: it must be 0 \(fp16\) or 1 \(bf16\)"),
    ({"dtype": -1}, "dtype is -1: "),
    ({"seqlen_q": -1}, "seqlen_q is -1: it must be from 0 to 536870912"),
    ({"seqlen_k": -1}, "seqlen_k is -1: "),
    ({"seqlen_k": (1 << 29) + 1}, "seqlen_k is 536870913: "),
    ({"total_q": 5}, "total_q is 5 and total_k is 0 without cu_seqlens"),
    ({"cu_seqlens_q": at.CU_SEQLENS_Q}, "cu_seqlens_q is given without cu_seqlens_k"),
    ({"cu_seqlens_k": at.CU_SEQLENS_K}, "cu_seqlens_k is given without cu_seqlens_q"),
    ({"causal": 2}, "causal is 2: it must be 0 or 1"),
    ({"window_left": -2}, r"The window is \(-2, -1\): each side must be -1, for no limit, or not negative"),
    ({"window_right": -7}, r"The window is \(-1, -7\)"),
    ({"softmax_scale": 0.0}, "softmax_scale is 0: it must be positive and finite"),
    ({"softmax_scale": -1.0}, "softmax_scale is -1: "),
    ({"softmax_scale": math.nan}, "softmax_scale is -?nan: "),
    ({"softmax_scale": math.inf}, "softmax_scale is inf: "),
    ({"softcap": -1.0}, "softcap is -1: it must be positive and finite, or 0 for none"),
    ({"softcap": math.nan}, "softcap is -?nan: "),
    ({"softcap": math.inf}, "softcap is inf: "),
    ({"dropout_p": 1.0}, "dropout_p is 1: it must be at least 0 and less than 1"),
    ({"dropout_p": -0.1}, "dropout_p is -0.1: "),
    ({"dropout_p": math.nan}, "dropout_p is -?nan: "),
    ({"dropout_p": 0.5, "softcap": 1.0}, "softcap is 1 and dropout_p is 0.5: they do not go together"),
    (
        {"alibi_slopes": at.ALIBI, "alibi_batch_stride": 3},
        r"alibi_batch_stride is 3: it must be 0 or nheads \(4\)",
    ),
]

# What only a launch asks: a plan may be made without addresses.
PROBLEM_ADDRESSES: list[tuple[dict[str, Any], str]] = [
    ({"dropout_p": 0.5}, "rng_state is not given: pass its device address"),
    (
        {"dropout_p": 0.5, "rng_state": at.RNG + 4},
        "rng_state is at address 0x[0-9a-f]+: it must be aligned to 8 bytes",
    ),
    ({"seqused_k": 2}, "seqused_k is at address 0x2: it must be aligned to 4 bytes"),
    ({"leftpad_k": 2}, "leftpad_k is at address 0x2: "),
    ({"alibi_slopes": 1}, "alibi_slopes is at address 0x1: "),
    ({"q": 0}, "q is not given: pass its device address"),
    ({"k": 0}, "k is not given"),
    ({"v": at.V + 8}, "v is at address 0x[0-9a-f]+: it must be aligned to 16 bytes"),
    ({"out": 0}, "out is not given"),
    ({"softmax_lse": 0}, "softmax_lse is not given"),
]

FORWARD: list[tuple[dict[str, Any], str]] = [
    ({"num_splits": -1}, "num_splits is -1: it must be from 1 to 128, or 0 to let it be chosen"),
    ({"num_splits": 129}, "num_splits is 129: "),
    (
        {"num_splits": 2, "dropout_p": 0.5},
        "num_splits is 2 and dropout_p is 0.5: keys can't be split with dropout",
    ),
    ({**PAGES, "dropout_p": 0.5}, "block_table is given and dropout_p is 0.5: a paged cache has no dropout"),
    ({"s_dmask": at.S_DMASK}, "s_dmask is given and dropout_p is 0: "),
    (
        {"cache_batch_idx": at.BATCH_IDX},
        "cache_rows is 0: with cache_batch_idx it must be the number of rows",
    ),
    (
        {**PAGES, "cache_batch_idx": at.BATCH_IDX, "cache_rows": 2},
        "block_table and cache_batch_idx are both given",
    ),
    ({**PAGES, "page_size": 24}, "page_size is 24: it must be a multiple of 16"),
    ({**PAGES, "page_size": 0}, "page_size is 0: "),
    ({**PAGES, "num_pages": -1}, "num_pages is -1: "),
    ({**PAGES, "block_table_stride": -1}, "block_table_stride is -1: "),
]

FORWARD_ADDRESSES: list[tuple[dict[str, Any], str]] = [
    (
        {"num_splits": 2},
        "scratch has 0 bytes and this call needs [0-9]+: allocate what flash_attn_fwd_plan says",
    ),
    (
        {"num_splits": 2, "scratch": at.SCRATCH, "scratch_bytes": 99},
        "scratch has 99 bytes and this call needs",
    ),
    (
        {"num_splits": 2, "scratch": at.SCRATCH + 4, "scratch_bytes": 1 << 40},
        "scratch is at address .* aligned to 16",
    ),
    ({**PAGES, "block_table": 3}, "block_table is at address 0x3: it must be aligned to 4 bytes"),
    ({"cache_batch_idx": 3, "cache_rows": 2}, "cache_batch_idx is at address 0x3: "),
    ({"s_dmask": 8, "dropout_p": 0.5, "rng_state": at.RNG}, "s_dmask is at address 0x8: "),
]

BACKWARD: list[tuple[dict[str, Any], str]] = [
    ({"deterministic": 2}, "deterministic is 2: it must be 0 or 1"),
    ({"seqused_k": at.SEQUSED_K}, "seqused_k is given: it has no backward"),
    ({"leftpad_k": at.LEFTPAD_K}, "leftpad_k is given: it has no backward"),
]

BACKWARD_ADDRESSES: list[tuple[dict[str, Any], str]] = [
    *(({name: 0}, f"{name} is not given") for name in ("dout", "dq", "dk", "dv", "softmax_d")),
    ({}, "scratch has 0 bytes and this call needs [0-9]+: allocate what flash_attn_bwd_plan says"),
]

APPEND: list[tuple[dict[str, Any], str]] = [
    ({"batch": -1}, "batch is -1: "),
    ({"nheads_k": 3}, "nheads is 4 and nheads_k is 3: "),
    ({"head_dim": 60}, "head_dim is 60: "),
    ({"dtype": 5}, "dtype is 5: "),
    ({"seqlen_q": -1}, "seqlen_q is -1: it must not be negative"),
    ({"seqlen_new": -1}, "seqlen_new is -1: "),
    ({"seqlen_cache": -1}, "seqlen_cache is -1: "),
    ({"cache_seqlen": -1}, "cache_seqlen is -1: "),
    ({"seqlen_cache": (1 << 29) + 1}, "seqlen_cache is 536870913: "),
    ({"cache_seqlen": 498}, "The cache has room for 500 keys, holds 498 and is to take 3 more: enlarge it"),
    ({"k_new": 0}, "v_new is given without k_new: new keys and values come together"),
    ({"v_new": 0}, "k_new is given without v_new: "),
    ({"rotary_cos": 0}, "rotary_sin is given without rotary_cos: rotation needs both"),
    ({"rotary_sin": 0}, "rotary_cos is given without rotary_sin: "),
    ({"rotary_cos": 0, "rotary_sin": 0}, "q_rotated is given without rotary_cos and rotary_sin"),
    ({"rotary_dim": 24}, r"rotary_dim is 24: it must be a multiple of 16 and at most head_dim \(64\)"),
    ({"rotary_dim": 80}, "rotary_dim is 80: "),
    ({"rotary_dim": 0}, "rotary_dim is 0: "),
    ({"seqlen_rotary": 0}, "seqlen_rotary is 0: "),
    ({"interleaved": 2}, "interleaved is 2: "),
    ({"q_advances": -1}, "q_advances is -1: "),
    ({"rotary_cos": 8}, "rotary_cos is at address 0x8: "),
    ({"q": 0}, "q is not given"),
    ({"q_rotated": 8}, "q_rotated is at address 0x8: "),
    ({"k_cache": 0}, "k_cache is not given"),
    ({"v_cache": 8}, "v_cache is at address 0x8: "),
    ({"cache_seqlens": 2}, "cache_seqlens is at address 0x2: "),
    ({"leftpad_k": 2}, "leftpad_k is at address 0x2: "),
    ({"cache_batch_idx": at.BATCH_IDX}, "cache_rows is 0: "),
    ({**PAGES, "cache_batch_idx": at.BATCH_IDX}, "block_table and cache_batch_idx are both given"),
    ({**PAGES, "page_size": 8}, "page_size is 8: "),
    ({**PAGES, "num_pages": -1}, "num_pages is -1: "),
    ({**PAGES, "block_table_stride": -1}, "block_table_stride is -1: "),
    ({**PAGES, "block_table": 2}, "block_table is at address 0x2: "),
]


def start(tmp_path: str) -> tuple[MockDriver, Launcher]:
    mock = MockDriver(toolchain.mock_driver(), driver.HOPPER)
    launcher = Launcher(toolchain.launcher())
    launcher.use_made_up_kernels(Path(tmp_path))
    return mock, launcher


def refused(call: Any, args: Any, sentence: str) -> None:
    with pytest.raises(LauncherError, match=f"^{sentence}") as error:
        call(args)
    assert error.value.status == INVALID_ARGUMENT
    assert "\n" not in str(error.value)
    assert not str(error.value).endswith(".")


@isolated
def test_forward(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    for changes, sentence in PROBLEM + FORWARD:
        refused(launcher.plan, change(fwd_args(), **changes), sentence)
        refused(launcher.run, change(fwd_args(), **changes), sentence)
    for changes, sentence in PROBLEM_ADDRESSES + FORWARD_ADDRESSES:
        launcher.plan(change(fwd_args(), **changes))
        refused(launcher.run, change(fwd_args(), **changes), sentence)
    assert mock.load_count == mock.launch_count == 0


@isolated
def test_backward(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    for changes, sentence in PROBLEM + BACKWARD:
        refused(launcher.plan, change(bwd_args(), **changes), sentence)
        refused(launcher.run, change(bwd_args(), **changes), sentence)
    for changes, sentence in PROBLEM_ADDRESSES + BACKWARD_ADDRESSES:
        if "seqused_k" in changes or "leftpad_k" in changes:
            continue  # refused before its alignment is looked at
        launcher.plan(change(bwd_args(), **changes))
        refused(launcher.run, change(bwd_args(), **changes), sentence)
    one_too_few = launcher.plan(bwd_args()).scratch_bytes - 1
    refused(
        launcher.run,
        bwd_args(scratch=at.SCRATCH, scratch_bytes=one_too_few),
        f"scratch has {one_too_few} bytes",
    )
    assert mock.load_count == mock.launch_count == 0


@isolated
def test_append(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    for changes, sentence in APPEND:
        refused(launcher.run, change(append_args(), **changes), sentence)
    assert mock.load_count == mock.launch_count == 0
    launcher.run(append_args())


@isolated
def test_packed(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    for make in (fwd_args, bwd_args):
        refused(
            launcher.plan,
            packed(make(), -1, 5),
            "total_q is -1 and total_k is 5: a number of rows must not be negative",
        )
        refused(launcher.run, packed(make(), 5, -1), "total_q is 5 and total_k is -1")
        refused(launcher.run, change(packed(make(), 5, 5), cu_seqlens_q=6), "cu_seqlens_q is at address 0x6")
        refused(launcher.run, change(packed(make(), 5, 5), cu_seqlens_k=6), "cu_seqlens_k is at address 0x6")
    assert mock.launch_count == 0


@isolated
def test_strides(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    tensors = {
        fwd_args: ("q", "k", "v", "out"),
        bwd_args: ("dout", "q", "k", "v", "out", "dq", "dk", "dv"),
        append_args: ("q", "k_new", "v_new", "k_cache", "v_cache"),
    }
    for make, names in tensors.items():
        for name in names:
            for dimension in ("batch", "row", "head"):
                for stride in (4, -8, 1):
                    args = make()
                    setattr(getattr(args, f"{name}_strides"), dimension, stride)
                    refused(
                        launcher.run,
                        args,
                        f"The {dimension} stride of {name} is {stride} elements: it must be a multiple of 8",
                    )
    assert mock.launch_count == 0
    # A dimension of one has no stride to speak of; 0 repeats a tensor.
    args = fwd_args(batch=1, nheads=1, nheads_k=1)
    for name in ("q", "k", "v", "out"):
        getattr(args, f"{name}_strides").batch = getattr(args, f"{name}_strides").head = 1
    launcher.run(args)
    args = fwd_args()
    args.k_strides.batch = args.v_strides.head = 0
    launcher.run(args)
    assert mock.launch_count == 2


@isolated
def test_structs_of_another_version(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    for make in (fwd_args, bwd_args, append_args):
        for size in (0, 8, 1 << 20):
            args = make()
            name, expected = type(args).__name__, args.struct_size
            sentence = (
                f"{name} has {size} bytes and this library expects {expected}, so Python files and library "
                "are of different versions: reinstall flash-attn$"
            )
            args.struct_size = size
            refused(launcher.run, args, sentence)
        name = type(args).__name__.removesuffix("_args")
        refused(
            lambda _, name=name: launcher.call(name, None),
            None,
            f"{name}_args is a null pointer: pass the struct",
        )
    for make in (fwd_args, bwd_args):
        name = type(make()).__name__.removesuffix("_args") + "_plan"
        plan = new("flash_attn_plan")
        plan.struct_size = 3
        for pointer, sentence in ((ctypes.byref(plan), "has 3 bytes"), (None, "is a null pointer")):
            refused(
                lambda args, name=name, pointer=pointer: launcher.call(name, ctypes.byref(args), pointer),
                make(),
                f"flash_attn_plan {sentence}",
            )
    info = new("flash_attn_device_info")
    info.struct_size = 1
    refused(
        lambda _: launcher.call("flash_attn_get_device_info", 0, ctypes.byref(info)),
        None,
        "flash_attn_device_info has 1",
    )
    refused(lambda _: launcher.call("flash_attn_get_device_info", 0, None), None, "flash_attn_device_info")
    refused(lambda _: launcher.call("flash_attn_device_count", None), None, "count is a null pointer")
    assert mock.launch_count == 0


@isolated
def test_a_grid_that_is_too_large(tmp_path: str) -> None:
    mock, launcher = start(tmp_path)
    args = fwd_args(batch=1 << 20, nheads=1 << 10, nheads_k=1 << 10, seqlen_q=1000)
    refused(
        launcher.run,
        args,
        "flash_fwd_hdim64_bf16 would need 8589934592 thread blocks, and a launch has at most",
    )
    assert mock.launch_count == 0


@isolated
def test_messages_are_the_last_error_s(tmp_path: str) -> None:
    _, launcher = start(tmp_path)
    assert launcher.last_error == ""
    refused(launcher.run, fwd_args(batch=-1), "batch is -1")
    launcher.run(fwd_args())
    assert launcher.last_error.startswith("batch is -1")  # a success leaves it
    refused(launcher.run, fwd_args(batch=-2), "batch is -2")
