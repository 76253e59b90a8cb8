"""Shows verdicts: tables and lines for people, one JSON document for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from tools.ending import printable
from tools.tables import table_console
from tools.verify.expected import Kernel
from tools.verify.inspector import Inspector, Verdict, compare
from tools.verify.problems import Problem

SHOWN = 4  # of one kind, to people
_NAMES = re.compile(r"(?<!\S)(?!sm_)\S*[_/.\d]\S*")


def judge(inspector: Inspector, paths: Sequence[Path], json_wanted: bool, summary: Path | None = None) -> int:
    """Verifies these wheels, prints what was found, and returns the exit status: 1 when anything is wrong.

    ``summary`` is a file that a Markdown table is added to.
    """
    if summary is not None:
        summary.open("a", encoding="utf-8").close()  # not after minutes of looking
    verdicts = [inspector.verify(path) for path in paths]
    differences = compare(verdicts)
    wrong = lines(verdicts, differences)
    if summary is not None:
        with summary.open("a", encoding="utf-8") as file:
            file.write(as_markdown(verdicts, wrong))
    if json_wanted:
        print(json.dumps(as_json(verdicts, differences), indent=2))
    else:
        console = table_console()
        for verdict in verdicts:
            show(console, verdict)
        if not wrong:
            print(f"{len(paths)} {'wheels' if len(paths) > 1 else 'wheel'} verified: nothing is wrong.")
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


def show(console: Console, verdict: Verdict) -> None:
    """The kernels by architecture, then what the wheel and its launcher are."""
    if not verdict.wheel:
        return
    if verdict.want:
        table = _kernels(verdict)
        needed = console.measure(table, options=console.options.update(max_width=1000)).maximum
        console.print(table if needed <= console.width else _kernels(verdict, narrow=True))
    console.print(_summary(verdict))


def _kernels(verdict: Verdict, narrow: bool = False) -> Table:
    """``narrow`` leaves out frames and tiles and folds long names, so that no figure is squeezed away."""
    want = verdict.want
    assert want is not None
    table = Table(
        title=verdict.path.name, caption="registers a thread, +bytes spilled", title_justify="left",
        box=None if narrow else box.HEAVY_HEAD, padding=(0, 1, 0, 0) if narrow else (0, 1),
    )  # fmt: skip
    table.add_column("kernel", no_wrap=not narrow, overflow="fold")
    if not narrow:
        table.add_column("tile", no_wrap=True)
    for arch in want.sass:
        table.add_column(f"sm_{arch}", justify="right", no_wrap=True)
    table.add_column(f"PTX {want.ptx}", no_wrap=True)
    for kernel in want.kernels.values():
        fatbin = verdict.fatbins.get(kernel.fatbin)
        ptx = fatbin is not None and kernel.name in fatbin.ptx.get(want.ptx or "", ())
        cells = [_cell(verdict, kernel, arch) for arch in want.sass]
        tile = f"{kernel.block_m}x{kernel.block_n}, {kernel.warps} warps, {kernel.smem_bytes / 1024:g} KB"
        tiles = [] if narrow else [tile]
        table.add_row(kernel.name, *tiles, *cells, Text("yes") if ptx else Text("missing", "red"))
    return table


def _cell(verdict: Verdict, kernel: Kernel, arch: str) -> Text:
    fatbin = verdict.fatbins.get(kernel.fatbin)
    code = fatbin.sass.get(arch, {}).get(kernel.name) if fatbin else None
    if code is None:
        return Text("missing", "red")
    spill = f" +{code.local_bytes}" if code.local_bytes else ""
    return Text(f"{code.registers}{spill}", "red" if code.local_bytes > kernel.spill_bytes else "")


def _summary(verdict: Verdict) -> Group:
    wheel = verdict.wheel
    assert wheel is not None
    images = sum(len(kernels) for fatbin in verdict.fatbins.values() for kernels in fatbin.sass.values())
    lines = [f"tag       {', '.join(sorted(map(str, wheel.tags)))}", f"size      {wheel.size / 1e6:.2f} MB"]
    if verdict.manifest and verdict.want:
        lines.append(
            f"kernels   {len(verdict.want.kernels)} in {len(verdict.fatbins)} fatbins, {images} compiled for "
            f"{', '.join(verdict.manifest.sass)} by nvcc {verdict.manifest.toolkit}"
        )
    if verdict.library:
        name, library = verdict.library
        glibc = f", glibc {'.'.join(map(str, library.glibc))}" if library.glibc else ""
        imports = ", ".join(library.imports) or "nothing"
        lines.append(
            f"launcher  {name} for {library.machine}{glibc}, {len(library.exports)} exports, needs {imports}"
        )
    return Group(*(Text(line) for line in lines), Text())


def lines(verdicts: Sequence[Verdict], differences: Sequence[Problem]) -> list[str]:
    """A line for each thing that is wrong, SHOWN of one kind and a count; hostile names are spelled out."""
    found = [
        f"{verdict.path.name}: {line}"
        for verdict in verdicts
        for line in _grouped([problem.message for problem in verdict.problems])
    ]
    return [printable(line) for line in [*found, *_grouped([problem.message for problem in differences])]]


def _grouped(messages: Sequence[str]) -> list[str]:
    """By kind, in the order of their first: those that differ in names and numbers only are of one kind."""
    kinds: dict[str, list[str]] = {}
    for message in messages:
        kinds.setdefault(_NAMES.sub("", message), []).append(message)
    return [
        line
        for kind in kinds.values()
        for line in (
            [*kind[:SHOWN], f"{len(kind) - SHOWN} more of the kind of the line above; --json lists them all"]
            if len(kind) > SHOWN + 1
            else kind
        )
    ]


def as_markdown(verdicts: Sequence[Verdict], wrong: Sequence[str]) -> str:
    """One row a wheel, then what is wrong, in words that can't break out of their place."""
    rows = ["| wheel | size | kernels | machine code | toolkit | launcher needs |", "| --- " * 6 + "|"]
    for verdict in verdicts:
        wheel, manifest = verdict.wheel, verdict.manifest
        cells = [
            verdict.path.name,
            f"{wheel.size / 1e6:.2f} MB" if wheel else "unreadable",
            str(len(verdict.want.kernels)) if verdict.want else "",
            f"{', '.join(manifest.sass)}; PTX {', '.join(manifest.ptx)}" if manifest else "",
            manifest.toolkit if manifest else "",
            (", ".join(verdict.library[1].imports) or "nothing") if verdict.library else "",
        ]
        rows.append(f"| {' | '.join(map(_plain, cells))} |")
    said = [f"- {_plain(line)}" for line in wrong] or ["Nothing is wrong."]
    return "\n".join([*rows, "", *said, "", ""])


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"&#{ord(c)};" if c in "\\`*_{}[]<>|#!&~" or not c.isprintable() else c for c in text)


