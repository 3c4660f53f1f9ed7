"""Records of what a model's weights look like before training, and of what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal[
    "constant", "normal", "truncated normal", "uniform", "orthogonal", "other", "unclear"
]
"""``"truncated normal"`` is cut at two standard deviations; too few elements are ``"unclear"``."""

Verdict = Literal[
    "as intended",
    "missed",
    "mis-scaled",
    "fan mode",
    "residual scaling",
    "shifted",
    "reshaped",
    "exception",
    "not judged",
    "not finite",
]
"""``"exception"``: unlike its siblings, but as is common, such as a small last layer."""

FaultKind = Literal[
    "missed",
    "mis-scaled",
    "fan mode",
    "residual scaling",
    "shifted",
    "reshaped",
    "not finite",
    "constant",
    "constant at first",
    "low precision",
    "tied",
    "copied",
    "copied in sequence",
    "half loaded",
    "fresh part",
    "running statistics",
    "not used",
]


@dataclass(frozen=True, slots=True)
class ParameterInitialisation:
    r"""One parameter: the law of its elements as found, and as intended.

    Args:
        name: Its first name in the model.
        kind: Class of the module that owns it.
        shape: Its shape.
        dtype: Type of its elements, such as ``"float32"``.
        mean: Of the elements found.
        std: Their standard deviation.
        kurtosis: Their fourth central moment over the squared variance; 3 for a normal law.
        form: What law they look like.
        looks_trained: Whether it has a direction that independent elements do not have.
        intended_mean: Mean that the intended law has; NaN if no intention is known.
        intended_std: Its standard deviation; NaN if no intention is known.
        rule: The intended law in words; empty if it is not known.
        z: How far the found standard deviation is from the intended one, in standard errors;
            NaN if nothing was compared.
        verdict: What that means.
        explanation: What the parameter follows instead; empty if it is as intended.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    mean: float
    std: float
    kurtosis: float
    form: Form
    looks_trained: bool
    intended_mean: float
    intended_std: float
    rule: str
    z: float
    verdict: Verdict
    explanation: str = ""


@dataclass(frozen=True, slots=True)
class InitialisationFault:
    """Something that was hardly meant.

    Args:
        kind: What went wrong.
        parameters: Names of the parameters, or of modules for running statistics.
        of: How many could have had this fault.
        detail: The numbers, in a sentence.
    """

    kind: FaultKind
    parameters: tuple[str, ...]
    of: int
    detail: str


@dataclass(frozen=True, slots=True)
class Initialisation:
    """Every parameter of a model, and what is wrong.

    Args:
        parameters: One for each tensor, in the model's order.
        faults: What was hardly meant.
        threshold: Standard errors beyond which a difference counts. It is chosen so that a model
            as intended has a fault once in a thousand models.
        init: The init function that was named; empty if the intention was inferred.
    """

    parameters: tuple[ParameterInitialisation, ...]
    faults: tuple[InitialisationFault, ...]
    threshold: float
    init: str = ""

    @property
    def zero_matrices(self) -> tuple[str, ...]:
        """Names of matrices all of whose elements are zero."""
        return tuple(
            one.name
            for one in self.parameters
            if one.std == one.mean == 0 and sum(size > 1 for size in one.shape) > 1
        )
