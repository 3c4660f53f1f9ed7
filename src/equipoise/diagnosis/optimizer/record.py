"""Records of what the user's optimiser holds, and of what its steps do to the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

# Whether the loss falls by the optimiser's steps, and if it does not, at which rates it does.
StepsOutcome = Literal["falls", "too large", "too small", "undecided", "fails", "not tried"]

# Whether the largest rate of the schedule is known, if there is one. Where it is not, the schedule
# starts at the rate that is tried, or is assumed to rise to it.
Schedule = Literal["known", "assumed", "unknown"]


@dataclass(frozen=True, slots=True)
class RateTrial:
    """What some steps at one learning rate did to the loss.

    Args:
        rate: The largest learning rate of the optimiser's groups.
        steps: How many were taken, over the same batches again and again.
        before: Mean loss over these batches before the first step.
        after: The same after the last; infinite if a loss on the way was not finite.
        everywhere: Whether the loss fell on every batch.
    """

    rate: float
    steps: int
    before: float
    after: float
    everywhere: bool

    @property
    def fall(self) -> float:
        """By how much the loss fell.

        Examples:
            >>> RateTrial(rate=0.1, steps=12, before=2.5, after=2.0, everywhere=True).fall
            0.5
        """
        return self.before - self.after


@dataclass(frozen=True, slots=True)
class OptimizerCheck:
    """The user's own optimiser, on the model as it starts.

    Args:
        optimizer: Name of its class.
        rate: Its learning rate, the largest of its groups and of its schedule; nan without one.
        parameters: Names of the model's parameters that require gradients.
        left_out: Those of them that no group holds.
        held: Tensors in its groups.
        climbs: Whether it maximises.
        half_life: Steps in which weight decay alone halves weights; infinite without decay.
        trials: Steps at its own learning rate, and at others where these tell more.
        outcome: What they show.
        reason: Why no steps were tried, or what one of them raised; empty if all were taken.
        unmoved: Share of the weights in half precision that its steps left as they were although
            they have gradients; nan without such weights.
        schedule: Whether the schedule is known that ``rate`` comes from.
        of_others: Those left out that another optimiser may well step: the loss does not depend
            on them, or they are whole networks of a model that only holds networks.
    """

    optimizer: str
    rate: float
    parameters: tuple[str, ...]
    left_out: tuple[str, ...]
    held: int
    climbs: bool
    half_life: float
    trials: tuple[RateTrial, ...] = ()
    outcome: StepsOutcome = "not tried"
    reason: str = ""
    unmoved: float = math.nan
    schedule: Schedule = "known"
    of_others: tuple[str, ...] = ()

    @property
    def is_of_another_model(self) -> bool:
        """Whether it holds tensors, and none of them is a parameter of the model."""
        return self.held > 0 and len(self.left_out) == len(self.parameters) > 0
