"""Gradients preconditioned with activation statistics, for any training loop of PyTorch."""

from equipoise.preconditioners.bnp.bnp import BNP
from equipoise.preconditioners.hessian.blocks import hessian_block
from equipoise.preconditioners.hessian.conditions import block_conditions, condition
from equipoise.preconditioners.hessian.preconditioner import (
    ColumnStatistics,
    column_statistics,
    preconditioner,
    tap_statistics,
)

__all__ = [
    # for training
    "BNP",
    # what it does to a layer's Hessian, and to the rate of gradient descent
    "ColumnStatistics",
    "column_statistics",
    "tap_statistics",
    "preconditioner",
    "hessian_block",
    "block_conditions",
    "condition",
]
