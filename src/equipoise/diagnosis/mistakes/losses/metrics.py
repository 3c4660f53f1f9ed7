"""Measures of how good an answer is, taken for losses as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from equipoise.diagnosis.mistakes.losses.answers import taken_behind
from equipoise.diagnosis.mistakes.repeated import loss_with
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.sources import either_way
from equipoise.instrument.recording.graph import Made
from equipoise.records import wording
from equipoise.records.finding import Finding

# Of fewer samples, others' targets tell little.
_SAMPLES = 4
# Parts of its own target that an answer holds, beside that of another sample; at 1 a ratio of
# signal to error has no end.
_PARTS = (0.0, 0.5, 0.9)
_LOGARITHMS = ("_log_softmax", "log", "log_sigmoid_forward")
# What probabilities are at least, where their logarithm is taken.
_LEAST = 1e-4
# Part of a loss by which it has to rise.
_RISE = 1e-3


def metric_as_loss(traced: TracedPass) -> Finding | None:
    """A loss that grows as outputs near their targets, such as an overlap or a correlation.

    Where outputs meet targets, they are replaced by mixtures of these and of those of other
    samples, and the operations behind them are repeated; where outputs are logarithms of
    probabilities, these take the place of their logarithms. Nothing is said where the loss takes
    more of the batch than one tensor, or what the model is given, and where outputs are to be
    minus the targets, as forces beside a gradient.

    Args:
        traced: The pass on a batch whose first axes are those of samples.
    """
    if traced.loss_is_assumed:
        return None
    taken = taken_behind(traced.last_layers, traced)
    if taken is None or len(taken) != 1:
        return None
    met = _meeting(traced)
    if met is None:
        return None
    output, target = met
    if len(target) < _SAMPLES or not target.is_floating_point():
        return None
    other = target.roll(len(target) // 2, 0)  # of rows of pixels, those of another sample
    answers = [part * target + (1 - part) * other for part in _PARTS]
    logarithm = _logarithm_behind(output, traced)
    if logarithm is not None:
        # Of probabilities, or minus them: no logarithm is to be that itself.
        output = logarithm
        answers = [answer.abs().clamp(min=_LEAST).log() for answer in answers]
    losses = _losses(traced, output, answers)
    if losses is None or not all(map(_rises, losses, losses[1:])):
        return None
    if logarithm is None and _is_to_be_turned(traced, output, answers[-1]):
        return None
    return Finding(
        "critical",
        "The loss grows as outputs near their targets",
        "With outputs that are the targets of other samples, halfway to their own, and nine "
        f"tenths of the way, it is {wording.listed([*map(wording.number, losses)], 3)}: training "
        "goes away from the targets.",
        "Put a minus before what measures how good an answer is, as -si_snr(output, target), or "
        "take 1 - dice(output, target).",
    )


def _meeting(traced: TracedPass) -> tuple[Made, Tensor] | None:
    """The first outputs that an operation takes beside targets of their shape, and these."""
    inputs = [
        one.value
        for layer in traced.last_layers
        for one in traced.given_of(Made(layer.number, 0))
        if one.kind == "data"
    ]
    for node in traced.after_layers:
        for output, target in either_way(node):
            if not isinstance(output, Made) or not traced.depends_on_weights(output):
                continue
            values = traced.tensor(target).detach()
            if values.shape != traced.shape(output):
                continue
            if traced.is_of_data_alone(target):
                roots = [one.value for one in traced.given_of(target)]
                is_given = any(root is known for root in roots for known in inputs)
                return None if is_given or not values.ndim else (output, values)
    return None


def _logarithm_behind(output: Made, traced: TracedPass) -> Made | None:
    """The logarithm that gives an output, but for its sign and the order of its axes."""
    node = traced.origin_of(output)
    while node is not None and node.name == "neg":
        node = traced.origin_of_input(node)
    if node is None or node.name not in _LOGARITHMS:
        return None
    made = Made(node.number, 0)
    return made if traced.shape(made) == traced.shape(output) else None


def _losses(traced: TracedPass, output: Made, answers: Sequence[Tensor]) -> list[float] | None:
    like = traced.tensor(output)
    found = [loss_with(traced.graph, {output: answer.to(like.dtype)}) for answer in answers]
    return found if all(map(math.isfinite, found)) else None


def _rises(loss: float, following: float) -> bool:
    return following - loss > _RISE * max(abs(loss), abs(following))


def _is_to_be_turned(traced: TracedPass, output: Made, answer: Tensor) -> bool:
    """Whether the loss is least where outputs, which have both signs, are minus right answers."""
    if not bool((traced.tensor(output) < 0).any()):
        return False
    losses = _losses(traced, output, [-part * answer for part in (0.5, 1.0, 2.0)])
    if losses is None:
        return True
    less, least, more = losses
    return _rises(least, less) and _rises(least, more)
