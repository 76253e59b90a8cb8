"""Tables of a run, with rich where it is installed and in plain text where not."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

Row = dict[str, Any]


def summary(section: str, rows: list[Row]) -> dict[str, float]:
    """The figures that a section is judged by."""
    if section in ("forward", "backward"):
        speedups = [row["speedup"] for row in rows]
        return {
            "geomean_speedup": math.exp(sum(map(math.log, speedups)) / len(speedups)),
            "worst_speedup": min(speedups),
        }
    if section == "features":
        return {"worst_time_to_plain": max(row["time_to_plain"] for row in rows)}
    if section == "decode":
        return {"worst_share_of_copy": min(row["share_of_copy"] for row in rows)}
    if section == "varlen":
        return {"worst_ratio": min(row["ratio"] for row in rows)}
    return {row["call"].replace(" ", "_") + "_us": row["ours_us"] for row in rows}


def text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 100 else (
        f"{value:.0f}" if isinstance(value, float) else str(value)
    )  # fmt: skip


def show(run: dict[str, Any]) -> None:
    """Prints the tables of all sections and the figures under them."""
    print(f"{run['device']}, torch {run['torch']}, flash_attn {run['flash_attn']}, {run['dtype']}")
    for section, rows in run["sections"].items():
        if not rows:
            continue
        cells = [[text(value) for value in row.values()] for row in rows]
        heads = [name.replace("_", " ") for name in rows[0]]
        (_rich if importlib.util.find_spec("rich") else _plain)(section, heads, cells)
        for name, value in summary(section, rows).items():
            print(f"  {name.replace('_', ' ')}: {text(value)}")
    for section, reason in run.get("skipped", {}).items():
        print(f"{section}: not measured, {reason}")


def _rich(title: str, heads: list[str], cells: list[list[str]]) -> None:
    from rich.table import Table

    from tools.tables import table_console

    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head, justify="right")
    for row in cells:
        table.add_row(*row)
    table_console().print(table)


def _plain(title: str, heads: list[str], cells: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    print(title)
    for row in [heads, *cells]:
        print("  " + "  ".join(value.rjust(width) for value, width in zip(row, widths, strict=True)))
