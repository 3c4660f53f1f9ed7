"""Watch the layers of a model in one pass, and differentiate the loss with respect to them."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from equipoise.instrument import modules
from equipoise.instrument.batches import tensors
from equipoise.instrument.forward import entries_of, first_tensor, rows_of, within_transform
from equipoise.instrument.normalisers import (
    is_channels_first,
    is_normaliser,
    rows_sharing_statistics,
)
from equipoise.numerics import vectors
from equipoise.numerics.pieces import slabs

# Fewer normalisers than this, such as one before the head, do not represent a deep network.
_FEW = 3


@dataclass(frozen=True, slots=True)
class LayerPass:
    """What was measured at one layer in one pass.

    Args:
        layer: Name of the layer, with the number of the call from the second on.
        kind: Its class.
        rows: Samples, times positions for feature maps.
        features: Neurons or channels.
        gradient: Squared norm of the loss's gradient with respect to h.
        weight_gradient: The same for the weights that make h, if there are any.
        second_moment: Mean square of h.
        correlation: Mean product of two rows of h over the mean square of one.
        sharing: Rows over which the layer averages to normalise; ``None`` if it does not.
    """

    layer: str
    kind: str
    rows: int
    features: int
    gradient: float
    weight_gradient: float | None
    second_moment: float
    correlation: float
    sharing: int | None


@dataclass(frozen=True, slots=True)
class _WatchedCall:
    """What a hook stores: the edge to h in the graph, not h, which may be changed in place."""

    layer: str
    kind: str
    rows: int
    features: int
    edge: GradientEdge
    weight: Tensor | None
    second_moment: Tensor
    correlation: Tensor
    sharing: int | None


class LayerWatch:
    """A context manager that watches one forward pass.

    Normalisers are watched at their input. In a model that calls none, or one or two beside many
    parametrised layers, the parametrised layers are watched at their output instead; in one that
    has neither, all modules with parameters of their own. The same where the loss depends on none
    of those, as where all normalisers but one stand before a ``detach()``.

    Args:
        model: Any module.
        enclosing: Watch modules that hold parameters anywhere, whatever they are, at their output:
            the model alone, where functions multiply by the weights of layers that never run.
        normalisers: Watch normalisers at all, rather than the layers beside them.
    """

    def __init__(
        self, model: nn.Module, *, enclosing: bool = False, normalisers: bool = True
    ) -> None:
        self._model, self._enclosing, self._normalisers = model, enclosing, normalisers
        self._handles: list[RemovableHandle] = []
        self._normaliser_calls: list[_WatchedCall] = []
        self._weight_calls: list[_WatchedCall] = []
        self._other_calls: list[_WatchedCall] = []
        # Of the last parametrised layer: its output, the output's version, and its weight.
        self._last_output: tuple[Tensor | None, int, Tensor | None] = (None, 0, None)
        self._calls: dict[str, int] = {}

    def __enter__(self) -> LayerWatch:
        for module, name in modules.names(self._model).items():
            if self._enclosing:
                if any(True for _ in module.parameters()):
                    after = self._after_other(name, module)
                    self._handles.append(module.register_forward_hook(after))
            elif is_normaliser(module):
                if not self._normalisers:
                    continue
                hook = self._before_normaliser(name, module)
                self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            elif modules.is_parametrised(module):
                after = self._after_parametrised(name, module)
                self._handles.append(module.register_forward_hook(after))
            elif any(parameter is not None for parameter in module._parameters.values()):
                after = self._after_other(name, module)
                self._handles.append(module.register_forward_hook(after))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def edges(self) -> dict[str, GradientEdge]:
        """Where the watched tensors stand in the graph of derivatives, by layer."""
        return {call.layer: call.edge for call in self._watched_calls}

    @property
    def _watched_calls(self) -> list[_WatchedCall]:
        calls = self._normaliser_calls or self._weight_calls or self._other_calls
        if len(calls) < _FEW and len(self._weight_calls) > 2 * len(calls) + 1:
            return self._weight_calls
        return calls

    def differentiate(self, loss: Tensor) -> list[LayerPass]:
        """Differentiate the loss; return the layers that it depends on, in order of execution."""
        self._remove_hooks()  # checkpointed layers run again during the backward pass
        calls = self._calls_before(loss)
        weights = list(
            {
                id(c.weight): c.weight
                for c in calls
                # Not those that a functional call has replaced by detached ones.
                if c.weight is not None and c.weight.requires_grad
            }.values()
        )
        inputs: list[Any] = [*(call.edge for call in calls), *weights]
        if not inputs or not loss.requires_grad:
            return []
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
        pairs = zip(weights, gradients[len(calls) :], strict=True)
        weight_gradients = {id(weight): g for weight, g in pairs if g is not None}
        return [
            _measured(call, gradient, weight_gradients.get(id(call.weight)))
            for call, gradient in zip(calls, gradients[: len(calls)], strict=True)
            if gradient is not None
        ]

    def _calls_before(self, loss: Tensor) -> list[_WatchedCall]:
        """Those of the first kind of calls of which the loss depends on some."""
        for calls in (self._watched_calls, self._weight_calls, self._other_calls):
            if _depends(loss, {call.edge.node for call in calls}):
                return calls
        return []

    def _before_normaliser(self, name: str, module: nn.Module) -> Any:
        channels_first = is_channels_first(module)

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            h = first_tensor(args, kwargs)
            if h is not None and h.requires_grad and not within_transform():
                output, version, last_weight = self._last_output
                weight = last_weight if output is h and version == h._version else None
                call = self._watched(name, module, h, weight, channels_first)
                self._normaliser_calls.append(call)

        return hook

    def _after_parametrised(self, name: str, module: nn.Module) -> Any:
        channels_first = isinstance(module, nn.modules.conv._ConvNd)

        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if isinstance(module, nn.RNNBase):  # beside it stand its last states
                output = output[0]
            if isinstance(output, Tensor) and output.requires_grad and not within_transform():
                weight = module._parameters.get("weight")
                self._last_output = (output, output._version, weight)
                call = self._watched(name, module, output, weight, channels_first)
                self._weight_calls.append(call)

        return hook

    def _after_other(self, name: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            h = next((x for x in tensors(output) if x.requires_grad), None)
            if h is not None and not within_transform():
                own = [p for p in module._parameters.values() if p is not None and p.ndim >= 2]
                weight = max(own, key=Tensor.numel, default=None)
                self._other_calls.append(self._watched(name, module, h, weight, False))

        return hook

    def _watched(
        self, name: str, module: nn.Module, h: Tensor, weight: Tensor | None, channels_first: bool
    ) -> _WatchedCall:
        call = self._calls[name] = self._calls.get(name, 0) + 1
        with _disable_current_modes():  # a tracer is to record the model, not its watch
            read = rows_of(h.detach())
            rows, second_moment, correlation = _moments(read, channels_first)
        return _WatchedCall(
            layer=name if call == 1 else f"{name} (call {call})",
            kind=type(module).__name__,
            rows=rows,
            features=read.numel() // max(rows, 1),
            edge=get_gradient_edge(h),
            weight=weight,
            second_moment=second_moment,
            correlation=correlation,
            sharing=rows_sharing_statistics(module, rows, h.size(0) if h.ndim else 1),
        )


def _depends(loss: Tensor, wanted: set[Node]) -> bool:
    """Whether one of these places in the graph of derivatives is behind the loss."""
    if not wanted or loss.grad_fn is None:
        return False
    waiting, seen = [loss.grad_fn], {loss.grad_fn}
    while waiting:
        node = waiting.pop()
        if node in wanted:
            return True
        behind = {one for one, _ in node.next_functions if one is not None} - seen
        waiting += behind
        seen |= behind
    return False


def _measured(call: _WatchedCall, gradient: Tensor, weight_gradient: Tensor | None) -> LayerPass:
    return LayerPass(
        layer=call.layer,
        kind=call.kind,
        rows=call.rows,
        features=call.features,
        gradient=_square_norm(gradient),
        weight_gradient=None if weight_gradient is None else _square_norm(weight_gradient),
        second_moment=float(call.second_moment),
        correlation=float(call.correlation),
        sharing=call.sharing,
    )


def _moments(h: Tensor, channels_first: bool) -> tuple[int, Tensor, Tensor]:
    """Number of rows, mean square, and mean correlation of two rows.

    Rows are what batch statistics are taken over: samples, times positions of a feature map.
    """
    h = h if h.ndim > 1 else h.reshape(-1, 1)
    feature = 1 if channels_first and h.ndim > 2 else h.ndim - 1
    rows = h.numel() // max(h.shape[feature], 1)
    others = [axis for axis in range(h.ndim) if axis != feature]
    squares, totals = zip(
        *((_squares(slab).sum(), slab.sum(others)) for slab in slabs(h, feature)), strict=True
    )
    square = sum(squares) / h.numel()
    means = sum(totals) / rows
    pairs = _squares(means).mean()  # mean over all pairs of rows, equal ones included
    return rows, square, (rows * pairs - square) / (max(rows - 1, 1) * square)


def _squares(x: Tensor) -> Tensor:
    return x.abs().square() if x.is_complex() else x.square()


def _square_norm(gradient: Tensor) -> float:
    gradient = rows_of(entries_of(gradient.detach()))
    return vectors.length([gradient]) ** 2 if gradient.numel() else 0.0
