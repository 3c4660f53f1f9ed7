"""Options of BNP and their validation: averaging, variance rule, row scale, presets."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

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
        _check_number("rho", self.rho)
        if not isinstance(self.bias_correction, bool):
            raise TypeError(f"bias_correction must be a bool, got {self.bias_correction!r:.40}.")
        if not isinstance(self.eps, tuple | list):
            raise TypeError(
                f"eps must be two numbers, such as (1e-2, 1e-4), got {type(self.eps).__name__}."
            )
        for number in self.eps:
            _check_number("eps", number)
        if not isinstance(self.update_every, int):
            raise TypeError(
                f"update_every must be an int, got {type(self.update_every).__name__}."
            )
        if self.max_norm is not None:
            _check_number("max_norm", self.max_norm)
        if not 0 <= self.rho < 1:
            raise ValueError(f"rho must lie in [0, 1), got {self.rho}.")
        if len(self.eps) != 2 or any(not 0 <= e < math.inf for e in self.eps):
            raise ValueError(
                f"eps must be two finite numbers that are not negative, got {self.eps!r}. The "
                "paper's are (1e-2, 1e-4)."
            )
        for name, value, known in (
            ("variance", self.variance, get_args(Variance)),
            ("conv_stats", self.conv_stats, get_args(ConvStatistics)),
            ("rows", self.rows, get_args(Rows)),
        ):
            if not isinstance(value, str):
                raise TypeError(
                    f"{name} must be one of {', '.join(known)}; got {type(value).__name__}."
                )
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}.")
        whole = isinstance(self.update_every, int) and not isinstance(self.update_every, bool)
        if not whole or self.update_every < 1:
            raise ValueError(f"update_every must be a positive int, got {self.update_every!r}.")
        if self.max_norm is not None and not self.max_norm > 0:
            raise ValueError(f"max_norm must be positive or None, got {self.max_norm!r}.")
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


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__} {value!r:.40}.")


def _check_row_scale(scale: Any) -> None:
    if callable(scale) or scale == "paper":
        return
    number = isinstance(scale, numbers.Real) and not isinstance(scale, bool)
    if not number or not 0 < scale < math.inf:
        raise ValueError(
            f"row_scale must be 'paper', a positive q², or a function of (fan_in, samples, "
            f"positions); got {scale!r}."
        )
