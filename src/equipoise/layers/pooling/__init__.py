"""Second-order pooling heads: feature maps in, one vector per sample out."""

from equipoise.layers.pooling.bilinear import BilinearPool
from equipoise.layers.pooling.compact import CompactBilinearPool
from equipoise.layers.pooling.isqrt import ISQRTPool
from equipoise.layers.pooling.log_euclidean import LogEuclideanPool
from equipoise.layers.pooling.matrix_power import MatrixPowerPool
from equipoise.layers.pooling.rank_one import RUN
from equipoise.layers.pooling.run import RUNPool

__all__ = [
    # heads
    "BilinearPool",
    "RUNPool",
    "ISQRTPool",
    "MatrixPowerPool",
    "LogEuclideanPool",
    "CompactBilinearPool",
    # normalisation of features alone
    "RUN",
]
