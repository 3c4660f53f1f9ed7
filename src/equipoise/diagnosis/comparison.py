"""Join predictions with measurements, in units of their joint error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit

from equipoise.diagnosis.predictions import Conditions, predicted_rate
from equipoise.numerics.growth import log_slopes
from equipoise.records import Comparison, Estimate, GradientGrowth
from equipoise.theory import bsb1_fixed_point, simulate_networks

Array = NDArray[np.float64]

# Differences beyond three joint errors are called disagreements: 0.27 % of all, if normal.
AGREEMENT = 3.0
_TAIL = 0.99865
_NETWORKS = 12
# Larger simulations would take longer than the check-up itself.
_MOST_ROWS, _MOST_WIDTH, _MOST_DEPTH = 512, 1024, 40


def compare(
    growth: GradientGrowth,
    rates: Sequence[Estimate],
    conditions: Conditions,
    width: int,
    progress: Callable[[], None] | None = None,
) -> tuple[Comparison, ...]:
    """Compare the fitted growth and the deep layers' correlation with theory.

    Args:
        growth: What was measured.
        rates: Predicted rates of the blocks between the fitted layers.
        conditions: Those of a typical block; the theory's own network is simulated under them.
        width: The model's own width.
        progress: Called when the simulation is done.
    """
    if growth.rate is None:
        return ()
    depth = min(len(growth.layers), _MOST_DEPTH)
    simulated = simulate_networks(
        conditions.activation,
        min(conditions.batch_size, _MOST_ROWS),
        width=min(width, _MOST_WIDTH),
        depth=depth,
        networks=_NETWORKS,
        eps=conditions.eps,
        gamma=conditions.gamma,
        beta=conditions.beta,
        weight_variance=conditions.weight_variance,
        bias_variance=conditions.bias_variance,
        generator=torch.Generator().manual_seed(0),
    )
    if progress is not None:
        progress()
    comparisons = [_growth(growth.rate, rates, simulated.log_gradients, conditions, growth)]
    correlation = _correlation(growth, simulated.correlations, conditions)
    return tuple(comparisons + ([correlation] if correlation else []))


def _growth(
    measured: Estimate,
    rates: Sequence[Estimate],
    log_gradients: Array,
    conditions: Conditions,
    growth: GradientGrowth,
) -> Comparison:
    predicted = _geometric_mean(rates)
    # The same rows as the simulation, whose batch may be capped, and the same fit as the probe.
    slopes = -log_slopes(log_gradients[:, 1:])
    reference = math.log(_capped_rate(conditions))
    spread = _root_mean_square(slopes - reference, growth.replicates)
    return _comparison(
        "gradient growth per layer",
        predicted,
        measured,
        predicted.value * spread,
        growth.replicates,
    )


def _capped_rate(conditions: Conditions) -> float:
    capped = replace(conditions, batch_size=min(conditions.batch_size, _MOST_ROWS))
    return predicted_rate(capped).value


def _correlation(
    growth: GradientGrowth,
    simulated: Array,
    conditions: Conditions,
) -> Comparison | None:
    """Correlation of two samples, averaged over the deeper half."""
    deep = growth.layers[len(growth.layers) // 2 :]
    if len({layer.rows for layer in growth.layers}) > 1 or conditions.batch_size > _MOST_ROWS:
        return None
    point = bsb1_fixed_point(
        conditions.activation,
        conditions.batch_size,
        eps=conditions.eps,
        gamma=conditions.gamma,
        beta=conditions.beta,
        weight_variance=conditions.weight_variance,
        bias_variance=conditions.bias_variance,
    )
    measured = Estimate(
        float(np.mean([layer.correlation.value for layer in deep])),
        # Layers of one network are not independent: the mean error, not less.
        float(np.mean([layer.correlation.error for layer in deep])),
        f"mean over the {len(deep)} deepest layers",
    )
    means = simulated[:, simulated.shape[1] // 2 :].mean(1)
    spread = _root_mean_square(means - point.c.value, growth.replicates)
    return _comparison("correlation of two samples", point.c, measured, spread, growth.replicates)


def _root_mean_square(deviations: Array, replicates: int) -> float:
    """Bias and spread of a mean over as many networks as were measured."""
    variance = float(deviations.var(ddof=1)) / replicates
    return math.sqrt(float(deviations.mean()) ** 2 + variance)


def _geometric_mean(rates: Sequence[Estimate]) -> Estimate:
    logs = [math.log(rate.value) for rate in rates]
    value = math.exp(sum(logs) / len(logs))
    error = value * sum(rate.relative_error for rate in rates) / len(rates)
    stable = all(rate.stable is not False for rate in rates)
    return Estimate(value, error, rates[0].method, stable)


def _comparison(
    quantity: str, predicted: Estimate, measured: Estimate, finite_width: float, replicates: int
) -> Comparison:
    error = math.hypot(predicted.error, finite_width)
    if math.isfinite(measured.error):
        # A standard error from a few initialisations is itself uncertain: Student's t has wider
        # tails, so its 99.7 % range counts as three errors.
        widening = stdtrit(max(replicates - 1, 1), _TAIL) / AGREEMENT
        error = math.hypot(error, measured.error * widening)
    z = (measured.value - predicted.value) / error
    return Comparison(quantity, predicted, measured, finite_width, z, abs(z) <= AGREEMENT)
