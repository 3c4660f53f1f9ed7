r"""The known activations: values, slopes and where they are not smooth."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from equipoise.instrument.forward import recording_gradients
from equipoise.records.wording import closest
from equipoise.theory.activation import on_arrays
from equipoise.theory.activation.on_arrays import GELU_CUBE, GELU_SCALE, OnArrays

Array = NDArray[np.float64]
Elementwise = Callable[[Tensor], Tensor]


_LARGEST, _LARGEST_POWER = 1e100, 128


@dataclass(frozen=True, slots=True)
class Kink:
    """A point where an activation is continuous but not analytic.

    Args:
        at: The point.
        power: Whether one side behaves like a fractional power of the distance, as for
            max(x, 0)^1.5, and not like an analytic function that merely starts there.
    """

    at: float
    power: bool = False


@dataclass(frozen=True, slots=True)
class Homogeneity:
    r"""φ(x) = a·max(x, 0)^α − b·max(−x, 0)^α, for which closed forms exist."""

    alpha: float
    a: float
    b: float


@dataclass(frozen=True, slots=True, eq=False)
class Activation:
    r"""An elementwise nonlinearity :math:`\phi`.

    Args:
        name: Its name in reports.
        function: φ on float64 tensors, elementwise and deterministic.
        derivative: φ′; by automatic differentiation if omitted.
        kinks: Every point where φ is not analytic.
        homogeneity: Set if φ is positive-homogeneous.
        turns: Points ever denser towards places where φ is smooth, but turns within less than
            a tenth.
        unsure: Places that only one of three searches for kinks has seen: errors count what they
            change, and ``Estimate.method`` says so. Empty for declared kinks.
        on_arrays: The same on NumPy arrays, for speed, where this is known.
        is_symmetric: Whether φ is known to be odd or even.

    Examples:
        >>> values, slopes = RELU(np.array([-1.0, 2.0]))
        >>> values, slopes
        (array([0., 2.]), array([0., 1.]))
    """

    name: str
    function: Elementwise
    derivative: Elementwise | None = None
    kinks: tuple[Kink, ...] = ()
    homogeneity: Homogeneity | None = None
    turns: tuple[float, ...] = ()
    unsure: tuple[float, ...] = ()
    on_arrays: OnArrays | None = None
    is_symmetric: bool = False

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Return φ(x) and φ′(x), both of the shape of ``x``."""
        if self.on_arrays is not None:
            # 1/∞ is right, and infinite values are refused by name.
            with np.errstate(all="ignore"):
                return self.on_arrays.values(x), self.on_arrays.slopes(x)
        if not x.size:  # a user's function may not take it
            return np.zeros_like(x), np.zeros_like(x)
        argument = torch.from_numpy(np.ascontiguousarray(x))
        if self.derivative is not None:
            with torch.no_grad():
                return self.function(argument).numpy(), self.derivative(argument).numpy()
        with recording_gradients():
            argument = argument.clone().requires_grad_()
            values = self.function(argument.clone())  # the function may work in place
            if not values.requires_grad:  # a constant function of its input
                return values.numpy(), np.zeros_like(x)
            (slopes,) = torch.autograd.grad(values, argument, torch.ones_like(values))
        return values.detach().numpy(), slopes.numpy()

    def values(self, x: Array) -> Array:
        """Return φ(x) alone, at half the cost."""
        if self.on_arrays is not None:
            with np.errstate(all="ignore"):
                return self.on_arrays.values(x)
        if not x.size:
            return np.zeros_like(x)
        with torch.no_grad():
            # A copy: the function may work in place.
            return self.function(torch.from_numpy(np.array(x, order="C"))).numpy()


def homogeneous(name: str, alpha: float, a: float, b: float) -> Activation:
    """Build φ(x) = a·max(x, 0)^α − b·max(−x, 0)^α.

    Raises:
        ValueError: If a number is not finite.
    """
    if not all(abs(number) <= _LARGEST for number in (a, b)):
        raise ValueError(f"activation {name} needs finite slopes, at most 10^100.")
    if not abs(alpha) <= _LARGEST_POWER:
        raise ValueError(
            f"activation {name} needs a power of at most {_LARGEST_POWER}: moments of a larger "
            "one overflow."
        )

    if alpha == 1.0:
        kinks = () if a == b else (Kink(0.0),)
        return Activation(
            *(name, lambda x: a * x.clamp(min=0) + b * x.clamp(max=0), None, kinks),
            Homogeneity(alpha, a, b),
            on_arrays=on_arrays.two_slopes(a, b),
            is_symmetric=abs(a) == abs(b),
        )

    def function(x: Tensor) -> Tensor:
        power = x.abs() ** alpha
        return torch.where(x > 0, a * power, -b * power)

    def derivative(x: Tensor) -> Tensor:
        side = a * (x > 0).to(x.dtype) + b * (x <= 0).to(x.dtype)
        return alpha * side * x.abs() ** (alpha - 1)

    kinks = (Kink(0.0, power=alpha != round(alpha)),)
    return Activation(
        *(name, function, derivative, kinks, Homogeneity(alpha, a, b)),
        is_symmetric=abs(a) == abs(b),
    )


