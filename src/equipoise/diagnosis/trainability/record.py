"""Record of how probably a network trains, and of what that rests on."""

from __future__ import annotations

from dataclasses import dataclass, fields

from equipoise.records import wording

# With a higher probability a model needs no remedy.
LIKELY = 0.9


@dataclass(frozen=True, slots=True)
class Quantities:
    """Risks, from 0 on, and the size of the batch; ``quantities.py`` says what each is."""

    explosion: float
    vanishing: float
    collapse: float
    size: float
    imbalance: float
    silence: float
    fluctuation: float
    samples: float
    faintness: float = 0.0

    @property
    def values(self) -> tuple[float, ...]:
        """As numbers, in the order of :data:`NAMES`."""
        return tuple(getattr(self, name) for name in NAMES)


NAMES = tuple(field.name for field in fields(Quantities))


@dataclass(frozen=True, slots=True)
class Depth:
    """How many of its repeated blocks a network could have and train as probably as not.

    Args:
        blocks: How many it has.
        value: How many could train; infinite beyond those that were looked at.
        low: Lower end of the interval.
        high: Upper end.
        searched: How many blocks theory was asked about at most; 0 if that is not known.
    """

    blocks: int
    value: float
    low: float
    high: float
    searched: int = 0


@dataclass(frozen=True, slots=True)
class Trainability:
    """Whether a network will train, before it is trained.

    Args:
        probability: That it trains, in the sense of docs/trainability.md: that within a short
            training, at its best learning rate, its loss falls at least half as far below that of
            guessing as that of a shallow, well-built network of its kind.
        low: Lower end of the interval that holds the probability in 9 of 10 cases.
        high: Upper end.
        reason: What speaks most against it; empty if nothing does.
        alike: Networks of the benchmark with about this probability.
        alike_trained: The share of them that trained.
        outside: What is outside the benchmark's range; the interval is wider then.
        source: What it was computed from: ``measured`` or ``both``, with theory.
        predicted: Quantities from theory; ``None`` where theory does not reach the output.
        measured: The same quantities of one traced pass.
        depth: How deep such a network could be, if equal blocks make up most of it.
    """

    probability: float
    low: float
    high: float
    reason: str
    alike: int
    alike_trained: float
    outside: tuple[str, ...]
    source: str
    predicted: Quantities | None
    measured: Quantities
    depth: Depth | None = None

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        chance = wording.chance(self.probability, self.low, self.high)
        return f"trains with a probability of {chance}{reason}"

    @property
    def is_open(self) -> bool:
        """Whether the interval holds what is unlikely and what is likely, and so says nothing."""
        return self.low < 1 - LIKELY and self.high > LIKELY
