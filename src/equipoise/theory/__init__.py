"""What mean-field theory predicts for wide random networks, normalised or not."""

from equipoise.theory.activations import ACTIVATIONS, Activation, Kink, alpha_relu
from equipoise.theory.adapt import ActivationLike, as_activation
from equipoise.theory.bn_map import MappedCovariance, bn_map
from equipoise.theory.cross_batches import (
    CrossBatch,
    WeightGradients,
    cross_batch,
    weight_gradients,
)
from equipoise.theory.design import Ranked, Tuning, tune
from equipoise.theory.edge_of_chaos import EdgeOfChaos, edge_of_chaos
from equipoise.theory.expansion import GegenbauerExpansion, gegenbauer_expansion
from equipoise.theory.feature_norms import FeatureNorm, group_norm, layer_norm
from equipoise.theory.fixed_point import FixedPoint, bsb1_fixed_point, critical_eps
from equipoise.theory.followed_batch import LARGEST_FOLLOWED, FollowedBatch, follow_batch
from equipoise.theory.gradients import (
    TRAINABLE_FACTOR,
    UnstableFixedPointWarning,
    depth_scale,
    explosion_rate,
    max_trainable_depth,
)
from equipoise.theory.iterate import CovarianceTrajectory, iterate_map
from equipoise.theory.kernels import Kernel, closed_form_kernel
from equipoise.theory.linear_case import (
    MappedEigenvalues,
    linear_limit,
    linear_rate,
    linear_step,
)
from equipoise.theory.one_unit import Standardised, bn_gradient, bn_hessian, standardise
from equipoise.theory.one_unit_bounds import (
    CurvatureAlongGradient,
    LipschitzGap,
    MinimaxBound,
    curvature_along_gradient,
    lipschitz_gap,
    minimax_bound,
)
from equipoise.theory.one_unit_curvature import LargestCurvature, largest_curvature
from equipoise.theory.one_unit_statements import (
    STATEMENTS,
    Statement,
    StatementCheck,
    statement,
)
from equipoise.theory.one_unit_weights import (
    NearestMultiple,
    matching_scale_and_shift,
    nearest_multiple,
    radial_derivative,
)
from equipoise.theory.operators import (
    Brackets,
    CentredEigenvalues,
    DOSOperator,
    Eigenvalue,
    UltrasymmetricOperator,
)
from equipoise.theory.random_networks import Architecture, Normaliser
from equipoise.theory.rank_one_simulation import simulate_direction_shares
from equipoise.theory.rank_one_update import (
    Estimates,
    direction_shares,
    expected_factor_spectrum,
    expected_matrix_spectrum,
)
from equipoise.theory.residual import ResidualGrowth, residual_growth
from equipoise.theory.sampled_spectra import (
    SampledTheory,
    SimulatedSpectra,
    sample_spectra,
    simulate_spectra,
)
from equipoise.theory.setting import SMALLEST_BATCH
from equipoise.theory.simulate import (
    SimulatedNetworks,
    simulate_explosion_rate,
    simulate_networks,
)
from equipoise.theory.spectrum import Spectrum, backward_spectrum, forward_spectrum
from equipoise.theory.subspaces import CentredParts, project_centred
from equipoise.theory.symmetry import Stability, alpha_transition, stability
from equipoise.theory.table import prediction_table, spectrum_table
from equipoise.theory.vanilla import VanillaNetwork, vanilla

__all__ = [
    # activations
    "ACTIVATIONS",
    "Activation",
    "ActivationLike",
    "Kink",
    "alpha_relu",
    "as_activation",
    # fixed point
    "SMALLEST_BATCH",
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
    "spectrum_table",
    "CrossBatch",
    "cross_batch",
    "WeightGradients",
    "weight_gradients",
    "GegenbauerExpansion",
    "gegenbauer_expansion",
    # operators with the symmetry of a batch
    "Brackets",
    "UltrasymmetricOperator",
    "DOSOperator",
    "Eigenvalue",
    "CentredEigenvalues",
    "CentredParts",
    "project_centred",
    # stability
    "Stability",
    "stability",
    "alpha_transition",
    # covariance maps
    "MappedCovariance",
    "bn_map",
    "Kernel",
    "closed_form_kernel",
    "CovarianceTrajectory",
    "iterate_map",
    "MappedEigenvalues",
    "linear_step",
    "linear_limit",
    "linear_rate",
    # networks without normalisation
    "VanillaNetwork",
    "vanilla",
    "EdgeOfChaos",
    "edge_of_chaos",
    # beyond batch norm and plain stacks, derived here
    "FeatureNorm",
    "layer_norm",
    "group_norm",
    "ResidualGrowth",
    "residual_growth",
    "LARGEST_FOLLOWED",
    "FollowedBatch",
    "follow_batch",
    # one unit followed by batch norm
    "Standardised",
    "standardise",
    "bn_gradient",
    "bn_hessian",
    "LipschitzGap",
    "lipschitz_gap",
    "CurvatureAlongGradient",
    "curvature_along_gradient",
    "LargestCurvature",
    "largest_curvature",
    "MinimaxBound",
    "minimax_bound",
    "NearestMultiple",
    "nearest_multiple",
    "matching_scale_and_shift",
    "radial_derivative",
    "STATEMENTS",
    "Statement",
    "StatementCheck",
    "statement",
    # rank-1 update normalisation
    "Estimates",
    "direction_shares",
    "expected_matrix_spectrum",
    "expected_factor_spectrum",
    "simulate_direction_shares",
    # inverse design
    "Ranked",
    "Tuning",
    "tune",
    # simulation
    "Architecture",
    "Normaliser",
    "SimulatedNetworks",
    "simulate_explosion_rate",
    "simulate_networks",
    "SimulatedSpectra",
    "simulate_spectra",
    "SampledTheory",
    "sample_spectra",
]
