"""Leave a model, its gradients and every random state exactly as they were found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.instrument.compiled import eager
from equipoise.instrument.observers import observers_paused
from equipoise.instrument.random_states import RandomStates


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore a model bit for bit on leaving the block, whatever happened in it.

    Restored are parameters and buffers (values and identity), gradients, ``requires_grad``,
    training modes, and all :class:`RandomStates` of the model.

    Raises:
        ValueError: If the model has lazy parameters that no batch has shaped yet.

    Examples:
        >>> layer = nn.BatchNorm1d(2)
        >>> with untouched(layer):
        ...     _ = layer(torch.randn(8, 2))
        >>> layer.running_mean
        tensor([0., 0.])
    """
    saved = [_ModuleState.of(module) for module in model.modules()]
    gradients = [
        (p, p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()
    ]
    random_states = RandomStates(model)
    try:
        with eager(model), observers_paused(model):
            yield
    finally:
        random_states.restore()
        with torch.no_grad():
            for state in saved:
                state.restore()
            for parameter, gradient, values in gradients:
                parameter.grad = gradient
                if gradient is not None and values is not None:
                    gradient.data.copy_(values)


@dataclass(frozen=True, slots=True)
class _ModuleState:
    module: nn.Module
    training: bool
    parameters: dict[str, tuple[nn.Parameter, Tensor, bool] | None]
    buffers: dict[str, tuple[Tensor, Tensor] | None]

    @classmethod
    def of(cls, module: nn.Module) -> _ModuleState:
        if any(isinstance(p, nn.UninitializedParameter) for p in module._parameters.values()):
            raise ValueError(
                f"{type(module).__name__} has lazy parameters without a shape. Run one batch "
                "through the model first."
            )
        return cls(
            module,
            module.training,
            {
                name: None if p is None else (p, p.detach().clone(), p.requires_grad)
                for name, p in module._parameters.items()
            },
            {
                name: None if b is None else (b, b.detach().clone())
                for name, b in module._buffers.items()
            },
        )

    def restore(self) -> None:
        self.module.training = self.training
        for added in self.module._parameters.keys() - self.parameters.keys():
            del self.module._parameters[added]
        for added in self.module._buffers.keys() - self.buffers.keys():
            del self.module._buffers[added]
        for name, saved in self.parameters.items():
            if saved is not None:
                parameter, values, requires_grad = saved
                parameter.requires_grad_(requires_grad)
                parameter.data.copy_(values)  # no new version: a pending backward stays valid
                self.module._parameters[name] = parameter
        for name, state in self.buffers.items():
            self.module._buffers[name] = None
            if state is not None:
                buffer, values = state
                buffer.data.copy_(values)
                self.module._buffers[name] = buffer
