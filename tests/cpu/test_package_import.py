"""The package imports and names what is missing where there is no GPU, no driver, no built library."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mock_driver.c_structs import structs
from packaging.version import Version

import flash_attn
import flash_attn_2_cuda
from flash_attn import _abi, _launcher
from flash_attn import flash_attn_interface as interface


def signature(function: object) -> list[tuple[str, object]]:
    return [
        (parameter.name, None if parameter.default is parameter.empty else parameter.default)
        for parameter in inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    ]


COMMON = [
    ("dropout_p", 0.0),
    ("softmax_scale", None),
    ("causal", False),
    ("window_size", (-1, -1)),
    ("softcap", 0.0),
    ("alibi_slopes", None),
    ("deterministic", False),
    ("return_attn_probs", False),
]


def required(names: str) -> list[tuple[str, object]]:
    return [(name, None) for name in names.split()]


LENGTHS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
PUBLIC = {
    "flash_attn_func": [*required("q k v"), *COMMON],
    "flash_attn_qkvpacked_func": [*required("qkv"), *COMMON],
    "flash_attn_kvpacked_func": [*required("q kv"), *COMMON],
    "flash_attn_varlen_func": [*required(f"q k v {LENGTHS}"), *COMMON, ("block_table", None)],
    "flash_attn_varlen_qkvpacked_func": [*required("qkv cu_seqlens max_seqlen"), *COMMON],
    "flash_attn_varlen_kvpacked_func": [*required(f"q kv {LENGTHS}"), *COMMON],
    "flash_attn_with_kvcache": [
        *required("q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad"),
        *required("block_table softmax_scale"),
        ("causal", False),
        ("window_size", (-1, -1)),
        ("softcap", 0.0),
        ("rotary_interleaved", True),
        ("alibi_slopes", None),
        ("num_splits", 0),
        ("return_softmax_lse", False),
    ],
}
MASKS = "dropout_p softmax_scale causal window_size_left window_size_right softcap alibi_slopes"
MASKS_2 = "is_causal window_left window_right softcap"
OPERATORS = {
    "_flash_attn_forward": f"q k v {MASKS} return_softmax",
    "_flash_attn_varlen_forward": (
        f"q k v {LENGTHS} {MASKS} return_softmax block_table leftpad_k seqused_k zero_tensors"
    ),
    "_flash_attn_backward": f"dout q k v out softmax_lse dq dk dv {MASKS} deterministic rng_state",
    "_flash_attn_varlen_backward": (
        f"dout q k v out softmax_lse dq dk dv {LENGTHS} {MASKS} deterministic rng_state zero_tensors"
    ),
}
EXTENSION = {
    "fwd": f"q k v out alibi_slopes p_dropout softmax_scale {MASKS_2} return_softmax gen",
    "varlen_fwd": (
        "q k v out cu_seqlens_q cu_seqlens_k seqused_k leftpad_k block_table alibi_slopes "
        "max_seqlen_q max_seqlen_k "
        f"p_dropout softmax_scale zero_tensors {MASKS_2} return_softmax gen"
    ),
    "bwd": (
        f"dout q k v out softmax_lse dq dk dv alibi_slopes p_dropout softmax_scale {MASKS_2} "
        "deterministic gen "
        "rng_state"
    ),
    "varlen_bwd": (
        "dout q k v out softmax_lse dq dk dv cu_seqlens_q cu_seqlens_k alibi_slopes max_seqlen_q "
        "max_seqlen_k "
        f"p_dropout softmax_scale zero_tensors {MASKS_2} deterministic gen rng_state"
    ),
    "fwd_kvcache": (
        "q kcache vcache k v seqlens_k rotary_cos rotary_sin cache_batch_idx leftpad_k block_table "
        "alibi_slopes out "
        f"softmax_scale {MASKS_2} is_rotary_interleaved num_splits"
    ),
}


def test_version() -> None:
    version = Version(flash_attn.__version__)
    assert len(version.release) == 3
    assert version.is_devrelease or not version.is_prerelease  # a nightly's, or a release's
    if (_launcher._places()[0] / "kernels").is_dir():
        assert _launcher.manifest().version == flash_attn.__version__


@pytest.mark.parametrize("name", PUBLIC)
def test_public_functions(name: str) -> None:
    assert signature(getattr(flash_attn, name)) == PUBLIC[name]
    assert getattr(interface, name) is getattr(flash_attn, name)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    names = OPERATORS[name].split()
    assert [parameter for parameter, _ in signature(getattr(interface, name))] == names
    schema = getattr(torch.ops.flash_attn, name).default._schema
    assert [argument.name for argument in schema.arguments] == names
    for (_, default), argument in zip(signature(getattr(interface, name)), schema.arguments, strict=True):
        assert default == (argument.default_value if argument.has_default_value() else None)
    written = [argument.name for argument in schema.arguments if argument.alias_info is not None]
    assert written == (["dq", "dk", "dv"] if "backward" in name else [])


@pytest.mark.parametrize("name", EXTENSION)
def test_extension_functions(name: str) -> None:
    assert [parameter for parameter, _ in signature(getattr(flash_attn_2_cuda, name))] == EXTENSION[
        name
    ].split()


STRUCTURES = {
    "flash_attn_strides": _abi.Strides,
    "flash_attn_problem": _abi.Problem,
    "flash_attn_fwd_args": _abi.FwdArgs,
    "flash_attn_append_args": _abi.AppendArgs,
    "flash_attn_bwd_args": _abi.BwdArgs,
    "flash_attn_plan": _abi.Plan,
    "flash_attn_fatbin": _abi.Fatbin,
    "flash_attn_device_info": _abi.DeviceInfo,
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_are_those_of_the_header(name: str) -> None:
    ours, headers = STRUCTURES[name], structs()[name]
    assert ctypes.sizeof(ours) == ctypes.sizeof(headers)
    fields = [
        (field[0], getattr(ours, field[0]).offset, getattr(ours, field[0]).size) for field in ours._fields_
    ]
    assert fields == [
        (field[0], getattr(headers, field[0]).offset, getattr(headers, field[0]).size)
        for field in headers._fields_
    ]


def leaves(part: ctypes.Structure) -> list[float]:
    """The values of a structure's fields, those of structures in it too, in order."""
    found: list[float] = []
    for field in part._fields_:
        value = getattr(part, field[0])
        found += leaves(value) if isinstance(value, ctypes.Structure) else [value]
    return found


