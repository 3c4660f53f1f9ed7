"""Signal propagation through the operations of a traced network, and rules for one's own."""

from __future__ import annotations

from equipoise.theory.propagation.call import Pulled, Result, rule
from equipoise.theory.propagation.rules.pointwise import elementwise
from equipoise.theory.propagation.values import Gradient

__all__ = [
    # Registering a rule.
    "rule",
    "elementwise",
    # What it gives.
    "Result",
    "Pulled",
    "Gradient",
]
