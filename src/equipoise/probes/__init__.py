"""What can be measured on the user's own model, without leaving a trace on it."""

from typing import TYPE_CHECKING

from equipoise._lazy import import_on_first_use

if TYPE_CHECKING:
    from equipoise.probes.activations import activations
    from equipoise.probes.conditioning import conditioning
    from equipoise.probes.covariate_shift import covariate_shift
    from equipoise.probes.gradient_growth import gradient_growth
    from equipoise.probes.hessian.measure import hessian
    from equipoise.probes.landscape import landscape
    from equipoise.probes.record import CovariateShift, Landscape
    from equipoise.probes.tracker.track import track
    from equipoise.probes.tracker.tracker import Tracker

__all__ = [
    # gradients and inputs, layer by layer
    "gradient_growth",
    "conditioning",
    "activations",
    # the loss around a point
    "landscape",
    "Landscape",
    "covariate_shift",
    "CovariateShift",
    "hessian",
    # all of it during training
    "track",
    "Tracker",
]

import_on_first_use(
    __name__,
    {
        "activations": "activations",
        "conditioning": "conditioning",
        "covariate_shift": "covariate_shift",
        "gradient_growth": "gradient_growth",
        "hessian.measure": "hessian",
        "landscape": "landscape",
        "record": "CovariateShift Landscape",
        "tracker.track": "track",
        "tracker.tracker": "Tracker",
    },
)
