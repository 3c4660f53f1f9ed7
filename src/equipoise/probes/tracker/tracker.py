"""The object that :func:`equipoise.probes.track` returns: it samples a training step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from equipoise.instrument.clock import Clock
from equipoise.instrument.compiled import eager
from equipoise.instrument.observers import Pause, observers_paused
from equipoise.instrument.optimizer_step import trained_parameters
from equipoise.instrument.random_states import RandomStates
from equipoise.instrument.types import LossFunction
from equipoise.probes.tracker import flatten
from equipoise.probes.tracker.flatten import Values
from equipoise.probes.tracker.plan import Plan
from equipoise.probes.tracker.record import TrackedStep, Tracking, TrackingCost
from equipoise.probes.tracker.sample import measure_after_step, measure_before_step
from equipoise.probes.tracker.steps import Moment, StepSizes
from equipoise.records.codec import from_plain, to_plain
from equipoise.records.warn import warn_user

Sink = Callable[[int, dict[str, float]], object]
Item = TypeVar("Item")


@dataclass(slots=True)
class _Sample:
    """What has been measured at the present step, and what is needed to measure the rest."""

    values: Values
    moment: Moment | None = None
    sizes: StepSizes | None = None


class Tracker:
    """Measures a training while it runs; :func:`equipoise.probes.track` makes one.

    Attributes:
        history: All samples so far, in order.
        steps: Number of optimiser steps so far.
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
        self._clock = Clock(tensors[0].device)  # measuring pauses it
        self._training_seconds = 0.0  # up to the latest step
        self._due = is_due(0)
        self._sample: _Sample | None = None  # of the present step
        self._loaded = (0, 0)  # samples and steps that were loaded from a checkpoint
        self._attached = True
        self._handles: list[RemovableHandle] = []
        if optimizer is not None:
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(optimizer.register_step_post_hook(self._after_step))

    @property
    def latest(self) -> dict[str, float]:
        """The numbers of the latest sample by name; empty before the first."""
        return dict(self.history[-1].values) if self.history else {}

    @property
    def tracking(self) -> Tracking:
        """Everything measured so far, as a record with series and bands."""
        return Tracking(tuple(self.history), self.cost())

    def to_dict(self) -> dict[str, Any]:
        """:attr:`tracking` as plain values that JSON can hold."""
        found: dict[str, Any] = to_plain(self.tracking)
        return found

    def cost(self) -> TrackingCost:
        """Seconds spent on measuring, and on training, while this tracker was attached."""
        samples, steps = self._loaded
        return TrackingCost(
            steps=self.steps - steps,
            samples=len(self.history) - samples,
            training_seconds=self._training_seconds,
            probing_seconds=self._clock.paused_seconds,
            parts=dict(self._clock.parts),
        )

    def batches(self, loader: Iterable[Item]) -> Iterator[Item]:
        """Observe and yield each batch of a loader."""
        for batch in loader:
            self.observe(batch)
            yield batch

    def observe(self, batch: Any) -> None:
        """Give the tracker a batch, before the model sees it.

        Raises:
            RuntimeError: If the tracker is detached.
        """
        if not self._attached:
            raise RuntimeError("the tracker is detached. Observe inside its with statement.")
        self._clock.start()
        if self._optimizer is None:
            self._training_seconds = self._clock.seconds()
        if self._due and self._sample is None:
            self._sample = self._sample_before_step(batch)
        if self._optimizer is None:
            self._advance()

    def detach(self) -> None:
        """Remove every hook; the sample of an unfinished step is kept as far as it got."""
        if self._optimizer is None and self._attached:
            self._training_seconds = self._clock.seconds()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._attached = False
        self._finish_sample(self.steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.detach()
        if kind is None:
            self._warn_if_empty()

    def state_dict(self) -> dict[str, Any]:
        """Steps and history as plain values, for a checkpoint between two steps."""
        return {"format": 1, "steps": self.steps, "history": to_plain(self.history)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken; costs are counted from now on.

        Raises:
            ValueError: If the state is not that of a tracker.
        """
        if not isinstance(state, dict) or state.get("format") != 1:
            raise ValueError(
                "This is not a state of a tracker. Give what Tracker.state_dict() returned."
            )
        self.history = [from_plain(TrackedStep, sample) for sample in state["history"]]
        self.steps = int(state["steps"])
        self._loaded = len(self.history), self.steps
        self._due = self._is_due(self.steps)
        self._sample = None

    def _warn_if_empty(self) -> None:
        """Say why a training that ended in good order left no whole sample."""
        _, before = self._loaded
        if self.steps == before:
            needed = "optimizer.step() of the tracked optimizer"
            missing = "observe(batch)" if self._optimizer is None else needed
            warn_user(f"track saw no step: {missing} was not called.")
        elif not self.history:
            warn_user(
                f"track measured nothing: none of the {self.steps} steps was due. Choose every=."
            )

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        self._clock.start()
        if not self._due:
            return
        if self._sample is None:
            if self._loss_fn is not None and self._plan.uses_batches:
                raise RuntimeError(
                    "track has a loss_fn, but optimizer.step() came before it saw a batch. Loop "
                    "over tracker.batches(loader), or call tracker.observe(batch) first."
                )
            self._sample = _Sample({})
        if self._plan.updates:
            with self._clock.paused(), self._timed("updates"):
                self._sample.sizes = StepSizes(self._model, trained_parameters(optimizer))
        # Run after hooks that were registered later: they may take part in the step.
        self._handles.pop().remove()
        self._handles.append(optimizer.register_step_post_hook(self._after_step))

    def _after_step(self, *_: object) -> None:
        if self._due and self._sample is not None:
            self._sample_after_step(self._sample)
        self._advance()
        self._training_seconds = self._clock.seconds()

    def _sample_before_step(self, batch: Any) -> _Sample:
        """Measure what does not depend on the step that follows."""
        plan, model = self._plan, self._model
        if not plan.uses_batches:
            return _Sample({})
        with self._measuring():
            values = measure_before_step(
                plan, model, self._loss_fn, self._optimizer, batch, self._timed
            )
            if plan.ics and math.isfinite(values["loss"]):
                with self._timed("ics"):
                    return _Sample(values, Moment(model, batch))
        return _Sample(values)

    def _sample_after_step(self, sample: _Sample) -> None:
        """Measure what depends on the step that was taken."""
        with self._measuring():
            if sample.sizes is not None:
                with self._timed("updates"):
                    sample.values |= flatten.updates(*sample.sizes.measure())
            if sample.moment is not None and self._loss_fn is not None:
                with self._timed("ics"):
                    sample.values |= measure_after_step(self._model, self._loss_fn, sample.moment)

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        """Pause the clock and all observers, and restore random states after the block."""
        with self._clock.paused():
            random_states = RandomStates(self._model)
            try:
                with eager(self._model), observers_paused(self._model, self._pause):
                    yield
            finally:
                random_states.restore()

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        with self._clock.part(part):
            try:
                yield
            except Exception as error:
                error.add_note(f"Raised by what track measures; {part}=False leaves it out.")
                raise

    def _advance(self) -> None:
        """Count a step, and finish its sample."""
        step = self.steps
        self.steps = step + 1
        self._due = self._is_due(step + 1)
        self._finish_sample(step)

    def _finish_sample(self, step: int) -> None:
        sample, self._sample = self._sample, None
        if sample is None or not sample.values:
            return
        self.history.append(TrackedStep(step, sample.values))
        if self._sink is not None:
            self._sink(step, dict(sample.values))
