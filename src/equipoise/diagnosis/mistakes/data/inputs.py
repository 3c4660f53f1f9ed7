"""Inputs that most steps of a training go into, before anything is learnt of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.sources import PRODUCTS, kinds_of
from equipoise.instrument.recording.graph import Given, Made
from equipoise.records import wording
from equipoise.records.finding import Finding

# Features whose mean is so many of their standard deviations from zero, or that are so large.
_FAR, _LARGE = 10.0, 30.0
OFF = "Inputs far from mean 0 and standard deviation 1"
# Of images; and rows from which they are hardly channels, as of sensors.
_CHANNELS, _ROWS = (1, 3, 4), 24
# Where an operation has its left factor.
_LEFT = {"addmm": 1, "baddbmm": 1}
# Fewer samples tell little of a spread.
_ENOUGH = 8


def of_inputs(traced: TracedPass) -> list[Finding]:
    """Inputs of the first layers that are constant, or far from mean 0 and standard deviation 1.

    What a norm or a scaling of the model's own gives is judged, and not the batch.
    """
    turned = _channels_last(traced)
    entering = [values.detach().double() for values in _entering(traced)]
    if not entering or not all(bool(values.isfinite().all()) for values in entering):
        return turned
    if all(bool((values == values[:1]).all()) for values in entering):
        return [_CONSTANT]
    largest = max(entering, key=lambda values: values.numel())  # beside it are times, for instance
    return [*turned, *_judged(largest)]


def _channels_last(traced: TracedPass) -> list[Finding]:
    """Square images, whose rows a convolution takes for channels."""
    for node in traced.graph.nodes:
        if node.name != "convolution":
            continue
        source = node.inputs[0]
        given = tuple(traced.tensor(source).shape)
        if len(given) != 4 or given[3] not in _CHANNELS or not given[1] == given[2] >= _ROWS:
            continue
        if traced.shape(node.inputs[1])[-1] == 1:  # the last axis is left alone, on purpose
            continue
        if not traced.depends_on_weights(source) and traced.is_of(source):
            return [
                Finding(
                    "warning",
                    "Images have their channels last",
                    f"A convolution is given {list(given)}, and takes the {given[1]} rows of an "
                    f"image for its channels and the {given[3]} channels for its columns.",
                    "Permute images before: x.permute(0, 3, 1, 2), for a layer of "
                    f"{given[3]} input channels.",
                )
            ]
    return []


def _entering(traced: TracedPass) -> Iterator[Tensor]:
    """What weights are multiplied with first.

    A graph's matrix that mixes what weights have made of the data is none of it.
    """
    for node in traced.graph.nodes:
        if node.name in PRODUCTS:
            with_weights = any(
                "data" not in kinds_of(source, traced.kinds)
                for source in node.inputs
                if traced.depends_on_weights(source)
            )
            # Of a product the left one has samples along its first axis.
            left = node.arguments[_LEFT.get(node.name, 0)]
            entering = with_weights and isinstance(left, Made | Given)
            for source in traced.joined(left) if entering else ():
                values = traced.tensor(source)
                if (
                    not traced.depends_on_weights(source)
                    and values.is_floating_point()
                    and values.layout is torch.strided
                    and values.ndim > 1
                    and len(values) >= _ENOUGH
                    and traced.is_of(source)
                ):
                    yield values


_CONSTANT = Finding(
    "critical",
    "All inputs are equal",
    "No sample of the batch differs from another: nothing can be learnt from them.",
    "Look at how the data are loaded and transformed.",
)


def _judged(values: Tensor) -> list[Finding]:
    mean, spread = float(values.mean()), float(values.std())
    if abs(mean) <= _FAR * spread and max(abs(mean), spread) <= _LARGE:
        return []
    return [
        Finding(
            "warning",
            OFF,
            f"What goes into the first layer has mean {wording.number(mean)} and standard "
            f"deviation {wording.number(spread)}: most steps of a training go into the scale "
            "first.",
            "Standardise the data: subtract each feature's mean and divide by its standard "
            "deviation.",
        )
    ]
