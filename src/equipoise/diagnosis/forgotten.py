"""Models whose output is the same for every sample, also with other biases.

A token that sees only those of other samples, a mean over what was normalised over the same axis:
the loss falls to that of guessing, and stays there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument import LossFunction
from equipoise.instrument.batches import tensors
from equipoise.instrument.evaluation import evaluate_once, rows_of_samples
from equipoise.instrument.memory import pass_on_lack_of_memory
from equipoise.instrument.normalisers import shares_batch_statistics
from equipoise.numerics.pieces import largest
from equipoise.records import wording
from equipoise.records.finding import Finding

_FEWEST = 4
# Of the largest output: what rounding leaves of differences, and what a layer loses at one go;
# where they fade from layer to layer, theory tells how fast, and other weights may keep them.
_ROUNDING, _AT_ONCE = 1e-6, 1e-3
# Spread of biases, and of what starts at zero, while outputs are compared.
_DRAWN = 0.1


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What becomes of the input on its way.

    Args:
        samples: How many different ones all gave the same output; 0 if they did not.
        last: The last module whose output differs from sample to sample; empty if none does.
        first: The next one to run, whose output does not; empty if there is none.
        by_time: Whether a module of the model takes axis 0 for time.
    """

    samples: int = 0
    last: str = ""
    first: str = ""
    by_time: bool = False

    def __bool__(self) -> bool:
        return self.samples > 0

    sentence = "Will not train: its output does not depend on the input"

    @property
    def words(self) -> str:
        """What is so, in a clause."""
        if not self.last:
            return "no layer gives anything that differs from sample to sample"
        where = f"{self.last} is the last layer that gives what differs from sample to sample"
        return f"{where}, and {self.first} gives the same for all" if self.first else where


def forgotten(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    patience: float = 3.0,
    has_functions: bool = False,
) -> Forgotten:
    """Find an output that does not depend on the input.

    Dropout is off, and batch norms average over the batch. Biases, and whatever starts at zero as
    the last layer of a branch may, are drawn at random for one pass: it is the architecture that
    is judged, and not how it starts. What cannot be run like that is not judged, nor are tensors
    of several lengths, outputs of fewer digits than float32, outputs that are all zero, as behind
    a ReLU that the biases silence, layers whose own weights are small, and models with autograd
    functions of their own: neurons that never spike have gradients by surrogates, and will.

    Args:
        model: Left bit for bit as it is.
        loss_fn: Runs it on a batch.
        batch: Whose first axes are those of samples.
        patience: Seconds that the pass may take.
        has_functions: Whether a traced pass has shown autograd functions of its own.
    """
    if has_functions:
        return Forgotten()
    given = [x for x in tensors(batch) if x.ndim]
    count = len(given[0]) if given else 0
    if count < _FEWEST or any(len(x) != count for x in given):
        return Forgotten()
    try:
        calls = _recorded(model, loss_fn, batch, count, patience)
    except Exception as error:  # one that does not run in evaluation, as without targets
        pass_on_lack_of_memory(error)
        return Forgotten()
    outputs = [call for call in calls if call.module is model]
    if not outputs or any(call.given.differs or call.is_coarse for call in outputs):
        return Forgotten()
    inner = [call for call in calls if call.module is not model]
    place = max((i for i, call in enumerate(inner) if call.given.differs), default=-1)
    last = inner[place] if place >= 0 else None
    after = inner[place + 1] if place < len(inner) - 1 else None
    before = _spread(given[:1], count) if last is None else last.given
    if _may_be_of_the_draw(before, after, outputs):
        return Forgotten()
    return Forgotten(
        count,
        "" if last is None else last.title,
        "" if last is None or after is None else after.title,
        any(getattr(module, "batch_first", None) is False for module in model.modules()),
    )