def as_json(verdicts: Sequence[Verdict], differences: Sequence[Problem]) -> dict[str, Any]:
    """Everything that was read and everything that is wrong, in JSON's types."""
    return {
        "ok": not differences and not any(verdict.problems for verdict in verdicts),
        "wheels": [_wheel_json(verdict) for verdict in verdicts],
        "differences": [problem.message for problem in differences],
    }


def _wheel_json(verdict: Verdict) -> dict[str, Any]:
    wheel, manifest = verdict.wheel, verdict.manifest
    name, library = verdict.library or (None, None)
    return {
        "file": verdict.path.name,
        "sha256": wheel and wheel.sha256,
        "size": wheel and wheel.size,
        "version": wheel and wheel.version,
        "tags": sorted(map(str, wheel.tags)) if wheel else [],
        "toolkit": manifest and manifest.toolkit,
        "architectures": {"sass": manifest.sass, "ptx": manifest.ptx} if manifest else None,
        "library": library
        and {
            "file": name,
            "format": library.format,
            "machine": library.machine,
            "imports": library.imports,
            "exports": sorted(library.exports),
            "glibc": library.glibc and ".".join(map(str, library.glibc)),
        },
        "fatbins": {
            file: {
                "sha256": fatbin.sha256,
                "size": fatbin.size,
                "sass": {
                    arch: {
                        code.name: {
                            "registers": code.registers,
                            "spill_bytes": code.local_bytes,
                            "static_shared_bytes": code.shared_bytes,
                        }
                        for code in kernels.values()
                    }
                    for arch, kernels in fatbin.sass.items()
                },
                "ptx": {arch: sorted(entries) for arch, entries in fatbin.ptx.items()},
            }
            for file, fatbin in verdict.fatbins.items()
        },
        "problems": [{"check": problem.check, "message": problem.message} for problem in verdict.problems],
    }
