"""What reaches the kernels from a Python call: every argument arrives at its place in the parameter block."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from mock_driver import toolchain
from mock_driver.driver import MockDriver
from mock_driver.isolated import isolated
from mock_driver.package import STREAM, pretend
from torch import Tensor

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="the mock driver needs a C compiler")

UNLIMITED = 1 << 29


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape).to(dtype)


def strides(x: Any) -> tuple[int, int, int]:
    return x.batch, x.row, x.head


def last(mock: MockDriver, index: int = -1) -> tuple[str, Any]:
    launch = mock.launches[index]
    assert launch.stream == STREAM
    return launch.kernel, launch.decode()


@isolated
def test_dense(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    from flash_attn import flash_attn_func

    q, k = draw(3, 7, 6, 64), draw(3, 9, 2, 64)
    v = draw(3, 2, 9, 64).transpose(1, 2)
    slopes = torch.rand(3, 6)
    out, lse, s_dmask = flash_attn_func(
        q, k, v, softmax_scale=0.3, window_size=(5, 2), alibi_slopes=slopes, return_attn_probs=True
    )
    kernel, params = last(mock)
    problem = params.problem
    assert kernel == "flash_fwd_hdim64_bf16"
    assert s_dmask is None
    assert (params.q_ptr, params.k_ptr, params.v_ptr) == (q.data_ptr(), k.data_ptr(), v.data_ptr())
    assert (params.o_ptr, params.softmax_lse_ptr) == (out.data_ptr(), lse.data_ptr())
    assert params.s_dmask_ptr == 0
    assert strides(params.q) == strides(params.o) == q.stride()[:3]
    assert strides(params.k) == k.stride()[:3]
    assert strides(params.v) == v.stride()[:3]
    assert (problem.alibi_slopes_ptr, problem.alibi_batch_stride) == (slopes.data_ptr(), 6)
    assert (problem.batch, problem.nheads, problem.nheads_k, problem.head_dim) == (3, 6, 2, 64)
    assert (problem.seqlen_q, problem.seqlen_k, problem.total_q, problem.total_k) == (7, 9, 0, 0)
    assert (problem.window_left, problem.window_right) == (5, 2)
    assert problem.softmax_scale == pytest.approx(0.3)
    assert problem.rng_state_ptr == 0
    flash_attn_func(q, k, v, causal=True, window_size=(-1, 3), softcap=7.0)
    kernel, params = last(mock)
    assert kernel == "flash_fwd_hdim64_bf16_softcap"
    assert (params.problem.window_left, params.problem.window_right) == (UNLIMITED, 0)
    assert params.problem.softmax_scale == pytest.approx(64**-0.5)
    assert params.problem.tanh_scale == pytest.approx(64**-0.5 / 7.0)


@isolated
def test_dropout(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    from flash_attn.flash_attn_interface import _flash_attn_forward

    q = draw(2, 130, 2, 64)
    torch.manual_seed(3)
    _, _, s_dmask, rng_state = _flash_attn_forward(q, q, q, 0.25, 0.1, False, -1, -1, 0.0, None, True)
    kernel, params = last(mock)
    assert kernel == "flash_fwd_hdim64_bf16_dropout"
    assert s_dmask.shape == (2, 2, 256, 256)
    assert params.s_dmask_ptr == s_dmask.data_ptr()
    assert params.problem.rng_state_ptr == rng_state.data_ptr()
    torch.manual_seed(3)
    again = _flash_attn_forward(q, q, q, 0.25, 0.1, False, -1, -1, 0.0, None, True)[3]
    assert torch.equal(again, rng_state)
    assert not torch.equal(
        _flash_attn_forward(q, q, q, 0.25, 0.1, False, -1, -1, 0.0, None, True)[3], rng_state
    )


@pytest.mark.parametrize(("head_dim", "padded"), [(1, 8), (20, 24), (100, 104), (250, 256)])
@isolated
def test_padded_head_dims(head_dim: int, padded: int, tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    from flash_attn import flash_attn_func

    q = draw(2, 5, 3, head_dim)
    out = flash_attn_func(q, q, q)
    _, params = last(mock)
    assert out.shape == q.shape
    assert out.is_contiguous()
    assert params.problem.head_dim == padded
    assert strides(params.q) == strides(params.o) == (5 * 3 * padded, 3 * padded, padded)
    assert params.o_ptr != out.data_ptr()
    assert params.problem.softmax_scale == pytest.approx(head_dim**-0.5)


@isolated
def test_tensors_that_kernels_cannot_read_are_copied(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    from flash_attn import flash_attn_func

    good = draw(2, 5, 3, 64)
    odd_address = torch.zeros(good.numel() + 1, dtype=good.dtype)[1:].view(good.shape)
    odd_rows = torch.zeros(2, 5, 3, 67, dtype=good.dtype)[..., :64]
    for odd in (odd_address, odd_rows):
        flash_attn_func(odd, good, good)
        _, params = last(mock)
        assert params.q_ptr != odd.data_ptr()
        assert params.q_ptr % 16 == 0
        assert strides(params.q) == good.stride()[:3]
        assert params.k_ptr == good.data_ptr()
    expanded = draw(2, 5, 1, 64).expand(2, 5, 3, 64)
    flash_attn_func(expanded, expanded, expanded)
    _, params = last(mock)
    assert params.q_ptr == expanded.data_ptr()
    assert strides(params.q)[2] == 0


@isolated
def test_scales_that_are_not_positive(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    from flash_attn import flash_attn_func

    q = draw(2, 5, 3, 64)
    for given, passed in ((-0.5, 0.5), (0.0, 1.0)):
        flash_attn_func(q, q, q, softmax_scale=given)
        _, params = last(mock)
        assert params.q_ptr != q.data_ptr()
        assert params.problem.softmax_scale == passed


@isolated
def test_packed(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    from flash_attn.flash_attn_interface import _flash_attn_varlen_forward

    q, k = draw(17, 6, 64), draw(32, 2, 64)
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 5, 17], [0, 9, 32]))
    used, skipped = (torch.tensor(x, dtype=torch.int32) for x in ([8, 20], [1, 2]))
    out, lse, _, _ = _flash_attn_varlen_forward(
        q, k, k, cu_q, cu_k, 12, 23, 0.0, 0.1, True, leftpad_k=skipped, seqused_k=used
    )
    _, params = last(mock)
    problem = params.problem
    assert lse.shape == (6, 17)
    assert (problem.cu_seqlens_q_ptr, problem.cu_seqlens_k_ptr) == (cu_q.data_ptr(), cu_k.data_ptr())
    assert (problem.seqused_k_ptr, problem.leftpad_k_ptr) == (used.data_ptr(), skipped.data_ptr())
    assert (problem.batch, problem.seqlen_q, problem.seqlen_k) == (2, 12, 23)
    assert (problem.total_q, problem.total_k) == (17, 32)
    assert strides(params.q) == strides(params.o) == (0, 6 * 64, 64)
    assert strides(params.k) == (0, 2 * 64, 64)
    assert params.o_ptr == out.data_ptr()


@isolated
def test_backward(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    import flash_attn_2_cuda

    q, k, dout, out = draw(2, 5, 6, 64), draw(2, 9, 2, 64), draw(2, 5, 6, 64), draw(2, 5, 6, 64)
    v = draw(2, 9, 2, 64)
    lse = torch.randn(2, 6, 5)
    dq = torch.empty_like(q)
    dkv = draw(2, 9, 2, 2, 64)
    state = torch.tensor([3, 4])
    found = flash_attn_2_cuda.bwd(
        dout,
        q,
        k,
        v,
        out,
        lse,
        dq,
        dkv[:, :, 0],
        dkv[:, :, 1],
        None,
        0.3,
        0.2,
        True,
        7,
        -1,
        0.0,
        True,
        None,
        state,
    )
    names = [launch.kernel for launch in mock.launches]
    assert len(names) == 3
    (main,) = (i for i, name in enumerate(names) if "dot_do_o" not in name and "convert_dq" not in name)
    assert names[main].startswith("flash_bwd_hdim64_bf16")
    _, params = last(mock, main)
    assert (params.q_ptr, params.k_ptr, params.v_ptr) == (q.data_ptr(), k.data_ptr(), v.data_ptr())
    assert (params.o_ptr, params.do_ptr, params.dq_ptr) == (out.data_ptr(), dout.data_ptr(), dq.data_ptr())
    assert (params.dk_ptr, params.dv_ptr) == (dkv[:, :, 0].data_ptr(), dkv[:, :, 1].data_ptr())
    assert params.softmax_lse_ptr == lse.data_ptr()
    assert params.softmax_d_ptr == found[3].data_ptr()
    assert found[3].shape == (2, 6, 128)
    assert strides(params.dk) == strides(params.dv) == dkv[:, :, 0].stride()[:3]
    assert strides(params.k) == k.stride()[:3]
    assert strides(params.dq) == strides(params.dout) == q.stride()[:3]
    assert (params.problem.window_left, params.problem.window_right) == (7, 0)
    assert params.problem.rng_state_ptr == state.data_ptr()
    assert params.dq_turn_ptr != 0


@isolated
def test_gradients_keep_softmax_d_in_scratch(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    from flash_attn import flash_attn_func

    q = draw(2, 130, 3, 64).requires_grad_()
    (dq,) = torch.autograd.grad(flash_attn_func(q, q, q), q, torch.ones_like(q))
    assert dq.shape == q.shape
    params = next(launch.decode() for launch in mock.launches if "dot_do_o" in launch.kernel)
    assert params.softmax_d_ptr % 16 == 0
    assert params.lse_log2_ptr == params.softmax_d_ptr + 4 * 2 * 3 * 256


@isolated
def test_scratch_is_planned_once_for_a_shape(tmp_path: str) -> None:
    pretend(Path(tmp_path))
    from flash_attn import _launcher, flash_attn_func

    launcher, plans = _launcher.launcher(), []
    plan = launcher.backward_plan

    def counted(*values: float) -> int:
        plans.append(plan(*values))
        return plans[-1]

    launcher.backward_plan = counted  # type: ignore[method-assign]

    def gradients(*shape: int, deterministic: bool = False) -> None:
        q = draw(*shape).requires_grad_()
        torch.autograd.grad(flash_attn_func(q, q, q, deterministic=deterministic), q, torch.ones_like(q))

    for _ in range(3):
        gradients(1, 16, 1, 64)
        gradients(1, 300, 1, 64)
        gradients(1, 300, 1, 64, deterministic=True)
    assert len(plans) == len(set(plans)) == 3
    launcher.set_smem_limit(0)
    gradients(1, 16, 1, 64)
    assert len(plans) == 4


@isolated
def test_gradients_have_no_gradients(tmp_path: str) -> None:
    pretend(Path(tmp_path))
    from flash_attn import flash_attn_func

    q = draw(2, 5, 3, 64).requires_grad_()
    dout = torch.ones_like(q).requires_grad_()
    (dq,) = torch.autograd.grad(flash_attn_func(q, q, q), q, dout, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.float().sum().backward()


@isolated
def test_backward_of_scales_that_are_not_positive(tmp_path: str) -> None:
    """The kernels, which do nothing here, leave dq as it is: what happens to it afterwards is seen."""
    pretend(Path(tmp_path))
    import flash_attn_2_cuda

    q = draw(2, 5, 6, 64)
    lse = torch.randn(2, 6, 5)
    for scale, factor in ((0.5, 1), (-0.5, -1), (0.0, 0)):
        dq, dk = torch.ones_like(q), torch.ones_like(q)
        flash_attn_2_cuda.bwd(
            q,
            q,
            q,
            q,
            q,
            lse,
            dq,
            dk,
            torch.ones_like(q),
            None,
            0.0,
            scale,
            False,
            -1,
            -1,
            0.0,
            False,
            None,
            None,
        )
        assert (dq == factor).all()
        assert (dk == 1).all()


@isolated
def test_cache(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    from flash_attn import flash_attn_with_kvcache

    q, new = draw(2, 1, 8, 64), draw(2, 1, 2, 64)
    k_cache, v_cache = draw(5, 512, 2, 64), draw(5, 512, 2, 64)
    cos, sin = draw(512, 16), draw(512, 16)
    lengths, rows, pads = (torch.tensor(x, dtype=torch.int32) for x in ([30, 400], [4, 1], [2, 3]))
    out, lse = flash_attn_with_kvcache(
        q, k_cache, v_cache, new, new, cos, sin, lengths, rows, pads, causal=True, rotary_interleaved=False,
        return_softmax_lse=True, num_splits=3,
    )  # fmt: skip
    append = next(launch for launch in mock.launches if "append" in launch.kernel).decode()
    assert (append.q_ptr, append.k_new_ptr, append.v_new_ptr) == (
        q.data_ptr(),
        new.data_ptr(),
        new.data_ptr(),
    )
    assert (append.k_cache_ptr, append.v_cache_ptr) == (k_cache.data_ptr(), v_cache.data_ptr())
    assert (append.rotary_cos_ptr, append.rotary_sin_ptr) == (cos.data_ptr(), sin.data_ptr())
    assert append.cache_seqlens_ptr == lengths.data_ptr()
    assert (append.cache_batch_idx_ptr, append.leftpad_k_ptr) == (rows.data_ptr(), pads.data_ptr())
    assert (append.seqlen_q, append.seqlen_new, append.seqlen_cache) == (1, 1, 512)
    assert (append.seqlen_rotary, append.rotary_dim) == (512, 32)
    assert (append.interleaved, append.q_advances, append.cache_rows) == (0, 1, 5)
    assert strides(append.k_cache) == k_cache.stride()[:3]
    main = next(
        launch for launch in mock.launches if "append" not in launch.kernel and "combine" not in launch.kernel
    ).decode()
    assert main.q_ptr == append.q_rotated_ptr
    assert (main.k_ptr, main.v_ptr) == (k_cache.data_ptr(), v_cache.data_ptr())
    assert main.num_splits == 3
    assert main.cache_batch_idx_ptr == rows.data_ptr()
    assert main.problem.leftpad_k_ptr == pads.data_ptr()
    assert main.problem.seqused_k_ptr not in (0, lengths.data_ptr())
    assert (main.problem.seqlen_q, main.problem.seqlen_k) == (1, 512)
    assert main.softmax_lse_ptr == lse.data_ptr()
    combine = next(launch for launch in mock.launches if "combine" in launch.kernel).decode()
    assert combine.o_ptr == out.data_ptr()


@isolated
def test_pages(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    from flash_attn import flash_attn_with_kvcache

    q, pages = draw(2, 1, 8, 64), draw(9, 32, 2, 64)
    table = torch.zeros(2, 5, dtype=torch.int32)[:, :4]
    flash_attn_with_kvcache(q, pages, pages, cache_seqlens=70, block_table=table, num_splits=1)
    kernel, params = last(mock)
    assert kernel.startswith("flash_fwd_splitkv_hdim64_bf16")
    assert (params.block_table_ptr, params.block_table_stride) == (table.data_ptr(), 5)
    assert (params.page_size, params.num_pages) == (32, 9)
    assert params.problem.seqlen_k == 70
    assert params.k.batch == pages.stride(0)


@isolated
def test_nothing_to_do_launches_nothing(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    from flash_attn import flash_attn_func, flash_attn_with_kvcache

    for batch, seqlen_q, seqlen_k in [(0, 5, 5), (2, 0, 5), (2, 5, 0)]:
        q, k = draw(batch, seqlen_q, 2, 64).requires_grad_(), draw(batch, seqlen_k, 2, 64)
        out, lse, _ = flash_attn_func(q, k, k, return_attn_probs=True)
        (dq,) = torch.autograd.grad(out.sum(), q)
        assert not out.any()
        assert not dq.any()
        assert (lse == torch.inf).all()
    out = flash_attn_with_kvcache(draw(2, 1, 2, 64), draw(2, 9, 2, 64), draw(2, 9, 2, 64), cache_seqlens=0)
    assert not out.any()
    assert mock.launch_count == 0


@isolated
def test_few_queries_over_many_keys_are_split(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    from flash_attn import flash_attn_func

    flash_attn_func(draw(1, 1, 8, 64), draw(1, 8192, 2, 64), draw(1, 8192, 2, 64))
    kernels = [launch.kernel for launch in mock.launches]
    assert kernels[0].startswith("flash_fwd_splitkv")
    assert any("combine" in kernel for kernel in kernels)


@isolated
def test_a_new_thread_makes_nothing_anew(tmp_path: str) -> None:
    """A thread of autograd has a new Python thread state every time, so what it keeps is made every time."""
    mock = pretend(Path(tmp_path))
    from flash_attn import _abi, flash_attn_func

    q, k, v = (draw(1, 16, 1, 64).requires_grad_() for _ in range(3))
    out = flash_attn_func(q, k, v)
    out.backward(torch.ones_like(out), retain_graph=True)
    before = len(mock.launches)

    def refuse(*_: object) -> None:
        raise AssertionError("a struct's layout was worked out again")

    _abi.packer = refuse  # type: ignore[assignment]
    failed: list[BaseException] = []

    def work() -> None:
        try:
            flash_attn_func(q, k, v).backward(torch.ones_like(out))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed
    assert len(mock.launches) > before
