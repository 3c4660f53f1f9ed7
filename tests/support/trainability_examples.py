"""A calibration, quantities and traced passes written by hand."""

from __future__ import annotations

import dataclasses

from equipoise.diagnosis.trainability.calibration import Calibration, Fit
from equipoise.diagnosis.trainability.record import NAMES, Quantities
from equipoise.theory.propagation.propagate import Propagation
from equipoise.theory.propagation.sites import Site, Weight

HEALTHY = Quantities(**dict.fromkeys(NAMES, 0.0) | {"samples": 5.0})
COEFFICIENTS = {
    "explosion": -0.5,
    "vanishing": -0.4,
    "collapse": -1.0,
    "size": -0.3,
    "imbalance": -0.2,
    "silence": -2.0,
    "fluctuation": -0.6,
    "samples": 0.2,
    "faintness": -0.4,
}
# Log-odds of a healthy network with 32 samples: 2 + 5 * 0.2.
FIT = Fit(
    intercept=2.0,
    coefficients=COEFFICIENTS,
    covariance=tuple(
        tuple(0.01 * (row == column) for column in range(1 + len(NAMES)))
        for row in range(1 + len(NAMES))
    ),
    held_out=tuple((place + 0.5) / 400 for place in range(400)),
    trained=tuple(int(place % 4 < 4 * place // 400) for place in range(400)),
)
CALIBRATION = Calibration(
    fits=dict.fromkeys(("measured", "both"), FIT),
    networks=400,
    trainings=800,
    ranges=dict.fromkeys(NAMES, (0.0, 9.0)),
)


def risky(**risks):
    """Quantities of a network that is healthy otherwise."""
    return dataclasses.replace(HEALTHY, **risks)


def layer(gradient=1.0, second_moment=1.0, correlation=0.3, **changes):
    """The output of a linear layer, measured as predicted."""
    site = Site(
        node=0,
        operation="addmm",
        module="fc",
        second_moment=second_moment,
        correlation=correlation,
        gradient=gradient,
        measured_second_moment=second_moment,
        measured_gradient=gradient,
        measured_correlation=correlation,
        kind="linear layers",
        elements=1,
        error=0.1,
    )
    return dataclasses.replace(site, **changes)


def norm(gradient=1.0):
    """The output of a normaliser."""
    return layer(gradient, kind="normalisers", operation="native_batch_norm")


def weight(gradient=1.0, second_moment=1.0):
    """A matrix of weights, measured as predicted."""
    return Weight("fc.weight", gradient, second_moment, gradient)


def network(*sites, weights=None):
    """A traced pass; by default through three layers of equal size."""
    found = sites or (layer(), layer(), layer())
    return Propagation(found, (weight(), weight()) if weights is None else weights)
