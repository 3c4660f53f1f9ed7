"""How long remedies are trained, and which."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch

from equipoise.diagnosis.fix.propose import FAMILIES
from equipoise.diagnosis.short_training import ADAPTIVE, MakeOptimizer, check_options
from equipoise.numerics.checks import check_choice, check_size, check_within
from equipoise.training.rates import check_rates

# SGD has the momentum that most users give it.
OPTIMIZERS: dict[str, tuple[MakeOptimizer, tuple[float, ...]]] = {
    "sgd": (partial(torch.optim.SGD, momentum=0.9), (0.003, 0.01, 0.03, 0.1)),
    **ADAPTIVE,
}


@dataclass(frozen=True, slots=True)
class FixOptions:
    """Which remedies are tried, and how long they are trained.

    Args:
        family: ``"all"``, ``"norms"``, ``"starts"``, ``"weights"``, ``"activations"`` or
            ``"bnp"``.
        optimizer: ``"sgd"`` (momentum 0.9), ``"adam"`` or ``"adamw"``; by default that of these
            whose class the check-up was given, or else ``"sgd"``.
        rates: Learning rates to try first, by default a grid of four; the grid is extended once
            where its best is at an edge.
        budget: Seconds for all trainings, about; they decide how long each one is, and how many
            remedies start. By default 60, without a limit if ``steps`` are given.
        steps: Steps of each judged run, at least 4; by default as many as fit into the budget, at
            most 200.
        seeds: Initialisations and data orders to judge by; the rate is chosen on another.
        arms: Remedies that start at most; by default what fits into the budget, at most 11.

    Raises:
        ValueError: If an option is out of range.

    Examples:
        >>> FixOptions("norms", budget=300).arms is None  # as many as five minutes hold
        True
    """

    family: str = "all"
    optimizer: str | None = None
    rates: tuple[float, ...] | None = None
    budget: float | None = None
    steps: int | None = None
    seeds: int = 3
    arms: int | None = None

    def __post_init__(self) -> None:
        check_choice("family", self.family, FAMILIES)
        check_options(self.kind, OPTIMIZERS, 4 if self.steps is None else self.steps, self.seeds)
        if self.arms is not None:
            check_size(arms=self.arms)
        if self.budget is not None:
            check_within("budget", self.budget, "[1, inf]", "It is in seconds.")
        if self.rates is not None:
            check_rates(self.rates)

    @classmethod
    def of(cls, given: FixOptions | str | bool | None) -> FixOptions | None:
        """Options that were given as such, as a family's name, or as a yes or no.

        Raises:
            ValueError: If they are none of these.

        Examples:
            >>> FixOptions.of("norms").family, FixOptions.of(True).family, FixOptions.of(False)
            ('norms', 'all', None)
        """
        if given is None or isinstance(given, bool):
            return cls() if given else None
        if isinstance(given, str) and given in FAMILIES:
            return cls(given)
        if isinstance(given, cls):
            return given
        raise ValueError(
            f"remedies are chosen by equipoise.diagnosis.FixOptions or a family's name, "
            f"{', '.join(FAMILIES)}; got {given!r}."
        )

    def beside(self, optimizer: str) -> FixOptions:
        """The same with the optimiser of a class's name, if none was chosen and it is known.

        Examples:
            >>> options = FixOptions(budget=10)
            >>> [options.beside(name).kind for name in ("AdamW", "Lion")]
            ['adamw', 'sgd']
        """
        known = self.optimizer is None and optimizer.lower() in OPTIMIZERS
        return replace(self, optimizer=optimizer.lower()) if known else self

    @property
    def kind(self) -> str:
        """The optimiser, a key of :data:`OPTIMIZERS`."""
        return "sgd" if self.optimizer is None else self.optimizer

    @property
    def seconds(self) -> float:
        """The budget; infinite if only steps limit it."""
        if self.budget is not None:
            return self.budget
        return 60.0 if self.steps is None else math.inf
