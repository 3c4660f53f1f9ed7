"""Losses that reward errors or punish right answers, or that no answer makes least."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.losses.alike import all_alike
from equipoise.diagnosis.mistakes.losses.answers import right_answers
from equipoise.diagnosis.mistakes.losses.gains import weighed_by_gains
from equipoise.diagnosis.mistakes.losses.metrics import metric_as_loss
from equipoise.diagnosis.mistakes.losses.nothing import compared_with_nothing
from equipoise.diagnosis.mistakes.losses.unbounded import falls_without_bound
from equipoise.diagnosis.mistakes.traced_pass import TracedPass, one_sign
from equipoise.diagnosis.sources import LIKELIHOODS, either_way
from equipoise.instrument.recording.graph import Node
from equipoise.numerics.pieces import deviation, largest, pieces, sums
from equipoise.records import wording
from equipoise.records.finding import Finding

# Operations that give an error of outputs to targets.
_ERRORS = {*LIKELIHOODS, "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"}
_ERRORS |= {"binary_cross_entropy_with_logits"}
# What picks, or weighs by targets, logarithms of probabilities.
_PICKING = {"gather", "index", "mul"}
# By how much a loss may count samples differently, as rounding does: rewards weigh them, too.
_EQUAL = 1e-3
# Fewer differences may all point one way by chance.
_ENOUGH, _FEW = 8, 2


def of_aims(traced: TracedPass) -> list[Finding]:
    """Errors that a loss rewards, and outputs that it compares with nothing or makes all alike."""
    for look in (
        _rewarded_errors,
        right_answers,
        metric_as_loss,
        compared_with_nothing,
        all_alike,
        falls_without_bound,
    ):
        one = look(traced)
        if one is not None:
            return [one]
    return []


def _rewarded_errors(traced: TracedPass) -> Finding | None:
    """A loss that falls where outputs go away from the targets, in all of its comparisons.

    Adversaries' losses are the negative of one comparison beside another, and rewards weigh
    likelihoods by numbers that differ from sample to sample.
    """
    if traced.loss_is_assumed:
        return None
    signs, compared = dict[str, float](), list[Node]()
    for node in traced.after_layers:
        sign = _sign_of_error(node, traced)
        if sign is None:
            continue
        if sign >= 0:
            return None
        signs[node.name] = sign
        compared.append(node)
    if not signs or weighed_by_gains(compared, traced):
        return None
    words = ["their difference" if name == "sub" else name.strip("_") for name in signs]
    names = wording.listed(words, 3)
    return Finding(
        "critical",
        "The loss has its sign turned",
        f"It falls where outputs go away from the targets (by {names}): training makes the "
        "error as large as it can.",
        "Take the minus away, or put one before a likelihood, unless an adversary is to be "
        "misled.",
    )


def _sign_of_error(node: Node, traced: TracedPass) -> float | None:
    """1 if the loss grows with an error, -1 if it falls, 0 for mixed; None of no comparison."""
    gradient = node.gradients[0] if node.gradients else None
    if gradient is None or not gradient.numel() or len(node.inputs) < 2:
        return None
    first, second = node.inputs[:2]
    if node.name in _ERRORS:
        if not traced.depends_on_weights(first) and not traced.depends_on_weights(second):
            return None
        if not any(traced.is_of_data_alone(one) for one in (first, second)):
            return None
        return _common_sign(gradient)
    if node.name == "sub":
        for output, target in either_way(node):
            if traced.depends_on_weights(output) and traced.is_of_data_alone(target):
                return _sign_of_distance(node.outputs[0].detach(), gradient)
        return None
    if node.name not in _PICKING:
        return None
    for output in (first, second):
        origin = traced.origin_of(output)
        others = [one for one in node.inputs if one is not output]
        targets = [one for one in others if traced.is_of_data_alone(one)]
        if origin is None or origin.name != "_log_softmax" or not targets:
            continue
        if not any(bool((traced.tensor(target) < 0).any()) for target in targets):
            return -_common_sign(gradient)
    return None


def _sign_of_distance(difference: Tensor, gradient: Tensor) -> float | None:
    """Whether a loss grows or falls with the size of a difference; None if with neither.

    A loss that falls with all of them, whatever their sign, is that of a gain less a cost.
    """
    x, slope = difference, gradient
    if x.numel() < _ENOUGH or not bool(torch.isfinite(x).all() & torch.isfinite(slope).all()):
        return None
    both = min(int((x > 0).count_nonzero()), int((x < 0).count_nonzero())) >= _FEW
    if not both:
        square, product, length = sums(lambda x, g: [x @ x, g @ x, g @ g], x, slope)
        factor = product / square if square > 0 else 1.0
        rest = sums(lambda x, g: [(g - factor * x).square().sum()], x, slope)[0]
        is_squared = math.sqrt(rest) <= _EQUAL * math.sqrt(length)
        if not (is_squared and deviation(x) > _EQUAL * largest(x)):
            return None
    ends = [torch.stack(torch.aminmax(x * g)) for x, g in pieces(x, slope)]
    return one_sign(torch.cat(ends)) or None


def _common_sign(gradient: Tensor) -> float:
    """The sign of numbers that are equal where they are not zero; 0 of others."""
    values = gradient.detach().flatten()
    values = values[values != 0]
    if not len(values):
        return 0.0
    low, high = float(values.min()), float(values.max())
    return one_sign(values) if high - low <= _EQUAL * max(abs(low), abs(high)) else 0.0
