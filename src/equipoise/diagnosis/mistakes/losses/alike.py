"""Losses of outputs alone that are least where all samples have one output."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.losses.nothing import (
    is_a_closed_loop,
    is_moved_at_will,
    judges_what_others_make,
    outputs_behind,
)
from equipoise.diagnosis.mistakes.repeated import loss_with
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument.recording.graph import Made
from equipoise.records import wording
from equipoise.records.finding import Finding

# Part of a loss by which answers may differ, as rounding makes it, and by which it is lower.
_EQUAL, _LOWER = 1e-4, 1e-2
# Answers that are drawn, to see whether any is better than one for all.
_DRAWN = 4
_STANDARDISING = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")


def all_alike(traced: TracedPass) -> Finding | None:
    """A loss of several outputs that asks for nothing but that they are equal.

    As of two views without a stopped gradient: the same vector for every output and sample is as
    good as one vector for each sample, and better than what differs. Where batch norm gives
    outputs, which cannot be all alike, two opposite vectors take its place.
    """
    outputs = [] if traced.takes_detached else outputs_behind(traced)
    values = [traced.tensor(made).detach() for made in outputs]
    if len(outputs) < 2 or len({x.shape for x in values}) > 1:
        return None
    if is_a_closed_loop(traced) or judges_what_others_make(traced):
        return None
    samples, *features = values[0].shape
    if len(features) != 1 or min(samples, *features) < 2 or not values[0].is_floating_point():
        return None
    if not all(is_moved_at_will(made, traced) for made in outputs):
        return None  # as of whitened outputs
    drawn = _unit(values[0], 0)
    same = drawn[:1].expand_as(drawn)
    if any(_is_standardised(made, traced) for made in outputs):
        same = same * torch.where(torch.arange(samples) % 2 > 0, -1.0, 1.0)[:, None].to(same)
    loss = _loss([same] * len(outputs), outputs, traced)
    scale = max(abs(traced.graph.loss), abs(loss))
    if not loss < traced.graph.loss - _LOWER * scale:
        return None
    others = [
        [_unit(x, 1 + k * len(values) + n) for n, x in enumerate(values)] for k in range(_DRAWN)
    ]
    opposite = [drawn if n % 2 else -drawn for n in range(len(outputs))]
    own = _loss([drawn] * len(outputs), outputs, traced)
    differing = [_loss(one, outputs, traced) for one in (*others, opposite)]
    if not (abs(loss - own) <= _EQUAL * scale and min(differing) > loss + _LOWER * scale):
        return None
    return Finding(
        "critical",
        "One answer for all inputs is as good as the right ones",
        "The loss compares outputs with each other alone, and asks them to be equal: with a "
        f"vector for each sample it is {wording.number(own)}, with the same one for all samples "
        f"{wording.number(loss)}. Nothing keeps samples apart, and training ends there.",
        "Stop the gradient of the side that is to be predicted, as in "
        "-cosine_similarity(predictor(a), b.detach()), or take it from a copy that follows "
        "slowly; or add what tells samples apart, as the others of the batch, or their variance.",
    )


def _unit(like: Tensor, seed: int) -> Tensor:
    """Vectors of the length of a layer's outputs, one for each sample."""
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    return F.normalize(drawn).to(like) * max(float(like.norm(dim=1).mean()), 1e-6)


def _is_standardised(made: Made, traced: TracedPass) -> bool:
    node = traced.origin_of(made)
    return node is not None and node.name in _STANDARDISING


def _loss(answers: Sequence[Tensor], outputs: Sequence[Made], traced: TracedPass) -> float:
    return loss_with(traced.graph, dict(zip(outputs, answers, strict=True)))
