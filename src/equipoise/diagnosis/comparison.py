"""Compare predictions with measurements, in units of their joint error."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from equipoise.diagnosis.record import (
    CORRELATION,
    GROWTH,
    PROFILE,
    Comparison,
    LayerPrediction,
    Outcome,
)
from equipoise.numerics.growth import growth_rate, log_slopes
from equipoise.probes.record import GradientGrowth, LayerGradients
from equipoise.records.estimate import Estimate

# A difference of more than three joint errors is a disagreement: 0.27 % of all, if normal.
AGREEMENT = 3.0
_TAIL = 0.99865
# With a joint error of more than this nothing can be concluded: of a rate or a correlation a
# tenth, of gradients over the whole depth a factor of e.
_VAGUE, _VAGUE_OVERALL = 0.1, 1.0
# How far correlations of deep layers are off on the architectures of benchmarks/propagation.py.
_CORRELATION_ERROR = 0.02

# How far a straight profile of log gradients may stray from its line, and by how much of its span.
_CROOKED, _CROOKED_SHARE = 0.5, 0.05

_Pair = tuple[LayerGradients, LayerPrediction]


def compare(
    growth: GradientGrowth, predictions: Sequence[LayerPrediction]
) -> tuple[Comparison, ...]:
    """Compare what was measured with what is predicted at the same layers.

    Args:
        growth: What was measured.
        predictions: What theory predicts; layers are matched by name.

    Returns:
        The fitted growth per layer, where every fitted layer is predicted; the gradient of the
        layer that is farthest off, relative to the last layer; and the correlation of the deeper
        half. What cannot be compared is left out.
    """
    by_name = {prediction.layer: prediction for prediction in predictions}
    pairs = [(layer, by_name[layer.layer]) for layer in growth.layers if layer.layer in by_name]
    found = [
        _growth(growth, by_name),
        _profile([pair for pair in pairs if _is_comparable(*pair)], growth.replicates),
        _correlation(pairs, growth.replicates),
    ]
    return tuple(comparison for comparison in found if comparison is not None)


def predicted_rate(growth: GradientGrowth, by_name: dict[str, LayerPrediction]) -> Estimate | None:
    """The fit through predictions that the measurement's fit goes through, if there are all."""
    known = [by_name.get(growth.layers[i].layer) for i in growth.fitted]
    gradients = [one.gradient for one in known if one is not None and one.gradient is not None]
    if len(gradients) < max(3, len(growth.fitted)) or any(g.value <= 0 for g in gradients):
        return None
    logs = np.log([[gradient.value for gradient in gradients]])
    positions = np.array(growth.fitted, dtype=np.float64)
    rate = growth_rate(logs, "", positions).value
    # Errors add up from the loss: what counts for a slope is how they grow.
    errors = np.array([[gradient.relative_error for gradient in gradients]])
    error = abs(float(log_slopes(errors, positions)[0]))
    return Estimate(rate, rate * error, f"fit through {len(gradients)} predicted layers")


def is_straight(growth: GradientGrowth) -> bool:
    """Whether gradients grow by one factor per layer, so that it can be told for other depths."""
    values = [growth.layers[i].gradient.value for i in growth.fitted]
    if growth.rate is None or not all(0 < value < math.inf for value in values):
        return False
    logs, positions = np.log(values), np.array(growth.fitted, dtype=np.float64)
    slope = float(log_slopes(logs[None], positions)[0])
    rest = logs - logs.mean() - slope * (positions - positions.mean())
    return float(np.abs(rest).max()) <= _CROOKED + _CROOKED_SHARE * float(np.ptp(logs))


def _growth(growth: GradientGrowth, by_name: dict[str, LayerPrediction]) -> Comparison | None:
    predicted = predicted_rate(growth, by_name)
    if predicted is None or growth.rate is None:
        return None
    return compared(GROWTH, predicted, growth.rate, growth.replicates)


