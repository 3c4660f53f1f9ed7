r"""How well each network trained, beside a good one of its kind.

.. math:: \text{progress} = \frac{\text{chance} - \text{loss}}{\text{chance} - \text{loss of the
          reference}}

Losses are those of the better optimiser at its best rate; chance is the loss of the best constant
prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise_papers.trainability.looks import Known, Look
from equipoise_papers.trainability.space import Network
from equipoise_papers.trainability.training import Trained, Training

# A network has trained with this progress.
TRAINED = 0.5
# The reference must win so much of the chance loss, or the budget is too small to tell anything. A
# transformer wins 13 to 15 % of it from text, where it is 0.4 nats and more.
_LEAST_SPAN = 0.125


@dataclass(frozen=True, slots=True)
class Outcome:
    """One network, before and after training.

    Args:
        network: Which.
        progress: Of its better optimiser.
        by_optimizer: Of each.
        early: Progress within the first fifth of the steps, at the rate that is best then.
        known: What was known before.
    """

    network: Network
    progress: float
    by_optimizer: dict[str, float]
    early: float
    known: Known

    @property
    def trained(self) -> bool:
        """Whether it trained."""
        return self.progress >= TRAINED


def outcomes(results: Mapping[Any, Any]) -> tuple[Outcome, ...]:
    """Join trainings and looks of every network that has both, and a reference that learns."""
    trained: dict[Network, dict[str, Trained]] = {}
    for cell, record in results.items():
        if isinstance(cell, Training):
            trained.setdefault(cell.network, {})[cell.optimizer] = record
    found = []
    for cell, known in results.items():
        if not isinstance(cell, Look) or known.refused:
            continue
        own, reference = trained.get(cell.network), trained.get(cell.network.reference)
        if own and reference:
            outcome = _outcome(cell.network, own, reference, known)
            if outcome is not None:
                found.append(outcome)
    return tuple(found)


def _outcome(
    network: Network,
    own: Mapping[str, Trained],
    reference: Mapping[str, Trained],
    known: Known,
) -> Outcome | None:
    progress = measure_of(own.values(), reference.values())
    if progress is None:
        return None

    by_optimizer = {name: progress(one.best.reached) for name, one in own.items()}
    early = [
        curve.losses[1] for one in own.values() for curve in one.curves if len(curve.losses) > 1
    ]
    return Outcome(
        network,
        max(by_optimizer.values()),
        by_optimizer,
        progress(min(early, default=float("inf"))),
        known,
    )


def measure_of(
    own: Iterable[Trained], reference: Iterable[Trained]
) -> Callable[[float], float] | None:
    """Progress as a function of the loss; ``None`` where the reference learns too little."""
    chance = next(iter(own)).chance
    span = chance - min(one.best.reached for one in reference)
    if span < _LEAST_SPAN * chance:
        return None
    return lambda loss: (chance - loss) / span


def designs(found: Sequence[Outcome]) -> dict[int, list[Outcome]]:
    """Networks that differ in depth alone, by the number of their design, shallowest first."""
    groups: dict[int, list[Outcome]] = {}
    for one in sorted(found, key=lambda one: one.network.depth):
        groups.setdefault(one.network.seed, []).append(one)
    return groups
