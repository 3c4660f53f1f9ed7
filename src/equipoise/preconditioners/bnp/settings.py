"""Options of BNP and their validation: averaging, variance rule, row scale, presets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from equipoise.numerics.checks import (
    check_choice,
    check_flag,
    check_size,
    check_within,
    is_number,
)

Variance: TypeAlias = Literal["total", "batch"]
ConvStatistics: TypeAlias = Literal["channel", "exact"]
Rows: TypeAlias = Literal["all", "samples"]
Preset: TypeAlias = Literal["paper"]
# Called with tensors, one entry per layer: fan-in, samples, output positions; returns q².
RowScale: TypeAlias = Literal["paper"] | float | Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """Validated options, described at :class:`~equipoise.preconditioners.BNP`."""

    rho: float = 0.99
    eps: tuple[float, float] = (1e-2, 1e-4)
    bias_correction: bool = True
    variance: Variance = "total"
    row_scale: RowScale = "paper"
    conv_stats: ConvStatistics = "channel"
    update_every: int = 1
    rows: Rows = "all"
    max_norm: float | None = None

    def __post_init__(self) -> None:
        check_within("rho", self.rho, "[0, 1)")
        check_flag(bias_correction=self.bias_correction)
        if not isinstance(self.eps, tuple | list) or len(self.eps) != 2:
            raise ValueError(f"eps must be two numbers, such as (1e-2, 1e-4); got {self.eps!r}.")
        for place, number in enumerate(self.eps):
            check_within(f"eps[{place}]", number, "[0, inf)", "The paper's are (1e-2, 1e-4).")
        check_choice("variance", self.variance, get_args(Variance))
        check_choice("conv_stats", self.conv_stats, get_args(ConvStatistics))
        check_choice("rows", self.rows, get_args(Rows))
        check_size(update_every=self.update_every)
        if self.max_norm is not None:
            check_within("max_norm", self.max_norm, "(0, inf]", "None is no limit.")
        _check_row_scale(self.row_scale)

    @property
    def decay(self) -> float:
        """Weight of the past in one update of the statistics, ρ to the steps between updates."""
        return self.rho**self.update_every


def with_preset(settings: Settings, preset: Preset | None) -> Settings:
    """Algorithms 2 and 3 to the letter for ``"paper"``; ρ, ε and ``update_every`` stay as given.

    Raises:
        ValueError: If there is no preset of that name.
    """
    if preset is None:
        return settings
    if preset != "paper":
        raise ValueError(f"preset must be 'paper' or None, got {preset!r}.")
    return replace(
        settings, bias_correction=False, variance="batch", row_scale="paper", conv_stats="channel"
    )


def _check_row_scale(scale: Any) -> None:
    if callable(scale) or scale == "paper":
        return
    if not is_number(scale) or not 0 < scale < math.inf:
        raise ValueError(
            f"row_scale must be 'paper', a positive q², or a function of (fan_in, samples, "
            f"positions); got {scale!r}."
        )
