"""What mean-field theory predicts for wide random networks with batch norm."""

from equipoise.theory.activations import ACTIVATIONS, Activation, Kink, alpha_relu
from equipoise.theory.adapt import ActivationLike, as_activation
from equipoise.theory.cross_batches import (
    CrossBatch,
    WeightGradients,
    cross_batch,
    weight_gradients,
)
from equipoise.theory.design import Ranked, Tuning, tune
from equipoise.theory.feature_norms import FeatureNorm, group_norm, layer_norm
from equipoise.theory.fixed_point import FixedPoint, bsb1_fixed_point, critical_eps
from equipoise.theory.gradients import (
    TRAINABLE_FACTOR,
    UnstableFixedPointWarning,
    depth_scale,
    explosion_rate,
    max_trainable_depth,
)
from equipoise.theory.random_networks import Architecture
from equipoise.theory.residual import ResidualGrowth, residual_growth
from equipoise.theory.sampled_spectra import (
    SampledTheory,
    SimulatedSpectra,
    sample_spectra,
    simulate_spectra,
)
from equipoise.theory.simulate import (
    SimulatedNetworks,
    simulate_explosion_rate,
    simulate_networks,
)
from equipoise.theory.spectrum import Spectrum, backward_spectrum, forward_spectrum
from equipoise.theory.symmetry import Stability, alpha_transition, stability
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
    # eigenvalues
    "Spectrum",
    "backward_spectrum",
    "forward_spectrum",
    "CrossBatch",
    "cross_batch",
    "WeightGradients",
    "weight_gradients",
    # stability
    "Stability",
    "stability",
    "alpha_transition",
    # beyond batch norm and plain stacks, derived here
    "FeatureNorm",
    "layer_norm",
    "group_norm",
    "ResidualGrowth",
    "residual_growth",
    # inverse design
    "Ranked",
    "Tuning",
    "tune",
    # simulation
    "Architecture",
    "SimulatedNetworks",
    "simulate_explosion_rate",
    "simulate_networks",
    "SimulatedSpectra",
    "simulate_spectra",
    "SampledTheory",
    "sample_spectra",
]
