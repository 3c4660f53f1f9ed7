"""One problem of the theory: an activation, a batch size and batch norm's parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TypedDict

from equipoise.numerics.checks import check_within, is_number
from equipoise.numerics.options import named_options
from equipoise.theory.activation.adapt import ActivationLike, as_activation
from equipoise.theory.activation.catalogue import Activation

# Theorem 7 needs E[1/‖Gh‖²], which is infinite at B = 3; at B = 2 outputs are ±1.
SMALLEST_BATCH = 4
_LARGEST_BATCH = 10**15
_LARGEST = 1e100


class ConvergenceError(ValueError):
    """An iteration did not settle; the message says what to try."""


class SettingOptions(TypedDict, total=False):
    """The keywords of a :class:`Setting`, for functions that accept them in its place."""

    eps: float
    gamma: float
    beta: float
    weight_variance: float
    bias_variance: float


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Setting:
    r"""One problem of the theory: a wide random network with batch norm.

    .. math:: h^l = W^l\phi(\gamma\,\mathrm{BN}_\varepsilon(h^{l-1}) + \beta) + b^l

    Functions of the theory take a setting, or in its place an activation, a batch size and the
    keywords below: ``explosion_rate("gelu", 16, gamma=0.5)`` is
    ``explosion_rate(Setting("gelu", 16, gamma=0.5))``.

    Args:
        activation: φ: a name (``"relu"``), a module, an elementwise callable on float64 tensors
            or an :class:`Activation`; see :func:`as_activation`.
        batch_size: Samples that share batch statistics, at least 4.
        eps: Batch norm's ε, in units of the pre-activations' variance.
        gamma: Batch norm's scale, not 0. γ and −γ are the same problem; its magnitude is kept.
        beta: Batch norm's shift.
        weight_variance: :math:`\sigma_w^2`, fan-in times the variance of the weights, positive.
        bias_variance: :math:`\sigma_b^2`, the variance of the biases. Behind batch norm it changes
            the fixed point, but no growth rate.

    Raises:
        ValueError: If a number is out of range or the activation is not usable.
        TypeError: If the activation is no activation at all.

    Examples:
        >>> setting = Setting("gelu", 16, gamma=0.5)
        >>> setting
        Setting('gelu', 16, gamma=0.5)
        >>> setting.weight_variance
        1.0
        >>> from dataclasses import replace
        >>> replace(setting, eps=1e-5) == Setting("gelu", 16, gamma=0.5, eps=1e-5)
        True
    """

    activation: Activation
    batch_size: int
    eps: float
    gamma: float
    beta: float
    weight_variance: float
    bias_variance: float

    @named_options
    def __init__(
        self,
        activation: ActivationLike,
        batch_size: int,
        *,
        eps: float = 0.0,
        gamma: float = 1.0,
        beta: float = 0.0,
        weight_variance: float = 1.0,
        bias_variance: float = 0.0,
    ) -> None:
        _check_batch_size(batch_size)
        for name, value, least in (
            ("eps", eps, 0.0),
            ("gamma", gamma, -math.inf),
            ("beta", beta, -math.inf),
            ("weight_variance", weight_variance, 0.0),
            ("bias_variance", bias_variance, 0.0),
        ):
            check_within(name, value, "[0, inf)" if least == 0 else "(-inf, inf)")
            least = 1 / _LARGEST if name in ("gamma", "weight_variance") and value else 0.0
            if not least <= abs(value) <= _LARGEST:
                raise ValueError(
                    f"{name} = {value:g} leaves the range of float64 when squared and "
                    f"multiplied: use one between {least:g} and {_LARGEST:g} in size."
                )
        if gamma == 0:
            raise ValueError("gamma must not be 0: batch norm would send no signal at all.")
        if weight_variance == 0:
            raise ValueError(
                "weight_variance must not be 0: the layer would send no signal at all."
            )
        checked = {
            "activation": as_activation(activation),
            "batch_size": int(batch_size),
            "eps": float(eps),
            # Normalised samples have a symmetric distribution: γ and −γ are the same problem.
            "gamma": abs(float(gamma)),
            "beta": float(beta),
            "weight_variance": float(weight_variance),
            "bias_variance": float(bias_variance),
        }
        for name, part in checked.items():
            object.__setattr__(self, name, part)

    def __repr__(self) -> str:
        plain = Setting(self.activation, self.batch_size)
        changed = [
            f", {field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(plain, field.name)
        ]
        return f"Setting({self.activation.name!r}, {self.batch_size}{''.join(changed)})"


def as_setting(
    setting: Setting | ActivationLike,
    batch_size: int | None,
    options: SettingOptions,
    *,
    default_batch_size: int | None = None,
) -> Setting:
    """Return the setting that a function was called with, in either of its two forms.

    Args:
        setting: A setting, or its activation.
        batch_size: None beside a setting.
        options: Empty beside a setting.
        default_batch_size: Taken beside an activation if ``batch_size`` is None; without it, a
            batch size is required.

    Raises:
        TypeError: If the batch size is missing, or stands beside a setting that has its own.
        ValueError: As :class:`Setting`.

    Examples:
        >>> as_setting("relu", 8, {"eps": 0.1})
        Setting('relu', 8, eps=0.1)
    """
    if isinstance(setting, Setting):
        repeated = [*(["batch_size"] if batch_size is not None else []), *options]
        if repeated:
            raise TypeError(
                f"got {', '.join(repeated)} beside {setting!r}, which has its own. Use "
                f"dataclasses.replace(setting, {repeated[0]}=...) to change it."
            )
        return setting
    size = default_batch_size if batch_size is None else batch_size
    if size is None:
        raise TypeError(
            "batch_size is missing: give an activation and a batch size, or one Setting."
        )
    return Setting(setting, size, **options)


def unresolved(name: str, gamma: float, beta: float) -> ConvergenceError:
    """The error of an activation that turns between the nodes of a quadrature."""
    return ConvergenceError(
        f"{name} is too steep at gamma = {gamma:g}, beta = {beta:g}: quadrature does not resolve "
        "where it turns. Use a smaller gamma, or its limit, a function with a jump, for which "
        "gradients have no finite rate."
    )


def overflow(setting: Setting) -> ValueError:
    """The error of a function that grows too fast."""
    return ValueError(
        f"activation {setting.activation.name} overflows on normalised samples at "
        f"gamma = {setting.gamma:g}, beta = {setting.beta:g}. Use one that grows slower."
    )


def _check_batch_size(batch_size: int) -> None:
    if not (is_number(batch_size) and float(batch_size).is_integer()):
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