def alpha_relu(alpha: float) -> Activation:
    r"""The power rectifier :math:`\rho_\alpha(x) = \max(x, 0)^\alpha`.

    Args:
        alpha: Power, above 1/2: below that the slope has no second moment.

    Raises:
        ValueError: If ``alpha <= 0.5``.

    Examples:
        >>> alpha_relu(2)(np.array([3.0]))
        (array([9.]), array([6.]))
    """
    if not alpha > 0.5:
        raise ValueError(
            f"alpha_relu needs alpha > 0.5, got {alpha}: E[φ′²] is infinite below, "
            "so the gradient has no finite growth rate."
        )
    return homogeneous(f"alpha_relu({alpha:g})", float(alpha), 1.0, 0.0)


def leaky_relu(negative_slope: float = 0.01) -> Activation:
    """The leaky rectifier max(x, 0) + slope·min(x, 0)."""
    return homogeneous(f"leaky_relu({negative_slope:g})", 1.0, 1.0, float(negative_slope))


def elu(alpha: float = 1.0) -> Activation:
    """The exponential linear unit; at alpha = 1 its slope is continuous, its curvature not."""
    if not abs(alpha) <= _LARGEST:
        raise ValueError(f"elu needs a finite alpha, at most 10^100, got {alpha}.")

    return Activation(
        *(f"elu({alpha:g})", lambda x: F.elu(x, alpha), None, (Kink(0.0),)),
        on_arrays=on_arrays.exponential_unit(alpha),
    )


def celu(alpha: float = 1.0) -> Activation:
    """The continuously differentiable exponential linear unit."""
    if not 1 / _LARGEST <= abs(alpha) <= _LARGEST:
        raise ValueError(f"celu needs an alpha from 10^-100 to 10^100, got {alpha}.")

    # PyTorch's celu rounds 1/alpha to float32.
    def function(x: Tensor) -> Tensor:
        return torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0) / alpha))

    return Activation(
        *(f"celu({alpha:g})", function, None, (Kink(0.0),)),
        on_arrays=on_arrays.exponential_unit(alpha, width=alpha),
    )


def softplus(beta: float = 1.0) -> Activation:
    """log(1 + exp(beta·x)) / beta, without the jump of PyTorch's linear shortcut."""
    if not 1 / _LARGEST <= beta <= _LARGEST:
        raise ValueError(f"softplus needs a beta from 10^-100 to 10^100, got {beta}.")
    # Threshold 40: the shortcut's error exp(-40) is below rounding; at PyTorch's 20 it is 2e-9.
    return Activation(
        f"softplus({beta:g})",
        lambda x: F.softplus(x, beta, threshold=40.0),
        on_arrays=on_arrays.softplus(beta),
    )


def hardtanh(low: float = -1.0, high: float = 1.0) -> Activation:
    """Clipping to [low, high]."""
    if not -_LARGEST <= low < high <= _LARGEST:
        raise ValueError(f"hardtanh needs low < high within 10^100, got {low} and {high}.")
    name = "hardtanh" if (low, high) == (-1.0, 1.0) else f"hardtanh({low:g},{high:g})"
    return Activation(
        *(name, lambda x: x.clamp(low, high), None, (Kink(float(low)), Kink(float(high)))),
        on_arrays=on_arrays.clipped(low, high),
        is_symmetric=low == -high,
    )


def _gelu(x: Tensor) -> Tensor:
    # PyTorch's 1 + erf loses the left tail; erfc keeps all its digits.
    return 0.5 * x * torch.erfc(-x * math.sqrt(0.5))


def _gelu_tanh(x: Tensor) -> Tensor:
    # (1 + tanh u)/2 = sigmoid(2u), which keeps the digits of the left tail.
    return x * torch.sigmoid(GELU_SCALE * (x + GELU_CUBE * x**3))


def _mish(x: Tensor) -> Tensor:
    return x * torch.tanh(F.softplus(x, threshold=40.0))


