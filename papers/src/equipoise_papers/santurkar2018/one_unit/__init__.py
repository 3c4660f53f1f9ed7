"""Batch normalisation of one unit: the paper's theorems, exact and corrected."""

from equipoise_papers.santurkar2018.one_unit.bounds import lipschitz_gap, minimax_bound
from equipoise_papers.santurkar2018.one_unit.curvature import (
    curvature_along_gradient,
    largest_curvature,
)
from equipoise_papers.santurkar2018.one_unit.derivatives import (
    bn_gradient,
    bn_hessian,
    standardise,
)
from equipoise_papers.santurkar2018.one_unit.statements import (
    STATEMENTS,
    Statement,
    StatementCheck,
    statement,
)
from equipoise_papers.santurkar2018.one_unit.weights import (
    matching_scale_and_shift,
    nearest_multiple,
    radial_derivative,
)

__all__ = [
    # derivatives through batch normalisation
    "standardise",
    "bn_gradient",
    "bn_hessian",
    # how long and how curved they are
    "lipschitz_gap",
    "minimax_bound",
    "curvature_along_gradient",
    "largest_curvature",
    # weights and their scale
    "nearest_multiple",
    "matching_scale_and_shift",
    "radial_derivative",
    # the paper's statements
    "STATEMENTS",
    "Statement",
    "StatementCheck",
    "statement",
]
