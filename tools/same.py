"""Whether wheels that several machines made are the same bytes: one wheel a platform, whoever builds it."""

from __future__ import annotations

import hashlib
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from tools.ending import printable, refusal
from tools.verify.problems import UnreadableError
from tools.verify.wheel import read_wheel


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def difference(one: Path, other: Path, files: bool = False) -> str:
    """What sets two wheels apart, in a few words; empty when nothing does, or with ``files`` only packing."""
    if one.read_bytes() == other.read_bytes():
        return ""
    try:
        with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
            names = sorted({*first.namelist(), *second.namelist()})
            found = [
                name
                for name in names
                if name not in first.namelist()
                or name not in second.namelist()
                or first.read(name) != second.read(name)
            ]
    except (zipfile.BadZipFile, OSError) as error:
        return f"one of them can't be read ({error})"
    if files and not found:
        return ""
    # RECORD repeats every other difference.
    told = [name for name in found if not name.endswith(".dist-info/RECORD")] or found
    return ", ".join(told) if told else "how the archive was packed (times, modes or order), not any file"


def wheels_in(places: Iterable[Path]) -> list[Path]:
    """The wheels among files, and below folders."""
    found = [
        wheel for place in places for wheel in (sorted(place.rglob("*.whl")) if place.is_dir() else [place])
    ]
    return list(dict.fromkeys(found))


def problems(wheels: Iterable[Path], files: bool = False) -> list[str]:
    """One sentence for each wheel that can't be read, or is not the same as the first of its name."""
    by_name: dict[str, list[Path]] = defaultdict(list)
    unreadable = []
    for wheel in wheels:
        try:
            read_wheel(wheel)
        except UnreadableError as error:
            unreadable.append(f"{wheel}: {error}; build or copy it again.")
        by_name[wheel.name].append(wheel)
    return unreadable or [
        f"{other} differs from {first} in: {apart}; "
        "build both from the same source, kernels and pinned tools."
        for first, *others in by_name.values()
        for other in others
        if (apart := difference(first, other, files))
    ]


def alone(places: list[Path]) -> list[str]:
    """One sentence for each place none of whose wheels another place has too, so that nothing is compared."""
    names = [{wheel.name for wheel in wheels_in([place])} for place in places]
    return [
        f"No wheel of {place} is in another place too ({', '.join(sorted(own)) or 'there is none'}); "
        "name places that hold wheels of one name."
        for place, own in zip(places, names, strict=True)
        if not any(own & other for other in names if other is not own)
    ]


def command(
    places: Annotated[
        list[Path], typer.Argument(metavar="WHEEL...", help="Wheels, or folders that hold some.")
    ],
    files: Annotated[
        bool,
        typer.Option(
            "--files/--bytes", help="Compare names and contents of what is packed, not the packing."
        ),
    ] = False,
) -> None:
    """Compare wheels of the same name that came from several builds; they must be the same bytes.

    --files is for wheels packed on Windows: Python marks archives there as made on Windows, and from 3.14 on
    compresses with another zlib.
    """
    wheels = wheels_in(places)
    if not wheels:
        raise refusal(f"There is no wheel in {', '.join(map(str, places))}; name wheels or their folders.")
    found = problems(wheels, files) + (alone(places) if len(places) > 1 else [])
    if found:
        for problem in found:
            typer.echo(f"error: {printable(problem)}", err=True)
        raise typer.Exit(1)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for wheel in wheels:
        counts[digest(wheel), wheel.name] += 1
    same = "builds, the same files" if files else "builds, all the same"
    for (hexadecimal, name), count in counts.items():
        typer.echo(f"{hexadecimal}  {name}  ({count} {'build' if count == 1 else same})")
