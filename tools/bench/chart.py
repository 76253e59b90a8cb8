"""The chart of a run: throughput on the grid, ours beside PyTorch's flash backend."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from tools.output import write_file


def draw(run: dict[str, Any], path: Path) -> None:
    """Writes a PNG. Raises RuntimeError when there is nothing to draw or nothing to draw it with."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        raise RuntimeError(
            "matplotlib is missing, so no chart was drawn: install it, or run this with --from where it is."
        ) from None
    sections = [name for name in ("forward", "backward") if run["sections"].get(name)]
    if not sections:
        raise RuntimeError("The run has no forward or backward section, so there is nothing to draw.")
    figure, axes = plt.subplots(len(sections), 1, figsize=(13, 4.2 * len(sections)), squeeze=False)
    for axis, section in zip(axes[:, 0], sections, strict=True):
        rows = run["sections"][section]
        places = range(len(rows))
        axis.bar([x - 0.2 for x in places], [row["ours_tflops"] for row in rows], 0.4, label="flash_attn")
        axis.bar([x + 0.2 for x in places], [row["torch_tflops"] for row in rows], 0.4, label="PyTorch flash")
        for x, row in zip(places, rows, strict=True):
            height = max(row["ours_tflops"], row["torch_tflops"])
            axis.text(x, height, f"{row['speedup']:.2f}x", ha="center", va="bottom", fontsize=8)
        labels = [
            f"{row['head_dim']}\n{row['seqlen']}\n{'causal' if row['causal'] else 'full'}" for row in rows
        ]
        axis.set_xticks(list(places), labels, fontsize=8)
        axis.set_ylabel("TFLOP/s")
        axis.set_title(f"{section}, {run['dtype']}, {run['device']} (head dimension, sequence length, mask)")
        axis.legend()
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120, metadata={"Software": None})
    plt.close(figure)
    write_file(path, drawn.getvalue())
