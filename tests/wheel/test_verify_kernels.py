"""Wheels whose kernels are not what the list and the manifest say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from wheel_parts import KERNELS, Parts

from tools.verify.check_kernels import check_code, check_toolkit, wanted
from tools.verify.expected import parse_manifest, read_kernel_list
from tools.verify.fatbin import Fatbin, KernelCode, parse_ptx, parse_resources
from tools.verify.inspector import Inspector
from tools.verify.sass import parse_sass

Refused = Callable[[Parts], list[str]]


def test_right_wheel_passes(parts: Parts, refused: Refused) -> None:
    assert refused(parts) == []


def test_kernel_taken_out(parts: Parts, refused: Refused) -> None:
    second = parts.kernels.kernels[1].name
    lines = refused(parts.but(fatbin=parts.kernels.fatbin("90-first", "100", "ptx")))
    assert lines == [f"kernel {second} has no SASS for sm_90 in {parts.kernels.fatbin_name}"]


def test_architecture_missing(parts: Parts, refused: Refused) -> None:
    lines = refused(parts.but(fatbin=parts.kernels.fatbin("90", "ptx")))
    names = [kernel.name for kernel in parts.kernels.kernels]
    assert lines == [f"kernel {name} has no SASS for sm_100 in {parts.kernels.fatbin_name}" for name in names]


def test_ptx_missing(parts: Parts, refused: Refused) -> None:
    lines = refused(parts.but(fatbin=parts.kernels.fatbin("90", "100")))
    names = [kernel.name for kernel in parts.kernels.kernels]
    assert lines == [f"kernel {name} has no PTX for sm_100 in {parts.kernels.fatbin_name}" for name in names]


def test_architecture_that_the_manifest_leaves_out(parts: Parts, refused: Refused) -> None:
    lines = refused(parts.but(manifest={"architectures": {"sass": ["100"], "ptx": ["100"]}}))
    assert lines == [f"{parts.kernels.fatbin_name} holds SASS for sm_90, which is not in the manifest"]


def test_ptx_for_another_than_the_newest(parts: Parts, refused: Refused) -> None:
    lines = refused(parts.but(manifest={"architectures": {"sass": ["90", "100"], "ptx": ["90"]}}))
    assert lines == ["the manifest has PTX for 90; the newest architecture is 100"]


def test_gate_instruction_missing(parts: Parts, refused: Refused) -> None:
    lines = refused(parts.but(fatbin=parts.kernels.fatbin("90", "100-unfused", "ptx")))
    names = [kernel.name for kernel in parts.kernels.kernels]
    assert lines == [f"kernel {name} has no FFMA2 in its SASS for sm_100" for name in names]


@pytest.mark.parametrize("claimed", ["13.4.1", "", "12.9.86"])
def test_a_toolkit_that_the_machine_code_was_not_made_by(
    parts: Parts, refused: Refused, claimed: str
) -> None:
    name, made = parts.kernels.fatbin_name, parts.kernels.toolkit
    assert refused(parts.but(manifest={"toolkit": claimed})) == [
        f"{name} was compiled for sm_{arch} by CUDA {made}, but the manifest says {claimed}"
        for arch in ("90", "100")
    ]


def test_machine_code_that_nobody_signed(parts: Parts) -> None:
    manifest = parse_manifest(json.dumps(parts.right_manifest()).encode())
    fatbin = Fatbin("", 0, {"90": {}}, {}, {"90": ""})
    (problem,) = check_toolkit(manifest, {"a.fatbin": fatbin})
    assert "a.fatbin was compiled for sm_90 by CUDA of no version" in problem.message


def test_byte_flipped(parts: Parts, refused: Refused) -> None:
    damaged = bytearray(parts.fatbin)
    damaged[len(damaged) // 2] ^= 0xFF
    name = KERNELS + parts.kernels.fatbin_name
    lines = refused(parts.but(tampered={name: bytes(damaged)}))
    assert f"{name} has not the hash and size that RECORD gives" in lines
    assert f"{name} has not the SHA-256 and size that the manifest gives" in lines


@pytest.mark.parametrize("cut", [0, 3, 1000])
def test_fatbin_cut_short(parts: Parts, refused: Refused, cut: int) -> None:
    name = KERNELS + parts.kernels.fatbin_name
    lines = refused(parts.but(fatbin=parts.fatbin[:cut]))
    assert lines == [f"{name} is damaged: cuobjdump can't read it: Invalid fatbin header"]


@pytest.mark.parametrize("system", ["linux", "windows"])
def test_fatbin_missing(parts: Parts, windows_parts: Parts, refused: Refused, system: str) -> None:
    whole = parts if system == "linux" else windows_parts
    name = KERNELS + whole.kernels.fatbin_name
    lines = refused(whole.but(files={name: None}))
    assert lines == [f"{name} of the manifest is not in the wheel"]


def test_fatbin_too_many(parts: Parts, refused: Refused) -> None:
    lines = refused(parts.but(files={f"{KERNELS}more.fatbin": parts.kernels.fatbin("90-first")}))
    assert lines[0] == f"{KERNELS}more.fatbin is not in the manifest"


def test_manifest_names_a_kernel_that_is_not_there(parts: Parts, refused: Refused) -> None:
    manifest = parts.right_manifest()
    (fatbin,) = manifest["fatbins"]
    extra = {**fatbin["kernels"][0], "name": "flash_fwd_hdim32_bf16_imagined"}
    lines = refused(parts.but(manifest={"fatbins": [{**fatbin, "kernels": [*fatbin["kernels"], extra]}]}))
    assert lines == ["kernel flash_fwd_hdim32_bf16_imagined of the manifest is not in kernels.json"]


def test_manifest_alone_rules_without_a_checkout(
    parts: Parts, inspector: Inspector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = parts.right_manifest()
    (fatbin,) = manifest["fatbins"]
    extra = {**fatbin["kernels"][0], "name": "flash_fwd_hdim32_bf16_imagined"}
    broken = parts.but(manifest={"fatbins": [{**fatbin, "kernels": [*fatbin["kernels"], extra]}]})
    monkeypatch.setattr(inspector, "_listed", None)
    messages = [problem.message for problem in inspector.verify(broken.build(tmp_path)).problems]
    assert messages == [
        f"kernel flash_fwd_hdim32_bf16_imagined has no {kind} in {parts.kernels.fatbin_name}"
        for kind in ("SASS for sm_90", "SASS for sm_100", "PTX for sm_100")
    ]


def test_manifest_lacks_a_kernel_of_the_list(parts: Parts, refused: Refused) -> None:
    second = parts.kernels.kernels[1].name
    manifest = parts.right_manifest()
    (fatbin,) = manifest["fatbins"]
    lines = refused(parts.but(manifest={"fatbins": [{**fatbin, "kernels": fatbin["kernels"][:1]}]}))
    assert lines == [
        f"kernel {second} of kernels.json is not in the manifest",
        f"{parts.kernels.fatbin_name} holds kernel {second}, which the manifest does not name there",
    ]


def test_manifest_with_another_tile_or_lighter_gates(parts: Parts, refused: Refused) -> None:
    manifest = parts.right_manifest()
    (fatbin,) = manifest["fatbins"]
    first = {**fatbin["kernels"][0], "spill_bytes": 4096}
    changed = [{**fatbin, "kernels": [first, *fatbin["kernels"][1:]]}]
    lines = refused(parts.but(manifest={"fatbins": changed, "families": {}}))
    assert lines == [
        f"kernel {first['name']} differs between the manifest and kernels.json",
        "the manifest's SASS gates are not those of kernels.json",
    ]


@pytest.mark.parametrize("text", [b"", b"[]", b'{"schema": 1}', b'{"schema": 2}', b"\xff\xfe"])
def test_manifest_that_is_none(parts: Parts, refused: Refused, text: bytes) -> None:
    (line,) = refused(parts.but(files={f"{KERNELS}manifest.json": text}))
    assert line.startswith(f"{KERNELS}manifest.json: ")


def test_requested_architecture_that_is_not_there(parts: Parts, inspector: Inspector, tmp_path: Path) -> None:
    other = Inspector(inspector._tool, read_kernel_list(parts.kernels.list_path), ("90", "120"))
    messages = [problem.message for problem in other.verify(parts.build(tmp_path)).problems]
    assert messages[0] == "the manifest has 90, 100 but not architecture 120"
    assert (
        f"kernel {parts.kernels.kernels[0].name} has no SASS for sm_120 in {parts.kernels.fatbin_name}"
        in messages
    )


RES_USAGE = """
Fatbin elf code:
================
arch = sm_90
code version = [1,8]
host = linux
compile_size = 64bit
compressed

