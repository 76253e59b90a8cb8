"""The launcher's structs, as ``csrc/flash_attn/launch/flash_attn.h`` declares them, names and order too."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_uint32, c_uint64

ABI_VERSION = 1

_LETTERS: dict[object, str] = {c_int32: "i", c_uint32: "I", c_int64: "q", c_uint64: "Q", c_float: "f"}


class Strides(ctypes.Structure):
    _fields_ = [("batch", c_int64), ("row", c_int64), ("head", c_int64)]


class Problem(ctypes.Structure):
    _fields_ = [
        ("cu_seqlens_q", c_uint64),
        ("cu_seqlens_k", c_uint64),
        ("seqused_k", c_uint64),
        ("leftpad_k", c_uint64),
        ("alibi_slopes", c_uint64),
        ("rng_state", c_uint64),
        ("alibi_batch_stride", c_int64),
        ("batch", c_int32),
        ("nheads", c_int32),
        ("nheads_k", c_int32),
        ("head_dim", c_int32),
        ("seqlen_q", c_int32),
        ("seqlen_k", c_int32),
        ("total_q", c_int32),
        ("total_k", c_int32),
        ("dtype", c_int32),
        ("causal", c_int32),
        ("window_left", c_int32),
        ("window_right", c_int32),
        ("softmax_scale", c_float),
        ("softcap", c_float),
        ("dropout_p", c_float),
        ("reserved", c_int32),
    ]


class FwdArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_int32),
        ("stream", c_uint64),
        ("problem", Problem),
        ("q", c_uint64),
        ("k", c_uint64),
        ("v", c_uint64),
        ("out", c_uint64),
        ("softmax_lse", c_uint64),
        ("s_dmask", c_uint64),
        ("q_strides", Strides),
        ("k_strides", Strides),
        ("v_strides", Strides),
        ("out_strides", Strides),
        ("cache_batch_idx", c_uint64),
        ("block_table", c_uint64),
        ("block_table_stride", c_int64),
        ("page_size", c_int32),
        ("num_pages", c_int32),
        ("cache_rows", c_int32),
        ("num_splits", c_int32),
        ("scratch", c_uint64),
        ("scratch_bytes", c_uint64),
    ]


class AppendArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_int32),
        ("stream", c_uint64),
        ("q", c_uint64),
        ("q_rotated", c_uint64),
        ("k_new", c_uint64),
        ("v_new", c_uint64),
        ("k_cache", c_uint64),
        ("v_cache", c_uint64),
        ("rotary_cos", c_uint64),
        ("rotary_sin", c_uint64),
        ("cache_seqlens", c_uint64),
        ("leftpad_k", c_uint64),
        ("cache_batch_idx", c_uint64),
        ("block_table", c_uint64),
        ("block_table_stride", c_int64),
        ("q_strides", Strides),
        ("k_new_strides", Strides),
        ("v_new_strides", Strides),
        ("k_cache_strides", Strides),
        ("v_cache_strides", Strides),
        ("batch", c_int32),
        ("nheads", c_int32),
        ("nheads_k", c_int32),
        ("head_dim", c_int32),
        ("dtype", c_int32),
        ("seqlen_q", c_int32),
        ("seqlen_new", c_int32),
        ("seqlen_cache", c_int32),
        ("seqlen_rotary", c_int32),
        ("rotary_dim", c_int32),
        ("interleaved", c_int32),
        ("q_advances", c_int32),
        ("page_size", c_int32),
        ("num_pages", c_int32),
        ("cache_rows", c_int32),
        ("cache_seqlen", c_int32),
    ]


class BwdArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_int32),
        ("stream", c_uint64),
        ("problem", Problem),
        ("dout", c_uint64),
        ("q", c_uint64),
        ("k", c_uint64),
        ("v", c_uint64),
        ("out", c_uint64),
        ("softmax_lse", c_uint64),
        ("dq", c_uint64),
        ("dk", c_uint64),
        ("dv", c_uint64),
        ("softmax_d", c_uint64),
        ("dout_strides", Strides),
        ("q_strides", Strides),
        ("k_strides", Strides),
        ("v_strides", Strides),
        ("out_strides", Strides),
        ("dq_strides", Strides),
        ("dk_strides", Strides),
        ("dv_strides", Strides),
        ("deterministic", c_int32),
        ("reserved", c_int32),
        ("scratch", c_uint64),
        ("scratch_bytes", c_uint64),
    ]


class Plan(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("num_splits", c_int32),
        ("scratch_bytes", c_uint64),
        ("kernel", c_char_p),
    ]


class Fatbin(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("sha256", c_char_p)]


class DeviceInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("driver_version", c_int32),
        ("compute_capability", c_int32),
        ("multiprocessors", c_int32),
        ("smem_per_block_optin", c_int32),
        ("l2_bytes", c_int32),
        ("name", c_char * 128),
    ]


_Address = ctypes.c_void_p  # accepts bytes, which the launcher reads in place

PROTOTYPES: dict[str, tuple[object, tuple[object, ...]]] = {
    "flash_attn_abi_version": (c_uint32, ()),
    "flash_attn_last_error": (c_char_p, ()),
    "flash_attn_set_kernels": (ctypes.c_int, (c_char_p, POINTER(Fatbin), c_int32)),
    "flash_attn_set_smem_limit": (ctypes.c_int, (c_int32,)),
    "flash_attn_device_count": (ctypes.c_int, (POINTER(c_int32),)),
    "flash_attn_get_device_info": (ctypes.c_int, (c_int32, POINTER(DeviceInfo))),
    "flash_attn_fwd_plan": (ctypes.c_int, (_Address, POINTER(Plan))),
    "flash_attn_fwd": (ctypes.c_int, (_Address,)),
    "flash_attn_append": (ctypes.c_int, (_Address,)),
    "flash_attn_bwd_plan": (ctypes.c_int, (_Address, POINTER(Plan))),
    "flash_attn_bwd": (ctypes.c_int, (_Address,)),
}


def packer(structure: type[ctypes.Structure]) -> Callable[..., bytes]:
    """What makes the bytes of a structure of the values that follow its size, cheaper than setting fields.

    Calls share nothing and leave nothing behind. A ``threading.local`` buffer wouldn't last anyway: a thread
    of autograd gets a new Python thread state for every backward.

    Raises:
        TypeError: the structure has padding or fields that no number fits.
    """
    size = ctypes.sizeof(structure)
    packed = struct.Struct("=" + _letters(structure))
    if packed.size != size:
        raise TypeError(f"{structure.__name__} has padding: {packed.size} bytes of fields in {size}.")
    return functools.partial(packed.pack, size)


def _letters(structure: type[ctypes.Structure]) -> str:
    letters = ""
    for _, kind in (field[:2] for field in structure._fields_):
        if isinstance(kind, type) and issubclass(kind, ctypes.Structure):
            letters += _letters(kind)
        elif kind in _LETTERS:
            letters += _LETTERS[kind]
        else:
            raise TypeError(f"{structure.__name__} has a field of type {kind}, which is no plain number.")
    return letters
