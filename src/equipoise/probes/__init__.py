"""What can be measured on the user's own model, without leaving a trace on it."""

from equipoise.probes.activations import activations
from equipoise.probes.conditioning import conditioning
from equipoise.probes.covariate_shift import covariate_shift
from equipoise.probes.gradient_growth import GrowthInterrupted, gradient_growth
from equipoise.probes.guard import untouched
from equipoise.probes.hessian import hessian
from equipoise.probes.landscape import landscape
from equipoise.probes.modules import unwatched
from equipoise.probes.observers import observers_paused
from equipoise.probes.track import track
from equipoise.probes.tracker import Tracker

__all__ = [
    # gradients and inputs, layer by layer
    "gradient_growth",
    "GrowthInterrupted",
    "conditioning",
    "activations",
    "unwatched",
    # the loss around a point
    "landscape",
    "covariate_shift",
    "hessian",
    # all of it during training
    "track",
    "Tracker",
    # without a trace
    "untouched",
    "observers_paused",
]
