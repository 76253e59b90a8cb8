"""Every bad argument of the contract is refused with one sentence, and nothing is launched or written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mock_driver import toolchain
from mock_driver.isolated import isolated
from mock_driver.package import pretend

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="the mock driver needs a C compiler")

HALF = torch.float16


def tensor(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def bad_last_stride(*shape: int) -> torch.Tensor:
    return tensor(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


Q, K = (2, 8, 4, 64), (2, 16, 2, 64)
Changes = dict[str, Any]

DENSE: dict[str, tuple[Changes, type[Exception], str]] = {
    "no tensor": ({"q": [1.0]}, TypeError, "q must be a torch.Tensor"),
    "none": ({"k": None}, TypeError, "k must be a torch.Tensor"),
    "fp32": ({"q": tensor(*Q, dtype=torch.float32)}, RuntimeError, "fp16 and bf16"),
    "two dtypes": ({"k": tensor(*K, dtype=torch.bfloat16)}, RuntimeError, "dtypes"),
    "two devices": ({"v": torch.zeros(K, dtype=HALF, device="meta")}, RuntimeError, "one device"),
    "rank of q": ({"q": tensor(8, 4, 64)}, RuntimeError, "q has shape"),
    "rank of k": ({"k": tensor(16, 2, 64), "v": tensor(16, 2, 64)}, RuntimeError, "k has shape"),
    "k and v": ({"v": tensor(2, 15, 2, 64)}, RuntimeError, "k has shape"),
    "batch": ({"q": tensor(3, 8, 4, 64)}, RuntimeError, "batch size"),
    "heads": ({"q": tensor(2, 8, 3, 64)}, RuntimeError, "multiple"),
    "no key heads": ({"k": tensor(2, 16, 0, 64), "v": tensor(2, 16, 0, 64)}, RuntimeError, "multiple"),
    "head dims": ({"q": tensor(2, 8, 4, 32)}, RuntimeError, "head dimension"),
    "head dim 257": (
        {"q": tensor(2, 8, 4, 257), "k": tensor(2, 16, 2, 257), "v": tensor(2, 16, 2, 257)},
        RuntimeError,
        "256",
    ),
    "head dim 0": (
        {"q": tensor(2, 8, 4, 0), "k": tensor(2, 16, 2, 0), "v": tensor(2, 16, 2, 0)},
        RuntimeError,
        "head dimension",
    ),
    "stride": ({"q": bad_last_stride(*Q)}, RuntimeError, "contiguous"),
    "stride of v": ({"v": bad_last_stride(*K)}, RuntimeError, "contiguous"),
    "dropout 1": ({"dropout_p": 1.0}, RuntimeError, "dropout_p"),
    "dropout -0.1": ({"dropout_p": -0.1}, RuntimeError, "dropout_p"),
    "dropout nan": ({"dropout_p": float("nan")}, RuntimeError, "dropout_p"),
    "scale nan": ({"softmax_scale": float("nan")}, RuntimeError, "softmax_scale"),
    "scale inf": ({"softmax_scale": float("inf")}, RuntimeError, "softmax_scale"),
    "softcap": ({"softcap": -1.0}, RuntimeError, "softcap"),
    "softcap nan": ({"softcap": float("nan")}, RuntimeError, "softcap"),
    "softcap and dropout": ({"softcap": 5.0, "dropout_p": 0.1}, RuntimeError, "don't work together"),
    "window": ({"window_size": 5}, TypeError, "must be (left, right), but it is an int."),
    "window of one": ({"window_size": (1,)}, ValueError, "but it is a tuple of another length."),
    "window of three": ({"window_size": (1, 2, 3)}, ValueError, "but it is a tuple of another length."),
    "window of text": ({"window_size": ("a", "b")}, TypeError, "window_size must hold integers"),
    "no causal": ({"causal": None}, TypeError, "causal must be True or False, but it is None"),
    "causal text": ({"causal": "no"}, TypeError, "causal must be True or False, but it is 'no'"),
    "causal 2": ({"causal": 2}, TypeError, "causal must be True or False, but it is 2"),
    "probabilities": ({"return_attn_probs": torch.zeros(2)}, TypeError, "return_attn_probs must be True"),
    "deterministic": ({"deterministic": "no"}, TypeError, "deterministic must be True or False"),
    "dropout text": ({"dropout_p": "0.1"}, TypeError, "dropout_p must be a number, but it is a str"),
    "no dropout": ({"dropout_p": None}, TypeError, "dropout_p must be a number, but it is None"),
    "dropouts": ({"dropout_p": torch.zeros(2)}, TypeError, "dropout_p must be a number, but it is a Tensor"),
    "no softcap": ({"softcap": None}, TypeError, "softcap must be a number"),
    "softcap 2**200": ({"softcap": 2**200}, RuntimeError, "fit fp32"),
    "complex scale": ({"softmax_scale": 1j}, TypeError, "softmax_scale must be a number"),
    "scale 1e300": (
        {"softmax_scale": 1e300},
        RuntimeError,
        "softmax_scale is 1e+300, but it must be finite and fit fp32",
    ),
    "scale 10**400": ({"softmax_scale": 10**400}, RuntimeError, "fit fp32"),
    "window of floats": ({"window_size": (1.5, 0)}, TypeError, "window_size"),
    "alibi dtype": ({"alibi_slopes": tensor(4)}, RuntimeError, "alibi_slopes has dtype"),
    "alibi shape": ({"alibi_slopes": tensor(3, dtype=torch.float32)}, RuntimeError, "alibi_slopes has shape"),
    "alibi device": ({"alibi_slopes": torch.zeros(4, device="meta")}, RuntimeError, "one device"),
    "alibi stride": (
        {"alibi_slopes": torch.zeros(4, 2).T},
        RuntimeError,
        "alibi_slopes must be contiguous",
    ),
}

CU_Q, CU_K = int32(0, 8, 16), int32(0, 16, 32)
VARLEN: dict[str, tuple[Changes, type[Exception], str]] = {
    "rank": ({"q": tensor(*Q)}, RuntimeError, "total_q"),
    "cu dtype": ({"cu_seqlens_q": CU_Q.long()}, RuntimeError, "int32"),
    "cu none": ({"cu_seqlens_k": None}, TypeError, "cu_seqlens_k"),
    "cu list": ({"cu_seqlens_q": [0, 8, 16]}, TypeError, "cu_seqlens_q"),
    "cu rank": ({"cu_seqlens_q": CU_Q[None]}, RuntimeError, "cu_seqlens_q"),
    "cu empty": ({"cu_seqlens_q": CU_Q[:0]}, RuntimeError, "cu_seqlens_q"),
    "cu lengths": ({"cu_seqlens_k": CU_K[:2]}, RuntimeError, "cu_seqlens_k has shape"),
    "cu device": ({"cu_seqlens_k": CU_K.to("meta")}, RuntimeError, "one device"),
    "cu stride": ({"cu_seqlens_k": int32(0, 0, 16, 16, 32, 32)[::2]}, RuntimeError, "contiguous"),
    "negative": ({"max_seqlen_q": -1}, RuntimeError, "max_seqlen_q"),
    "huge": ({"max_seqlen_k": 2**40}, RuntimeError, "max_seqlen_k"),
    "no length": ({"max_seqlen_k": 1.5}, TypeError, "max_seqlen_k"),
    "table without pages": ({"block_table": int32(0, 0).view(2, 1)}, RuntimeError, "page_size"),
    "page size": (
        {"block_table": int32(0, 0).view(2, 1), "k": tensor(4, 24, 2, 64), "v": tensor(4, 24, 2, 64)},
        RuntimeError,
        "multiple of 16",
    ),
    "table dtype": (
        {"block_table": torch.zeros(2, 1), "k": tensor(4, 16, 2, 64), "v": tensor(4, 16, 2, 64)},
        RuntimeError,
        "block_table has dtype",
    ),
    "table batch": (
        {"block_table": int32(0).view(1, 1), "k": tensor(4, 16, 2, 64), "v": tensor(4, 16, 2, 64)},
        RuntimeError,
        "block_table has shape",
    ),
    "table and dropout": (
        {
            "block_table": int32(0, 0).view(2, 1),
            "k": tensor(4, 16, 2, 64),
            "v": tensor(4, 16, 2, 64),
            "dropout_p": 0.5,
        },
        RuntimeError,
        "dropout",
    ),
}

NEW = {"k": tensor(2, 3, 2, 64), "v": tensor(2, 3, 2, 64), "cache_seqlens": 4}


def rotary(length: int, half: int, dtype: torch.dtype = HALF) -> Changes:
    return {"rotary_cos": tensor(length, half, dtype=dtype), "rotary_sin": tensor(length, half, dtype=dtype)}


CACHE: dict[str, tuple[Changes, type[Exception], str]] = {
    "rank": ({"q": tensor(8, 4, 64)}, RuntimeError, "q has shape"),
    "batch": ({"q": tensor(3, 8, 4, 64)}, RuntimeError, "batch size"),
    "stride": ({"k_cache": bad_last_stride(*K)}, RuntimeError, "contiguous"),
    "k alone": ({"k": tensor(2, 3, 2, 64)}, RuntimeError, "Only one of k and v"),
    "nowhere": ({**NEW, "cache_seqlens": None}, RuntimeError, "without cache_seqlens"),
    "new shape": ({**NEW, "k": tensor(2, 3, 4, 64), "v": tensor(2, 3, 4, 64)}, RuntimeError, "k has shape"),
    "new dtype": ({**NEW, "k": NEW["k"].float()}, RuntimeError, "dtypes"),  # type: ignore[attr-defined]
    "overflow": ({**NEW, "cache_seqlens": 14}, RuntimeError, "holds only 16"),
    "beyond": ({"cache_seqlens": 17}, RuntimeError, "holds only 16"),
    "negative": ({"cache_seqlens": -1}, RuntimeError, "cache_seqlens is -1"),
    "long lengths": ({"cache_seqlens": int32(3, 4).long()}, RuntimeError, "int32"),
    "lengths shape": ({"cache_seqlens": int32(3)}, RuntimeError, "cache_seqlens has shape"),
    "float length": ({"cache_seqlens": 1.5}, TypeError, "cache_seqlens"),
    "batch idx": ({"cache_batch_idx": int32(0, 1).long()}, RuntimeError, "cache_batch_idx has dtype"),
    "leftpad": ({"cache_leftpad": int32(0)}, RuntimeError, "cache_leftpad has shape"),
    "batch idx of pages": (
        {"block_table": int32(0, 1).view(2, 1), "cache_batch_idx": int32(0, 1)},
        RuntimeError,
        "both given",
    ),
    "cos alone": ({**NEW, "rotary_cos": tensor(16, 16)}, RuntimeError, "Only one of rotary_cos"),
    "rotary dim": (
        {**NEW, "rotary_cos": tensor(16, 12), "rotary_sin": tensor(16, 12)},
        RuntimeError,
        "of 16",
    ),
    "wide rotary": (
        {**NEW, "rotary_cos": tensor(16, 40), "rotary_sin": tensor(16, 40)},
        RuntimeError,
        "of 16",
    ),
    "short rotary": (
        {**NEW, "rotary_cos": tensor(9, 16), "rotary_sin": tensor(9, 16)},
        RuntimeError,
        "positions",
    ),
    "rotary dtype": (
        {**NEW, "rotary_cos": torch.zeros(16, 16), "rotary_sin": torch.zeros(16, 16)},
        RuntimeError,
        "q is",
    ),
    "sin shape": (
        {**NEW, **rotary(16, 16), "rotary_sin": tensor(15, 16)},
        RuntimeError,
        "rotary_sin has shape",
    ),
    "splits": ({"num_splits": -1}, RuntimeError, "num_splits"),
    "many splits": ({"num_splits": 1000}, RuntimeError, "num_splits"),
}

KINDS = {"dense": DENSE, "varlen": VARLEN, "cache": CACHE}


def good(kind: str) -> Changes:
    if kind == "dense":
        return {"q": tensor(*Q), "k": tensor(*K), "v": tensor(*K)}
    if kind == "varlen":
        lengths = {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K, "max_seqlen_q": 8, "max_seqlen_k": 16}
        return {"q": tensor(16, 4, 64), "k": tensor(32, 2, 64), "v": tensor(32, 2, 64), **lengths}
    return {"q": tensor(*Q), "k_cache": tensor(*K), "v_cache": tensor(*K)}


def function(kind: str) -> Callable[..., Any]:
    from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

    return {"dense": flash_attn_func, "varlen": flash_attn_varlen_func, "cache": flash_attn_with_kvcache}[
        kind
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gradients", [False, True])
@isolated
def test_bad_arguments(kind: str, gradients: bool, tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    call = function(kind)
    call(**good(kind))
    launches = mock.launch_count
    assert launches > 0
    wrong = []
    for name, (changes, error, message) in KINDS[kind].items():
        if gradients and "block_table" in changes:
            continue  # refused for its own reason
        arguments = {**good(kind), **changes}
        if gradients and kind != "cache":
            q = arguments["q"]
            arguments["q"] = q.clone().requires_grad_() if isinstance(q, torch.Tensor) else q
        try:
            call(**arguments)
        except error as raised:
            text = str(raised)
            if not re.search(re.escape(message), text) or "\n" in text:
                wrong.append(f"{name}: {text}")
        except Exception as raised:
            wrong.append(f"{name}: {type(raised).__name__}: {raised}")
        else:
            wrong.append(f"{name}: not refused")
        if mock.launch_count != launches:
            wrong.append(f"{name}: launched something")
            launches = mock.launch_count
    assert not wrong, "\n".join(wrong)


@isolated
def test_bad_outputs_and_gradients(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    import flash_attn_2_cuda as extension

    q, k, v = (tensor(2, 8, 4, 64) for _ in range(3))
    lse = torch.zeros(2, 4, 8)

    def forward(out: Any) -> None:
        extension.fwd(q, k, v, out, None, 0.0, 0.1, False, -1, -1, 0.0, False, None)

    def backward(**changes: Any) -> None:
        given = {"dout": q, "out": q, "lse": lse, "dq": q, "dk": k, "dv": v, "p": 0.0, "rng": None, **changes}
        extension.bwd(
            given["dout"], q, k, v, given["out"], given["lse"], given["dq"], given["dk"], given["dv"], None,
            given["p"], 0.1, False, -1, -1, 0.0, False, None, given["rng"],
        )  # fmt: skip

    backward()
    launches = mock.launch_count
    for call, message in [
        (lambda: forward(tensor(2, 8, 4, 32)), "out has shape"),
        (lambda: forward(q.float()), "out has dtype"),
        (lambda: forward(bad_last_stride(2, 8, 4, 64)), "contiguous"),
        (lambda: backward(dout=tensor(2, 8, 2, 64)), "dout has shape"),
        (lambda: backward(out=q.bfloat16()), "out has dtype"),
        (lambda: backward(lse=lse[:1]), "softmax_lse"),
        (lambda: backward(lse=lse.half()), "softmax_lse"),
        (lambda: backward(dq=tensor(2, 8, 4, 32)), "dq has shape"),
        (lambda: backward(dk=k.float()), "dk has dtype"),
        (lambda: backward(dv=bad_last_stride(2, 8, 4, 64)), "contiguous"),
        (lambda: backward(p=0.1), "rng_state is missing"),
        (lambda: backward(p=0.1, rng=torch.zeros(2)), "rng_state is"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            call()
    assert mock.launch_count == launches


@isolated
def test_families_that_are_not_built(tmp_path: str) -> None:
    mock = pretend(Path(tmp_path), families=["flash_fwd"])
    from flash_attn import flash_attn_func, flash_attn_with_kvcache

    q = tensor(2, 8, 4, 64)
    flash_attn_func(q, q, q)
    launches = mock.launch_count
    with pytest.raises(RuntimeError, match="holds no backward kernels"):
        flash_attn_func(q.clone().requires_grad_(), q, q)
    with torch.no_grad():
        flash_attn_func(q.clone().requires_grad_(), q, q)
    with pytest.raises(RuntimeError, match="holds no flash_fwd_splitkv kernels"):
        flash_attn_with_kvcache(q, q, q)
    assert mock.launch_count == launches + 1


@pytest.mark.parametrize(
    ("call", "message"),
    [("cuInit", "driver"), ("cuLaunchKernel", "cuLaunchKernel"), ("cuLibraryLoadData", "fatbin")],
)
@isolated
def test_failing_driver(call: str, message: str, tmp_path: str) -> None:
    mock = pretend(Path(tmp_path))
    from flash_attn import flash_attn_func

    mock.fail(call, 999)
    q = tensor(2, 8, 4, 64)
    with pytest.raises(RuntimeError) as raised:
        flash_attn_func(q, q, q)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def nested(*tail: int, layout: torch.layout = torch.strided) -> torch.Tensor:
    return torch.nested.nested_tensor([tensor(4, *tail), tensor(6, *tail)], layout=layout)


ODD: dict[str, Callable[..., torch.Tensor]] = {
    "nested": nested,
    "nested, jagged": lambda *tail: nested(*tail, layout=torch.jagged),
    "sparse": lambda *tail: tensor(2, 4, *tail).fill_(1).to_sparse(),
}
ROWS = (int32(0, 4), int32(0, 4), 4, 4)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("kind", ODD)
def test_layouts_that_are_not_dense(kind: str, gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, of whatever rank they are; PyTorch's own speak of internal errors."""
    import flash_attn
    import flash_attn.layers.rotary
    import flash_attn_2_cuda
    from flash_attn import bert_padding

    monkeypatch.setattr(flash_attn.flash_attn_interface, "_require_backward", lambda *_: None)  # wants a GPU
    for make in (lambda: ODD[kind](2, 64), lambda: ODD[kind](64), lambda: ODD[kind](3, 2, 64)):
        x = make().requires_grad_(gradient)
        for call in (
            lambda x: flash_attn.flash_attn_func(x, x, x),
            lambda x: flash_attn.flash_attn_varlen_func(x, x, x, *ROWS),
            lambda x: flash_attn.flash_attn_qkvpacked_func(x),
            lambda x: flash_attn.flash_attn_varlen_qkvpacked_func(x, ROWS[0], 4),
            lambda x: flash_attn.flash_attn_kvpacked_func(x, x),
            lambda x: flash_attn.flash_attn_varlen_kvpacked_func(x, x, *ROWS),
            lambda x: flash_attn.flash_attn_with_kvcache(x, x, x),
        ):
            with pytest.raises(RuntimeError) as error:
                call(x)
            assert re.match(
                r"(q|kv|qkv) is (nested|torch\.sparse_coo), but flash_attn takes dense tensors only",
                str(error.value),
            )
    q = tensor(2, 4, 2, 64)
    good = dict.fromkeys("qkv", q)
    for name in good:
        with pytest.raises(RuntimeError, match=f"^{name} is .* dense tensors only"):
            flash_attn.flash_attn_func(**good | {name: ODD[kind](2, 64)})
    rows, table, odd = tensor(8, 16), tensor(4, 16), ODD[kind](2, 64)
    rotary = flash_attn.layers.rotary
    for call in (
        lambda: flash_attn.flash_attn_interface._flash_attn_forward(
            odd, q, q, 0.0, 1.0, False, -1, -1, 0.0, None, False
        ),
        lambda: flash_attn_2_cuda.fwd(odd, q, q, None, None, 0.0, 1.0, False, -1, -1, 0.0, False, None),
        lambda: flash_attn.flash_attn_with_kvcache(q, q, q, k=odd, v=odd, cache_seqlens=0),
        lambda: flash_attn.flash_attn_with_kvcache(q, q, q, rotary_cos=odd, rotary_sin=odd),
        lambda: rotary.apply_rotary_emb(odd, table, table),
        lambda: rotary.apply_rotary_emb(q, odd, odd),
        lambda: rotary.apply_rotary_emb(q, table, table, seqlen_offsets=odd),
        lambda: rotary.RotaryEmbedding(32)(odd),
        lambda: bert_padding.unpad_input(odd, torch.ones(2, 4, dtype=torch.bool)),
        lambda: bert_padding.pad_input(odd, torch.arange(2), 1, 4),
        lambda: bert_padding.index_first_axis(odd, torch.arange(2)),
        lambda: bert_padding.index_put_first_axis(rows, odd, 8),
    ):
        with pytest.raises(
            RuntimeError, match=r"^\w+ is .*, but flash_attn takes dense tensors only: [^\n]*\.$"
        ):
            call()
