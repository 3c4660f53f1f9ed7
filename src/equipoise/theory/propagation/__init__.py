"""Signal propagation through the operations of a traced network, and rules for one's own."""

from typing import TYPE_CHECKING

from equipoise._lazy import import_on_first_use

if TYPE_CHECKING:
    from equipoise.theory.propagation.call import Pulled, Result, rule
    from equipoise.theory.propagation.rules.pointwise import elementwise
    from equipoise.theory.propagation.values.gradients import Gradient

__all__ = [
    # Registering a rule.
    "rule",
    "elementwise",
    # What it gives.
    "Result",
    "Pulled",
    "Gradient",
]

import_on_first_use(
    __name__,
    {
        "call": "Pulled Result rule",
        "rules.pointwise": "elementwise",
        "values.gradients": "Gradient",
    },
)
