"""Gradients preconditioned with activation statistics, for any training loop of PyTorch."""

from equipoise.preconditioners.bnp import BNP
from equipoise.preconditioners.convergence import (
    BlockConditions,
    Condition,
    LocalRate,
    Theorem4,
    block_conditions,
    condition,
    local_rate,
    norm_estimate,
    norm_ratio,
    theorem_4,
)
from equipoise.preconditioners.hessian_blocks import (
    HessianBlock,
    Preconditioner,
    Statistics,
    column_statistics,
    extended,
    hessian_block,
    im2col,
    preconditioner,
    tap_statistics,
    weighted_gram,
)
from equipoise.preconditioners.report import LayerReport, Report
from equipoise.preconditioners.settings import Settings

__all__ = [
    # the preconditioner
    "BNP",
    "LayerReport",
    "Report",
    "Settings",
    # what it does to a layer's Hessian
    "HessianBlock",
    "hessian_block",
    "Preconditioner",
    "preconditioner",
    "Statistics",
    "column_statistics",
    "tap_statistics",
    "extended",
    "im2col",
    "weighted_gram",
    # and to the rate of gradient descent
    "BlockConditions",
    "block_conditions",
    "Condition",
    "condition",
    "Theorem4",
    "theorem_4",
    "LocalRate",
    "local_rate",
    "norm_estimate",
    "norm_ratio",
]
