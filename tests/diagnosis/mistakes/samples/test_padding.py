"""Masks of attention and of losses that leave the padding, and hide what it pads."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.samples.padding import of_padding
from support.traced_passes import found_by, traced_pass

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


class Masked(Tokens):
    """Takes the mask beside the tokens, as of Hugging Face."""

    def forward(self, tokens, attention_mask):
        return super().forward(tokens * attention_mask)


@pytest.mark.parametrize("tokens", [AT_THE_END, AT_THE_END.flip(1)])
@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_mask_of_the_batch_is_no_sequence(tokens, is_wrong):
    batch = tokens, (tokens != PAD).long(), torch.arange(SAMPLES) % 3
    model = Masked((lambda pad: ~pad) if is_wrong else (lambda pad: pad), "by hand")
    traced = traced_pass(model, batch, lambda m, b: F.cross_entropy(m(*b[:2]), b[2]))
    assert [(one.severity, one.title) for one in of_padding(traced)] == INVERTED * is_wrong


TAGS = torch.where(AT_THE_END == PAD, PAD, TOKENS % 3)


def errors(model, tokens, tags):
    """One number a position."""
    return F.cross_entropy(model(tokens).transpose(1, 2), tags, reduction="none")


def of_mask(keeps):
    def loss(model, batch):
        kept = keeps(batch[0]).float()
        return (errors(model, *batch) * kept).sum() / kept.sum()

    return loss


def of_rows(keeps):
    def loss(model, batch):
        return errors(model, *batch)[keeps(batch[0])].mean()

    return loss


def of_picked(keeps):
    def loss(model, batch):
        kept = keeps(batch[0])
        return F.cross_entropy(model(batch[0])[kept], batch[1][kept])

    return loss


def of_filled(keeps):
    def loss(model, batch):
        return errors(model, *batch).masked_fill(~keeps(batch[0]), 0.0).sum()

    return loss


def of_squares(keeps):
    def loss(model, batch):
        target = F.one_hot(batch[1], 3).float() * (batch[0] != PAD)[..., None]
        return ((model(batch[0]) - target).square() * keeps(batch[0])[..., None]).mean()

    return loss


def of_ignored(keeps):
    def loss(model, batch):
        tags = torch.where(keeps(batch[0]), batch[1], -100)
        return F.cross_entropy(model(batch[0]).flatten(0, 1), tags.flatten())

    return loss


def tagger():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def found_of_loss(loss, batch):
    return found_by(of_padding, tagger(), batch, loss)


@pytest.mark.parametrize(
    "masked", [of_mask, of_rows, of_picked, of_filled, of_squares, of_ignored]
)
@pytest.mark.parametrize("turn", [lambda x: x, lambda x: x.flip(1)])
def test_masks_of_losses(masked, turn):
    batch = turn(AT_THE_END), turn(TAGS)
    assert found_of_loss(masked(lambda tokens: tokens == PAD), batch) == [
        ("critical", "The loss counts the padding and not the tokens")
    ]
    for keeps in (
        lambda tokens: tokens != PAD,
        lambda tokens: tokens > -1,  # all of them
        lambda tokens: (tokens != PAD) & (torch.arange(STEPS) % 2 == 0),
    ):
        assert found_of_loss(masked(keeps), batch) == []


@pytest.mark.parametrize("tokens", [AT_THE_END, AT_THE_END.flip(1)])
@pytest.mark.parametrize("is_wrong", [False, True])
def test_masks_of_losses_of_what_follows(tokens, is_wrong):
    def loss(model, batch):
        following = batch[0][:, 1:]
        kept = ((following == PAD) == is_wrong).float()
        return (errors(model, batch[0][:, :-1], following) * kept).sum() / kept.sum()

    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
    traced = traced_pass(model, (tokens,), loss)
    assert [one.title for one in of_padding(traced)] == [
        "The loss counts the padding and not the tokens"
    ] * is_wrong


def test_what_is_to_be_told_may_be_filled_up():
    """Of a text whose end is hidden, to be guessed, as of models that write on."""
    batch = AT_THE_END, TOKENS % 3
    assert found_of_loss(of_mask(lambda tokens: tokens == PAD), batch) == []


def test_complex_inputs_are_no_tokens():
    """They cannot be compared as tokens are."""
    batch = torch.zeros(SAMPLES, STEPS, dtype=torch.complex64), torch.arange(SAMPLES) % 3
    model = nn.Linear(STEPS, 3, dtype=torch.complex64)
    traced = traced_pass(model, batch, lambda m, b: F.cross_entropy(m(b[0]).abs(), b[1]))
    assert of_padding(traced) == []
