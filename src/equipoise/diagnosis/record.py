"""Record of a check-up: everything that was predicted, measured and concluded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from equipoise.diagnosis.fix.record import Fix, Proposal
from equipoise.diagnosis.initialisation.record import Initialisation
from equipoise.diagnosis.optimizer.record import OptimizerCheck
from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.diagnosis.second_order.record import SecondOrderPooling
from equipoise.diagnosis.smoothness.record import Smoothness
from equipoise.diagnosis.trainability.record import LIKELY, Trainability
from equipoise.probes.hessian.record import Hessian
from equipoise.probes.record import CovariateShift, GradientGrowth, Landscape, LayerConditioning
from equipoise.records.estimate import Estimate
from equipoise.records.finding import Finding, Severity
from equipoise.records.shown import Shown
from equipoise.records.wording import factor, number, plain
from equipoise.theory.propagation.sites import Share, Site

# Raise by one whenever a stored report of the old form can no longer be read.
SCHEMA_VERSION = 5
# The same of a stored probe.
PROBE_SCHEMA = 2

Origin = Literal["given", "tuned", "reference"]


@dataclass(frozen=True, slots=True)
class LayerPrediction:
    """What theory predicts at a layer whose gradient is measured.

    Args:
        layer: Its name, as in :class:`~equipoise.probes.LayerGradients`.
        gradient: Squared norm of the loss's gradient; ``None`` if theory does not reach it.
        second_moment: Mean square of the tensor that is watched.
        correlation: Mean product of two of its rows over the mean square of one.
        reason: Why there is no prediction; ``None`` if there is one.
    """

    layer: str
    gradient: Estimate | None
    second_moment: float | None
    correlation: float | None
    reason: str | None


# Findings on the first screen.
_HEADLINES = 3
_ADVICE, _REASON = "What to change", "Why"
# What a check-up compares, each at most once.
GROWTH = "gradient growth per layer"
PROFILE = "gradient at the worst layer"
CORRELATION = "correlation of two rows"
Outcome = Literal["agrees", "differs", "undecided"]


def _line(one: Finding) -> str:
    return f"{one.severity}: {one.title}. {one.remedy or one.detail}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity, predicted and measured, in units of error.

    Args:
        quantity: What is compared, such as :data:`GROWTH`.
        predicted: From theory; its error is what theory leaves out, finite width above all.
        measured: From the model; its error is the standard error over replicates.
        z: Difference over the combined error.
        outcome: ``differs`` if the difference exceeds three errors although the measurement's is
            widened to Student's t; ``agrees`` if it is within three errors without that, and
            these are small; otherwise ``undecided``: more initialisations would tell.
    """

    quantity: str
    predicted: Estimate
    measured: Estimate
    z: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A change to the model that theory recommends, and whether it helped.

    Args:
        normaliser: What kind of layer is changed, such as ``batch norm``.
        parameter: Which of its parameters, by PyTorch's name: ``weight`` is γ, ``bias`` is β.
        value: What to fill it with before training.
        predicted_rate: Growth per layer after the change, from theory.
        predicted_probability: That the model trains after the change, from theory.
        measured_rate: Growth per layer measured on the changed model; ``None`` if not tried.
        verified: Whether it helped: the logarithm of the measured growth is at most 0.8 of that
            before; ``None`` if not tried.
        change: The change in words.
        code: The change as a line of code, for every normaliser ``norm``.
    """

    normaliser: str
    parameter: Literal["weight", "bias"]
    value: float
    predicted_rate: Estimate
    predicted_probability: float
    measured_rate: Estimate | None
    verified: bool | None
    change: str
    code: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part that was left out for its price.

    Args:
        what: The part.
        option: How to ask for it.
        seconds: What it would about take.
    """

    what: str
    option: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The check-up in two lines.

    Args:
        severity: The worst finding's; ``None`` without findings.
        sentence: Whether the model will train, or how gradients behave where that is not known.
        details: Why, and how deep such a model could be.
        trainability: The probability behind it; ``None`` if the model could not be traced.
    """

    severity: Severity | None
    sentence: str
    details: str
    trainability: Trainability | None

    @property
    def probability(self) -> float | None:
        """That the model trains; ``None`` if it could not be traced."""
        return None if self.trainability is None else self.trainability.probability

    def __str__(self) -> str:
        """Sentence and details.

        Examples:
            >>> print(Verdict("good", "Will train (98 %)", "It has 4 equal blocks", None))
            Will train (98 %). It has 4 equal blocks
        """
        return f"{self.sentence}. {self.details}" if self.details else self.sentence


class UnfinishedError(ValueError):
    """What the user's code or PyTorch raised in the middle of an examination.

    Args:
        stage: What was being done.
        words: What was raised, and what to do.
        finished: The record of what was finished before.
    """

    def __init__(self, stage: str, words: str, finished: Examination) -> None:
        super().__init__(f"while {stage}: {words}")
        self.finished = finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination(Shown):
    """What the records of a check-up and of a probe have in common.

    Args:
        schema: Version of the record's form.
        equipoise: Version of the library that wrote it.
        torch: Version of PyTorch that ran it.
        created: Time of writing, ISO 8601, UTC.
        target: What the model is called.
        data: The data as the user named them.
        device: Where the model ran.
        batch_size: Samples per batch.
        parameters: Trainable numbers in the model.
        seconds: Wall time.
        interrupted: Whether the user stopped it, or the user's code raised something; the record
            holds what was finished.
        assumptions: How model, data and loss were made to fit together.
    """

    schema: int
    equipoise: str
    torch: str
    created: str
    target: str
    data: str
    device: str
    batch_size: int
    parameters: int
    seconds: float
    interrupted: bool
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup(Examination):
    """A whole check-up; ``report.json`` is this record, of version :data:`SCHEMA_VERSION`.

    Args:
        depth: Normalised (or, without normalisers, parametrised) layers.
        seeds: Initialisations measured.
        batches: Batches measured for each.
        verdict: The conclusion in two lines.
        sites: Every operation that weights lie before, predicted and measured in one pass.
        attribution: What each kind of operation adds to the growth of gradients.
        predictions: What theory predicts at the layers of ``growth``.
        growth: Measured gradients; ``None`` if interrupted before.
        comparisons: Predictions beside measurements.
        conditioning: Condition numbers per layer.
        remedies: Changes that theory recommends.
        findings: Conclusions, the most severe first.
        preconditioning: What batch normalisation preconditioning would do, per layer.
        fix: Remedies trained beside the model as it is, if that was asked for.
        smoothness: How far the gradient is reliable, at initialisation or, if it was asked for,
            along a short training.
        second_order: Second-order pooling layers, before and after normalisation.
        initialisation: What the weights look like, and whether they were meant to.
        left_out: What was not measured for its price, and how to ask for it.
        proposal: A change of which theory expects more than of the model and of ``remedies``, not
            tried; ``None`` where there is none, or remedies were trained.
        optimizer: What the user's own optimiser holds, and what its steps do, if one was given or
            came with the model.
    """

    depth: int
    seeds: int
    batches: int
    verdict: Verdict
    sites: tuple[Site, ...]
    attribution: tuple[Share, ...]
    predictions: tuple[LayerPrediction, ...]
    growth: GradientGrowth | None
    comparisons: tuple[Comparison, ...]
    conditioning: tuple[LayerConditioning, ...]
    remedies: tuple[Recommendation, ...]
    findings: tuple[Finding, ...]
    preconditioning: tuple[LayerPreconditioning, ...] = ()
    fix: Fix | None = None
    smoothness: Smoothness | None = None
    second_order: tuple[SecondOrderPooling, ...] = ()
    initialisation: Initialisation | None = None
    left_out: tuple[LeftOut, ...] = ()
    proposal: Proposal | None = None
    optimizer: OptimizerCheck | None = None

    @property
    def headlines(self) -> tuple[Finding, ...]:
        """At most three findings that say what to do, the most severe first.

        Notes without a remedy, which are true of most networks, are details; so are all notes
        where the model will train. The finding that is the verdict itself says what to change.
        """
        judged = self.verdict.trainability
        will_train = judged is not None and judged.probability > LIKELY
        telling = [
            one
            for one in self.findings
            if one.severity in ("critical", "warning")
            or (one.severity == "note" and one.remedy is not None and not will_train)
        ]
        return tuple(map(self._beside_the_verdict, telling[:_HEADLINES]))

    def _beside_the_verdict(self, one: Finding) -> Finding:
        """What a finding adds to a verdict that may have told its title, and then its remedy."""
        if one.title == self.verdict.sentence:
            return replace(one, title=_ADVICE)
        if self.verdict.sentence.casefold().endswith(f": {one.title.casefold()}"):
            return replace(one, title=_REASON, remedy=None)
        return one

    def __str__(self) -> str:
        """What a line of a log has room for: verdict and headlines; :meth:`show` prints more."""
        lines = [f"{self.target} on {self.data}: {self.verdict}"]
        lines += map(_line, self.headlines)
        return "\n".join(line.rstrip() for line in lines)

    def comparison(self, quantity: str) -> Comparison | None:
        """Return the comparison of a quantity, or None if it was not compared."""
        return next((c for c in self.comparisons if c.quantity == quantity), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Examination):
    """Everything that was measured; ``probe.json`` is this record, of version ``PROBE_SCHEMA``.

    Args:
        rate: Learning rate of plain SGD that landscape and covariate shift belong to.
        rate_origin: Whether it was given, tuned by the short training, or is the reference rate.
        growth: Gradients layer by layer, at initialisation.
        landscape: Loss and gradient along the gradient, at initialisation.
        shift: Internal covariate shift caused by one step, at initialisation.
        hessian: Extremal eigenvalues at initialisation, if they were asked for.
        training: Smoothness along a short training, if one was asked for.
        findings: Conclusions, the most severe first.
    """

    rate: float
    rate_origin: Origin
    growth: GradientGrowth | None
    landscape: Landscape | None
    shift: CovariateShift | None
    hessian: Hessian | None
    training: Smoothness | None
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        """What a line of a log has room for: the numbers; :meth:`show` prints more."""
        lines = [f"{self.target} on {self.data}, learning rate {plain(self.rate)}"]
        if self.landscape is not None:
            lines[0] += f": effective smoothness β {number(self.landscape.beta)}"
        if self.growth is not None and self.growth.rate is not None:
            lines.append(f"gradients grow {factor(self.growth.rate)} per layer towards the input")
        lines += map(_line, self.findings)
        return "\n".join(line.rstrip() for line in lines)
