"""The state before a step of the training, and the sizes of the step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument.compiled import uncompiled_name
from equipoise.instrument.modules import owner_name
from equipoise.instrument.random_states import RandomStates
from equipoise.instrument.replay import dense
from equipoise.instrument.snapshot import ModuleStates, write_values
from equipoise.numerics.vectors import length


class Moment:
    """The state of a model before a step, and the batch of the step.

    Args:
        model: Its parameters, buffers, modes and random states are copied.
        batch: The batch that the model is about to see; not copied.
    """

    def __init__(self, model: nn.Module, batch: Any) -> None:
        self.batch = batch
        self._parameters = tuple(model.parameters())
        self._values = tuple(p.detach().clone() for p in self._parameters)
        self._model, self._modules = model, ModuleStates(model)
        self._random = RandomStates(model)

    @contextmanager
    def revisited(self) -> Iterator[tuple[tuple[nn.Parameter, ...], tuple[Tensor, ...]]]:
        """Inside the block, return the model to this moment.

        Afterwards parameters, buffers and modes are as they were before the block; random states
        stay those of the moment.

        Yields:
            The parameters, and the values that they had before the block.
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
    """Norms that describe one step.

    Args:
        gradient: Norm of the gradient.
        step: Norm of the change of the parameters.
        parameters: Norm of the parameters before the step.
    """

    gradient: float
    step: float
    parameters: float

    @property
    def ratio(self) -> float:
        """Step over parameters; ``nan`` if all parameters are zero."""
        return self.step / self.parameters if self.parameters else math.nan


class StepSizes:
    """Measures the size of a step, layer by layer.

    Args:
        model: The model before the step.
        trained: What the optimizer trains; parameters of the model among them are copied.
    """

    def __init__(self, model: nn.Module, trained: Iterable[Tensor]) -> None:
        self._layers: dict[str, list[tuple[nn.Parameter, Tensor]]] = {}
        steps = {id(parameter) for parameter in trained}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) in steps:
                pair = parameter, parameter.detach().clone()
                self._layers.setdefault(owner_name(model, uncompiled_name(name)), []).append(pair)

    def measure(self) -> tuple[StepSize, dict[str, StepSize]]:
        """Sizes for the whole model and for each layer.

        Call it after the step, before gradients are cleared.
        """
        layers = {name: _size(pairs) for name, pairs in self._layers.items()}
        whole = (
            math.hypot(*(getattr(size, part) for size in layers.values()))
            for part in ("gradient", "step", "parameters")
        )
        return StepSize(*whole), layers


def _size(pairs: Sequence[tuple[nn.Parameter, Tensor]]) -> StepSize:
    gradients = [dense(p.grad, p) for p, _ in pairs if p.grad is not None]
    with torch.no_grad():
        steps = [torch.sub(p, before) for p, before in pairs]
    before = [values for _, values in pairs]
    return StepSize(length(gradients) if gradients else 0.0, length(steps), length(before))