def _is_comparable(layer: LayerGradients, prediction: LayerPrediction) -> bool:
    return (
        prediction.gradient is not None
        and prediction.gradient.value > 0
        and 0 < layer.gradient.value < math.inf
    )


def _profile(pairs: Sequence[_Pair], replicates: int) -> Comparison | None:
    """The layer whose gradient, relative to the last one's, is farthest off."""
    if len(pairs) < 2:
        return None
    *others, last = pairs
    found = [_relative(pair, last, replicates) for pair in others]
    return max(found, key=lambda one: abs(one.z))


def _relative(pair: _Pair, last: _Pair, replicates: int) -> Comparison:
    (measured, prediction), (measured_last, prediction_last) = pair, last
    assert prediction.gradient is not None
    assert prediction_last.gradient is not None
    ratio = prediction.gradient.value / prediction_last.gradient.value
    method = f"{measured.layer} over {measured_last.layer}"
    predicted = Estimate(ratio, ratio * prediction.gradient.relative_error, method)
    ratio = measured.gradient.value / measured_last.gradient.value
    error = math.hypot(measured.gradient.relative_error, measured_last.gradient.relative_error)
    return compared(
        PROFILE, predicted, Estimate(ratio, ratio * error, method), replicates, _VAGUE_OVERALL
    )


def _correlation(pairs: Sequence[_Pair], replicates: int) -> Comparison | None:
    """Correlation of two rows, averaged over the deeper half."""
    deep = pairs[len(pairs) // 2 :]
    known = [(m.correlation, p.correlation) for m, p in deep if p.correlation is not None]
    if not known or len(known) < len(deep):
        return None
    method = f"mean over the {len(known)} deepest layers"
    measured = Estimate(
        float(np.mean([one.value for one, _ in known])),
        # Layers of one network are not independent, so the mean has the mean error.
        float(np.mean([one.error for one, _ in known])),
        method,
    )
    if math.isnan(measured.value):  # rows that are zero, as of spikes that have not come yet
        return None
    predicted = Estimate(float(np.mean([one for _, one in known])), _CORRELATION_ERROR, method)
    return _judged(
        CORRELATION,
        predicted,
        measured,
        measured.value - predicted.value,
        (predicted.error, measured.error),
        replicates,
        _VAGUE,
    )


def compared(
    quantity: str,
    predicted: Estimate,
    measured: Estimate,
    replicates: int,
    vague: float = _VAGUE,
) -> Comparison:
    """Judge a positive quantity by its logarithm, in units of its error.

    Args:
        quantity: What is compared.
        predicted: From theory.
        measured: From the model.
        replicates: Initialisations that were measured.
        vague: Relative error above which nothing is concluded.
    """
    possible = measured.value > 0 and predicted.value > 0
    difference = math.log(measured.value) - math.log(predicted.value) if possible else math.nan
    errors = predicted.relative_error, measured.relative_error
    return _judged(quantity, predicted, measured, difference, errors, replicates, vague)


def _judged(
    quantity: str,
    predicted: Estimate,
    measured: Estimate,
    difference: float,
    errors: tuple[float, float],
    replicates: int,
    vague: float,
) -> Comparison:
    theory, sampling = errors  # of a single initialisation unknown, so that nothing is decided
    # A standard error from a few initialisations is itself uncertain: three errors are the
    # 99.7 % range of Student's t.
    widening = stdtrit(max(replicates - 1, 1), _TAIL) / AGREEMENT
    stated, widened = math.hypot(theory, sampling), math.hypot(theory, sampling * widening)
    outcome: Outcome = "undecided"
    if abs(difference) > AGREEMENT * widened:
        outcome = "differs"
    elif abs(difference) <= AGREEMENT * stated and widened <= vague:
        outcome = "agrees"
    z = difference / stated if stated else math.copysign(math.inf, difference)
    return Comparison(quantity, predicted, measured, z, outcome)
