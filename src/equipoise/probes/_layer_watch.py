"""Hooks that note what passes each layer, and ask autograd for the gradients afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from equipoise.instrument import modules, normalisers

# A lone normaliser, such as one before the head, would hide every other layer.
_FEW = 3


@dataclass(frozen=True, slots=True)
class Visit:
    """One layer in one pass."""

    layer: str
    kind: str
    rows: int
    features: int
    gradient: float
    weight_gradient: float | None
    second_moment: float
    correlation: float


@dataclass(frozen=True, slots=True)
class _Passing:
    """What a hook kept: graph edges, not activations, so in-place changes do no harm."""

    layer: str
    kind: str
    rows: int
    features: int
    edge: GradientEdge
    weight: Tensor | None
    second_moment: Tensor
    correlation: Tensor


class LayerWatch:
    """A context manager that watches one forward pass.

    Normalisers are watched at their input. In a model that runs none, or one or two among many
    parametrised layers, those are watched at their output.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[RemovableHandle] = []
        self._at_normalisers: list[_Passing] = []
        self._at_weights: list[_Passing] = []
        self._last_output: tuple[Any, int, Tensor | None] = (None, 0, None)
        self._calls: dict[str, int] = {}

    def __enter__(self) -> LayerWatch:
        for module, name in modules.names(self._model).items():
            if normalisers.is_normaliser(module):
                hook = self._before_normaliser(name, module)
                self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            elif modules.is_parametrised(module):
                after = self._after_weights(name, module)
                self._handles.append(module.register_forward_hook(after))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def collect(self, loss: Tensor) -> list[Visit]:
        """Differentiate the loss and return the layers it depends on, in order of execution."""
        self._remove()  # checkpointed layers run again during the backward pass
        passings = self._at_normalisers or self._at_weights
        if len(passings) < _FEW and len(self._at_weights) > 2 * len(passings) + 1:
            passings = self._at_weights
        weights = list({id(p.weight): p.weight for p in passings if p.weight is not None}.values())
        inputs: list[Any] = [*(p.edge for p in passings), *weights]
        if not inputs or not loss.requires_grad:
            return []
        found = torch.autograd.grad(loss, inputs, allow_unused=True)
        edges, at_weights = found[: len(passings)], found[len(passings) :]
        norms = {id(w): g for w, g in zip(weights, at_weights, strict=True) if g is not None}
        return [
            Visit(
                layer=p.layer,
                kind=p.kind,
                rows=p.rows,
                features=p.features,
                gradient=_square_norm(gradient),
                weight_gradient=_square_norm(norms[id(p.weight)])
                if id(p.weight) in norms
                else None,
                second_moment=float(p.second_moment),
                correlation=float(p.correlation),
            )
            for p, gradient in zip(passings, edges, strict=True)
            if gradient is not None
        ]

    def _before_normaliser(self, name: str, module: nn.Module) -> Any:
        channels_first = normalisers.is_channels_first(module)

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            h = modules.first_tensor(args, kwargs)
            if h is not None and h.requires_grad:
                output, version, weight = self._last_output
                made_here = weight if output is h and version == h._version else None
                self._at_normalisers.append(
                    self._passing(name, module, h, made_here, channels_first)
                )

        return hook

    def _after_weights(self, name: str, module: nn.Module) -> Any:
        channels_first = isinstance(module, nn.modules.conv._ConvNd)

        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor) and output.requires_grad:
                weight = module._parameters.get("weight")
                self._last_output = (output, output._version, weight)
                self._at_weights.append(
                    self._passing(name, module, output, weight, channels_first)
                )

        return hook

    def _passing(
        self, name: str, module: nn.Module, h: Tensor, weight: Tensor | None, channels_first: bool
    ) -> _Passing:
        call = self._calls[name] = self._calls.get(name, 0) + 1
        rows, second_moment, correlation = _moments(h.detach(), channels_first)
        return _Passing(
            layer=name if call == 1 else f"{name} (call {call})",
            kind=type(module).__name__,
            rows=rows,
            features=h.numel() // max(rows, 1),
            edge=get_gradient_edge(h),
            weight=weight,
            second_moment=second_moment,
            correlation=correlation,
        )


def _moments(h: Tensor, channels_first: bool) -> tuple[int, Tensor, Tensor]:
    """Rows, mean square, and mean correlation of two rows.

    Rows are what batch statistics are shared by: samples, times positions of a feature map.
    """
    h = h.to(torch.float32 if h.device.type == "mps" else torch.float64)
    if channels_first and h.ndim > 2:
        h = h.movedim(1, -1)
    h = h.reshape(-1, h.shape[-1]) if h.ndim > 1 else h.reshape(-1, 1)
    rows = h.shape[0]
    square = h.square().mean()
    together = h.mean(0).square().mean()  # mean over all pairs of rows, equal ones included
    return rows, square, (rows * together - square) / (max(rows - 1, 1) * square)


def _square_norm(gradient: Tensor) -> float:
    exact = torch.float32 if gradient.device.type == "mps" else torch.float64
    return float(gradient.detach().to(exact).square().sum())