Resource usage:
 Common:
  GLOBAL:0
 Function {name}:
  REG:255 STACK:{stack} SHARED:1024 LOCAL:8 CONSTANT[0]:704 TEXTURE:0 SURFACE:0 SAMPLER:0

Fatbin ptx code:
================
arch = sm_90a
code version = [9,4]

.visible .entry {name}(
.entry other(
"""


@pytest.mark.parametrize(("accepted", "wrong"), [(39, True), (40, False)])
def test_spill_above_what_the_tile_accepts(parts: Parts, accepted: int, wrong: bool) -> None:
    kernel = parts.kernels.kernels[0]
    resources = parse_resources(RES_USAGE.format(name=kernel.name, stack=32))
    assert resources == {"90": {kernel.name: (255, 40, 1024)}}
    code = KernelCode(kernel.name, *resources["90"][kernel.name], frozenset())
    fatbin = Fatbin("", 0, {"90": {kernel.name: code}}, {}, {})
    manifest = parse_manifest(json.dumps(parts.right_manifest()).encode())
    want = wanted(manifest, None, ("90",))
    want = replace(want, kernels={kernel.name: replace(kernel, spill_bytes=accepted)})
    messages = [p.message for p in check_code(want, manifest, {kernel.fatbin: fatbin}) if p.check == "spills"]
    expected = (
        f"kernel {kernel.name} spills 40 bytes a thread on sm_90 (255 registers); its tile accepts {accepted}"
    )
    assert messages == ([expected] if wrong else [])


def test_parse_ptx() -> None:
    assert parse_ptx(RES_USAGE.format(name="one", stack=0)) == {"90a": frozenset({"one", "other"})}


def test_parse_sass() -> None:
    text = (
        "    /*19b0*/      @!P0 HMMA.16816.F32.BF16 R68, R52, R16.reuse, RZ ;  /* 0x000000103444723c */\n"
        "    /* 0x000fc00000000000 */\n"
        "    /*37a0*/      FFMA2 R16, R16.F32x2.HI_LO, R44.reuse.F32 ; /* 0x0000002c10107249 */\n"
        "        /*11ce0*/             @UPT UMOV UR4, 0x400 ;    /* 0x0000000000047882 */\n"
    )
    assert parse_sass(text) == {"HMMA": {0x23C}, "FFMA2": {0x249}, "UMOV": {0x882}}


def test_name_that_would_be_markup(parts: Parts, refused: Refused) -> None:
    manifest = parts.right_manifest()
    (fatbin,) = manifest["fatbins"]
    odd = {**fatbin["kernels"][0], "name": "[/red]\x1b[2J"}
    lines = refused(parts.but(manifest={"fatbins": [{**fatbin, "kernels": [*fatbin["kernels"], odd]}]}))
    assert lines == ["kernel [/red]\\x1b[2J of the manifest is not in kernels.json"]
