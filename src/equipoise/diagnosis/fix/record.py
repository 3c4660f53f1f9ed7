"""Records of remedies: what was proposed, trained, compared, and handed over."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.diagnosis.fix.remedy import Remedy
from equipoise.records.estimate import Estimate
from equipoise.training.record import Curve

_OPTIMIZER_NAMES = {"sgd": "SGD with momentum", "adam": "Adam", "adamw": "AdamW"}


@dataclass(frozen=True, slots=True)
class Proposal:
    """A remedy that applies to the model, before any training.

    Args:
        remedy: The change.
        family: What kind of change it is.
        predicted: Probability that the changed model trains, from theory alone; ``None`` where
            theory does not know.
        code: Lines that change ``model``, of one that a check-up names.
    """

    remedy: Remedy
    family: str
    predicted: float | None
    code: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arm:
    """The model as it is, or with one remedy, in short trainings.

    Args:
        name: What is changed, in words.
        remedy: The change; ``None`` for the model as it is.
        predicted: Probability of training from theory alone.
        measured: The same from theory and one pass of the changed model.
        rate: Learning rate that was best on the choosing seed; nan if every rate diverged.
        rates: Every rate that was tried, with its score.
        at_edge: Whether a rate beyond those tried might be better.
        rounds: How many rounds of the race it took part in; those of the last round are judged.
        loss: Training loss over the last quarter of the steps, over judging seeds.
        held_out: Loss on held-out data in evaluation mode after the last step, over judging seeds;
            nan without held-out data.
        accuracy: Share of held-out samples whose largest output is the target; ``None`` where
            targets are no classes.
        curve: Training loss against steps, the mean over judging seeds; ``None`` if one diverged
            or there is none.
        spread: Standard deviation over seeds at each point of the curve.
        step_seconds: Time of a step in the quickest run; nan if it did not run.
        diverged: Judging seeds that diverged.
        seeds: Judging seeds that it was trained with.
        reason: Why it was not trained; ``None`` if it was.
    """

    name: str
    remedy: Remedy | None
    predicted: float | None
    measured: float | None
    rate: float
    rates: tuple[tuple[float, ...], ...]
    at_edge: bool
    rounds: int
    loss: Estimate
    held_out: Estimate
    accuracy: Estimate | None
    curve: Curve | None
    spread: tuple[float, ...]
    step_seconds: float
    diverged: int
    seeds: int
    reason: str | None = None

    @property
    def gap(self) -> float:
        """Loss in evaluation mode on held-out data minus training loss."""
        return self.held_out.value - self.loss.value


@dataclass(frozen=True, slots=True)
class Gain:
    """One remedy compared with the model as it is, seed by seed.

    Args:
        name: Name of the arm.
        difference: Mean over seeds of the remedy's loss minus that of the model as it is.
        low: Lower end of the interval of Student's t that holds it in 9 of 10 cases.
        high: Upper end.
        helps: Whether it is below zero with the whole interval, by a hundredth of the loss or
            more; ``None`` with fewer than two seeds.
        ahead: Whether the mean alone is.
    """

    name: str
    difference: Estimate
    low: float
    high: float
    helps: bool | None
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Fix:
    """Remedies, the best of them trained beside the model as it is.

    Args:
        family: Which remedies were asked for.
        optimizer: The optimiser of every arm.
        steps: Steps of every judged run.
        seeds: Judging seeds.
        held_out: Samples that were held out before anything was trained.
        judged_by: The loss that ranks: ``held-out``, in evaluation mode, or ``training``.
        proposals: Every remedy that applies, with its prediction.
        arms: What was trained, the model as it is first, then by rank.
        gains: One for each remedy of the last round.
        best: The remedy that is recommended; ``None`` if none helps. Of the family ``norms``, one
            of which has to be taken, the one that is ahead, also if that may be chance.
        code: Lines that make its changes.
        seconds: Wall time.
        interrupted: Whether it was stopped; the record holds what was finished.
        remarks: What users should know, such as why there are no held-out data.
    """

    family: str
    optimizer: str
    steps: int
    seeds: int
    held_out: int
    judged_by: str
    proposals: tuple[Proposal, ...]
    arms: tuple[Arm, ...]
    gains: tuple[Gain, ...]
    best: Remedy | None
    code: tuple[str, ...]
    seconds: float
    interrupted: bool
    remarks: tuple[str, ...] = ()

    @property
    def optimizer_name(self) -> str:
        """The optimiser as a reader knows it."""
        return _OPTIMIZER_NAMES.get(self.optimizer, self.optimizer)

    @property
    def unchanged(self) -> Arm | None:
        """The model as it is."""
        return next((arm for arm in self.arms if arm.remedy is None), None)

    @property
    def is_sure(self) -> bool:
        """Whether the recommended remedy is better beyond chance."""
        winner = self.winner
        return winner is not None and any(g.helps for g in self.gains if g.name == winner.name)

    @property
    def winner(self) -> Arm | None:
        """The recommended remedy's arm."""
        return next((a for a in self.arms if a.remedy == self.best), None) if self.best else None
