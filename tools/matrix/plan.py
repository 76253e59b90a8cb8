"""What an event runs: the shards, wheels, test cells and other toolkits that the matrix gives for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tools.matrix.definition import (
    NIGHTLY,
    NO_TORCH,
    RELEASED,
    Definition,
    Event,
    MatrixError,
    Torch,
)

MOST_JOBS = 256  # of one matrix, on GitHub


@dataclass(frozen=True)
class Shard:
    """Kernels of one architecture, compiled with one toolkit. ``minutes`` are the runner's, as everywhere."""

    id: str
    arch: str
    toolkit: str
    runner: str
    minutes: int


@dataclass(frozen=True)
class Wheel:
    """The one wheel of a platform; ``cells`` says how many test cells wait for it."""

    id: str
    platform: str
    runner: str
    image: str
    tag: str
    arch: str
    shards: tuple[str, ...]
    cells: int
    minutes: int


@dataclass(frozen=True)
class Cell:
    """A wheel tested against one torch and Python.

    ``requirement``, ``extra_index`` and ``pre`` are what pip is told; ``cuda`` is the torch's own ("cpu" for
    none); ``may_fail`` marks a torch that nobody has confirmed to be there. ``cibuildwheel`` says whether it
    makes and tests the wheel; for a Python that it doesn't know, the wheel of another is tested.
    """

    id: str
    platform: str
    runner: str
    python: str
    torch: str
    cuda: str
    requirement: str
    extra_index: str
    pre: bool
    shards: tuple[str, ...]
    may_fail: bool
    cibuildwheel: bool
    minutes: int


@dataclass(frozen=True)
class Native:
    """A wheel built by one machine alone, kernels included; ``archs`` is for FLASH_ATTN_CUDA_ARCHS."""

    id: str
    platform: str
    runner: str
    archs: str
    may_fail: bool
    minutes: int


@dataclass(frozen=True)
class Wine:
    """The wheel of a platform for Windows, tested on another machine, ``runner``, under Wine."""

    id: str
    platform: str
    runner: str
    minutes: int


Job = Shard | Wheel | Cell | Native | Wine


@dataclass(frozen=True)
class Plan:
    """``toolkits`` are shards compiled with the toolkits that releases don't use, to see that they can be."""

    event: str
    shards: tuple[Shard, ...]
    toolkits: tuple[Shard, ...]
    wheels: tuple[Wheel, ...]
    cells: tuple[Cell, ...]
    natives: tuple[Native, ...]
    wines: tuple[Wine, ...]

    @property
    def jobs(self) -> dict[str, tuple[Job, ...]]:
        return {
            "shards": self.shards, "toolkits": self.toolkits, "wheels": self.wheels, "cells": self.cells,
            "natives": self.natives, "wines": self.wines,
        }  # fmt: skip

    @property
    def minutes(self) -> int:
        return sum(job.minutes for jobs in self.jobs.values() for job in jobs)


def _chosen(definition: Definition, event: Event) -> Iterator[Torch]:
    released = [torch for torch in definition.torch if torch.index == RELEASED]
    for torch in definition.torch:
        if torch.index == NIGHTLY:
            wanted = NIGHTLY in event.torch
        else:
            wanted = (
                "released" in event.torch
                or ("oldest" in event.torch and torch is released[0])
                or ("newest" in event.torch and torch is released[-1])
            )
        if wanted:
            yield torch


def _cells(definition: Definition, event: Event, shards: tuple[str, ...]) -> Iterator[Cell]:
    for torch in _chosen(definition, event):
        index = definition.indexes[torch.index]
        pythons = (
            torch.pythons
            if event.pythons == "all"
            else dict.fromkeys(torch.pythons[:: len(torch.pythons) - 1 or 1])
        )
        for name in event.platforms:
            platform = definition.platforms[name]
            build = torch.builds.get(platform.torch)
            if platform.torch == NO_TORCH or build is None:
                continue
            requirement = "torch" if torch.index == NIGHTLY else f"torch=={torch.version}"
            if index.cuda and torch.index != NIGHTLY:
                requirement += f"+{index.cuda}"
            for python in pythons:
                version = f"-{torch.short}" if torch.short == NIGHTLY else torch.short
                yield Cell(
                    f"{build}-torch{version}-cp{python.replace('.', '')}-{name}",
                    name, platform.runner, python, torch.version, build, requirement,
                    index.url, index.pre, shards, torch.may_fail,
                    python not in definition.without_cibuildwheel, definition.minutes.cell,
                )  # fmt: skip


def expand(definition: Definition, name: str) -> Plan:
    """The plan of an event; MatrixError for an unknown one, two jobs with one id, too many for GitHub."""
    if name not in definition.events:
        known = ", ".join(definition.events)
        raise MatrixError(f"{definition.file}: events: there is no event {name!r}; name one of {known}.")
    event = definition.events[name]
    minutes = definition.minutes
    shards = tuple(
        Shard(
            f"shard-{arch}", arch, definition.release_toolkit.version, definition.shard_runner, minutes.shard
        )
        for arch in event.architectures
    )
    ids = tuple(shard.id for shard in shards)
    toolkits = tuple(
        Shard(
            f"{toolkit.cuda}-shard-{event.architectures[-1]}", event.architectures[-1], toolkit.version,
            definition.shard_runner, minutes.shard,
        )
        for toolkit in definition.toolkits
        if event.toolkits and not toolkit.release
    )  # fmt: skip
    cells = tuple(_cells(definition, event, ids))
    wheels = tuple(
        Wheel(
            platform, platform, row.runner, row.image, row.tag, row.arch, ids,
            sum(cell.platform == platform for cell in cells), minutes.wheel,
        )
        for platform, row in definition.platforms.items()
        if platform in event.platforms
    )  # fmt: skip
    natives = tuple(
        Native(
            f"{row.native}-{platform}", platform, row.runner, ";".join(event.native), row.native_may_fail,
            minutes.native + minutes.shard * len(event.native),
        )
        for platform, row in definition.platforms.items()
        if platform in event.platforms and row.native and event.native
    )  # fmt: skip
    wines = tuple(
        Wine(f"wine-{platform}", platform, row.wine, minutes.wine)
        for platform, row in definition.platforms.items()
        if platform in event.platforms and row.wine
    )
    plan = Plan(name, shards, toolkits, wheels, cells, natives, wines)
    for what, jobs in plan.jobs.items():
        found = [job.id for job in jobs]
        if twice := next((one for one in found if found.count(one) > 1), None):
            raise MatrixError(
                f"{definition.file}: events.{name}: gives two {what} with the id {twice}; remove one."
            )
        if len(found) > MOST_JOBS:
            raise MatrixError(
                f"{definition.file}: events.{name}: gives {len(found)} {what}, but GitHub runs at most "
                f"{MOST_JOBS} jobs of one matrix; let it take fewer."
            )
    return plan
