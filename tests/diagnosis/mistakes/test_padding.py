"""Masks of attention that leave the padding, and hide what it pads."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.padding import of_padding
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
SAMPLES, STEPS, PAD = 6, 8, 0
LENGTHS = torch.tensor([8, 3, 5, 2, 7, 4])
TOKENS = torch.randint(1, 9, (SAMPLES, STEPS), generator=GENERATOR)
AT_THE_END = torch.where(torch.arange(STEPS) < LENGTHS[:, None], TOKENS, PAD)
INVERTED = [("critical", "Attention sees the padding and not the tokens")]


class Tokens(nn.Module):
    """A class of a sequence, by attention that a function masks."""

    def __init__(self, mask, kind="layer"):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.mask, self.kind = mask, kind

    def forward(self, tokens):
        h, hidden = self.embedding(tokens), self.mask(tokens == PAD)
        if self.kind == "layer":
            h = self.layer(h, src_key_padding_mask=hidden)
        elif self.kind == "fused":
            h = F.scaled_dot_product_attention(h, h, h, attn_mask=~hidden[:, None])
        else:
            scores = (h @ h.transpose(1, 2)).masked_fill(hidden[:, None], -1e9)
            h = scores.softmax(-1) @ h
        return self.head(h.mean(1))


def found(mask, kind="layer", tokens=AT_THE_END):
    batch = tokens, torch.arange(SAMPLES) % 3
    traced = traced_pass(Tokens(mask, kind), batch, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    return [(one.severity, one.title) for one in of_padding(traced)]


@pytest.mark.parametrize("kind", ["layer", "fused", "by hand"])
@pytest.mark.parametrize("tokens", [AT_THE_END, AT_THE_END.flip(1)])
def test_masks_and_their_inverse(kind, tokens):
    assert found(lambda pad: pad, kind, tokens) == []
    assert found(lambda pad: ~pad, kind, tokens) == INVERTED


def test_other_masks():
    assert found(lambda pad: torch.zeros_like(pad)) == []
    some = torch.rand(SAMPLES, STEPS, generator=GENERATOR) < 0.5
    assert found(lambda pad: some) == []


@pytest.mark.parametrize("tokens", [TOKENS, AT_THE_END.roll(3, 1)])
def test_numbers_that_are_no_padding(tokens):
    assert found(lambda pad: tokens != tokens[:, -1:], tokens=tokens) == []
