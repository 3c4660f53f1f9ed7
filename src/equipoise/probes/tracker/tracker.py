"""The object behind :func:`equipoise.probes.tracker.track`: when to measure, and where numbers go."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from equipoise.instrument.compiled import eager
from equipoise.instrument.observers import Pause, observers_paused
from equipoise.instrument.random_states import RandomStates
from equipoise.instrument.types import LossFunction
from equipoise.probes.tracker import names
from equipoise.probes.tracker.clock import Clock
from equipoise.probes.tracker.measures import after_the_step, before_the_step
from equipoise.probes.tracker.names import Values
from equipoise.probes.tracker.plan import Plan
from equipoise.probes.tracker.record import TrackedStep, Tracking, TrackingCost
from equipoise.probes.tracker.steps import Moment, StepSizes
from equipoise.records.codec import from_plain, to_plain

Sink = Callable[[int, dict[str, float]], object]
Item = TypeVar("Item")


@dataclass(slots=True)
class _Sample:
    """What is known of the present step so far, and what is kept to learn the rest."""

    values: Values
    moment: Moment | None = None
    sizes: StepSizes | None = None


class Tracker:
    """Measures a training while it runs; :func:`equipoise.probes.tracker.track` makes it.

    Attributes:
        history: All samples so far, in order.
        steps: Of the optimiser, counted so far.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction | None,
        optimizer: Optimizer | None,
        *,
        plan: Plan,
        is_due: Callable[[int], bool],
        sink: Sink | None,
        pause: tuple[Pause, ...],
    ) -> None:
        self.history: list[TrackedStep] = []
        self.steps = 0
        self._model, self._loss_fn, self._optimizer = model, loss_fn, optimizer
        self._plan, self._is_due, self._sink, self._pause = plan, is_due, sink, pause
        tensors = (*model.parameters(), *model.buffers(), torch.empty(0))
        self._clock = Clock(tensors[0].device)
        self._due = is_due(0)
        self._sample: _Sample | None = None  # of the present step
        self._here = (0, 0)  # samples and steps that others have counted, before a resumption
        self._attached = True
        self._handles: list[RemovableHandle] = []
        if optimizer is not None:
            self._handles.append(optimizer.register_step_pre_hook(self._before))
            self._handles.append(optimizer.register_step_post_hook(self._after))

    @property
    def latest(self) -> dict[str, float]:
        """The numbers of the latest sample by name; empty before the first."""
        return dict(self.history[-1].values) if self.history else {}

    @property
    def tracking(self) -> Tracking:
        """Everything measured so far, as a record with series and bands."""
        return Tracking(tuple(self.history), self.cost())

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values that JSON can hold."""
        found: dict[str, Any] = to_plain(self.tracking)
        return found

    def cost(self) -> TrackingCost:
        """Seconds spent on measuring, and on training, while this tracker was attached."""
        samples, steps = self._here
        return self._clock.cost(steps=self.steps - steps, samples=len(self.history) - samples)

    def batches(self, loader: Iterable[Item]) -> Iterator[Item]:
        """Observe each batch of a loader, and hand it on."""
        for batch in loader:
            self.observe(batch)
            yield batch

    def observe(self, batch: Any) -> None:
        """Tell the tracker of a batch, before the model sees it.

        Raises:
            RuntimeError: If the tracker is detached.
        """
        if not self._attached:
            raise RuntimeError("the tracker is detached. Observe inside its with statement.")
        self._clock.begin()
        if self._optimizer is None:
            self._clock.lap()
        if self._due and self._sample is None:
            self._sample = self._look(batch)
        if self._optimizer is None:
            self._advance()

    def detach(self) -> None:
        """Remove every hook; what was measured of an unfinished step is kept."""
        if self._optimizer is None and self._attached:
            self._clock.lap()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._attached = False
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def state_dict(self) -> dict[str, Any]:
        """Steps and history as plain values, for a checkpoint between two steps."""
        return {"format": 1, "steps": self.steps, "history": to_plain(self.history)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken. Costs are counted from here.

        Raises:
            ValueError: If the state is not one.
        """
        if not isinstance(state, dict) or state.get("format") != 1:
            raise ValueError(
                "This is not a state of a tracker. Give what Tracker.state_dict() returned."
            )
        self.history = [from_plain(TrackedStep, sample) for sample in state["history"]]
        self.steps = int(state["steps"])
        self._here = len(self.history), self.steps
        self._due = self._is_due(self.steps)
        self._sample = None

    def _before(self, optimizer: Optimizer, *_: object) -> None:
        self._clock.begin()
        if not self._due:
            return
        if self._sample is None:
            if self._loss_fn is not None and self._plan.looks_at_batches:
                raise RuntimeError(
                    "track has a loss_fn, but optimizer.step() came before it saw a batch. Loop "
                    "over tracker.batches(loader), or call tracker.observe(batch) first."
                )
            self._sample = _Sample({})
        if self._plan.updates:
            with self._clock.probing(), self._clock.timed("updates"):
                self._sample.sizes = StepSizes(self._model)
        # Behind hooks that were registered later: they may have a part in the step.
        self._handles.pop().remove()
        self._handles.append(optimizer.register_step_post_hook(self._after))

    def _after(self, *_: object) -> None:
        if self._due and self._sample is not None:
            self._look_back(self._sample)
        self._advance()
        self._clock.lap()

    def _look(self, batch: Any) -> _Sample:
        """Measure what does not depend on the step that follows."""
        plan, model, timed = self._plan, self._model, self._clock.timed
        if not plan.looks_at_batches:
            return _Sample({})
        with self._undisturbed():
            values = before_the_step(plan, model, self._loss_fn, self._optimizer, batch, timed)
            if plan.ics and math.isfinite(values["loss"]):
                with timed("ics"):
                    return _Sample(values, Moment(model, batch))
        return _Sample(values)

    def _look_back(self, sample: _Sample) -> None:
        """Measure what does."""
        with self._undisturbed():
            if sample.sizes is not None:
                with self._clock.timed("updates"):
                    sample.values |= names.updates(*sample.sizes.measured())
            if sample.moment is not None and self._loss_fn is not None:
                with self._clock.timed("ics"):
                    sample.values |= after_the_step(self._model, self._loss_fn, sample.moment)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """What each probe promises for itself, and what only a training has: its observers."""
        with self._clock.probing():
            random = RandomStates(self._model)
            try:
                with eager(self._model), observers_paused(self._model, self._pause):
                    yield
            finally:
                random.restore()

    def _advance(self) -> None:
        """The step is over, and so is its sample."""
        step = self.steps
        self.steps = step + 1
        self._due = self._is_due(step + 1)
        if self._sample is not None:
            self._close(step)

    def _close(self, step: int | None = None) -> None:
        sample, self._sample = self._sample, None
        if sample is None or not sample.values:
            return
        at = self.steps if step is None else step
        self.history.append(TrackedStep(at, sample.values))
        if self._sink is not None:
            self._sink(at, dict(sample.values))
