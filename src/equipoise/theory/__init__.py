"""What mean-field theory predicts for wide random networks with batch norm."""

from equipoise.theory.activations import ACTIVATIONS, Activation, Kink, alpha_relu
from equipoise.theory.adapt import ActivationLike, as_activation
from equipoise.theory.fixed_point import FixedPoint, bsb1_fixed_point, critical_eps
from equipoise.theory.gradients import (
    TRAINABLE_FACTOR,
    UnstableFixedPointWarning,
    depth_scale,
    explosion_rate,
    max_trainable_depth,
)
from equipoise.theory.simulate import (
    SimulatedNetworks,
    simulate_explosion_rate,
    simulate_networks,
)
from equipoise.theory.table import prediction_table

__all__ = [
    # activations
    "ACTIVATIONS",
    "Activation",
    "ActivationLike",
    "Kink",
    "alpha_relu",
    "as_activation",
    # fixed point
    "FixedPoint",
    "bsb1_fixed_point",
    "critical_eps",
    # gradients
    "TRAINABLE_FACTOR",
    "UnstableFixedPointWarning",
    "depth_scale",
    "explosion_rate",
    "max_trainable_depth",
    "prediction_table",
    # simulation
    "SimulatedNetworks",
    "simulate_explosion_rate",
    "simulate_networks",
]
