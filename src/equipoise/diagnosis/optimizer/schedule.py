"""The learning rates that an optimiser's schedule reaches."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from equipoise.diagnosis.optimizer.record import Schedule

# Longer than warm-ups are; a schedule of 10,000 steps is run through in about 0.1 s.
_LONGEST = 10_000
# Seconds after which a schedule of the user's own is taken to have no peak ahead.
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Rates:
    """The learning rates that a training uses first.

    Args:
        peaks: The largest of every group; nan of those that have none.
        warms_up: Whether they start lower.
        schedule: What is known of the schedule.
    """

    peaks: tuple[float, ...]
    warms_up: bool
    schedule: Schedule


def peak_rate(group: Mapping[str, Any]) -> float:
    """The largest learning rate of a group: of its schedule, where that has set one.

    Returns:
        The rate; nan of optimisers that have none or find their own, as Adafactor may.

    Examples:
        >>> peak_rate({"lr": 0.0, "initial_lr": 0.1}), peak_rate({"lr": 0.004, "max_lr": 0.1})
        (0.1, 0.1)
        >>> peak_rate({"lr": None})
        nan
    """
    if group.get("lr") is None:
        return math.nan
    return max(float(group.get(name, 0.0)) for name in ("lr", "initial_lr", "max_lr"))


def rates_of(optimizers: Sequence[Optimizer], schedulers: Sequence[LRScheduler]) -> Rates:
    """Find the rates at the first peak of a schedule.

    Without the scheduler only what it leaves in the groups is known: the rate now and, in
    ``initial_lr``, the one that the optimiser was made with. Of an optimiser that has taken steps
    the rate now counts, as a schedule has mostly lowered that.

    Args:
        optimizers: Those of one training.
        schedulers: Those that came with them; they are stepped.
    """
    groups = [group for one in optimizers for group in one.param_groups]
    now = tuple(map(_rate, groups))
    if schedulers:
        peaks = _first_peaks(groups, schedulers)
        return Rates(peaks, _below(now, peaks), "known")
    if not any("initial_lr" in group and "max_lr" not in group for group in groups):
        peaks = tuple(map(peak_rate, groups))  # that of OneCycleLR is told by the groups
        return Rates(peaks, _below(now, peaks), "known")
    if any(map(_has_stepped, optimizers)):
        return Rates(now, False, "unknown")
    peaks = tuple(map(peak_rate, groups))
    rises = _below(now, peaks)
    return Rates(peaks, rises, "assumed" if rises else "unknown")


def _first_peaks(
    groups: Sequence[Mapping[str, Any]], schedulers: Sequence[LRScheduler]
) -> tuple[float, ...]:
    """The rates of the groups where the largest of them is at its first peak."""
    peaks, begin = tuple(map(_rate, groups)), time.monotonic()
    stepped = [one for one in schedulers if not isinstance(one, ReduceLROnPlateau)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimiser is not stepped
        for _ in range(_LONGEST if stepped else 0):
            try:
                for one in stepped:
                    one.step()
            except Exception:  # the end of OneCycleLR, or of a user's list of factors
                break
            rates = tuple(map(_rate, groups))
            if _below(rates, peaks) or time.monotonic() - begin > _PATIENCE:
                break
            peaks = tuple(map(max, peaks, rates))
    return peaks


def _rate(group: Mapping[str, Any]) -> float:
    return math.nan if group.get("lr") is None else float(group["lr"])


def _below(now: Sequence[float], peaks: Sequence[float]) -> bool:
    """Whether a rate is lower, by more than rounding; one that is nan is not."""
    return any(rate < (1 - 1e-6) * peak for rate, peak in zip(now, peaks, strict=True))


def _has_stepped(optimizer: Optimizer) -> bool:
    """Whether it has taken a step: schedulers note that, and most optimisers count."""
    return getattr(optimizer, "_opt_called", False) or any(
        float(state.get("step", 0)) > 0 or state.get("momentum_buffer") is not None
        for state in optimizer.state.values()
        if isinstance(state, Mapping)
    )
