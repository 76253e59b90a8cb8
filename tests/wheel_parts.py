"""Builds small wheels out of real parts (kernels, launchers, metadata), any of which a test can break."""

from __future__ import annotations

import base64
import json
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from tools.verify.check_library import declared_symbols
from tools.verify.cuobjdump import find_cuobjdump
from tools.verify.expected import CHECKOUT, KERNEL_LIST, read_kernel_list

KERNELS = "flash_attn/kernels/"
MACHINE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
OTHER_MACHINE = {"x86_64": "aarch64", "aarch64": "x86_64"}[MACHINE]
LINUX_TAG = f"manylinux_2_17_{MACHINE}"
ELF_LIBRARY = "flash_attn/lib/libflash_attn.so"
PE_LIBRARY = "flash_attn/lib/flash_attn.dll"
METADATA = """Metadata-Version: 2.4
Name: flash-attn
Version: 2.9.0
Requires-Python: >=3.10
Requires-Dist: torch>=2.10

"""


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def small_kernel_list() -> dict[str, Any]:
    """The tree's own list, cut down to one head dimension, one type, two variants of the forward kernel."""
    full = json.loads(KERNEL_LIST.read_text(encoding="utf-8"))
    family = full["families"]["flash_fwd"]
    family = {**family, "tiles": family["tiles"][:1], "variants": family["variants"][:2], "stages": []}
    return {"schema": 1, "dtypes": {"bf16": full["dtypes"]["bf16"]}, "families": {"flash_fwd": family}}


class Kernels:
    """Those kernels, compiled once for sm_90 and sm_100, put together into whatever fatbin a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.list_path = folder / "kernels.json"
        listed = small_kernel_list()
        self.list_path.write_text(json.dumps(listed), encoding="utf-8")
        self.kernels = list(read_kernel_list(self.list_path).kernels.values())
        self.fatbin_name = self.kernels[0].fatbin
        self.families = {name: {"sass": entry["sass"]} for name, entry in listed["families"].items()}
        self._header = listed["families"]["flash_fwd"]["header"]
        self._element = listed["dtypes"]["bf16"]
        beside = find_cuobjdump().path.with_name("nvcc")
        self._nvcc = beside if beside.is_file() else Path(shutil.which("nvcc") or "nvcc")
        version = re.search(r", V([\d.]+)", _run(self._nvcc, "--version"))
        assert version, "nvcc does not say which it is"
        self.toolkit = version[1]
        bin_folder = re.search(
            r"_HERE_=(.+)", _run(self._nvcc, "--dryrun", "-x", "cu", "-c", "none.cu", "-o", "none.o")
        )
        assert bin_folder, "nvcc does not say where it is"
        self._fatbinary = Path(bin_folder[1].strip(), "fatbinary")
        jobs = {
            "90": ("-cubin", "-arch=sm_90"),
            "100": ("-cubin", "-arch=sm_100"),
            "ptx": ("-ptx", "-arch=compute_100"),
            "100-unfused": ("-cubin", "-arch=sm_100", "-DUNFUSE_FMA"),
            "90-first": ("-cubin", "-arch=sm_90"),
        }
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda item: self._compile(item[0], *item[1]), jobs.items()))

    def _compile(self, name: str, *flags: str) -> None:
        chosen = self.kernels[:1] if name.endswith("-first") else self.kernels
        calls = [
            f"FLASH_KERNEL({k.name}, {self._element}, {k.head_dim}, {k.block_m}, {k.block_n}, {k.warps}, "
            f"{k.smem_bytes}, {k.variant})"
            for k in chosen
        ]
        source = self.folder / f"{name}.cu"
        source.write_text("\n".join([f'#include "{self._header}"', *calls, ""]), encoding="utf-8")
        headers = CHECKOUT / "csrc/flash_attn/src"
        _run(
            self._nvcc, *flags, "-std=c++17", "-O3", f"-I{headers}", source, "-o", self.folder / f"{name}.bin"
        )

    def fatbin(self, *images: str) -> bytes:
        """Images: "90", "100", "ptx" (of 100), "100-unfused" (no A-2), "90-first" (first kernel alone)."""
        output = self.folder / f"{'+'.join(images)}.fatbin"
        if not output.is_file():
            specs = []
            for name in images:
                kind = "kind=ptx,sm=100" if name == "ptx" else f"kind=elf,sm={name.split('-')[0]}"
                specs.append(f"--image3={kind},file={self.folder / f'{name}.bin'}")
            _run(self._fatbinary, "-64", "--compress-mode=size", f"--create={output}", *specs)
        return output.read_bytes()


def _stubs(prefix: str, extra: Iterable[str] = ()) -> str:
    return "".join(
        f"{prefix} int {name}(void) {{ return 0; }}\n" for name in (*sorted(declared_symbols()), *extra)
    )


def elf_library(
    folder: Path, *, code: str = "", flags: Iterable[str] = (), exports: Iterable[str] = ()
) -> bytes:
    """A launcher for this machine that exports the declared functions, built by the system's C compiler."""
    source, output = folder / "elf.c", folder / "elf.so"
    source.write_text(_stubs("", exports) + code, encoding="utf-8")
    _run("cc", "-shared", "-fPIC", "-O1", "-Wl,--no-as-needed", source, "-o", output, *flags)
    return output.read_bytes()


