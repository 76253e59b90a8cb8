"""A plan as lines for ``$GITHUB_OUTPUT``, as JSON, or as tables for a person."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from tools.matrix.plan import Plan


def as_json(plan: Plan) -> str:
    """One document with everything in it."""
    return json.dumps({**asdict(plan), "minutes": plan.minutes}, indent=2)


def as_github(plan: Plan) -> str:
    """One ``key=json`` line a kind of job."""
    lists = {what: [asdict(job) for job in jobs] for what, jobs in plan.jobs.items()}
    return "\n".join(f"{what}={json.dumps(jobs, separators=(',', ':'))}" for what, jobs in lists.items())


def show(plan: Plan, console: Console) -> None:
    """What the event runs and what it costs."""
    jobs = Table(title=f"{plan.event}: about {plan.minutes} runner minutes", title_justify="left")
    for heading in ("jobs", "number", "minutes each", "minutes"):
        jobs.add_column(heading, justify="left" if heading == "jobs" else "right")
    for what, found in plan.jobs.items():
        each = ", ".join(sorted({str(job.minutes) for job in found})) or "-"
        jobs.add_row(what, str(len(found)), each, str(sum(job.minutes for job in found)))
    console.print(jobs)

    kernels = Table(title="Kernels", title_justify="left")
    for heading in ("shard", "architecture", "toolkit", "runner"):
        kernels.add_column(heading)
    for shard in (*plan.shards, *plan.toolkits):
        kernels.add_row(shard.id, shard.arch, shard.toolkit, shard.runner)
    console.print(kernels)

    wheels = Table(title="Wheels", title_justify="left")
    for heading in ("wheel", "runner", "tag at most", "test cells"):
        wheels.add_column(heading)
    for wheel in plan.wheels:
        wheels.add_row(wheel.id, wheel.runner, wheel.tag, str(wheel.cells or "none: no torch there"))
    console.print(wheels)

    if plan.natives:
        natives = Table(title="Native builds, kernels included", title_justify="left")
        for heading in ("build", "architectures", "runner"):
            natives.add_column(heading)
        for native in plan.natives:
            note = " (may fail)" if native.may_fail else ""
            natives.add_row(native.id + note, native.archs, native.runner)
        console.print(natives)
    for wine in plan.wines:
        console.print(f"Under Wine: {wine.platform}, on {wine.runner}", highlight=False)

    cells = Table(title="Test cells", title_justify="left")
    for heading in ("cell", "pip installs", "runner"):
        cells.add_column(heading)
    for cell in plan.cells:
        note = " (may fail)" if cell.may_fail else ""
        note += "" if cell.cibuildwheel else " (without cibuildwheel)"
        source = f" from {cell.extra_index}" if cell.extra_index else ""
        cells.add_row(cell.id, cell.requirement + source + note, cell.runner)
    console.print(cells)
    platforms = Counter(cell.platform for cell in plan.cells)
    console.print(", ".join(f"{count} cells on {name}" for name, count in platforms.items()), highlight=False)
