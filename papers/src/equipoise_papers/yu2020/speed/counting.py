"""How many operations a normalisation takes, counted as it runs."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from equipoise_papers.yu2020.speed.methods import Method, inputs


def operations_of_products(method: Method, side: int, channels: int) -> int:
    """Multiplications and additions of a sample's matrix products, forward and backward.

    Args:
        method: Whose.
        side: √N: maps are squares.
        channels: D.

    Examples:
        >>> from equipoise_papers.yu2020.speed.methods import METHODS, NEWTON
        >>> newton = next(method for method in METHODS if method.name == NEWTON)
        >>> operations_of_products(newton, side=4, channels=8) // 8**3
        72
    """
    forward = method.make(channels)
    leaf = inputs(method, 1, side, channels).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(forward(leaf).sum())
    operations: int = counter.get_total_flops()
    return operations
