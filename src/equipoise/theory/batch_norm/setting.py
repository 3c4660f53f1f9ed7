"""What one BSB1 problem is: an activation, a batch size and batch norm's parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, TypeAlias, cast

from equipoise.theory.activation.adapt import ActivationLike, as_activation
from equipoise.theory.activation.catalogue import Activation

Method: TypeAlias = Literal["auto", "closed form", "quadrature"]

# Theorem 7 needs E[1/‖Gh‖²], which is infinite at B = 3; at B = 2 outputs are ±1.
SMALLEST_BATCH = 4
_LARGEST_BATCH = 10**15


class ConvergenceError(ValueError):
    """An iteration did not settle; the message says what to try."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A validated problem; hashable, so that its solution can be remembered."""

    activation: Activation
    batch_size: int
    eps: float
    gamma: float
    beta: float
    weight_variance: float
    bias_variance: float


def make_setting(
    activation: ActivationLike,
    batch_size: int,
    *,
    eps: float,
    gamma: float,
    beta: float,
    weight_variance: float,
    bias_variance: float,
) -> Setting:
    """Check the arguments that every public function of the theory shares.

    Raises:
        ValueError: If a number is out of range or the activation is not usable.
        TypeError: If the activation is no activation at all, or a number is no number.
    """
    if not _is_whole(batch_size):
        raise ValueError(f"batch_size must be a whole number, got {batch_size!r}.")
    if batch_size > _LARGEST_BATCH:
        raise ValueError(
            f"batch_size must be at most 10^15, got {batch_size:.3g}: beyond it theory is at its "
            "limit of infinite batches to every digit of float64."
        )
    if batch_size < SMALLEST_BATCH:
        raise ValueError(
            f"batch_size must be at least 4, got {batch_size}: at 3 the gradient of batch norm "
            "has no second moment and at 2 its outputs are ±1. Use a larger batch."
        )
    for name, value, least in (
        ("eps", eps, 0.0),
        ("gamma", gamma, -math.inf),
        ("beta", beta, -math.inf),
        ("weight_variance", weight_variance, 0.0),
        ("bias_variance", bias_variance, 0.0),
    ):
        if not _is_number(value):
            raise TypeError(f"{name} must be a number, got {value!r}.")
        if not math.isfinite(value) or value < least:
            need = "finite and not negative" if least == 0 else "finite"
            raise ValueError(f"{name} must be {need}, got {value}.")
    if gamma == 0:
        raise ValueError("gamma must not be 0: batch norm would send no signal at all.")
    if weight_variance == 0:
        raise ValueError("weight_variance must not be 0: the layer would send no signal at all.")
    # The law of normalised samples is symmetric: γ and −γ are the same problem.
    return Setting(
        as_activation(activation),
        int(batch_size),
        float(eps),
        abs(float(gamma)),
        float(beta),
        float(weight_variance),
        float(bias_variance),
    )


def whole(name: str, value: object, least: int) -> int:
    """Check a count, whatever integer type it has.

    Raises:
        ValueError: If it is no whole number of at least ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    return int(value)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return _is_number(value) and float(cast(float, value)).is_integer()
