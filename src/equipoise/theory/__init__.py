"""What mean-field theory predicts for wide random networks, normalised or not."""

from equipoise.theory.activation.adapt import as_activation
from equipoise.theory.activation.catalogue import ACTIVATIONS, Activation, Kink, alpha_relu
from equipoise.theory.batch_norm.design import tune
from equipoise.theory.batch_norm.explosion import (
    UnstableFixedPointWarning,
    depth_scale,
    explosion_rate,
    max_trainable_depth,
)
from equipoise.theory.batch_norm.fixed_point import bsb1_fixed_point, critical_eps
from equipoise.theory.batch_norm.setting import Setting
from equipoise.theory.batch_norm.spectra.cross_batches import cross_batch, weight_gradients
from equipoise.theory.batch_norm.spectra.eigenvalues import backward_spectrum, forward_spectrum
from equipoise.theory.batch_norm.spectra.expansion import gegenbauer_expansion
from equipoise.theory.batch_norm.stability import alpha_transition, stability
from equipoise.theory.covariance.bn_map import bn_map
from equipoise.theory.covariance.iterate import iterate_map
from equipoise.theory.covariance.kernels import closed_form_kernel
from equipoise.theory.covariance.linear_case import linear_limit, linear_rate, linear_step
from equipoise.theory.covariance.operators import DOSOperator, UltrasymmetricOperator
from equipoise.theory.covariance.subspaces import project_centred
from equipoise.theory.networks.edge_of_chaos import edge_of_chaos
from equipoise.theory.networks.feature_norms import group_norm, layer_norm
from equipoise.theory.networks.followed_batch import follow_batch
from equipoise.theory.networks.residual import residual_growth
from equipoise.theory.networks.vanilla.network import vanilla
from equipoise.theory.simulation.gradients import simulate_explosion_rate, simulate_networks
from equipoise.theory.simulation.networks import Architecture
from equipoise.theory.simulation.spectra import sample_spectra, simulate_spectra
from equipoise.theory.table import prediction_table, spectrum_table

__all__ = [
    # activations
    "ACTIVATIONS",
    "Activation",
    "Kink",
    "alpha_relu",
    "as_activation",
    # the setting, its fixed point and how fast gradients explode
    "Setting",
    "bsb1_fixed_point",
    "critical_eps",
    "explosion_rate",
    "depth_scale",
    "max_trainable_depth",
    "UnstableFixedPointWarning",
    # eigenvalues
    "backward_spectrum",
    "forward_spectrum",
    "cross_batch",
    "weight_gradients",
    "gegenbauer_expansion",
    # stability
    "stability",
    "alpha_transition",
    # design
    "tune",
    # tables
    "prediction_table",
    "spectrum_table",
    # covariance maps
    "bn_map",
    "iterate_map",
    "closed_form_kernel",
    "linear_limit",
    "linear_rate",
    "linear_step",
    "DOSOperator",
    "UltrasymmetricOperator",
    "project_centred",
    # other networks
    "layer_norm",
    "group_norm",
    "residual_growth",
    "follow_batch",
    "vanilla",
    "edge_of_chaos",
    # simulation
    "Architecture",
    "simulate_explosion_rate",
    "simulate_networks",
    "sample_spectra",
    "simulate_spectra",
]
