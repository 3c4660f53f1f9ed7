"""The moment before a step of the training, kept until it is known where the step led."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument.random_states import RandomStates
from equipoise.instrument.snapshot import ModuleStates, write_values
from equipoise.numerics.vectors import norm


class Moment:
    """A model as it is when the object is built, with the batch that it is about to see.

    Args:
        model: Whose parameters and buffers are kept, as copies, and random states.
        batch: Kept too, not as a copy.
    """

    def __init__(self, model: nn.Module, batch: Any) -> None:
        self.batch = batch
        self._parameters = tuple(model.parameters())
        self._values = tuple(p.detach().clone() for p in self._parameters)
        self._model, self._modules = model, ModuleStates(model)
        self._random = RandomStates(model)

    @contextmanager
    def revisited(self) -> Iterator[tuple[tuple[nn.Parameter, ...], tuple[Tensor, ...]]]:
        """Take the model back to the moment, and at the end of the block to where it is now.

        Yields:
            The parameters, and the values that they have now. Random states stay those of the
            moment.
        """
        now = tuple(p.detach().clone() for p in self._parameters)
        modules = ModuleStates(self._model)
        try:
            write_values(self._parameters, self._values)
            self._modules.use_copies()
            self._random.restore()
            yield self._parameters, now
        finally:
            modules.use_originals()
            write_values(self._parameters, now)


@dataclass(frozen=True, slots=True)
class StepSize:
    """Lengths that belong to one step.

    Args:
        gradient: Of the gradient.
        step: Of the difference between the parameters after and before.
        parameters: Of the parameters before.
    """

    gradient: float
    step: float
    parameters: float

    @property
    def ratio(self) -> float:
        """Of step and parameters; ``nan`` if these are all zero."""
        return self.step / self.parameters if self.parameters else math.nan


class StepSizes:
    """The lengths of a step, layer by layer.

    Args:
        model: Before the step; trainable parameters are kept, as copies.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers: dict[str, list[tuple[nn.Parameter, Tensor]]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                pair = parameter, parameter.detach().clone()
                self._layers.setdefault(_layer(name, model), []).append(pair)

    def measured(self) -> tuple[StepSize, dict[str, StepSize]]:
        """Of the whole model and of each layer; after the step, while gradients are there."""
        layers = {name: _size(pairs) for name, pairs in self._layers.items()}
        whole = (
            math.hypot(*(getattr(size, part) for size in layers.values()))
            for part in ("gradient", "step", "parameters")
        )
        return StepSize(*whole), layers


def _size(pairs: Sequence[tuple[nn.Parameter, Tensor]]) -> StepSize:
    gradients = [_dense(p.grad) for p, _ in pairs if p.grad is not None]
    with torch.no_grad():
        steps = [torch.sub(p, before) for p, before in pairs]
    before = [values for _, values in pairs]
    return StepSize(norm(gradients) if gradients else 0.0, norm(steps), norm(before))


def _dense(gradient: Tensor) -> Tensor:
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def _layer(name: str, model: nn.Module) -> str:
    """The layer that a parameter belongs to."""
    path = name.split(".")[:-1]
    if "parametrizations" in path:
        path = path[: path.index("parametrizations")]
    return ".".join(path) or type(model).__name__
