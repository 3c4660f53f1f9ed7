"""One entry of the preconditioner: a weight, the modules that use it, and their pending sums."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from equipoise.preconditioners.geometry import Geometry, Layer, statistics_type
from equipoise.preconditioners.sharding import is_sharded
from equipoise.preconditioners.statistics import Section
from equipoise.preconditioners.sums import Sums


class WatchedLayer:
    """A weight and its bias, with the statistics of all calls since the last optimizer step.

    Args:
        name: Of the first module that uses the weight.
        modules: All modules that do.
        geometry: Shape of the feature matrix.
    """

    def __init__(self, name: str, modules: list[Layer], geometry: Geometry) -> None:
        self.name = name
        self.modules = modules
        self.geometry = geometry
        self.shift: Tensor | None = None
        self.pending: Sums | None = None
        # Whether the gradients of the pending rows have been seen, so that they can be missed.
        self._arrived = False
        # The gradient as an explicit step left it: its identity and version.
        self.done: tuple[int, int] | None = None
        # Whether whoever steps the weight steps the bias as well.
        self.with_bias = True
        self.refresh()

    def refresh(self) -> None:
        """Look the parameters up again; loading with ``assign=True`` replaces them."""
        self.weight = cast(nn.Parameter, self.modules[0].weight)
        self.bias = cast(nn.Parameter | None, self.modules[0].bias)

    @property
    def centred(self) -> bool:
        """Whether there is a trained bias, without which centring is not a descent direction."""
        return self.with_bias and self.bias is not None and self.bias.requires_grad

    @property
    def key(self) -> tuple[torch.device, torch.dtype]:
        """Where the statistics live, and their type."""
        return self.weight.device, statistics_type(self.weight.dtype)

    @property
    def section(self) -> Section:
        """The layer's part of the flat statistics."""
        g = self.geometry
        return Section(g.length, g.groups, 1 if g.exact else g.taps, g.fan_in)

    def sums(self, module: Layer, h: Tensor, output: Tensor, *, by_sample: bool) -> Sums | None:
        """Statistics of one call; None if it has no rows."""
        if h.numel() == 0:
            return None
        shift = self.shift
        if shift is not None and (
            shift.device != h.device
            or (shift.dtype is torch.float64) != (h.dtype is torch.float64)
        ):
            self.shift = self.pending = None  # the model has moved
        if self._gradients_were_cleared():
            self.pending = None
        # Gradients may be cleared between here and the backward pass.
        self._arrived = self.pending is not None and (
            self._arrived or self.weight.grad is not None
        )
        sums = self.geometry.sums(module, h, output, self.shift, by_sample=by_sample)
        if self.shift is None:
            self.shift = sums.shift
        return sums

    def commit(self, sums: Sums) -> None:
        """Count a call whose output gradient has arrived."""
        if self._arrived and self.weight.grad is None and not is_sharded(self.weight):
            self.pending = None
        if self.pending is None:
            self._arrived = False
            self.pending = sums
        else:
            self.pending.merge(sums)

    def take(self) -> Sums | None:
        """Hand the pending sums over."""
        pending, self.pending = self.pending, None
        return pending

    def _gradients_were_cleared(self) -> bool:
        """Whether the rows counted so far no longer contribute to any gradient.

        That is so after a step that a gradient scaler skipped, or after a backward pass that did
        not reach the parameters. Inside a backward pass (a recomputed forward pass) a gradient
        that is not there yet tells nothing; nor does a sharded one between reductions.
        """
        return (
            self.pending is not None
            and self.weight.grad is None
            and torch._C._current_graph_task_id() == -1
            and not is_sharded(self.weight)
        )
