"""Join predictions with measurements, in units of their joint error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit

from equipoise.diagnosis.prediction.predict import Conditions, predicted_rate
from equipoise.diagnosis.record import Comparison
from equipoise.numerics.growth import log_slopes, mean_with_error
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records.estimate import Estimate
from equipoise.theory.batch_norm.fixed_point import bsb1_fixed_point
from equipoise.theory.batch_norm.setting import SMALLEST_BATCH
from equipoise.theory.networks.residual import residual_growth
from equipoise.theory.simulation.gradients import SimulatedNetworks, simulate_networks

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
    simulated = _simulate(conditions, min(len(growth.layers), _MOST_DEPTH), width)
    if progress is not None:
        progress()
    comparisons = [_growth(growth.rate, rates, simulated.log_gradients, conditions, growth)]
    correlation = _correlation(growth, simulated.correlations, conditions)
    return tuple(comparisons + ([correlation] if correlation else []))


def compare_stream(
    growth: GradientGrowth,
    log_profiles: Array,
    fitted: slice,
    conditions: Conditions,
    width: int,
) -> tuple[Comparison, ...]:
    """Compare the fitted growth with gradients predicted layer by layer, on no straight line.

    Args:
        growth: What was measured.
        log_profiles: Predicted logarithms of squared gradients along the stream and at its end,
            ``[repeats, layers + 1]``.
        fitted: Which of them are measured layers that the fit went through.
        conditions: Those of a block.
        width: The model's own width.
    """
    if growth.rate is None:
        return ()
    slope = mean_with_error(-log_slopes(log_profiles[:, fitted]), "")
    rate = math.exp(slope.value)
    method = "fit through infinitely wide residual layers"
    predicted = Estimate(rate, rate * slope.error, method)
    spread = rate * _width_alone(conditions, log_profiles.shape[1] - 1, width, growth.replicates)
    return (
        _comparison(
            "gradient growth per layer", predicted, growth.rate, spread, growth.replicates
        ),
    )


def _width_alone(conditions: Conditions, layers: int, width: int, replicates: int) -> float:
    """Distance of simulated streams' log growth from the recursion for the same streams."""
    architecture = conditions.architecture
    layers = max(3, min(layers, _MOST_DEPTH) // architecture.stages) * architecture.stages
    own = residual_growth(
        conditions.activation,
        _rows(conditions),
        layers // architecture.stages,
        stages=architecture.stages,
        leading=architecture.leading,
        start_variance=architecture.start_variance,
        eps=conditions.eps,
        gamma=conditions.gamma,
        beta=conditions.beta,
        weight_variance=conditions.weight_variance,
    )
    simulated = _simulate(conditions, layers, width).log_gradients
    expected = log_slopes(np.log(own.normalisers.reshape(1, -1)))
    return _root_mean_square(expected - log_slopes(simulated), replicates)


def _simulate(conditions: Conditions, depth: int, width: int) -> SimulatedNetworks:
    """The theory's own networks at the model's width."""
    return simulate_networks(
        conditions.activation,
        _rows(conditions),
        width=_width(conditions, width),
        depth=depth,
        networks=_NETWORKS,
        eps=conditions.eps,
        gamma=conditions.gamma,
        beta=conditions.beta,
        weight_variance=conditions.weight_variance,
        bias_variance=conditions.bias_variance,
        generator=torch.Generator().manual_seed(0),
        architecture=conditions.architecture,
    )


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


def _rows(conditions: Conditions) -> int:
    return max(SMALLEST_BATCH, min(conditions.batch_size, _MOST_ROWS))


def _width(conditions: Conditions, width: int) -> int:
    """The model's width, within bounds and whole groups."""
    group = conditions.architecture.group_size or 1
    return max(group, min(width, _MOST_WIDTH) // group * group)


def _capped_rate(conditions: Conditions) -> float:
    return predicted_rate(replace(conditions, batch_size=_rows(conditions))).value


def _correlation(
    growth: GradientGrowth,
    simulated: Array,
    conditions: Conditions,
) -> Comparison | None:
    """Correlation of two samples, averaged over the deeper half."""
    deep = growth.layers[len(growth.layers) // 2 :]
    rows = {layer.rows for layer in growth.layers}
    if len(rows) > 1 or conditions.batch_size > _MOST_ROWS or not conditions.uses_the_batch:
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
