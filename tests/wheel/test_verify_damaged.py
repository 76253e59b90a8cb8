"""Whatever was done to a file, reading it ends with a sentence or with what it holds, never with a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wheel_parts import KERNELS, Parts

from tools.verify.check_wheel import check_metadata, check_tags, check_vendored
from tools.verify.elf import read_elf
from tools.verify.expected import parse_manifest
from tools.verify.pe import read_pe
from tools.verify.problems import UnreadableError
from tools.verify.wheel import Wheel, check_record, read_wheel

# Places are fractions of the file, most of them near its ends, where the tables lie that say where all is.
_places = st.one_of(st.floats(0, 0.9999), st.floats(0, 0.02), st.floats(0.95, 0.9999))
damage = st.lists(st.tuples(_places, st.sampled_from([0, 1, 127, 128, 255])), min_size=1, max_size=12)
often = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


T = TypeVar("T")


def _read(reader: Callable[[bytes], T], data: bytes) -> T | None:
    """What the reader makes of it; None when it refuses in a sentence."""
    try:
        return reader(data)
    except UnreadableError as error:
        return None if str(error) else reader(data)


def _damaged(data: bytes, damage: list[tuple[float, int]]) -> bytes:
    changed = bytearray(data)
    for place, value in damage:
        changed[int(place * len(data))] = value
    return bytes(changed)


@often
@given(damage=damage)
def test_elf(parts: Parts, damage: list[tuple[float, int]]) -> None:
    library = _read(read_elf, _damaged(parts.library, damage))
    assert library is None or library.format == "elf"


@often
@given(damage=damage)
def test_pe(windows_parts: Parts, damage: list[tuple[float, int]]) -> None:
    library = _read(read_pe, _damaged(windows_parts.library, damage))
    assert library is None or library.format == "pe"


@often
@given(damage=damage)
def test_wheel(parts: Parts, tmp_path: Path, damage: list[tuple[float, int]]) -> None:
    path = parts.but(files={KERNELS + parts.kernels.fatbin_name: None}).build(tmp_path)

    def read(data: bytes) -> Wheel:
        path.write_bytes(data)
        return read_wheel(path)

    wheel = _read(read, _damaged(path.read_bytes(), damage))
    if wheel:
        checks = (
            check_record(wheel),
            check_metadata(wheel, None),
            check_tags(wheel, None),
            check_vendored(wheel),
        )
        assert all(problem.message for check in checks for problem in check)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@often
@given(data=st.data(), value=_json)
def test_manifest(parts: Parts, data: st.DataObject, value: object) -> None:
    manifest = json.loads(json.dumps(parts.right_manifest()))
    node = manifest
    while True:  # some value, at some depth, becomes another
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = value
    read = _read(parse_manifest, json.dumps(manifest).encode())
    assert read is None or all(isinstance(kernel.smem_bytes, int) for kernel in read.kernels.values())


def test_nested_without_end() -> None:
    with pytest.raises(UnreadableError):
        parse_manifest(b"[" * 100_000)
