"""Inputs that hold the very numbers that are to be predicted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument.batches import fields, mapped, tensors
from equipoise.instrument.evaluation import evaluate_once, rows_of_samples
from equipoise.records.finding import Finding

# Of fewer samples, or of targets that tell less, a column may be equal by chance.
_SAMPLES, _BITS = 8, 24.0
# Part of the largest output by which rounding may change others.
_ROUNDING = 1e-4


def of_leaks(traced: TracedPass) -> list[Finding]:
    """Targets that are some of the columns, or some of the steps, of what the model is given.

    As a future that a decoder is given in the place of zeros, or a label among the features,
    standardised or not. The numbers are taken from other samples, in evaluation, and outputs have
    to change. Nothing is said where targets are all of an input, as of an autoencoder, all but one
    step of it, as where the next one is predicted, or a single step that is to be remembered.

    Args:
        traced: The pass on a batch whose first axes are those of samples, and the second those of
            columns or steps. Each of two further passes may take its patience.
    """
    targets = [target for target in traced.targets if _tells_apart(target)]
    for place, x in enumerate(tensors(traced.batch)):
        if x.ndim < 2 or not x.is_floating_point() or x.layout is not torch.strided:
            continue
        for target in targets:
            found = _place(x, target)
            if found is not None and _is_used(x, found, traced):
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
        "sample, and outputs change with them: the model can copy what is not known in use.",
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
    for start in range(length - columns + 1):
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


def _is_used(x: Tensor, place: slice, traced: TracedPass) -> bool:
    """Whether outputs change if these columns are those of other samples."""
    other = x.clone()
    other[:, place] = x[:, place].roll(1, 0)

    def outputs(batch: Any) -> list[Tensor]:
        found: list[Tensor] = []

        def look(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
            if module is traced.model:
                found.extend(one.detach().clone() for one in rows_of_samples(output, len(x)))

        evaluate_once(traced.model, traced.loss_fn, batch, look, patience=traced.patience)
        return found

    try:
        first = outputs(traced.batch)
        second = outputs(mapped(lambda one: other if one is x else one, traced.batch))
    except Exception:  # a model that does not run in evaluation
        return False
    return any(
        one.shape == two.shape
        and one.is_floating_point()
        and float((one - two).abs().max()) > _ROUNDING * float(one.abs().max())
        for one, two in zip(first, second, strict=False)
        if one.numel()
    )


def _name(batch: Any, place: int) -> str:
    named = fields(batch)
    if named is None:
        return f"batch[{place}]"
    names = [name for name, value in named.items() if isinstance(value, Tensor)]
    return repr(names[place]) if place < len(names) else "an input"
