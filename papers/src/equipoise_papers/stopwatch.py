"""Seconds of training: a stopwatch that can be paused, and that waits for the GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Counts the seconds since it was made, without those of paused blocks.

    Args:
        device: Where the work is done. On a GPU, work that was started before the stopwatch is
            made, paused or read is waited for.

    Examples:
        >>> watch = Stopwatch(torch.device("cpu"))
        >>> with watch.paused():
        ...     time.sleep(0.2)
        >>> watch.seconds() < 0.2
        True
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = self._now()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of the block."""
        begin = self._now()
        try:
            yield
        finally:
            self._start += self._now() - begin

    def seconds(self) -> float:
        """The seconds counted so far."""
        return self._now() - self._start

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
