"""Signal propagation through the operations of a traced network, and rules for one's own."""

from __future__ import annotations

from equipoise.theory.propagation.call import Call, Pulled, Result, rule
from equipoise.theory.propagation.rules.pointwise import elementwise
from equipoise.theory.propagation.values import Gradient, Known, Moments, UnpredictedError

__all__ = [
    # Registering a rule.
    "rule",
    "elementwise",
    # What it gets and gives.
    "Call",
    "Result",
    "Pulled",
    # What is known of tensors.
    "Moments",
    "Gradient",
    "Known",
    "UnpredictedError",
]
