"""The paper's sentences about each figure, checked on runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from equipoise_papers.experiments.verdict import Check
from equipoise_papers.santurkar2018.grids import LABELS
from equipoise_papers.santurkar2018.summaries import (
    Spread,
    average,
    below,
    best_rate,
    beta,
    change_width,
    cosine,
    drift,
    loss_width,
    relative_shift,
    runs_of,
    series,
    spread,
    typical,
    typically_below,
)
from equipoise_papers.santurkar2018.training import Look, Normaliser, ProbedTraining, Run

Results = Mapping[ProbedTraining, Run]
_PLAIN: tuple[Normaliser, ...] = ("none", "batch")
# With batch norm, compared to without.
_BN: tuple[Normaliser, Normaliser] = ("batch", "none")
# Two methods are level if their losses differ by at most this share.
_LEVEL = 0.2
# "Close to two orders of magnitude": within a factor of three of it.
_TWO_ORDERS = 30.0


def _losses(results: Results, norm: Normaliser) -> Spread:
    return spread(run.loss for run in runs_of(results, norm))


def _level(claim: str, results: Results, one: Normaliser, other: Normaliser) -> Check:
    a, b = _losses(results, one), _losses(results, other)
    found = f"{LABELS[one]} {a}, {LABELS[other]} {b}"
    return Check(claim, found, abs(a.mean - b.mean) <= _LEVEL * b.mean)


def _lower_loss(claim: str, results: Results, one: Normaliser, other: Normaliser) -> Check:
    names = LABELS[one], LABELS[other]
    return below(claim, _losses(results, one), _losses(results, other), names)


def _tuned(claim: str, results: Results, one: Normaliser, other: Normaliser) -> Check:
    """Compare losses at the best rate of each."""
    (rate_a, a), (rate_b, b) = best_rate(results, one), best_rate(results, other)
    names = f"{LABELS[one]} at {rate_a:g}", f"{LABELS[other]} at {rate_b:g}"
    return below(claim, a, b, names)


def _compare(
    claim: str,
    results: Results,
    value: Callable[[Look], float],
    one: Normaliser,
    other: Normaliser,
) -> Check:
    """Check that a number is typically lower with one normaliser than with the other."""
    a, b = (typical(runs_of(results, norm), value) for norm in (one, other))
    return typically_below(claim, a, b, (LABELS[one], LABELS[other]))


def training(results: Results) -> tuple[Check, ...]:
    """Fig. 1."""
    a, b = (spread(r.accuracy for r in runs_of(results, n)) for n in ("none", "batch"))
    return (
        _lower_loss("BN trains faster at the paper's rate", results, "batch", "none"),
        _tuned("BN trains faster with the best rate of each", results, "batch", "none"),
        below("BN tests better", a, b, ("standard", "BN")),
        *distributions(results),
    )


def distributions(results: Results) -> tuple[Check, ...]:
    """Figs. 1 and 8."""
    standard, normalised = (drift(runs_of(results, n)) for n in _PLAIN)
    return (
        Check(
            "distributions of layer inputs evolve with little difference (drift per look within "
            "a factor 3)",
            f"standard {standard}, BN {normalised}",
            1 / 3 < standard.mean / normalised.mean < 3,
        ),
    )


def noisy(results: Results) -> tuple[Check, ...]:
    """Fig. 2."""
    return (
        _level("noisy BN trains almost as well as BN", results, "noisy", "batch"),
        _lower_loss("noisy BN is far ahead of standard", results, "noisy", "none"),
        _tuned("also with the best rate of each", results, "noisy", "none"),
        _lower_loss("standard with the same noise is behind standard", results, "none", "noise"),
        Check(
            "standard with the same noise does not train at all",
            f"loss {_losses(results, 'noise')}; chance is {math.log(10):.2f}",
            _losses(results, "noise").mean > 0.9 * math.log(10),
        ),
    )


def moments(results: Results) -> tuple[Check, ...]:
    """Fig. 7."""
    noisy, standard = (drift(runs_of(results, n)) for n in ("noisy", "none"))
    return (
        _level("noisy BN trains almost as well as BN", results, "noisy", "batch"),
        below(
            "moments of layer inputs are less stable with noisy BN than in the standard network",
            standard,
            noisy,
            ("standard", "noisy BN"),
        ),
    )


def shift_vgg(results: Results) -> tuple[Check, ...]:
    """Figs. 3 and 6, VGG."""
    start = {n: spread(cosine(r.looks[0]) for r in runs_of(results, n)) for n in _PLAIN}
    return (
        below(
            "ICS is larger with BN at the start (lower cosine)",
            start["batch"],
            start["none"],
            ("BN", "standard"),
        ),
        _not_reduced("BN does not reduce ICS over training (cosine no higher)", results),
    )


def _not_reduced(claim: str, results: Results) -> Check:
    a, b = (average(runs_of(results, n), cosine) for n in ("batch", "none"))
    joint = math.hypot(*(e if math.isfinite(e) else 0.0 for e in (a.error, b.error)))
    return Check(claim, f"BN {a}, standard {b}", a.mean <= b.mean + 2 * joint)


def shift_linear(results: Results) -> tuple[Check, ...]:
    """Figs. 3 and 6, deep linear network."""
    start = {n: spread(cosine(r.looks[0]) for r in runs_of(results, n)) for n in _PLAIN}
    steps, spreads = series(runs_of(results, "none"), cosine)
    late = next((s for s, c in zip(steps, spreads, strict=True) if c.mean < 0.5), None)
    return (
        below(
            "ICS is larger with BN at the start",
            start["batch"],
            start["none"],
            ("BN", "standard"),
        ),
        Check(
            "the standard network has almost no ICS for the entirety of training (cosine > 0.8)",
            f"from {spreads[0].mean:.2f} down to {min(s.mean for s in spreads):.2f}; below 0.5 "
            f"from step {late}"
            if late is not None
            else f"at least {min(s.mean for s in spreads):.2f}",
            min(s.mean for s in spreads) > 0.8,
        ),
        _compare("relative l2 shift is larger with BN", results, relative_shift, "none", "batch"),
    )


def landscape(results: Results) -> tuple[Check, ...]:
    """Figs. 4 and 9."""
    worst = {n: typical(runs_of(results, n), change_width) for n in _PLAIN}
    ratio = worst["none"].mean / worst["batch"].mean
    return (
        _compare("the loss varies less along the gradient with BN", results, loss_width, *_BN),
        _compare("the gradient changes less with BN", results, change_width, *_BN),
        _compare("effective β is smaller with BN", results, beta, *_BN),
        Check(
            "gradient predictiveness improves by close to two orders of magnitude",
            f"factor {ratio:.3g} (typical look; worst look "
            f"{_worst(results, 'none') / _worst(results, 'batch'):.3g})",
            ratio > _TWO_ORDERS,
        ),
    )


def _worst(results: Results, norm: Normaliser) -> float:
    return max(change_width(look) for run in runs_of(results, norm) for look in run.looks)


def distance(results: Results) -> tuple[Check, ...]:
    """Fig. 10."""
    a, b = (_slope(results, norm) for norm in ("batch", "none"))
    return (
        Check(
            "the gradient error grows with the distance moved",
            f"median rank correlation {min(a, b):.2f} or more",
            min(a, b) > 0,
        ),
        _compare(
            "BN is smoother over the distances probed (effective β)",
            results,
            beta,
            *_BN,
        ),
    )


def _slope(results: Results, norm: Normaliser) -> float:
    """Median over looks of the rank correlation of distance and gradient change."""
    from scipy import stats

    found = []
    for run_ in runs_of(results, norm):
        for look in run_.looks:
            changes = look.landscape.gradient_changes
            if changes is not None and all(map(math.isfinite, changes)):
                found.append(float(stats.spearmanr(look.landscape.distances, changes).statistic))
    return sorted(found)[len(found) // 2] if found else math.nan


def lp_vgg(results: Results) -> tuple[Check, ...]:
    """Figs. 11 and 13, VGG."""
    return (
        _level("l1 trains as well as BN", results, "l1", "batch"),
        _level("l2 trains as well as BN", results, "l2", "batch"),
        _level("l∞ trains as well as BN", results, "linf", "batch"),
        _lower_loss("every lp normalisation is ahead of standard (l∞)", results, "linf", "none"),
        _compare(
            "the gradient changes less than in standard (l1)", results, change_width, "l1", "none"
        ),
    )


def lp_linear(results: Results) -> tuple[Check, ...]:
    """Figs. 12 and 13, deep linear network."""
    return (
        _lower_loss("l1 is ahead of BN", results, "l1", "batch"),
        _lower_loss("l1 is ahead of standard", results, "l1", "none"),
        _lower_loss("l2 is ahead of standard", results, "l2", "none"),
        _lower_loss("l∞ is ahead of standard", results, "linf", "none"),
        _compare(
            "the gradient changes less than in standard (l∞)",
            results,
            change_width,
            "linf",
            "none",
        ),
    )


def histograms_lp(results: Results) -> tuple[Check, ...]:
    """Fig. 14."""
    return (
        _level("l1 trains as well as BN", results, "l1", "batch"),
        below(
            "lp normalisation lets distributions shift more than the standard network does (l1)",
            drift(runs_of(results, "none")),
            drift(runs_of(results, "l1")),
            ("standard", "l1"),
        ),
    )