def zig_library(
    folder: Path,
    target: str,
    *,
    imports: str | None = None,
    flags: Iterable[str] = ("-s",),
    name: str = "out",
) -> bytes:
    """A launcher for another system, without its C library, so that zig has nothing to compile first.

    ``imports`` names a DLL that it needs.
    """
    windows = "windows" in target
    source, output = folder / "zig.c", folder / f"{name}.{'dll' if windows else 'so'}"
    code = _stubs("__declspec(dllexport)" if windows else "")
    if windows:
        code += "int DllMainCRTStartup(void *a, unsigned b, void *c) { return 1; }\n"
    libraries: list[Path] = []
    zig = (sys.executable, "-m", "ziglang")
    if imports:
        code += "__declspec(dllimport) int needed(void);\n"
        code = code.replace(
            "int flash_attn_abi_version(void) { return 0; }", "int flash_attn_abi_version(void);"
        )
        code += "int flash_attn_abi_version(void) { return needed(); }\n"
        definition = folder / "imports.def"
        definition.write_text(f'LIBRARY "{imports}"\nEXPORTS\nneeded\n', encoding="utf-8")
        libraries = [folder / "imports.lib"]
        machine = "arm64" if target.startswith("aarch64") else "i386:x86-64"
        _run(*zig, "dlltool", "-m", machine, "-d", definition, "-l", libraries[0])
    source.write_text(code, encoding="utf-8")
    _run(
        *zig, "cc", "-target", target, "-nostdlib", "-shared", "-O1", *flags, source, *libraries, "-o", output
    )
    return output.read_bytes()


@dataclass(frozen=True)
class Parts:
    """What one wheel is made of. ``with_files`` and ``replace`` give a changed copy."""

    kernels: Kernels
    fatbin: bytes = field(repr=False)
    library: bytes = field(repr=False)
    library_path: str = ELF_LIBRARY
    tag: str = f"py3-none-{LINUX_TAG}"
    metadata: str = METADATA
    manifest: Mapping[str, object] = field(default_factory=dict)  # what differs from the right one
    files: Mapping[str, bytes | None] = field(
        default_factory=dict
    )  # added or, if None, taken out; RECORD follows
    tampered: Mapping[str, bytes] = field(default_factory=dict)  # changed behind RECORD's back

    def but(self, **changes: object) -> Parts:
        return replace(self, **changes)  # type: ignore[arg-type]

    def build(self, folder: Path) -> Path:
        """Writes the wheel and returns its path."""
        info = "flash_attn-2.9.0.dist-info/"
        python, abi, platforms = self.tag.split("-")
        tags = "".join(
            f"Tag: {version}-{abi}-{one}\n" for version in python.split(".") for one in platforms.split(".")
        )
        files: dict[str, bytes | None] = {
            "flash_attn/__init__.py": b'"""Attention."""\n\n__version__ = "2.9.0"\n',
            self.library_path: self.library,
            KERNELS + self.kernels.fatbin_name: self.fatbin,
            f"{KERNELS}manifest.json": (
                json.dumps(self.right_manifest() | dict(self.manifest)) + "\n"
            ).encode(),
            f"{info}METADATA": self.metadata.encode(),
            f"{info}WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n{tags}".encode(),
            **self.files,
        }
        present = {name: data for name, data in files.items() if data is not None}
        record = "".join(f"{name},sha256={_b64(data)},{len(data)}\n" for name, data in present.items())
        present.setdefault(f"{info}RECORD", f"{record}{info}RECORD,,\n".encode())
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"flash_attn-2.9.0-{self.tag}.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in (present | dict(self.tampered)).items():
                archive.writestr(name, data)
        return path

    def right_manifest(self) -> dict[str, Any]:
        kept = [
            {key: value for key, value in vars(kernel).items() if key != "fatbin"}
            for kernel in self.kernels.kernels
        ]
        fatbin = {"name": self.kernels.fatbin_name, "sha256": sha256(self.fatbin).hexdigest()}
        return {
            "schema": 1,
            "version": "2.9.0",
            "source_sha256": "0" * 64,
            "toolkit": self.kernels.toolkit,
            "flags": [],
            "architectures": {"sass": ["90", "100"], "ptx": ["100"]},
            "families": self.kernels.families,
            "fatbins": [{**fatbin, "size": len(self.fatbin), "kernels": kept}],
        }


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(sha256(data).digest()).decode().rstrip("=")
