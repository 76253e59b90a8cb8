"""What is measured: the grid of shapes, and the work of a call in floating-point operations and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TOKENS = 16384
HIDDEN = 2048
BACKWARD_WORK = 2.5  # matrix products of a backward for each of a forward


@dataclass(frozen=True)
class Cell:
    """One shape of the grid: 16,384 tokens of 2,048 channels, cut into sequences and heads."""

    head_dim: int
    seqlen: int
    causal: bool

    @property
    def batch(self) -> int:
        return TOKENS // self.seqlen

    @property
    def nheads(self) -> int:
        return HIDDEN // self.head_dim

    @property
    def forward_flops(self) -> float:
        return attention_flops([self.seqlen] * self.batch, self.nheads, self.head_dim, self.causal)


def attention_flops(lengths: Sequence[int], nheads: int, head_dim: int, causal: bool) -> float:
    """Of a forward over self-attended sequences of these lengths."""
    return 4.0 * sum(length * length for length in lengths) * nheads * head_dim * (0.5 if causal else 1.0)


def _cells(head_dim: int, shapes: Sequence[tuple[int, bool]]) -> list[Cell]:
    return [Cell(head_dim, seqlen, causal) for seqlen, causal in shapes]


_BOTH = [(512, False), (512, True), (2048, False), (2048, True), (8192, False), (8192, True), (16384, True)]

GRID: tuple[Cell, ...] = (
    *_cells(64, _BOTH),
    *_cells(128, _BOTH),
    *_cells(256, [(512, False), (2048, False), (8192, False), (8192, True), (16384, True)]),
)

# Decoding one token each.
DECODE_BATCH, DECODE_HEADS, DECODE_HEADS_K, DECODE_HEAD_DIM = 16, 32, 8, 128
DECODE_KEYS, DECODE_PAGE = 16384, 256
DECODE_BYTES = 2 * 2 * DECODE_BATCH * DECODE_KEYS * DECODE_HEADS_K * DECODE_HEAD_DIM  # k and v, 16 bits
COPY_BYTES = 1 << 30
