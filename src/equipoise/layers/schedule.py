r"""How far batch renormalisation may correct, as training proceeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RenormSchedule:
    r"""Limits r_max and d_max as functions of the number of batches seen.

    Plain batch norm (1 and 0) for ``warmup`` batches, then each limit grows linearly and
    reaches its final value at ``r_steps`` and ``d_steps``. The defaults are the paper's, for
    ImageNet; a shorter training wants them scaled down.

    Attributes:
        warmup: Batches with ``r_max = 1``, ``d_max = 0``.
        r_max: Final limit of the scale's correction, at least 1; may be infinite.
        r_steps: Batches after which ``r_max`` is final, at least ``warmup``.
        d_max: Final limit of the mean's correction, at least 0; may be infinite.
        d_steps: Batches after which ``d_max`` is final, at least ``warmup``.

    Raises:
        ValueError: If a limit or a number of steps is out of its range.

    Examples:
        >>> limits = RenormSchedule().limits(torch.tensor([5000, 15000, 25000, 40000]))
        >>> [[round(value, 3) for value in limit.tolist()] for limit in limits]
        [[1.0, 1.571, 2.143, 3.0], [0.0, 2.5, 5.0, 5.0]]

    References:
        [ioffe2017], section 4 (experiments).
    """

    warmup: int = 5_000
    r_max: float = 3.0
    r_steps: int = 40_000
    d_max: float = 5.0
    d_steps: int = 25_000

    def __post_init__(self) -> None:
        if not (self.r_max >= 1 and self.d_max >= 0):
            raise ValueError(
                f"r_max must be at least 1 and d_max at least 0; got r_max={self.r_max}, "
                f"d_max={self.d_max}. r_max=1 with d_max=0 is batch norm."
            )
        if not 0 <= self.warmup <= min(self.r_steps, self.d_steps):
            raise ValueError(
                "need 0 <= warmup <= r_steps and warmup <= d_steps; got "
                f"warmup={self.warmup}, r_steps={self.r_steps}, d_steps={self.d_steps}. "
                "RenormSchedule.constant(r_max, d_max) has no schedule."
            )

    @classmethod
    def constant(cls, r_max: float = 3.0, d_max: float = 5.0) -> RenormSchedule:
        """The same limits from the first batch on."""
        return cls(warmup=0, r_max=r_max, r_steps=0, d_max=d_max, d_steps=0)

    def scaled(self, factor: float) -> RenormSchedule:
        """The same limits, reached ``factor`` times as late.

        Examples:
            >>> RenormSchedule().scaled(0.01)
            RenormSchedule(warmup=50, r_max=3.0, r_steps=400, d_max=5.0, d_steps=250)
        """
        warmup, r_steps, d_steps = (
            round(steps * factor) for steps in (self.warmup, self.r_steps, self.d_steps)
        )
        return RenormSchedule(warmup, self.r_max, r_steps, self.d_max, d_steps)

    def limits(self, step: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """``r_max`` and ``d_max`` after ``step`` batches, on its device: no synchronisation."""
        return (
            self._ramp(step, dtype, 1.0, self.r_max, self.r_steps),
            self._ramp(step, dtype, 0.0, self.d_max, self.d_steps),
        )

    def _ramp(
        self, step: Tensor, dtype: torch.dtype, start: float, end: float, steps: int
    ) -> Tensor:
        limit = torch.full_like(step, start, dtype=dtype)
        if steps > self.warmup and math.isfinite(end):
            share = (step.to(dtype) - self.warmup) / (steps - self.warmup)
            limit = start + (end - start) * share.clamp(min=0)
        return torch.where(step >= steps, end, limit)
