"""Lines that a maintainer could add to ci/matrix.toml, each of what comes after all that is there."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tools.matrix.definition import Definition

PYTHONS = ("3.12", "3.14t")


def _after(versions: Iterable[str]) -> str:
    return f"{max(int(version.split('.')[0]) for version in versions) + 1}.0.0"


def next_torch(definition: Definition) -> str:
    return _after(torch.version for torch in definition.torch if torch.version[0].isdigit())


def next_toolkit(definition: Definition) -> str:
    return _after(toolkit.version for toolkit in definition.toolkits)


def next_architecture(definition: Definition) -> str:
    return str(max(int(arch.rstrip("af")) for arch in definition.architectures) + 1)


def next_platform(definition: Definition) -> str:
    machines = ("riscv64", "loongarch64", "sparc64", "hppa64")
    return next(name for one in machines if (name := f"manylinux_{one}") not in definition.platforms)


def _behind_last(text: str, beginning: str, line: str) -> str:
    *_, last = re.finditer(rf"^{beginning}.*\n", text, re.MULTILINE)
    return f"{text[: last.end()]}{line}\n{text[last.end() :]}"


def with_torch(text: str, definition: Definition, version: str | None = None) -> str:
    line = (
        f'  {{ version = "{version or next_torch(definition)}", index = "pypi", linux = "cu139", '
        f'linux_arm = "cu139", windows = "cpu", pythons = ["{PYTHONS[0]}", "{PYTHONS[1]}"], '
        'source = "asked" },'
    )
    return _behind_last(text, r'  \{ version = "[^"]+", index = "pypi"', line)


def with_toolkit(text: str, definition: Definition) -> str:
    line = f'  {{ version = "{next_toolkit(definition)}" }},'
    return _behind_last(text, r'  \{ version = "[^"]+"(?:, release = true)? \}', line)


def with_architecture(text: str, definition: Definition) -> str:
    return re.sub(
        r"^(architectures = \[.*)\]$", rf'\1, "{next_architecture(definition)}"]', text, flags=re.MULTILINE
    )


def with_platform(text: str, definition: Definition) -> str:
    name = next_platform(definition)
    machine = name.removeprefix("manylinux_")
    line = (
        f'{name} = {{ runner = "some-runner", image = "quay.io/pypa/manylinux_2_39_{machine}", tag = '
        f'"manylinux_2_39_{machine}", arch = "{machine}", zig = "{machine}-linux-gnu.2.39", '
        f'host = "linux-{machine}", torch = "none" }}'
    )
    return _behind_last(text, r"(?:manylinux|win)_\w+ = \{", line)