IDENTITY = homogeneous("identity", 1.0, 1.0, 1.0)
RELU = homogeneous("relu", 1.0, 1.0, 0.0)
ABS = homogeneous("abs", 1.0, 1.0, -1.0)

ACTIVATIONS: dict[str, Activation] = {
    activation.name: activation
    for activation in (
        IDENTITY,
        RELU,
        ABS,
        hardtanh(),
        Activation("tanh", torch.tanh, on_arrays=on_arrays.TANH, is_symmetric=True),
        Activation(
            *("erf", torch.erf, lambda x: 2 / math.sqrt(math.pi) * torch.exp(-x.square())),
            is_symmetric=True,
        ),
        Activation("sigmoid", torch.sigmoid, on_arrays=on_arrays.SIGMOID),
        Activation("gelu", _gelu, on_arrays=on_arrays.GELU),
        Activation("gelu_tanh", _gelu_tanh, on_arrays=on_arrays.GELU_TANH),
        Activation("silu", F.silu, on_arrays=on_arrays.SILU),
        Activation("mish", _mish, on_arrays=on_arrays.MISH),
        Activation("selu", F.selu, kinks=(Kink(0.0),), on_arrays=on_arrays.SELU),
        Activation(
            *("relu6", F.relu6, None, (Kink(0.0), Kink(6.0))),
            on_arrays=on_arrays.clipped(0, 6),
        ),
        Activation(
            *("hardswish", F.hardswish, None, (Kink(-3.0), Kink(3.0))),
            on_arrays=on_arrays.HARDSWISH,
        ),
        # PyTorch's rounds 1/6 to float32.
        Activation(
            *("hardsigmoid", lambda x: (x + 3).clamp(0, 6) / 6, None, (Kink(-3.0), Kink(3.0))),
            on_arrays=on_arrays.HARDSIGMOID,
        ),
        Activation(
            *("softsign", F.softsign, None, (Kink(0.0),)),
            on_arrays=on_arrays.SOFTSIGN,
            is_symmetric=True,
        ),
        Activation("log_sigmoid", F.logsigmoid, on_arrays=on_arrays.LOG_SIGMOID),
        Activation("tanhshrink", F.tanhshrink, on_arrays=on_arrays.TANHSHRINK, is_symmetric=True),
        Activation("sin", torch.sin, torch.cos, is_symmetric=True),
        Activation("square", torch.square, on_arrays=on_arrays.SQUARE, is_symmetric=True),
    )
}
"""Activations by name. Families with numbers, such as ``"leaky_relu(0.2)"``, are not listed."""

_ALIASES = {"linear": "identity", "swish": "silu", "hardsilu": "hardswish"}
_FAMILIES: dict[str, Callable[..., Activation]] = {
    "alpha_relu": alpha_relu,
    "leaky_relu": leaky_relu,
    "elu": elu,
    "celu": celu,
    "softplus": softplus,
    "hardtanh": hardtanh,
}


@lru_cache(maxsize=256)
def member(family: str, *parameters: float) -> Activation:
    """Return a member of a family, the same object each time: solutions are cached by it.

    Examples:
        >>> member("leaky_relu", 0.2) is member("leaky_relu", 0.2)
        True
    """
    return _FAMILIES[family](*parameters)


def named_activation(name: str) -> Activation:
    """Look an activation up by name; families take numbers, as in ``"alpha_relu(1.5)"``.

    Raises:
        ValueError: If the name or its numbers are not understood.

    Examples:
        >>> named_activation("leaky_relu(0.2)").homogeneity
        Homogeneity(alpha=1.0, a=1.0, b=0.2)
    """
    word, bracket, numbers = name.strip().lower().partition("(")
    word = word.strip().replace("-", "_")
    key = _ALIASES.get(word, word) + bracket + numbers
    if key in ACTIVATIONS:
        return ACTIVATIONS[key]
    match = re.fullmatch(r"(\w+)(?:\(([^()]*)\))?", key)
    if match and match[1] in _FAMILIES:
        try:
            parameters = [float(part) for part in match[2].split(",")] if match[2] else []
        except ValueError as error:
            raise ValueError(f"activation {name!r} must have numbers in its brackets.") from error
        try:
            return member(match[1], *parameters)
        except TypeError as error:
            raise ValueError(f"activation {name!r} has too few or too many numbers.") from error
    known = sorted({*ACTIVATIONS, *(f"{family}(number)" for family in _FAMILIES)})
    raise ValueError(
        f"unknown activation {name!r}; known are {', '.join(known)}.{closest(name, known)}"
    )
