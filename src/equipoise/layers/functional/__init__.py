"""The formulas of the layers, without state."""

from equipoise.layers.functional.lp import check_order, lp_norm, lp_statistics
from equipoise.layers.functional.matrix_power import log_euclidean, matrix_power, sqrt_eigh
from equipoise.layers.functional.newton_schulz import sqrt_newton_schulz
from equipoise.layers.functional.noise import activation_noise, check_noise
from equipoise.layers.functional.normalisation import (
    batch_group_norm,
    batch_renorm,
    channel_statistics,
    check_values,
    cumulative,
    example_weighted_norm,
    like,
    standardise_weight,
    virtual_batches,
)
from equipoise.layers.functional.random_maclaurin import (
    random_maclaurin,
    random_maclaurin_matrix,
    random_maclaurin_pair,
)
from equipoise.layers.functional.run import (
    epsilon_from_eta,
    eta_from_epsilon,
    run_factor,
    run_matrix,
    run_symmetric,
)
from equipoise.layers.functional.run_diagnostics import LeadingDirection, leading_direction
from equipoise.layers.functional.run_inputs import Start, gaussian_start
from equipoise.layers.functional.sketches import (
    MaclaurinProjections,
    TensorSketchHash,
    maclaurin_directly,
    tensor_sketch_by_fft,
)
from equipoise.layers.functional.tensor_sketch import (
    tensor_sketch,
    tensor_sketch_matrix,
    tensor_sketch_pair,
)
from equipoise.layers.functional.vectorise import (
    bilinear,
    signed_sqrt,
    triangle_indices,
    unit_norm,
    upper_triangle,
)

__all__ = [
    # normalisers
    "activation_noise",
    "batch_group_norm",
    "batch_renorm",
    "example_weighted_norm",
    "lp_norm",
    "lp_statistics",
    "standardise_weight",
    # rank-1 update normalisation
    "run_factor",
    "run_symmetric",
    "run_matrix",
    "Start",
    "gaussian_start",
    "epsilon_from_eta",
    "eta_from_epsilon",
    "LeadingDirection",
    "leading_direction",
    # other matrix normalisations
    "matrix_power",
    "sqrt_eigh",
    "log_euclidean",
    "sqrt_newton_schulz",
    # second-order features as vectors
    "bilinear",
    "upper_triangle",
    "triangle_indices",
    "signed_sqrt",
    "unit_norm",
    # compact second-order features
    "TensorSketchHash",
    "tensor_sketch",
    "tensor_sketch_matrix",
    "tensor_sketch_pair",
    "tensor_sketch_by_fft",
    "MaclaurinProjections",
    "random_maclaurin",
    "random_maclaurin_matrix",
    "random_maclaurin_pair",
    "maclaurin_directly",
    # shared by the layers
    "channel_statistics",
    "check_noise",
    "check_order",
    "check_values",
    "cumulative",
    "like",
    "virtual_batches",
]
