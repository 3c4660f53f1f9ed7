"""Samples that see each other where each should be for itself.

Layers whose first axis is time by default, a softmax or a mean over axis 0, and a reshape that
takes numbers of one sample for those of another, raise no error: the shapes fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.mistakes.samples.relations import holds_pairs
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument.batches import mapped, tensors
from equipoise.instrument.evaluation import TooLongError, evaluate_once, rows_of_samples
from equipoise.instrument.memory import pass_on_lack_of_memory
from equipoise.instrument.normalisers import is_normaliser
from equipoise.numerics.pieces import largest
from equipoise.records import wording
from equipoise.records.finding import Finding

# Fewer have no two halves to speak of.
_FEWEST = 4
# Part of the largest output by which rounding may change others, as where experts get other rows;
# and of float32 alone, where a layer inside of the model has shown more.
_ROUNDING, _FAINT = 1e-3, 1e-5
# Operations that choose, so that rounding may choose otherwise; how far weights are moved to see
# whether it does, and part of the change that this may make where samples change each other.
_CHOOSING = {"topk", "sort", "argmax", "argmin", "gt", "ge", "lt", "le"}
_NUDGE, _OF_CHOICES = 1e-4, 0.1
# As of candidates that are right and such as are hard to tell from them.
_KINDS = (2, 3)


def of_mixing(traced: TracedPass) -> list[Finding]:
    """Outputs for some samples that change with the other samples of the batch.

    In evaluation, where batch norm has fixed statistics and dropout is off, every second sample is
    exchanged. No finding is what cannot be run like that, has tensors of several lengths, as
    graphs have, does not repeat itself, draws other numbers for other data, or mixes samples
    before the model, in its loss; nor where a model chooses, as experts, and rounding alone, which
    is another with other samples, makes it choose otherwise.

    Args:
        traced: The pass on a batch whose first axes are those of samples. Each of up to four
            further passes may take its patience, as decoders may do more in evaluation.
    """
    given = [x for x in tensors(traced.batch) if x.ndim]
    count = _count_of_samples(traced, given)
    if count is None:
        return []
    chooses = any(node.name in _CHOOSING for node in traced.graph.nodes)
    return traced.afterwards(partial(_by_exchange, given, count, chooses))


def _by_exchange(
    given: Sequence[Tensor], count: int, chooses: bool, traced: TracedPass
) -> list[Finding]:
    exchanged = _others_exchanged(traced.batch, count)
    try:
        first = _recorded(traced, traced.batch, count)
        noise = _changes(_recorded(traced, traced.batch, count), first)
        if not noise or max(map(max, noise)) > 0:
            return []
        second = _recorded(traced, exchanged, count)
    except Exception as error:  # one that does not run in evaluation, as without targets
        pass_on_lack_of_memory(error)
        return []
    changes = _changes(first, second)
    if _drew_otherwise(first, second):
        return []
    if not changes or not _output_depends_on_others(traced.model, first, changes):
        return []
    place = next(at for at, change in enumerate(changes) if max(change) > _ROUNDING)
    at, comes_before = first.calls[place], changes[place][0] > _ROUNDING
    by_time = getattr(at.module, "batch_first", None) is False and not comes_before
    if _mixes_by_design(at, by_time=by_time):
        return []
    _, change = changes[-1]
    if chooses and _is_of_choices(traced, first, change, count):
        return []
    finding = _finding(at, change, traced.model, by_time=by_time, comes_before=comes_before)
    # With a target for each step, axis 0 may well be time.
    is_open = by_time and all(x.ndim > 1 for x in given)
    return [replace(finding, severity="note") if is_open else finding]


def _count_of_samples(traced: TracedPass, given: Sequence[Tensor]) -> int | None:
    """How many samples there are; None if they are few, or meant to be compared."""
    lengths = {len(x) for x in given}
    if len(lengths) != 1 or any(x.layout is not torch.strided for x in given):
        return None
    (count,) = lengths
    if count < _FEWEST or _is_list_of_samples(traced.batch):
        return None
    return None if holds_pairs(traced, given, count) else count


def _output_depends_on_others(
    model: nn.Module, first: Pass, changes: Sequence[tuple[float, float]]
) -> bool:
    """Whether the model's output has changed, though its input has not, by more than rounding."""
    last, (before, after) = first.calls[-1], changes[-1]
    if last.module is not model or before > 0:
        return False
    is_exact = all(x.dtype in (torch.float32, torch.float64) for x in last.outputs)
    least = _FAINT if is_exact else _ROUNDING
    return after > least and max(map(max, changes)) > _ROUNDING


def _is_of_choices(traced: TracedPass, first: Pass, change: float, count: int) -> bool:
    """Whether weights that are hardly others make a model that chooses change as much."""
    try:
        nudged = _recorded(traced, traced.batch, count, prepare=_nudge)
    except TooLongError:
        return True
    changes = _changes(first, nudged)
    return not changes or changes[-1][1] > _OF_CHOICES * change