@pytest.mark.parametrize("structure", [_abi.FwdArgs, _abi.AppendArgs, _abi.BwdArgs])
def test_packing_writes_every_field(structure: type[ctypes.Structure]) -> None:
    values = list(range(1, len(leaves(structure()))))
    filled = structure.from_buffer_copy(_abi.packer(structure)(*values))
    assert leaves(filled) == [ctypes.sizeof(structure), *values]


def test_packing_refuses_padding() -> None:
    class Padded(ctypes.Structure):
        _fields_ = [("small", ctypes.c_int32), ("large", ctypes.c_int64)]

    with pytest.raises(TypeError, match="padding"):
        _abi.packer(Padded)


def test_import_needs_no_gpu_and_no_driver() -> None:
    """Also: importing loads neither the launcher nor CUDA."""
    program = (
        "import sys, ctypes; loaded = []\n"
        "real = ctypes.CDLL.__init__\n"
        "import torch\n"
        "def spy(self, name, *a, **k): loaded.append(str(name)); real(self, name, *a, **k)\n"
        "ctypes.CDLL.__init__ = spy\n"
        "import flash_attn, flash_attn_2_cuda, flash_attn.bert_padding, flash_attn.layers.rotary\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PATH": "", "PYTHONPATH": _path()}
    )


def _path() -> str:
    import os

    return os.pathsep.join(place for place in sys.path if place)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "can't be read"),
        ('{"schema": 2}', "schema 2"),
        ('{"schema": 1}', "can't be read"),
        (
            '{"schema": 1, "version": "1", "toolkit": "1", "architectures": {}, "fatbins": [{}]}',
            "can't be read",
        ),
        ("[]", "can't be read"),
    ],
)
def test_damaged_manifest(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RuntimeError, match=message):
        _launcher.Manifest.read(path)


def test_missing_manifest_and_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launcher, "_places", lambda: (tmp_path,))
    _launcher.manifest.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"manifest\.json is missing"):
            _launcher.launcher()
        (tmp_path / "kernels").mkdir()
        (tmp_path / "kernels" / "manifest.json").write_text(
            '{"schema": 1, "version": "1", "toolkit": "1", "architectures": {}, "fatbins": []}',
            encoding="utf-8",
        )
        _launcher._load.cache_clear()
        with pytest.raises(RuntimeError, match=f"{_launcher.LIBRARY_NAME} is missing"):
            _launcher._load()
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / _launcher.LIBRARY_NAME).write_bytes(b"no library")
        with pytest.raises(RuntimeError, match="can't be loaded"):
            _launcher._load()
    finally:
        _launcher.manifest.cache_clear()


def test_cpu_tensors_are_refused() -> None:
    q = torch.zeros(1, 4, 2, 64, dtype=torch.float16)
    cu = torch.tensor([0, 4], dtype=torch.int32)
    rows = q[0]
    for call in (
        lambda: flash_attn.flash_attn_func(q, q, q),
        lambda: flash_attn.flash_attn_func(q.clone().requires_grad_(), q, q),
        lambda: flash_attn.flash_attn_qkvpacked_func(torch.stack([q, q, q], 2)),
        lambda: flash_attn.flash_attn_kvpacked_func(q, torch.stack([q, q], 2)),
        lambda: flash_attn.flash_attn_varlen_func(rows, rows, rows, cu, cu, 4, 4),
        lambda: flash_attn.flash_attn_varlen_qkvpacked_func(torch.stack([rows] * 3, 1), cu, 4),
        lambda: flash_attn.flash_attn_varlen_kvpacked_func(rows, torch.stack([rows] * 2, 1), cu, cu, 4, 4),
        lambda: flash_attn.flash_attn_with_kvcache(q, q, q),
        lambda: torch.ops.flash_attn._flash_attn_forward(q, q, q, 0.0, 1.0, False, -1, -1, 0.0, None, False),
        lambda: flash_attn_2_cuda.fwd(q, q, q, None, None, 0.0, 1.0, False, -1, -1, 0.0, False, None),
    ):
        with pytest.raises(RuntimeError, match="q is on cpu, but flash_attn works on CUDA tensors only"):
            call()


def test_modules_of_the_surface() -> None:
    for name in ("flash_attn.bert_padding", "flash_attn.layers.rotary", "flash_attn.ops.triton.rotary"):
        importlib.import_module(name)
