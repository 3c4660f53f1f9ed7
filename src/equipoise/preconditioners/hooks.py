"""Stage statistics in the forward pass, commit them when the output's gradient arrives.

Committing there counts exactly the calls that contribute to a gradient: not evaluation, not
forward passes without a backward pass, and each call once under activation checkpointing, which
runs the forward pass twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.preconditioners.layer import WatchedLayer

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


class Watch:
    """A forward hook on one module. Copies of the module get an inert one in its place."""

    def __init__(self, layer: WatchedLayer, schedule: UpdateSchedule, *, by_sample: bool) -> None:
        self.layer = layer
        self.schedule = schedule
        self.by_sample = by_sample

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Called by the module after its forward pass."""
        if self.schedule.recording and module.training and torch.is_grad_enabled():
            h = args[0] if args else kwargs["input"]
            if torch.compiler.is_compiling():
                _stage_outside_graph(self, module, h, output)
            else:
                _stage(self, module, h, output)

    def while_probed(self) -> AbstractContextManager[None]:
        """Probes ask hooks to look away from their passes, which are no training."""
        return self.schedule.pausing()

    def __deepcopy__(self, memo: dict[int, Any]) -> Inert:
        return Inert()

    def __reduce__(self) -> tuple[type[Inert], tuple[()]]:
        return Inert, ()


class Inert:
    """What a copied or unpickled module finds where the original has its hook."""

    def __call__(self, *_: object) -> None:
        """Do nothing."""


def _stage(watch: Watch, module: Any, h: Tensor, output: Tensor) -> None:
    layer = watch.layer
    if not output.requires_grad or not layer.weight.requires_grad:
        return
    with torch.no_grad():
        sums = layer.sums(module, h, output, by_sample=watch.by_sample)
    if sums is None:
        return
    staged = [sums]

    def commit(_: Tensor) -> None:
        if staged:  # a graph that is walked twice holds its rows once
            layer.commit(staged.pop())

    # PyTorch annotates neither of the two calls below.
    output.register_hook(commit)  # type: ignore[no-untyped-call]


# Hooks on tensors break a compiled graph anyway; here at least it is at a place of our choice.
_stage_outside_graph = torch.compiler.disable(_stage)  # type: ignore[no-untyped-call]
