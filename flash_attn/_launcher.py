"""The compiled launcher: found beside this file, loaded at first use, reached through ctypes.

Importing this module touches neither the library nor a driver nor a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _abi, _remedy

LIBRARY_NAME = "flash_attn.dll" if sys.platform == "win32" else "libflash_attn.so"
MANIFEST_SCHEMA = 1
SEARCH_SYSTEM32 = 0x800  # Windows: what the library needs is looked for in System32 only
SHAPE = slice(9, None)  # of a backward's values from ``device`` to ``problem``: from ``batch`` on
NO_TENSORS = (0,) * (10 + 8 * 3)  # addresses and strides of a backward, which its scratch doesn't depend on
MAX_SIZES = 4096  # of scratch that are remembered


def _places() -> tuple[Path, ...]:
    """Folders that may hold ``lib/`` and ``kernels/``: an editable install keeps them off the sources."""
    package = sys.modules[__package__]
    return tuple(Path(place).resolve() for place in package.__path__)


@dataclass(frozen=True)
class Manifest:
    """What the build wrote about its kernels."""

    folder: Path
    version: str
    toolkit: str
    architectures: dict[str, list[str]]
    fatbins: tuple[tuple[str, str], ...]  # file name, SHA-256
    families: frozenset[str]
    contents: dict[str, Any] = field(repr=False, compare=False)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Raises RuntimeError when the file is no manifest of a kind that this version knows."""
        try:
            contents = json.loads(path.read_text(encoding="utf-8"))
            if contents["schema"] != MANIFEST_SCHEMA:
                raise RuntimeError(
                    f"{path} has schema {contents['schema']}, this flash_attn reads schema "
                    f"{MANIFEST_SCHEMA}: {_remedy.reinstall()}"
                )
            return cls(
                folder=path.parent,
                version=contents["version"],
                toolkit=contents["toolkit"],
                architectures=contents["architectures"],
                fatbins=tuple((fatbin["name"], fatbin["sha256"]) for fatbin in contents["fatbins"]),
                families=frozenset(
                    kernel["family"] for fatbin in contents["fatbins"] for kernel in fatbin["kernels"]
                ),
                contents=contents,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RuntimeError(
                f"{path} can't be read ({type(error).__name__}: {error}): {_remedy.reinstall()}"
            ) from error


@functools.cache
def manifest() -> Manifest:
    """The installed manifest. Raises RuntimeError when there is none."""
    for place in _places():
        path = place / "kernels" / "manifest.json"
        if path.is_file():
            return Manifest.read(path)
    raise RuntimeError(
        f"{_places()[0] / 'kernels' / 'manifest.json'} is missing, so this flash_attn has no kernels: "
        "install a built wheel of flash-attn."
    )


def has_family(family: str) -> bool:
    return family in manifest().families


class Launcher:
    """The loaded library, its kernels announced to it.

    Each method takes the values of the struct's fields in the order of the header, from ``device`` on, and
    raises RuntimeError with the launcher's own sentence.
    """

    def __init__(self, library: ctypes.CDLL, kernels: Manifest) -> None:
        for name, (result, arguments) in _abi.PROTOTYPES.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise RuntimeError(
                    f"{library._name} has no {name}, so it is of another version than flash_attn's "
                    f"Python files: {_remedy.reinstall()}"
                ) from None
            function.restype = result
            function.argtypes = arguments
        self._library = library
        version = library.flash_attn_abi_version()
        if version != _abi.ABI_VERSION:
            raise RuntimeError(
                f"{library._name} speaks interface version {version}, flash_attn's Python files speak "
                f"{_abi.ABI_VERSION}: {_remedy.reinstall()}"
            )
        self._fwd = library.flash_attn_fwd
        self._bwd = library.flash_attn_bwd
        self._fwd_args = _abi.packer(_abi.FwdArgs)
        self._append_args = _abi.packer(_abi.AppendArgs)
        self._bwd_args = _abi.packer(_abi.BwdArgs)
        self._bwd_scratch: dict[tuple[float, ...], int] = {}
        fatbins = (_abi.Fatbin * len(kernels.fatbins))(
            *(_abi.Fatbin(name.encode(), sha256.encode()) for name, sha256 in kernels.fatbins)
        )
        self._check(
            library.flash_attn_set_kernels(os.fsencode(kernels.folder), fatbins, len(kernels.fatbins))
        )

    def forward(self, *values: float) -> None:
        if self._fwd(self._fwd_args(*values)):
            self._fail()

    def forward_plan(self, *values: float) -> tuple[int, int]:
        """How many ways to split the keys, and the bytes of scratch to hand over."""
        args = self._fwd_args(*values)
        plan = _abi.Plan(ctypes.sizeof(_abi.Plan))
        self._check(self._library.flash_attn_fwd_plan(args, plan))
        return plan.num_splits, plan.scratch_bytes

    def append(self, *values: float) -> None:
        self._check(self._library.flash_attn_append(self._append_args(*values)))

    def backward(self, *values: float) -> None:
        if self._bwd(self._bwd_args(*values)):
            self._fail()

    def backward_plan(self, *values: float) -> int:
        """Bytes of scratch to hand over."""
        args = self._bwd_args(*values)
        plan = _abi.Plan(ctypes.sizeof(_abi.Plan))
        self._check(self._library.flash_attn_bwd_plan(args, plan))
        return int(plan.scratch_bytes)

    def backward_scratch(self, problem: tuple[float, ...], deterministic: bool) -> int:
        """Bytes of scratch for the fields from ``device`` to ``problem``, asked once for calls of one shape.

        A size too small would be refused, not overrun: the launcher works it out anew when it launches.
        """
        device, _, cu_seqlens_q, *_ = problem
        shape = (device, not cu_seqlens_q, deterministic, *problem[SHAPE])
        size = self._bwd_scratch.get(shape)
        if size is None:
            size = self.backward_plan(*problem, *NO_TENSORS, deterministic, 0, 0, 0)
            if len(self._bwd_scratch) >= MAX_SIZES:
                self._bwd_scratch.clear()
            self._bwd_scratch[shape] = size
        return size

    def set_smem_limit(self, limit: int) -> None:
        """Lowers the shared memory (bytes) that a block may use, for tests; 0: the device's."""
        self._check(self._library.flash_attn_set_smem_limit(limit))
        self._bwd_scratch.clear()

    def devices(self) -> list[_abi.DeviceInfo]:
        """What the driver says of each GPU."""
        count = ctypes.c_int32()
        self._check(self._library.flash_attn_device_count(count))
        infos = []
        for device in range(count.value):
            info = _abi.DeviceInfo(ctypes.sizeof(_abi.DeviceInfo))
            self._check(self._library.flash_attn_get_device_info(device, info))
            infos.append(info)
        return infos

    def _check(self, status: int) -> None:
        if status:
            self._fail()

    def _fail(self) -> None:
        sentence: str = self._library.flash_attn_last_error().decode("utf-8", "replace")
        if sentence.endswith(_remedy.REINSTALL):
            sentence = sentence.removesuffix(_remedy.REINSTALL) + _remedy.reinstall()
        raise RuntimeError(sentence)


_LOADING = threading.Lock()


@functools.cache
def _load() -> Launcher:
    kernels = manifest()
    paths = [place / "lib" / LIBRARY_NAME for place in _places()]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise RuntimeError(
            f"{paths[0]} is missing: install a wheel of flash-attn that was built for this platform."
        )
    try:
        library = ctypes.CDLL(str(path), winmode=SEARCH_SYSTEM32)
    except OSError as error:
        raise RuntimeError(f"{path} can't be loaded ({error}): {_remedy.reinstall()}") from error
    return Launcher(library, kernels)


@functools.cache
def launcher() -> Launcher:
    """The launcher, loaded once a process. Raises RuntimeError when it is missing or damaged."""
    with _LOADING:
        return _load()
