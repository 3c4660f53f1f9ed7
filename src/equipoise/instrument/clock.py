"""A clock for trainings and measurements that waits for the device only where asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Seconds since it was made that are the program's own.

    On a CPU they are the processor's where other programs have it for a part of the time, and the
    clock's where several threads run at once.

    Args:
        device: Where the work is done; while another than the CPU works, the processor waits.

    Examples:
        >>> watch = Stopwatch()
        >>> time.sleep(0.01)
        >>> watch.seconds() < 0.01
        True
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._shares = device is None or device.type == "cpu"
        self._began = _both_clocks()

    def seconds(self) -> float:
        """Seconds so far."""
        passed = [now - then for now, then in zip(_both_clocks(), self._began, strict=True)]
        return min(passed) if self._shares else passed[0]


def _both_clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


class Clock:
    """Seconds since :meth:`start`, without those of paused sections.

    Pausing and timing a part wait for the device on entry and on exit.

    Args:
        device: The device to wait for.

    Attributes:
        paused_seconds: Time spent in paused sections.
        parts: Time spent in each named part.

    Examples:
        >>> clock = Clock(torch.device("cpu"))
        >>> clock.start()
        >>> with clock.paused(), clock.part("evaluation"):
        ...     time.sleep(0.01)
        >>> clock.seconds() < 0.01 <= clock.parts["evaluation"] <= clock.paused_seconds
        True
    """

    def __init__(self, device: torch.device) -> None:
        self.paused_seconds = 0.0
        self.parts: dict[str, float] = {}
        self._device = device
        self._start: float | None = None

    def start(self, *, wait: bool = False) -> None:
        """Start the clock, unless it runs already.

        Args:
            wait: Whether to wait for the device first.
        """
        if self._start is None:
            self._start = self._now(wait=wait)

    def seconds(self, *, wait: bool = False) -> float:
        """Seconds since the start, without paused sections; 0 before the start.

        Args:
            wait: Whether to wait for the device first.
        """
        return 0.0 if self._start is None else self._now(wait=wait) - self._start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock inside the block."""
        begin = self._now()
        try:
            yield
        finally:
            seconds = self._now() - begin
            self.paused_seconds += seconds
            if self._start is not None:
                self._start += seconds

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the block to a named part, whether the clock is paused or not."""
        begin = self._now()
        try:
            yield
        finally:
            self.parts[name] = self.parts.get(name, 0.0) + self._now() - begin

    def _now(self, *, wait: bool = True) -> float:
        if wait:
            wait_for(self._device)
        return time.perf_counter()


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what was asked of it; a CPU always has."""
    if device.type == "mps":  # the only device of its type
        torch.mps.synchronize()
    elif device.type not in ("cpu", "meta"):
        torch.get_device_module(device).synchronize(device)
