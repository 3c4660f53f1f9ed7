"""A watched layer: moments are staged in the forward pass and committed in the backward pass.

They are committed when the output's gradient arrives. That counts exactly the calls that
contribute to a gradient: not evaluation, not forward passes without a backward pass, and each
call once under activation checkpointing, which runs the forward pass twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from equipoise.instrument.forward import within_transform
from equipoise.preconditioners.bnp.maps import is_sharded
from equipoise.preconditioners.bnp.moments import Geometry, Layer, Moments, statistics_type

# Every step updates until this many updates would have been made: features move fastest at the
# start, and one batch says too little. Digits, 64-100-100-10, SGD at 0.1, update_every=10: with
# 0 the loss is NaN at batch 60, with 2 or more it is that of update_every=1 at 60, 6 and 1.
EAGER = 10


class UpdateSchedule:
    """Which optimizer steps update the statistics.

    Args:
        update_every: Steps from one update to the next, after the first ones.
    """

    def __init__(self, update_every: int) -> None:
        self.update_every = update_every
        self.steps = 0
        self.paused = False
        self.recording = True

    def count_step(self) -> None:
        """Count an optimizer step that has ended."""
        self.steps += 1
        self.refresh()

    @property
    def eager(self) -> bool:
        """Whether every step updates, because training has just begun."""
        return self.steps < EAGER * self.update_every

    def refresh(self) -> None:
        """Decide whether forward passes are recorded now."""
        due = self.eager or self.steps % self.update_every == 0
        self.recording = not self.paused and due

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Record nothing inside the block."""
        before, self.paused = self.paused, True
        self.refresh()
        try:
            yield
        finally:
            self.paused = before
            self.refresh()


class WatchedLayer:
    """A weight and its bias, with the moments of all calls since the last optimizer step.

    Args:
        name: Of the first module that uses the weight.
        modules: All modules that use it.
        geometry: Shape of the feature matrix.
    """

    def __init__(self, name: str, modules: list[Layer], geometry: Geometry) -> None:
        self.name = name
        self.modules = modules
        self.geometry = geometry
        self.shift: Tensor | None = None
        self.pending: Moments | None = None
        # True once `weight.grad` existed for the pending rows.
        self._had_gradient = False
        # Identity and version of the gradient that BNP.step() has preconditioned.
        self.preconditioned: tuple[int, int] | None = None
        # Whether the optimizers that are attached train the bias as well.
        self.bias_is_stepped = True
        self.refresh()

    def refresh(self) -> None:
        """Look the parameters up again; loading with ``assign=True`` replaces them."""
        self.weight = cast(nn.Parameter, self.modules[0].weight)
        self.bias = cast(nn.Parameter | None, self.modules[0].bias)

    @property
    def centred(self) -> bool:
        """Whether there is a trained bias, without which centring is not a descent direction."""
        return self.bias_is_stepped and self.bias is not None and self.bias.requires_grad

    @property
    def key(self) -> tuple[torch.device, torch.dtype]:
        """Device and type of the statistics."""
        return self.weight.device, statistics_type(self.weight.dtype)

    def moments(
        self, module: Layer, h: Tensor, output: Tensor, *, by_sample: bool
    ) -> Moments | None:
        """Moments of one call; None if it has no rows."""
        if h.numel() == 0:
            return None
        shift = self.shift
        if shift is not None and (
            shift.device != h.device
            or (shift.dtype is torch.float64) != (h.dtype is torch.float64)
        ):
            self.shift = self.pending = shift = None  # the model has moved
        if self.pending is None:
            self._had_gradient = False
        elif self._gradients_were_cleared():
            self.pending = None
            self._had_gradient = False
        # Gradients may be cleared between here and the backward pass.
        elif not self._had_gradient:
            self._had_gradient = self.weight.grad is not None
        return self.geometry.moments(module, h, output, shift, by_sample=by_sample)

    def commit(self, moments: Moments) -> None:
        """Count a call whose output gradient has arrived."""
        if self._had_gradient and self.weight.grad is None and not is_sharded(self.weight):
            self.pending = None
        if self.pending is None:
            self._had_gradient = False
            self.pending = moments
        else:
            self.pending.add(moments)

    def take(self) -> Moments | None:
        """Hand the pending moments over."""
        pending, self.pending = self.pending, None
        return pending

    def _gradients_were_cleared(self) -> bool:
        """Whether the pending rows no longer contribute to any gradient.

        That is so after a step that a gradient scaler skipped, or after a backward pass that did
        not reach the parameters. A missing gradient proves nothing inside a backward pass (a
        recomputed forward pass), and nothing for a sharded weight between reductions.
        """
        return (
            self.weight.grad is None
            and torch._C._current_graph_task_id() == -1
            and not is_sharded(self.weight)
        )


class RecordingHook:
    """Forward hook of one module. Copies of the module get one that does nothing.

    It does not keep the layer alive: a model whose BNP is gone is free of it.
    """

    def __init__(self, layer: WatchedLayer, schedule: UpdateSchedule, *, by_sample: bool) -> None:
        self.layer = weakref.ref(layer)
        self.schedule = schedule
        self.by_sample = by_sample
        # Hooks on tensors break a compiled graph anyway; here at least it is at a place of our
        # choice. Not at import, because it loads the compiler.
        self._stage_outside_graph = _outside_graph()

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Called by the module after its forward pass."""
        if self.schedule.recording and module.training and torch.is_grad_enabled():
            h = args[0] if args else kwargs["input"]
            if torch.compiler.is_compiling():
                self._stage_outside_graph(self, module, h, output)
            else:
                _stage(self, module, h, output)

    def while_probed(self) -> AbstractContextManager[None]:
        """Ignore the forward passes of probes, which are no training."""
        return self.schedule.pausing()

    def __deepcopy__(self, memo: dict[int, Any]) -> InertHook:
        return InertHook()

    def __reduce__(self) -> tuple[type[InertHook], tuple[()]]:
        return InertHook, ()


class InertHook:
    """Stands in a copied or unpickled module where the original has its recording hook."""

    def __call__(self, *_: object) -> None:
        """Do nothing."""


def _stage(hook: RecordingHook, module: Any, h: Tensor, output: Tensor) -> None:
    layer = hook.layer()
    if layer is None or not output.requires_grad or not layer.weight.requires_grad:
        return
    if within_transform():
        return  # transforms of torch.func return gradients, none of which becomes a parameter's
    moments = layer.moments(module, h.detach(), output, by_sample=hook.by_sample)
    if moments is None:
        return
    staged = [moments]

    def commit(_: Tensor) -> None:
        if staged:  # a second backward pass through a retained graph counts its rows only once
            layer.commit(staged.pop())

    # PyTorch annotates neither of the two calls below.
    output.register_hook(commit)  # type: ignore[no-untyped-call]


@cache
def _outside_graph() -> Callable[..., None]:
    return cast(
        "Callable[..., None]",
        torch.compiler.disable(_stage),  # type: ignore[no-untyped-call]
    )
