"""Wheels whose launcher needs, exports or runs on something else than it should."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pefile
import pytest
from wheel_parts import (
    ELF_LIBRARY,
    LINUX_TAG,
    MACHINE,
    OTHER_MACHINE,
    PE_LIBRARY,
    Parts,
    elf_library,
    zig_library,
)

from tools.verify.build_paths import build_paths
from tools.verify.check_library import check_library, declared_symbols
from tools.verify.expected import CHECKOUT
from tools.verify.library import Library
from tools.verify.pe import read_pe
from tools.verify.platforms import Platform, platform_of

Refused = Callable[[Parts], list[str]]


def test_header_declares_the_interface() -> None:
    assert {"flash_attn_abi_version", "flash_attn_last_error", "flash_attn_fwd"} <= declared_symbols()


def test_extra_library(parts: Parts, refused: Refused, tmp_path: Path) -> None:
    lines = refused(parts.but(library=elf_library(tmp_path, flags=["-lstdc++"])))
    assert f"{ELF_LIBRARY} needs libstdc++.so.6, which users may not have; link without it" in lines


@pytest.mark.parametrize(
    "name", ["libcuda.so.1", "libcudart.so.13", "libtorch.so", "libc10.so", "libgcc_s.so.1"]
)
def test_imports_that_bind(name: str) -> None:
    library = Library("elf", "x86_64", ("libc.so.6", name), declared_symbols())
    messages = [problem.message for problem in check_library(ELF_LIBRARY, library, None, declared_symbols())]
    assert messages == [f"{ELF_LIBRARY} needs {name}, which users may not have; link without it"]


def test_symbol_too_many_and_too_few(parts: Parts, refused: Refused, tmp_path: Path) -> None:
    extra = elf_library(tmp_path, exports=["flash_attn_secret", "helper"])
    assert refused(parts.but(library=extra)) == [
        f"{ELF_LIBRARY} exports flash_attn_secret, which flash_attn.h does not declare",
        f"{ELF_LIBRARY} exports helper, which flash_attn.h does not declare",
    ]
    fewer = elf_library(tmp_path, flags=['-Dflash_attn_fwd=__attribute__((visibility("hidden"))) hidden'])
    assert refused(parts.but(library=fewer)) == [
        f"{ELF_LIBRARY} does not export flash_attn_fwd, which flash_attn.h declares"
    ]


def test_wrong_machine(parts: Parts, refused: Refused, tmp_path: Path) -> None:
    lines = refused(parts.but(library=zig_library(tmp_path, f"{OTHER_MACHINE}-linux-gnu")))
    assert lines == [f"{ELF_LIBRARY} is for {OTHER_MACHINE}, but the tag says {MACHINE}"]


def test_newer_glibc_than_the_tag(parts: Parts, refused: Refused, tmp_path: Path) -> None:
    code = (
        "extern char *secure_getenv(const char *);\nint flash_attn_used(void) { return !secure_getenv(0); }\n"
    )
    hidden = '__attribute__((visibility("hidden"))) '
    library = elf_library(tmp_path, code=code.replace("int flash", f"{hidden}int flash"))
    (line,) = refused(parts.but(library=library, tag=f"py3-none-manylinux_2_5_{MACHINE}"))
    assert line == f"{ELF_LIBRARY} needs glibc 2.17, but the tag promises glibc 2.5"
    (line,) = refused(parts.but(library=library, tag=f"py3-none-manylinux_2_34_{MACHINE}"))
    assert line == "the tag asks for glibc 2.34; wheels must run on 2.28"


def test_search_path(parts: Parts, refused: Refused, tmp_path: Path) -> None:
    lines = refused(parts.but(library=elf_library(tmp_path, flags=["-Wl,-rpath,/opt/lib"])))
    assert lines == [f"{ELF_LIBRARY}: it carries a search path for libraries (RPATH)"]


def test_no_launcher(parts: Parts, refused: Refused) -> None:
    assert refused(parts.but(files={ELF_LIBRARY: None})) == ["there is no launcher in flash_attn/lib"]


@pytest.mark.parametrize("cut", [0, 4, 70, 0.3, 0.9])
@pytest.mark.parametrize("system", ["linux", "windows"])
def test_damaged_launcher(
    parts: Parts, windows_parts: Parts, refused: Refused, system: str, cut: float
) -> None:
    whole = parts if system == "linux" else windows_parts
    size = int(cut * len(whole.library)) if 0 < cut < 1 else int(cut)
    assert refused(whole.but(library=whole.library[:size]))


def test_right_windows_wheel_passes(windows_parts: Parts, refused: Refused) -> None:
    assert refused(windows_parts) == []
    arm = windows_parts.but(tag="py3-none-win_arm64")
    assert refused(arm) == [f"{PE_LIBRARY} is for AMD64, but the tag says ARM64"]


@pytest.mark.parametrize(
    "name", ["msvcp140.dll", "vcruntime140.dll", "cudart64_13.dll", "nvcuda.dll", "torch_cpu.dll"]
)
def test_dll_that_windows_lacks(windows_parts: Parts, refused: Refused, tmp_path: Path, name: str) -> None:
    library = zig_library(tmp_path, "x86_64-windows-gnu", imports=name)
    lines = refused(windows_parts.but(library=library))
    assert lines == [f"{PE_LIBRARY} needs {name}, which users may not have; link without it"]


def test_arm64_dll_in_an_amd64_wheel(windows_parts: Parts, refused: Refused, tmp_path: Path) -> None:
    library = zig_library(tmp_path, "aarch64-windows-gnu")
    assert refused(windows_parts.but(library=library)) == [
        f"{PE_LIBRARY} is for ARM64, but the tag says AMD64"
    ]
    assert refused(windows_parts.but(library=library, tag="py3-none-win_arm64")) == []


def test_library_of_another_system(parts: Parts, windows_parts: Parts, refused: Refused) -> None:
    lines = refused(windows_parts.but(tag=parts.tag))
    assert lines == [f"the platform tag wants {ELF_LIBRARY}, but there is {PE_LIBRARY}"]


def test_debug_file_of_the_builder(windows_parts: Parts, refused: Refused, tmp_path: Path) -> None:
    library = zig_library(tmp_path, "x86_64-windows-gnu", flags=["-g"], name="secret")
    lines = refused(windows_parts.but(library=library))
    assert len(lines) == 1
    assert "secret.pdb of the machine that built it" in lines[0]


def test_sources_of_the_builder(parts: Parts, windows_parts: Parts, refused: Refused, tmp_path: Path) -> None:
    (line,) = refused(parts.but(library=elf_library(tmp_path, flags=["-g"])))
    assert line.startswith(f"{ELF_LIBRARY} holds /")
    assert line.endswith(", of the machine that built it; link without debug information (-s)")
    assert f"{tmp_path}/elf.c" in line
    path = "D:\\a\\flash-attention\\csrc\\error.c"
    assert refused(windows_parts.but(library=windows_parts.library + path.encode("utf-16-le"))) == [
        f"{PE_LIBRARY} holds {path}, of the machine that built it; link without debug information (-s)"
    ]


@pytest.mark.parametrize(
    "path",
    [
        "C:\\Users\\Ada\\flash-attention\\csrc\\error.c",
        "d:/a/flash-attention/csrc/error.c",
        "/home/ada/flash-attention",
        "/tmp/build-env/launcher",
        "/opt/src/flash/error.c",
        str(CHECKOUT),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_path_of_the_builder(path: str, encoding: str) -> None:
    for before in (b"\0", b"\0\0"):
        data = before + f"assertion in {path}".encode(encoding) + b"\0\0\0"
        assert list(build_paths(data)) == [path]


def test_path_that_every_machine_has() -> None:
    for text in (
        "/lib64/ld-linux-x86-64.so.2",
        "%s/%s",
        "\\\\?\\UNC\\",
        "csrc/flash_attn/launch/error.c",
        "1:/2",
    ):
        assert list(build_paths(text.encode() + b"\0" + text.encode("utf-16-le"))) == []


def test_hardening_switched_off(windows_parts: Parts) -> None:
    pe = pefile.PE(data=windows_parts.library)
    offset = pe.OPTIONAL_HEADER.get_field_absolute_offset("DllCharacteristics")
    data = bytearray(windows_parts.library)
    data[offset : offset + 2] = struct.pack("<H", 0)
    assert [text.split(" (")[0] for text in read_pe(bytes(data)).hardening] == [
        "it lacks address space layout randomisation",
        "it lacks 64-bit address space layout randomisation",
        "it lacks data execution prevention",
    ]


def test_timestamp_of_the_build(windows_parts: Parts) -> None:
    pe = pefile.PE(data=windows_parts.library)
    debug = pe.OPTIONAL_HEADER.DATA_DIRECTORY[pefile.DIRECTORY_ENTRY["IMAGE_DIRECTORY_ENTRY_DEBUG"]]
    data = bytearray(windows_parts.library)
    data[debug.get_file_offset() : debug.get_file_offset() + 8] = bytes(8)
    (text,) = read_pe(bytes(data)).hardening
    assert text.startswith("its timestamp is that of the build")


@pytest.mark.parametrize(
    ("tags", "platform"),
    [
        (["manylinux_2_17_x86_64", "manylinux2014_x86_64"], Platform(ELF_LIBRARY, "x86_64", (2, 17))),
        (["manylinux_2_28_aarch64"], Platform(ELF_LIBRARY, "aarch64", (2, 28))),
        (["win_arm64"], Platform(PE_LIBRARY, "ARM64")),
        (["manylinux_2_17_x86_64", "manylinux_2_17_aarch64"], None),
        (["linux_x86_64"], None),
        ([LINUX_TAG, "any"], None),
    ],
)
def test_platform_of(tags: list[str], platform: Platform | None) -> None:
    assert platform_of(tags) == platform
