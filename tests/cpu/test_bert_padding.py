"""Padding and packing on the CPU, with gradients."""

from __future__ import annotations

import pytest
import torch

from flash_attn import bert_padding
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


WHOLE = torch.ones(2, 8, dtype=torch.bool)
STATES = torch.zeros(2, 8, 4)
REFUSED: list[tuple[str, tuple[object, ...], type[Exception], str]] = [
    ("unpad_input", (None, WHOLE), TypeError, "hidden_states must be a torch.Tensor, but it is None"),
    ("unpad_input", (STATES, [1]), TypeError, "attention_mask must be a torch.Tensor, but it is a list"),
    ("unpad_input", (STATES, WHOLE[:1]), RuntimeError, "attention_mask has shape"),
    ("unpad_input", (STATES, WHOLE.flatten()), RuntimeError, "attention_mask has shape"),
    ("unpad_input", (STATES, WHOLE, WHOLE[:, :7]), RuntimeError, "unused_mask has shape"),
    ("unpad_input", (STATES.to("meta"), WHOLE), RuntimeError, "on one device"),
    ("unpad_input_for_concatenated_sequences", (STATES, 3), TypeError, "attention_mask_in_length must be a"),
    ("unpad_input_for_concatenated_sequences", (STATES, WHOLE.float()), RuntimeError, "lengths are integers"),
    ("unpad_input_for_concatenated_sequences", (STATES, torch.tensor(3)), RuntimeError, "has shape"),
    ("index_first_axis", ([1], torch.tensor([0])), TypeError, "x must be a torch.Tensor"),
    ("index_first_axis", (STATES[0], None), TypeError, "indices must be a torch.Tensor"),
    ("index_put_first_axis", (STATES[0], torch.arange(8), "8"), TypeError, "first_axis_dim must be an int"),
    ("index_put_first_axis", (STATES[0], torch.arange(8), -1), RuntimeError, "first_axis_dim is -1"),
    ("index_put_first_axis", (STATES[0], torch.arange(7), 8), RuntimeError, "indices and values have shapes"),
    ("index_put_first_axis", (STATES[0], torch.arange(8), 7), RuntimeError, "indices don't fit 7 rows"),
    ("pad_input", (None, torch.arange(8), 1, 8), TypeError, "hidden_states must be a torch.Tensor"),
    ("pad_input", (STATES[0], torch.arange(8), 1.0, 8), TypeError, "batch must be an int, but it is a float"),
    ("pad_input", (STATES[0], torch.arange(8), 1, 7), RuntimeError, "doesn't fit batch 1 and seqlen 7"),
    ("pad_input", (STATES[0], torch.arange(8), -1, -8), RuntimeError, "doesn't fit batch -1"),
]


@pytest.mark.parametrize(("name", "arguments", "error", "message"), REFUSED)
def test_bad_arguments(
    name: str, arguments: tuple[object, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        getattr(bert_padding, name)(*arguments)
    assert "\n" not in str(raised.value)
