"""Compare predictions with measurements, in units of their joint error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit

from equipoise.diagnosis.prediction.predict import Network, predicted_rate
from equipoise.diagnosis.record import CORRELATION, GROWTH, Comparison, Outcome
from equipoise.numerics.growth import log_slopes
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records.estimate import Estimate
from equipoise.theory.batch_norm.fixed_point.solve import bsb1_fixed_point
from equipoise.theory.networks.residual import residual_growth
from equipoise.theory.simulation.gradients import SimulatedNetworks, simulate_networks

Array = NDArray[np.float64]

# A difference of more than three joint errors is a disagreement: 0.27 % of all, if normal.
AGREEMENT = 3.0
# With a joint error of more than this part of the measurement, nothing can be concluded.
_VAGUE = 0.1
_TAIL = 0.99865
_NETWORKS = 12
# Larger simulations would take longer than the check-up itself.
_MOST_ROWS, _MOST_WIDTH, _MOST_DEPTH = 512, 1024, 40


def compare(
    growth: GradientGrowth,
    rates: Sequence[Estimate],
    network: Network,
    width: int,
) -> tuple[Comparison, ...]:
    """Compare the fitted growth and the deep layers' correlation with theory.

    Args:
        growth: What was measured.
        rates: Predicted rates of the blocks between the fitted layers.
        network: The theory's network for a typical block; it is simulated.
        width: The model's width.
    """
    if growth.rate is None:
        return ()
    simulated = _simulate(network, min(len(growth.layers), _MOST_DEPTH), width)
    comparisons = [_growth(growth.rate, rates, simulated.log_gradients, network, growth)]
    correlation = _correlation(growth, simulated.correlations, network)
    return tuple(comparisons + ([correlation] if correlation else []))


def compare_stream(
    growth: GradientGrowth,
    log_profiles: Array,
    fitted: slice,
    network: Network,
    width: int,
) -> tuple[Comparison, ...]:
    """Compare the fitted growth with gradients that theory predicts layer by layer.

    Args:
        growth: What was measured.
        log_profiles: Predicted logarithms of squared gradients along the stream and at its end,
            ``[repeats, layers + 1]``.
        fitted: Which of these layers the measured fit includes.
        network: The theory's network for a block.
        width: The model's width.
    """
    if growth.rate is None:
        return ()
    slope = Estimate.of_mean(-log_slopes(log_profiles[:, fitted]), "")
    rate = math.exp(slope.value)
    method = "fit through infinitely wide residual layers"
    predicted = Estimate(rate, rate * slope.error, method)
    spread = rate * _stream_spread(network, log_profiles.shape[1] - 1, width, growth.replicates)
    return (compared(GROWTH, predicted, growth.rate, spread, growth.replicates),)


def _stream_spread(network: Network, layers: int, width: int, replicates: int) -> float:
    """Distance of simulated residual streams' log growth from theory, due to finite width."""
    architecture = network.architecture
    layers = max(3, min(layers, _MOST_DEPTH) // architecture.stages) * architecture.stages
    theory = residual_growth(
        _capped(network).setting,
        blocks=layers // architecture.stages,
        stages=architecture.stages,
        leading=architecture.leading,
        start_variance=architecture.start_variance,
    )
    simulated = _simulate(network, layers, width).log_gradients
    expected = log_slopes(np.log(theory.normalisers.reshape(1, -1)))
    return _root_mean_square(expected - log_slopes(simulated), replicates)


def _simulate(network: Network, depth: int, width: int) -> SimulatedNetworks:
    """Simulate the theory's networks at the model's width."""
    group = network.architecture.group_size or 1
    return simulate_networks(
        _capped(network).setting,
        width=max(group, min(width, _MOST_WIDTH) // group * group),  # whole groups
        depth=depth,
        networks=_NETWORKS,
        generator=torch.Generator().manual_seed(0),
        architecture=network.architecture,
    )


def _growth(
    measured: Estimate,
    rates: Sequence[Estimate],
    log_gradients: Array,
    network: Network,
    growth: GradientGrowth,
) -> Comparison:
    predicted = _geometric_mean(rates)
    # The same rows as the simulation, whose batch may be capped, and the same fit as the probe.
    slopes = -log_slopes(log_gradients[:, 1:])
    reference = math.log(predicted_rate(_capped(network)).value)
    spread = _root_mean_square(slopes - reference, growth.replicates)
    return compared(
        GROWTH,
        predicted,
        measured,
        predicted.value * spread,
        growth.replicates,
    )


def _capped(network: Network) -> Network:
    """Reduce the batch size to one that can be simulated."""
    rows = min(network.setting.batch_size, _MOST_ROWS)
    return network._replace(setting=replace(network.setting, batch_size=rows))


def _correlation(
    growth: GradientGrowth,
    simulated: Array,
    network: Network,
) -> Comparison | None:
    """Correlation of two samples, averaged over the deeper half."""
    deep = growth.layers[len(growth.layers) // 2 :]
    rows = {layer.rows for layer in growth.layers}
    setting, architecture = network
    uses_the_batch = architecture.normaliser == "batch norm"
    if len(rows) > 1 or setting.batch_size > _MOST_ROWS or not uses_the_batch:
        return None
    point = bsb1_fixed_point(setting)
    measured = Estimate(
        float(np.mean([layer.correlation.value for layer in deep])),
        # Layers of one network are not independent, so the mean has the mean error.
        float(np.mean([layer.correlation.error for layer in deep])),
        f"mean over the {len(deep)} deepest layers",
    )
    means = simulated[:, simulated.shape[1] // 2 :].mean(1)
    spread = _root_mean_square(means - point.c.value, growth.replicates)
    return compared(CORRELATION, point.c, measured, spread, growth.replicates)


def _root_mean_square(deviations: Array, replicates: int) -> float:
    """Root of squared bias plus variance, for a mean over as many networks as were measured."""
    variance = float(deviations.var(ddof=1)) / replicates
    return math.sqrt(float(deviations.mean()) ** 2 + variance)


def _geometric_mean(rates: Sequence[Estimate]) -> Estimate:
    logs = [math.log(rate.value) for rate in rates]
    value = math.exp(sum(logs) / len(logs))
    error = value * sum(rate.relative_error for rate in rates) / len(rates)
    stable = all(rate.stable is not False for rate in rates)
    return Estimate(value, error, rates[0].method, stable)


def compared(
    quantity: str,
    predicted: Estimate,
    measured: Estimate,
    finite_width: float,
    replicates: int,
) -> Comparison:
    """Judge one quantity in units of its error.

    Args:
        quantity: What is compared.
        predicted: From theory.
        measured: From the model.
        finite_width: Distance from theory that finite width alone explains.
        replicates: Initialisations that were measured.
    """
    error = math.hypot(predicted.error, finite_width)
    if math.isfinite(measured.error):
        # A standard error from a few initialisations is itself uncertain: three errors are the
        # 99.7 % range of Student's t.
        widening = stdtrit(max(replicates - 1, 1), _TAIL) / AGREEMENT
        error = math.hypot(error, measured.error * widening)
    z = (measured.value - predicted.value) / error
    outcome: Outcome = "agrees"
    if abs(z) > AGREEMENT:
        outcome = "differs"
    elif math.isnan(z) or error > _VAGUE * abs(measured.value):
        outcome = "unclear"
    return Comparison(quantity, predicted, measured, finite_width, z, outcome)
