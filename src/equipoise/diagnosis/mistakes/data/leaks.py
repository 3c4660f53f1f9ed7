"""Inputs that hold the very numbers that are to be predicted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.repeated import with_other_data
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.sources import ARRANGING, is_same
from equipoise.instrument.batches import fields, mapped, tensors
from equipoise.instrument.recording.graph import Given, Made, Node
from equipoise.records.finding import Finding

# Of fewer samples, or of targets that tell less, a column may be equal by chance.
_SAMPLES, _BITS = 8, 24.0
# Part of the largest output by which rounding may change others.
_ROUNDING = 1e-4
# Operations that give a part of a tensor, or arrange it.
_PARTS = {*ARRANGING, "split", "split_with_sizes", "unbind", "narrow", "chunk", "index"}


def of_leaks(traced: TracedPass) -> list[Finding]:
    """Targets that are some of the columns, or the last steps, of what the model is given.

    As a future that a decoder is given in the place of zeros, or a label among the features,
    standardised or not. The numbers are taken from other samples, and the outputs that are
    compared with these targets have to change. Nothing is said where targets are all of an input,
    as of an autoencoder, all but one step of it, as where the next one is predicted, steps that
    are to be remembered, as they are not the last, or columns that outputs repeat beside all
    others, as of an autoencoder with a loss of its own for each kind of column.

    Args:
        traced: The pass on a batch whose first axes are those of samples, and the second those of
            columns or steps. It is traced twice more, if there are such targets.
    """
    for place, x in enumerate(tensors(traced.batch)):
        if x.ndim < 2 or not x.is_floating_point() or x.layout is not torch.strided:
            continue
        for output, source in traced.compared:
            target = traced.tensor(source).detach()
            found = _place(x, target) if _tells_apart(target) else None
            if found is None or _is_meant(x, found, output, source, traced):
                continue
            if _is_used(x, found, output, traced):
                return [_finding(_name(traced.batch, place), found)]
    return []


def _finding(name: str, place: slice) -> Finding:
    one = place.stop - place.start == 1
    where = (
        f"column {place.start}" if one else f"columns or steps {place.start} to {place.stop - 1}"
    )
    return Finding(
        "warning",
        "An input holds the targets",
        f"In {name}, {where} (counted from 0) {'is' if one else 'are'} the targets, sample by "
        "sample, and outputs change with them: the model can copy what it will not be given in "
        "use.",
        "Take them out of the input; give a decoder zeros, or the steps before, in their place.",
    )


def _tells_apart(target: Tensor) -> bool:
    """Whether targets are so many and so different that no column has them by chance."""
    samples = len(target) if target.ndim else 0
    if samples < _SAMPLES:
        return False
    _, counts = torch.unique(target, return_counts=True)
    shares = counts.double() / counts.sum()
    return float(-(shares * shares.log2()).sum()) * samples >= _BITS


def _place(x: Tensor, target: Tensor) -> slice | None:
    """Where in its second axis an input of [samples, columns, …] has the targets."""
    if len(x) != len(target) or not x.numel():
        return None
    samples, length, *rest = x.shape
    if not rest and target.numel() == samples:
        return _column(x, target.reshape(-1))
    columns, left = divmod(target.numel() * length, x.numel())
    if x.dtype != target.dtype or left or not 1 < columns < length - 1:
        return None
    if list(target.shape[1:]) != [columns, *rest]:
        return None
    last = length - columns
    for start in range(last if len(rest) == 1 else 0, last + 1):  # of steps, the last alone
        if torch.equal(x[0, start], target[0, 0]) and torch.equal(
            x[:, start : start + columns], target
        ):
            return slice(start, start + columns)
    return None


def _column(x: Tensor, target: Tensor) -> slice | None:
    """A column that is the targets, or is these standardised."""
    columns, wanted = (one.detach().double() - one.double().mean(0) for one in (x, target))
    norms = columns.norm(dim=0) * wanted.norm()
    cosines = (columns * wanted[:, None]).sum(0) / norms.clamp(min=1e-300)
    (found,) = torch.nonzero(cosines.abs() > 1 - _ROUNDING**2, as_tuple=True)
    return slice(int(found[0]), int(found[0]) + 1) if len(found) and x.shape[1] > 1 else None


def _is_meant(
    x: Tensor, place: slice, output: Made, target: Made | Given, traced: TracedPass
) -> bool:
    """Whether columns of rows are steps to the model, or are reconstructed beside others."""
    if x.ndim != 2:
        return False
    if place.stop - place.start > 1 and any(
        is_same(x, whole) for whole in _wholes(target, traced)
    ):
        return True  # the loss itself takes them from the input
    is_repeated = any(whole.shape == x.shape for whole in _wholes(output, traced))
    return is_repeated or any(_makes_steps(node, x) for node in traced.graph.nodes)


def _wholes(source: Made | Given, traced: TracedPass) -> Iterator[Tensor]:
    """A tensor, and those of which it is a part."""
    while True:
        yield traced.tensor(source)
        node = traced.nodes[source.node] if isinstance(source, Made) else None
        if node is None or node.name not in _PARTS:
            return
        source = node.inputs[0]


def _makes_steps(node: Node, x: Tensor) -> bool:
    """Whether an operation gives rows an axis of one feature, so that their columns are steps."""
    is_given = any(isinstance(one, Given) and is_same(x, one.value) for one in node.inputs)
    return is_given and node.outputs[0].ndim > x.ndim and node.outputs[0].numel() == x.numel()


def _is_used(x: Tensor, place: slice, output: Made, traced: TracedPass) -> bool:
    """Whether an output changes if these columns are those of other samples."""
    other = x.clone()
    other[:, place] = x[:, place].roll(1, 0)

    exchanged = mapped(lambda value: other if value is x else value, traced.batch)
    passes = with_other_data(traced, exchanged)
    if passes is None:
        return False  # what runs depends on the numbers, or is drawn
    first, second = (one.nodes[output.node].outputs[output.index].detach() for one in passes)
    return first.numel() > 0 and float((first - second).abs().max()) > _ROUNDING * float(
        first.abs().max()
    )


def _name(batch: Any, place: int) -> str:
    named = fields(batch)
    if named is None:
        return f"batch[{place}]"
    names = [name for name, value in named.items() if isinstance(value, Tensor)]
    return repr(names[place]) if place < len(names) else "an input"
