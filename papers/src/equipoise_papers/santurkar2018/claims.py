"""The paper's sentences about each figure, checked on runs, seed by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from equipoise_papers.experiments.verdict import Check, ours
from equipoise_papers.judging import Difference, difference
from equipoise_papers.santurkar2018.grids import AVERAGED_RATE, LABELS
from equipoise_papers.santurkar2018.summaries import (
    absolute_cosine,
    alike,
    average,
    best_rate,
    beta,
    change_width,
    cosine,
    deviations,
    drifts,
    loss_width,
    lower,
    lower_by_factor,
    ratios_at_equal_distances,
    relative_shift,
    runs_of,
    spread,
    typical,
)
from equipoise_papers.santurkar2018.training import Look, Normaliser, ProbedTraining, Run

Results = Mapping[ProbedTraining, Run]
# The look at the initialisation.
_WITH_START = "with the look before the first step as well"
# With batch norm, compared to without.
_BN: tuple[Normaliser, Normaliser] = ("batch", "none")
_LP: tuple[Normaliser, ...] = ("l1", "l2", "linf")
# Two methods are level if one's loss is at most this many times the other's.
_LEVEL = 1.2
# "Close to two orders of magnitude": within a factor of three of it.
_TWO_ORDERS = 30.0
# Cosines are similar if they differ by less.
_SIMILAR = 0.1
# "Almost no" shift: a cosine above; "almost uncorrelated": below, in absolute value.
_ALMOST_NONE, _UNCORRELATED = 0.8, 0.2
# The paper's test accuracies without augmentation, in per cent.
_WITH_BN, _WITHOUT, _TO_THE_PLATEAU = 83.0, 80.0, 15_000
_POINTS = 2.0


def _losses(results: Results, norm: Normaliser) -> list[float]:
    return [run.loss for run in runs_of(results, norm)]


def _names(one: Normaliser, other: Normaliser) -> tuple[str, str]:
    return LABELS[one], LABELS[other]


def _no_worse(claim: str, results: Results, one: Normaliser, other: Normaliser) -> Check:
    losses = _losses(results, one), _losses(results, other)
    claim = f"{claim} (loss at most {_LEVEL:g} times)"
    return lower_by_factor(claim, *losses, _names(one, other), factor=_LEVEL)


def _lower_loss(claim: str, results: Results, one: Normaliser, other: Normaliser) -> Check:
    losses = _losses(results, one), _losses(results, other)
    return lower_by_factor(claim, *losses, _names(one, other))


def _tuned(claim: str, results: Results, one: Normaliser, other: Normaliser) -> Check:
    """Compare losses at the best rate of each."""
    (rate_a, a), (rate_b, b) = best_rate(results, one), best_rate(results, other)
    names = f"{LABELS[one]} at {rate_a:g}", f"{LABELS[other]} at {rate_b:g}"
    seeds = [seed for seed in a if seed in b]
    return lower_by_factor(claim, [a[seed] for seed in seeds], [b[seed] for seed in seeds], names)


def _compare(
    claim: str,
    results: Results,
    value: Callable[[Look], float],
    one: Normaliser,
    other: Normaliser,
    *,
    factor: float = 1.0,
    looks: slice = slice(1, None),
) -> Check:
    """Check that a number is typically lower with one normaliser than with the other."""
    a, b = (typical(runs_of(results, norm), value, looks) for norm in (one, other))
    return lower_by_factor(claim, a, b, _names(one, other), factor=factor)


def _one_sample(values: Sequence[float], level: float) -> Difference:
    return difference(values, [level] * len(values))


def training(results: Results) -> tuple[Check, ...]:
    """Fig. 1."""
    a, b = ([100 * r.accuracy for r in runs_of(results, n)] for n in _BN)
    gap = difference(a, b)
    points = f"BN {spread(a)} %, standard {spread(b)} %; {gap.words(1)} points"
    low = _WITH_BN - _WITHOUT - _POINTS
    plateau = all(cell.steps >= _TO_THE_PLATEAU for cell in results)
    return (
        _lower_loss("BN trains faster at the paper's rate", results, *_BN),
        _tuned("BN trains faster with the best rate of each", results, *_BN),
        Check("BN tests better", points, gap.above()),
        Check(
            f"by about 3 points (83 % against 80 %; within {_POINTS:g} points)",
            f"{points}{'' if plateau else '; far from the plateau of 15,000 steps'}",
            gap.between(low, low + 2 * _POINTS) if plateau else None,
        ),
        *distributions(results),
    )


def distributions(results: Results) -> tuple[Check, ...]:
    """Fig. 1 (c)."""
    a, b = (drifts(runs_of(results, n)) for n in _BN)
    claim = "distributions are about as stable with BN as without (drift within a factor 3)"
    return (alike(claim, a, b, _names(*_BN), factor=3.0),)


def scales(results: Results) -> tuple[Check, ...]:
    """Fig. 8."""
    found = deviations(runs_of(results, "batch"))
    gap = _one_sample([math.log(value) for value in found], 0.0)
    text = f"σ over layers and looks: {gap.factor().removeprefix('a factor ')}"
    return (
        Check("σ tends to be large in the network with BN (above 1)", text, gap.above()),
        *map(ours, distributions(results)),
    )


def noisy(results: Results) -> tuple[Check, ...]:
    """Fig. 2."""
    losses = _losses(results, "noise")
    near = 0.9 * math.log(10)
    untrained = sum(loss > near for loss in losses)
    return (
        _no_worse("noisy BN trains almost as well as BN", results, "noisy", "batch"),
        _lower_loss("noisy BN is ahead of standard", results, "noisy", "none"),
        _tuned("also with the best rate of each", results, "noisy", "none"),
        _lower_loss("standard is ahead of standard with the same noise", results, "none", "noise"),
        Check(
            "standard with the same noise does not train at all (loss above 0.9 ln 10)",
            f"loss {spread(losses)}, so high in {untrained} of {len(losses)} seeds; guessing has "
            f"{math.log(10):.2f}",
            _one_sample(losses, near).above(),
        ),
    )


def shift_vgg(results: Results) -> tuple[Check, ...]:
    """Figs. 3 and 6, VGG."""
    a, b = (average(runs_of(results, n), cosine, slice(0, 1)) for n in _BN)
    during = [average(runs_of(results, n), cosine) for n in _BN]
    all_looks = [average(runs_of(results, n), cosine, slice(None)) for n in _BN]
    return (
        lower(
            f"ICS is similar or larger with BN (mean cosine over training at most {_SIMILAR:g} "
            "higher)",
            during[0],
            during[1],
            _names(*_BN),
            margin=_SIMILAR,
        ),
        lower("at the start it is larger with BN (lower cosine)", a, b, _names(*_BN)),
        ours(lower("over training it is larger with BN", during[0], during[1], _names(*_BN))),
        ours(
            lower(
                f"it is similar or larger with BN, {_WITH_START}",
                all_looks[0],
                all_looks[1],
                _names(*_BN),
                margin=_SIMILAR,
            )
        ),
    )


def shift_linear(results: Results) -> tuple[Check, ...]:
    """Figs. 3 and 6, deep linear network."""
    averaged = {cell: run for cell, run in results.items() if cell.rate == AVERAGED_RATE}
    summed = {cell: run for cell, run in results.items() if cell.rate != AVERAGED_RATE}
    a, b = (average(runs_of(summed, n), cosine, slice(0, 1)) for n in _BN)
    return (
        _whatever_the_loss(
            partial(_almost_no_shift, "the standard network has almost no ICS"),
            summed,
            averaged,
            "none",
        ),
        _whatever_the_loss(
            partial(_uncorrelated, "with BN G and G′ are almost uncorrelated"),
            summed,
            averaged,
            "batch",
        ),
        lower("ICS is larger with BN at the start (lower cosine)", a, b, _names(*_BN)),
        _compare("relative l2 shift is larger with BN", summed, relative_shift, "none", "batch"),
    )


def _whatever_the_loss(
    judge: Callable[[Results], Check], summed: Results, averaged: Results, norm: Normaliser
) -> Check:
    """The source does not say whether losses add up over samples: two answers decide nothing."""
    one, other = judge(summed), judge(averaged)
    losses = [run.curve.losses for run in runs_of(averaged, norm)]
    first, last = (statistics.fmean(seed[look] for seed in losses) for look in (0, -1))
    found = (
        f"{one.found}; with the loss averaged over samples, which falls from {first:.0f} to "
        f"{last:.0f} only, {other.found}"
    )
    return replace(one, found=found, holds=one.holds if one.holds is other.holds else None)


def _almost_no_shift(claim: str, results: Results) -> Check:
    runs = runs_of(results, "none")
    signed, sizes = ([min(map(of, run.looks)) for run in runs] for of in (cosine, absolute_cosine))
    return _by_both(
        f"{claim} for the entirety of training (mean cosine over layers above {_ALMOST_NONE:g} at "
        "every look)",
        f"least mean cosine {spread(signed)}, of |cosine| {spread(sizes)}",
        _one_sample(signed, _ALMOST_NONE).above(),
        _one_sample(sizes, _ALMOST_NONE).above(),
    )


def _uncorrelated(claim: str, results: Results) -> Check:
    runs = runs_of(results, "batch")
    signed, sizes = (average(runs, of) for of in (cosine, absolute_cosine))
    return _by_both(
        f"{claim} (mean cosine over layers and looks within {_UNCORRELATED:g} of 0)",
        f"mean cosine {spread(signed)}, of |cosine| {spread(sizes)}",
        _one_sample([abs(value) for value in signed], _UNCORRELATED).below(),
        _one_sample(sizes, _UNCORRELATED).below(),
    )


def _by_both(claim: str, found: str, signed: bool | None, size: bool | None) -> Check:
    """Layers whose gradients turn round are correlated, and their mean cosine says otherwise."""
    return Check(claim, found, signed if signed is size else None)


def landscape(results: Results) -> tuple[Check, ...]:
    """Figs. 4 and 9."""
    everywhere = slice(None)
    return (
        _compare("the loss varies less along the gradient with BN", results, loss_width, *_BN),
        _compare("the gradient changes less with BN", results, change_width, *_BN),
        _compare("effective β is smaller with BN", results, beta, *_BN),
        *(
            ours(_compare(f"{claim}, {_WITH_START}", results, value, *_BN, looks=everywhere))
            for claim, value in (
                ("the gradient changes less with BN", change_width),
                ("effective β is smaller with BN", beta),
            )
        ),
        ours(
            _compare(
                "in the last quarter of looks the loss varies less with BN",
                results,
                loss_width,
                *_BN,
                looks=_last_quarter(results),
            )
        ),
    )


def landscape_vgg(results: Results) -> tuple[Check, ...]:
    """Fig. 4."""
    words = "gradient predictiveness improves by close to two orders of magnitude"
    return (
        *landscape(results),
        _compare(
            f"{words} (a factor of at least {_TWO_ORDERS:g})",
            results,
            change_width,
            *_BN,
            factor=1 / _TWO_ORDERS,
        ),
    )


def landscape_random(results: Results) -> tuple[Check, ...]:
    """Section 3.2: the loss along random directions."""
    along = "along random directions with BN"
    return (
        _compare(f"the loss varies less {along}", results, loss_width, *_BN),
        ours(_compare(f"the gradient changes less {along}", results, change_width, *_BN)),
        ours(_compare(f"effective β is smaller {along}", results, beta, *_BN)),
    )


def _last_quarter(results: Results) -> slice:
    looks = len(runs_of(results, "batch")[0].looks)
    return slice(looks - max(1, looks // 4), None)


def distance(results: Results) -> tuple[Check, ...]:
    """Fig. 10."""
    by_seed = ratios_at_equal_distances(runs_of(results, "batch"), runs_of(results, "none"))
    ratios = [ratio for found in by_seed for ratio in found]
    if not ratios or not all(by_seed):
        words, gap = "their distances do not overlap", Difference(math.nan, math.nan, 0)
    else:
        gap = _one_sample([statistics.fmean(found) for found in by_seed], 0.0)
        less = sum(ratio < 0 for ratio in ratios)
        words = f"BN's changes less in {less} of {len(ratios)} cases; {gap.factor()}"
    return (
        Check("at equal distances the gradient changes less with BN", words, gap.below()),
        _compare("effective β over the distances probed is smaller with BN", results, beta, *_BN),
    )


def lp_smoother(results: Results) -> tuple[Check, ...]:
    """Figs. 11 and 12."""
    found = []
    for norm in _LP:
        name = LABELS[norm]
        found += [
            _lower_loss(f"{name} trains better than standard", results, norm, "none"),
            _compare(f"{name}: the loss varies less", results, loss_width, norm, "none"),
            _compare(f"{name}: the gradient changes less", results, change_width, norm, "none"),
            _compare(f"{name}: effective β is smaller", results, beta, norm, "none"),
        ]
    return tuple(found)


def lp_as_good(results: Results) -> tuple[Check, ...]:
    """Fig. 13."""
    claim = "{} trains as well as BN or better"
    return tuple(_no_worse(claim.format(LABELS[norm]), results, norm, "batch") for norm in _LP)


def lp_as_good_linear(results: Results) -> tuple[Check, ...]:
    """Fig. 13, deep linear network."""
    return (*lp_as_good(results), _lower_loss("ℓ₁ is ahead of BN", results, "l1", "batch"))


def histograms_lp(results: Results) -> tuple[Check, ...]:
    """Fig. 14."""
    standard = drifts(runs_of(results, "none"))
    found = []
    for norm in _LP:
        own = drifts(runs_of(results, norm))
        claim = f"distributions shift more under {LABELS[norm]} than in the standard network"
        found += [
            lower_by_factor(claim, standard, own, _names("none", norm)),
            _lower_loss(f"{LABELS[norm]} trains better all the same", results, norm, "none"),
        ]
    return tuple(found)