def _nudge(model: nn.Module) -> None:
    for weight in model.parameters():
        if weight.is_floating_point():
            signs = torch.arange(weight.numel(), device=weight.device).sin().view(weight.shape)
            size = max(_NUDGE, 2 * torch.finfo(weight.dtype).eps)  # less would be rounded away
            weight.data = weight.detach() * (1 + size * signs).to(weight.dtype)


def _mixes_by_design(at: Call, *, by_time: bool) -> bool:
    """Whether a module compares samples on purpose, or was given a sequence without samples."""
    is_unbatched = by_time and all(x.ndim < 3 for x in at.inputs)
    return is_unbatched or is_normaliser(at.module) or _observes(at.module)


def _finding(
    at: Call, change: float, model: nn.Module, *, by_time: bool, comes_before: bool
) -> Finding:
    layer = f"{at.name!r} ({type(at.module).__name__})"
    if at.module is model:
        where = "No layer does that by itself, but the model's own operations do"
    elif comes_before:
        where = f"It happens before {layer}"
    else:
        where = f"It happens in {layer}" + (", which takes axis 0 for time" if by_time else "")
    return Finding(
        "warning",
        "What the model gives for a sample depends on the other samples",
        f"In evaluation, with every second sample exchanged, outputs for the others change by "
        f"{wording.percent(change)} of the largest. {where}.",
        "If axis 0 of the batch is that of samples, pass batch_first=True, or swap the axes "
        "before it. If it is time, the model is right; with batches of (samples, time) the "
        "check-up could count samples."
        if by_time
        else "Look for a softmax, mean, or attention over axis 0, or a reshape that joins "
        "samples. Graphs and models that compare the samples of a batch are meant to; where axis "
        "0 is time, give batches whose axis 0 is that of samples.",
    )


def _observes(module: nn.Module) -> bool:
    """Whether it measures the range of a batch, as where rounding is trained."""
    return type(module).__module__.startswith("torch.ao.quantization")


def _is_list_of_samples(batch: Any) -> bool:
    """Whether a part of the batch is a list, as where a collate function leaves samples apart."""
    parts = batch.values() if isinstance(batch, Mapping) else batch
    return isinstance(batch, Mapping | tuple | list) and any(
        isinstance(part, tuple | list) for part in parts
    )


def _others_exchanged(batch: Any, count: int) -> Any:
    """The same batch with each second sample replaced by the one before it."""
    kept = torch.arange(count) // 2 * 2

    def change(x: Tensor) -> Tensor:
        return x[kept.to(x.device)] if x.ndim else x

    return mapped(change, batch)


@dataclass(frozen=True, slots=True)
class Call:
    """What a module was given and gave for one sample that stays; the model, for all of them.

    The one is in the middle, as recurrent layers see what comes before or after.
    """

    name: str
    module: nn.Module
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Pass:
    """All calls, in the order in which they end, and the random state that they leave.

    Calls that give no sample's rows are left out.
    """

    calls: Sequence[Call]
    states: tuple[Tensor, ...]


def _recorded(
    traced: TracedPass,
    batch: Any,
    count: int,
    prepare: Callable[[nn.Module], None] = lambda model: None,
) -> Pass:
    found: list[Call] = []
    middle = count // 4 * 2

    def look(name: str, module: nn.Module, given: Any, output: Any) -> None:
        chosen = slice(middle, middle + 1) if name else slice(0, None, 2)

        def rows(values: Any, *, whole: bool = False) -> list[Tensor]:
            found = rows_of_samples(values, count, whole=whole)
            return [x[chosen].detach().clone() for x in found]

        outputs = rows(output)
        if not name:  # a table of all pairs is meant to depend on others
            outputs = [x for x in outputs if not _are_pairs(x, count)]
        if outputs:
            found.append(Call(name, module, rows(given, whole=True), outputs))

    states = evaluate_once(
        traced.model, traced.loss_fn, batch, look, patience=traced.patience, prepare=prepare
    )
    return Pass(found, states)


def _are_pairs(x: Tensor, count: int) -> bool:
    """Whether it compares samples with all samples, or with those of several kinds."""
    if x.ndim == 2:
        return x.shape[1] in (count, *(kinds * count for kinds in _KINDS))
    return x.ndim > 2 and x.shape[1] == count


def _drew_otherwise(first: Pass, second: Pass) -> bool:
    """Whether how many random numbers are drawn depends on the data."""
    pairs = zip(first.states, second.states, strict=True)
    return not all(torch.equal(one, other) for one, other in pairs)


def _changes(first: Pass, second: Pass) -> list[tuple[float, float]]:
    """Of each call; none if the calls are others."""
    if [one.name for one in first.calls] != [one.name for one in second.calls]:
        return []
    return list(map(_change, first.calls, second.calls))


def _change(before: Call, after: Call) -> tuple[float, float]:
    """Of inputs and outputs; 0 where they are others."""
    return (
        max(map(_difference, before.inputs, after.inputs), default=0.0),
        max(map(_difference, before.outputs, after.outputs), default=0.0),
    )


def _difference(before: Tensor, after: Tensor) -> float:
    """The largest change over the largest number; 0 where either is not finite."""
    if before.shape != after.shape or not before.numel():
        return 0.0
    size, change = largest(before), largest(after - before)
    return change / size if size > 0 and math.isfinite(change) else 0.0
