"""Gradients preconditioned with activation statistics, for any training loop of PyTorch."""

from equipoise.preconditioners.bnp import BNP
from equipoise.preconditioners.convergence import (
    block_conditions,
    condition,
    local_rate,
    norm_estimate,
    norm_ratio,
    theorem_4,
)
from equipoise.preconditioners.hessian_blocks import (
    Statistics,
    column_statistics,
    extended,
    hessian_block,
    im2col,
    preconditioner,
    tap_statistics,
)
from equipoise.preconditioners.settings import Settings

__all__ = [
    # the preconditioner
    "BNP",
    "Settings",
    # what it does to a layer's Hessian
    "hessian_block",
    "preconditioner",
    "Statistics",
    "column_statistics",
    "tap_statistics",
    "extended",
    "im2col",
    # and to the rate of gradient descent
    "block_conditions",
    "condition",
    "theorem_4",
    "local_rate",
    "norm_estimate",
    "norm_ratio",
]
