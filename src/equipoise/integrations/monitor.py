"""A tracker that rides along a training of a framework, and writes a few numbers of each look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from equipoise.numerics.checks import check_whole
from equipoise.probes import track
from equipoise.probes.tracker.headline import headline

PREFIX = "equipoise/"  # of the names that loggers show


class Monitor:
    """Tracks one optimizer's steps from when it is made until it is detached.

    Args:
        model: The module inside of all wrappers.
        forward: ``forward(model, batch)`` runs the model as training does, and returns the loss
            if that is needed.
        optimizer: The one that steps, inside of all wrappers.
        write: Takes the numbers of each look, by name.
        steps: Steps that were taken before, by an earlier part of this training.
        every: Steps from one look to the next.
        activations: Whether to measure dead units.
        growth: Whether to measure how gradients grow with depth.
        landscape: Whether to measure how smooth the loss is along the gradient.

    Attributes:
        tracker: The :class:`~equipoise.probes.tracker.tracker.Tracker`, with all numbers of
            every layer.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[nn.Module, Any], Any],
        optimizer: Optimizer,
        *,
        write: Callable[[dict[str, float]], object],
        steps: int,
        every: int,
        activations: bool,
        growth: bool,
        landscape: bool,
    ) -> None:
        self._write = write
        self._batch: Any = None
        self._has_stepped = True  # since it saw that batch
        # Before the tracker's own hook, which needs a batch by then.
        self._handle = optimizer.register_step_pre_hook(self._look)

        def run(model: nn.Module, batch: Any) -> Any:
            return None if batch is None else forward(model, batch)

        try:
            self.tracker = track(
                model,
                run,
                optimizer,
                every=every,
                activations=activations,
                growth=growth,
                landscape=landscape,
                ics=False,
                sink=self._sum_up,
            )
        except BaseException:
            self._handle.remove()
            raise
        self.tracker.load_state_dict({"format": 1, "steps": steps, "history": []})

    def see(self, batch: Any) -> None:
        """Take a batch before or while the model sees it; the first one of a step counts."""
        if self._has_stepped:
            self._batch, self._has_stepped = batch, False

    def detach(self) -> None:
        """Remove every hook."""
        self._handle.remove()
        self.tracker.detach()
        self._batch = None

    def _look(self, *_: object) -> None:
        # Without a batch, as where only parts of the model are called, the step is measured.
        self.tracker.observe(self._batch)
        self._has_stepped = True

    def _sum_up(self, step: int, values: Mapping[str, float]) -> None:
        self._write({PREFIX + name: value for name, value in headline(values).items()})


def checked_every(every: int) -> int:
    """Check the interval now; the tracker gets it only when training begins.

    Raises:
        ValueError: If it is no whole number of at least 1.

    Examples:
        >>> checked_every(0)
        Traceback (most recent call last):
        ValueError: every must be a whole number of at least 1; got 0.
    """
    return check_whole("every", every, 1)
