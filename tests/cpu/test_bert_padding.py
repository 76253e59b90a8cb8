"""Padding and packing on the CPU, with gradients."""

from __future__ import annotations

import pytest
import torch

from flash_attn.bert_padding import (
    index_first_axis,
    index_first_axis_residual,
    index_put_first_axis,
    pad_input,
    unpad_input,
    unpad_input_for_concatenated_sequences,
)

MASK = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]])


@pytest.mark.parametrize("mask", [MASK, MASK.bool()], ids=["int", "bool"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 5)])
def test_round_trip(mask: torch.Tensor, shape: tuple[int, ...]) -> None:
    x = torch.randn(3, 4, *shape)
    packed, indices, cu_seqlens, longest, used = unpad_input(x, mask)
    assert packed.shape == (5, *shape)
    assert indices.tolist() == [0, 1, 5, 6, 7]
    assert cu_seqlens.tolist() == [0, 2, 5, 5]
    assert cu_seqlens.dtype == torch.int32
    assert longest == 3
    assert used.tolist() == [2, 3, 0]
    kept = mask.bool().view(3, 4, *[1] * len(shape))
    assert torch.equal(pad_input(packed, indices, 3, 4), torch.where(kept, x, torch.zeros(())))


def test_unused_rows_are_packed_but_not_used() -> None:
    unused = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    _, indices, cu_seqlens, longest, used = unpad_input(torch.randn(3, 4, 2), MASK, unused)
    assert indices.tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert cu_seqlens.tolist() == [0, 3, 7, 7]
    assert longest == 4
    assert used.tolist() == [2, 3, 0]


def test_concatenated_sequences() -> None:
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
    x = torch.arange(18.0).view(3, 6, 1)
    packed, indices, cu_seqlens, longest = unpad_input_for_concatenated_sequences(x, lengths)
    expected = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17]
    assert indices.tolist() == expected
    assert packed.flatten().tolist() == expected
    assert cu_seqlens.tolist() == [0, 2, 5, 8, 10, 16]
    assert longest == 6


def test_gradients() -> None:
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    indices = torch.tensor([5, 0, 3])
    rows = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: index_first_axis(x, indices), x)
    assert torch.autograd.gradcheck(lambda rows: index_put_first_axis(rows, indices, 6), rows)
    assert torch.autograd.gradcheck(lambda x: index_first_axis_residual(x, indices), x)


def test_wrong_shapes() -> None:
    with pytest.raises(RuntimeError, match="two dimensions"):
        index_first_axis(torch.zeros(3), torch.tensor([0]))
    with pytest.raises(RuntimeError, match="indices"):
        index_put_first_axis(torch.zeros(3, 2), torch.tensor([[0]]), 3)
