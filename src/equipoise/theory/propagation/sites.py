"""What is predicted, and measured, at every operation of a traced pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Site:
    r"""The output of one operation.

    Args:
        node: Number of the operation.
        operation: Its name.
        module: Name of the module that it ran in.
        second_moment: Predicted average of the squared elements; None if nothing is predicted.
        correlation: Predicted second moment of two samples over that of one.
        gradient: Predicted mean square of the derivative of the loss by an element.
        measured_second_moment: The same, of the traced pass.
        measured_gradient: The same; None where it was not measured.
        reason: Why nothing was predicted, why the way back ends here, or why there is no gradient
            after a change; empty otherwise.
        is_start: Whether the way back begins here, with the measured gradient.
        kind: What it is for a reader, such as ``normalisers``.
        elements: Numbers in the output.
        share: The part of the gradient that passes it on the way from the loss to the first
            weights, as :mod:`~equipoise.theory.propagation.attribution` defines it.
        log_gain: Logarithm of the factor that it puts on the scale-free gradient.
        error: Standard error of the logarithm of the predicted gradient, doubt included.
        row_correlation: Predicted second moment of two rows over that of one; rows are samples
            and their positions. None behind a nonlinear operation at many positions, whose pairs
            nothing else asks for.
        measured_correlation: That of two samples, of the traced pass; None where nothing is
            predicted.
        doubt: What that logarithm lacks by what the traced pass shows of norms on the way back.
    """

    node: int
    operation: str
    module: str
    second_moment: float | None
    correlation: float | None
    gradient: float | None
    measured_second_moment: float
    measured_gradient: float | None
    reason: str = ""
    is_start: bool = False
    kind: str = ""
    elements: int = 0
    share: float = 0.0
    log_gain: float = 0.0
    error: float = math.nan
    row_correlation: float | None = None
    measured_correlation: float | None = None
    doubt: float = 0.0

    @property
    def by_chance(self) -> float:
        """The part of the error that differs from one draw of weights to another."""
        return math.sqrt(max(self.error**2 - self.doubt**2, 0.0))

    @property
    def is_predicted(self) -> bool:
        """Whether theory reaches it on the way forward."""
        return self.second_moment is not None

    @property
    def scale_free_gradient(self) -> float | None:
        r""":math:`\|\partial\mathcal L/\partial x\|^2 \cdot E x^2`, predicted."""
        return _scale_free(self.gradient, self.second_moment, self.elements)

    @property
    def measured_scale_free_gradient(self) -> float | None:
        """The same, measured."""
        return _scale_free(self.measured_gradient, self.measured_second_moment, self.elements)


def of_model(sites: Iterable[Site]) -> list[Site]:
    """The operations inside a module; others are the loss, which nobody needs predicted."""
    return [site for site in sites if site.module]


def _scale_free(gradient: float | None, moment: float | None, elements: int) -> float | None:
    return None if gradient is None or moment is None else gradient * moment * elements


@dataclass(frozen=True, slots=True)
class Step:
    """Mean squared change of a layer's output by a step of its own weight and bias, over η².

    Args:
        sgd: For a step along the gradient.
        sign: For a step along its sign, the first of Adam.
    """

    sgd: float
    sign: float


@dataclass(frozen=True, slots=True)
class Weight:
    """The gradient of one matrix of weights, as layers multiply with it.

    Args:
        name: Of the parameter, or of those of which the matrix is computed, as by weight norm:
            "g and v". Numbers are then those of what is computed.
        gradient: Predicted mean square of its elements, all uses together.
        second_moment: Mean square of the weights themselves.
        measured_gradient: As the gradient, of the traced pass; None where it was not measured.
        step: What a step of the parameter does to the layer's output; None if not asked for.
    """

    name: str
    gradient: float
    second_moment: float
    measured_gradient: float | None = None
    step: Step | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """What the operations of one kind add to the growth of gradients over the model.

    Args:
        kind: Such as ``normalisers``; ``branches`` are additions and concatenations, and the use
            of one tensor by several operations.
        operations: How many there are.
        met: How many of them the gradient passes, on average over the ways that it takes.
        log_gain: Logarithm of the factor on the scale-free gradient, all of them together.
    """

    kind: str
    operations: int
    met: float
    log_gain: float

    @property
    def each(self) -> float:
        """The factor of one of them."""
        return math.exp(min(self.log_gain / self.met, 700)) if self.met else 1.0