def _recorded(
    model: nn.Module, loss_fn: LossFunction, batch: Any, count: int, patience: float
) -> list[_Call]:
    """All calls that give rows of samples, of one pass in evaluation with biases drawn anew."""
    calls: list[_Call] = []

    def look(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        outputs = rows_of_samples(output, count)
        if outputs and outputs[0].numel():
            is_coarse = any(x.dtype not in (torch.float32, torch.float64) for x in outputs)
            took = _spread(rows_of_samples(arguments, count), count)
            calls.append(_Call(name, module, took, _spread(outputs, count), is_coarse))

    evaluate_once(model, loss_fn, batch, look, patience=patience, prepare=_prepare)
    return calls


def _may_be_of_the_draw(before: _Spread, after: _Call | None, outputs: Sequence[_Call]) -> bool:
    """Whether it may be the numbers drawn, and not the architecture, that hide the input.

    Args:
        before: What differs last.
        after: The module behind it, if there is one.
        outputs: Calls of the model.
    """
    if before.gap < _AT_ONCE * max(before.size, *(call.given.size for call in outputs)):
        return True  # biases alone would hide it
    if any(call.given.size == 0 for call in (*outputs, *([after] if after else []))):
        return True  # a ReLU that these biases silence
    # Small weights, which training makes larger.
    return after is not None and after.took.gap > _ROUNDING * before.gap and after.has_weights


def conclude_forgotten(found: Forgotten) -> list[Finding]:
    """The finding about an output that does not depend on the input."""
    if not found:
        return []
    return [
        Finding(
            "critical",
            "The output does not depend on the input",
            f"{found.samples} different samples get equal outputs, even with biases, and what "
            "starts at zero, drawn at random: the model can learn only what all targets have in "
            f"common. {wording.capital(found.words)}.",
            ("Pass batch_first=True where axis 0 is that of samples. " if found.by_time else "")
            + "Look for a mean or sum over what was normalised over the same axis, a softmax over "
            "one number, an input that is not used, or a token that no other token reaches.",
        )
    ]


@dataclass(frozen=True, slots=True)
class _Spread:
    """The largest difference of two rows of tensors, and the largest number there."""

    gap: float
    size: float

    @property
    def differs(self) -> bool:
        """By more than rounding."""
        return self.gap > _ROUNDING * self.size


@dataclass(frozen=True, slots=True)
class _Call:
    """How far what a module took and gave differs from sample to sample.

    Args:
        name: Of the module.
        module: The module.
        took: Of its inputs.
        given: Of its outputs.
        is_coarse: Whether its outputs have fewer digits than float32.
    """

    name: str
    module: nn.Module
    took: _Spread
    given: _Spread
    is_coarse: bool

    @property
    def title(self) -> str:
        """The module's name and class."""
        return f"{self.name!r} ({type(self.module).__name__})"

    @property
    def has_weights(self) -> bool:
        """Whether it multiplies with a matrix of its own."""
        return any(p is not None and p.ndim > 1 for p in self.module._parameters.values())


def _prepare(model: nn.Module) -> None:
    """Let batch norms average over the batch, and draw biases and what starts at zero."""
    for module in model.modules():
        if shares_batch_statistics(module):
            module.train()
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point() or not parameter.numel():
            continue
        if "bias" in name.rpartition(".")[2] or not bool(parameter.detach().any()):
            parameter.normal_(0.0, _DRAWN)


def _spread(values: Sequence[Tensor], count: int) -> _Spread:
    """Of the tensor that differs most; numbers that are not finite differ."""
    found = _Spread(0.0, 0.0)
    for x in values:
        rows = x.detach().reshape(count, -1)
        if not rows.numel():
            continue
        rows = rows if rows.is_floating_point() else rows.float()
        gap, size = largest(rows - rows[:1]), largest(rows)
        if not math.isfinite(gap):
            return _Spread(1.0, 1.0)
        if gap * found.size >= found.gap * size:
            found = _Spread(gap, size)
    return found
