"""A small model of the transformers library trains and generates as with PyTorch's own attention."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
import torch
from gpu.support import needs
from torch import Tensor

transformers = pytest.importorskip("transformers")

PERIOD, VOCABULARY = 7, 64


def installed() -> bool:
    try:
        importlib.metadata.version("flash-attn")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


pytestmark = pytest.mark.skipif(
    not installed(), reason="transformers asks for the metadata of flash-attn, and there is none on the path"
)


def model(attention: str) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        attn_implementation=attention,
    )
    return transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16)


def sentences(batch: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows that repeat a word of their own, padded on the left to different lengths; and their masks."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(2, VOCABULARY, (batch, PERIOD), generator=generator)
    tokens = words.repeat(1, length // PERIOD + 1)[:, :length]
    mask = torch.ones(batch, length, dtype=torch.long)
    for row in range(batch):
        mask[row, : 5 * row] = 0
    return (tokens * mask).cuda(), mask.cuda()


def train(attention: str, steps: int) -> tuple[Any, list[float]]:
    net = model(attention)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    losses = []
    for step in range(steps):
        tokens, mask = sentences(8, 70, step)
        labels = tokens.masked_fill(mask == 0, -100)
        loss = net(input_ids=tokens, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return net, losses


@needs("flash_bwd")
def test_training_and_generation() -> None:
    ours, losses = train("flash_attention_2", 80)
    _, expected = train("sdpa", 80)
    for step, (one, other) in enumerate(zip(losses[:20], expected[:20], strict=True)):
        assert abs(one - other) < 0.05, f"step {step}: loss {one}, with SDPA {other}"
    assert losses[-1] < losses[0] - 0.5
    twin = model("sdpa")
    twin.load_state_dict(ours.state_dict())
    ours.eval()
    twin.eval()
    tokens, mask = sentences(4, 40, 1000)
    with torch.no_grad():
        logits = ours(input_ids=tokens, attention_mask=mask).logits[mask.bool()]
        twins = twin(input_ids=tokens, attention_mask=mask).logits[mask.bool()]
    assert (logits.float() - twins.float()).abs().max() < 0.25
    generated = [
        net.generate(input_ids=tokens, attention_mask=mask, max_new_tokens=20, do_sample=False)
        for net in (ours, twin)
    ]
    assert generated[0].shape == (4, 60)
    agree = (generated[0] == generated[1]).float().mean().item()
    assert agree > 0.95, f"only {agree:.0%} of the tokens agree"
