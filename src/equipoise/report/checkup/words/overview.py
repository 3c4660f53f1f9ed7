"""What a report says: coverage, causes, rankings, reasons, times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime

from equipoise.diagnosis.fix.record import Proposal
from equipoise.diagnosis.fix.words import in_words
from equipoise.diagnosis.record import Checkup, LayerPrediction
from equipoise.probes.record import LayerConditioning, LayerGradients
from equipoise.records import wording
from equipoise.theory.propagation.attribution import SLIGHT
from equipoise.theory.propagation.sites import Share, Site, of_model

# They only rename axes or copy.
_MOVES = "reshapes"


def attribution(checkup: Checkup) -> list[Share]:
    """Kinds of operations that make gradients grow or shrink, the strongest first."""
    return [share for share in checkup.attribution if abs(share.log_gain) >= SLIGHT]


def computed(sites: Sequence[Site]) -> list[Site]:
    """The operations of the model itself that compute something."""
    return [site for site in of_model(sites) if site.kind != _MOVES]


def value(number: float | None, times: int = 1) -> str:
    """Write a number that may be missing."""
    return "–" if number is None else wording.number(number * times)


def gain(site: Site) -> str:
    """Write the factor that an operation puts on the gradient, if the gradient passes it."""
    return wording.factor(math.exp(min(site.log_gain, 700))) if site.share else "–"


def coverage(checkup: Checkup) -> str:
    """Say how many operations theory predicts."""
    inside = of_model(checkup.sites)
    predicted = sum(site.is_predicted for site in inside)
    return f"{predicted:,} of {wording.count(len(inside), 'operation')}"


def cuts(checkup: Checkup) -> dict[str, list[str]]:
    """Collect the operations at which theory is cut under each reason."""
    inside = of_model(checkup.sites)
    return by_reason((site.reason or None, f"{site.module}: {site.operation}") for site in inside)


def predictions(checkup: Checkup) -> list[LayerPrediction | None]:
    """What is predicted at each layer whose gradient was measured."""
    by_name = {one.layer: one for one in checkup.predictions}
    layers = checkup.growth.layers if checkup.growth else ()
    return [by_name.get(layer.layer) for layer in layers]


def total_factor(layers: Sequence[LayerGradients]) -> float | None:
    """The first layer's gradient over the last layer's, if both are finite."""
    if len(layers) < 2:
        return None
    first, last = layers[0].gradient.value, layers[-1].gradient.value
    if not (math.isfinite(first) and math.isfinite(last) and last > 0):
        return None
    return first / last


def worst_first(conditioning: Sequence[LayerConditioning]) -> list[LayerConditioning]:
    """Sort the measured layers by raw condition number, the largest or not finite ones first."""
    measured = [layer for layer in conditioning if layer.skipped is None]
    return sorted(
        measured,
        key=lambda layer: layer.raw if math.isfinite(layer.raw) else math.inf,
        reverse=True,
    )


def condition(layer: LayerConditioning, value: float, digits: int = 3) -> str:
    """Write a condition number, and mark that of a sample of rows."""
    return ("≈" if layer.sampled_from else "") + wording.number(value, digits)


def sampled(layers: Sequence[LayerConditioning]) -> str:
    """Say what the mark means and how far samples may be off; empty if there are none."""
    samples = [layer for layer in layers if layer.sampled_from]
    if not samples:
        return ""
    worst = max(samples, key=lambda layer: layer.sampling_error)
    factor = wording.factor(math.exp(min(worst.sampling_error, 700.0)))
    rest = ", at other layers by less" if len(samples) > 1 else ""
    return (
        f"≈: of a random sample of the layer's rows. At {worst.layer} a part of the sample "
        f"differs from the whole by {factor}{rest}."
    )


def skipped_by_reason(conditioning: Sequence[LayerConditioning]) -> dict[str, list[str]]:
    """Collect the names of unmeasured layers under each reason."""
    return by_reason((layer.skipped, layer.layer) for layer in conditioning)


def by_reason(pairs: Iterable[tuple[str | None, str]]) -> dict[str, list[str]]:
    """Collect names under each reason; a name without a reason is left out.

    Examples:
        >>> by_reason([("large", "fc1"), (None, "fc2"), ("large", "fc3")])
        {'large': ['fc1', 'fc3']}
    """
    reasons: dict[str, list[str]] = {}
    for reason, name in pairs:
        if reason is not None:
            reasons.setdefault(reason, []).append(name)
    return reasons


def change(proposal: Proposal) -> str:
    """Say what a proposal changes."""
    return wording.capital(in_words(proposal.remedy))


def promise(proposal: Proposal) -> str:
    """Say what theory expects of a proposal."""
    return f"trains with {wording.percent(proposal.predicted or 0.0)} by theory – not tried"


def verification(verified: bool | None) -> str:
    """Say whether a remedy helped."""
    if verified is None:
        return "not tried"
    return "verified" if verified else "not verified"


def moment(created: str) -> str:
    """Write an ISO 8601 time for people.

    Examples:
        >>> moment("2026-11-21T10:39:12+00:00")
        '2026-11-21 10:39 UTC'
        >>> moment("yesterday")
        'yesterday'
    """
    try:
        time = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{time:%Y-%m-%d %H:%M} {time.tzname() or ''}".rstrip()


def sampling(checkup: Checkup) -> str:
    """Say how much was measured."""
    seeds = wording.count(checkup.seeds, "initialisation")
    return f"{seeds} × {wording.count(checkup.batches, 'batch')}"
