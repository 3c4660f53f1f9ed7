"""Second-order pooling: heads, and the matrix functions that they compute."""

from equipoise.pooling.heads.bilinear import BilinearPool
from equipoise.pooling.heads.compact import CompactBilinearPool
from equipoise.pooling.heads.isqrt import ISQRTPool
from equipoise.pooling.heads.log_euclidean import LogEuclideanPool
from equipoise.pooling.heads.matrix_power import MatrixPowerPool
from equipoise.pooling.heads.run import RUNPool
from equipoise.pooling.matrices import bilinear, upper_triangle
from equipoise.pooling.roots.newton_schulz import sqrt_newton_schulz
from equipoise.pooling.roots.powers import log_euclidean, matrix_power
from equipoise.pooling.run.factor import run_factor
from equipoise.pooling.run.inputs import gaussian_start
from equipoise.pooling.run.layer import RUN
from equipoise.pooling.run.matrix import epsilon_from_eta, run_matrix, run_symmetric
from equipoise.pooling.vectors import signed_sqrt, unit_norm

__all__ = [
    # heads: feature maps in, one vector per sample out
    "BilinearPool",
    "RUNPool",
    "ISQRTPool",
    "MatrixPowerPool",
    "LogEuclideanPool",
    "CompactBilinearPool",
    "RUN",
    # rank-1 update normalisation
    "run_factor",
    "run_symmetric",
    "run_matrix",
    "epsilon_from_eta",
    "gaussian_start",
    # roots and logarithms
    "matrix_power",
    "log_euclidean",
    "sqrt_newton_schulz",
    # features to matrix, matrix to vector
    "bilinear",
    "upper_triangle",
    "signed_sqrt",
    "unit_norm",
]
