"""Seconds of a training, and of what was measured during it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from equipoise.probes.tracker.record import TrackingCost


class Clock:
    """Tells the time of measuring from that of training.

    Args:
        device: Waited for before and after a measurement, not otherwise.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begun: float | None = None
        self._training = self._probing = 0.0
        self._parts: dict[str, float] = {}

    def begin(self) -> None:
        """The training starts now, if it has not."""
        if self._begun is None:
            self._begun = time.perf_counter()

    def lap(self) -> None:
        """A step is over."""
        if self._begun is not None:
            self._training = time.perf_counter() - self._begun

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Nothing inside the block is training."""
        begin = self._now()
        try:
            yield
        finally:
            seconds = self._now() - begin
            self._probing += seconds
            if self._begun is not None:
                self._begun += seconds

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """What runs inside the block, itself inside :meth:`probing`, measures this."""
        begin = self._now()
        try:
            yield
        except Exception as error:
            error.add_note(f"Raised by what track measures; {part}=False leaves it out.")
            raise
        finally:
            self._parts[part] = self._parts.get(part, 0.0) + self._now() - begin

    def cost(self, *, steps: int, samples: int) -> TrackingCost:
        """All seconds up to the latest lap."""
        return TrackingCost(steps, samples, self._training, self._probing, dict(self._parts))

    def _now(self) -> float:
        if self._device.type not in ("cpu", "meta"):
            torch.get_device_module(self._device).synchronize(self._device)
        return time.perf_counter()
