"""Recurrent layers as the operations of every step, while a model is traced."""

from __future__ import annotations

from typing import Any

import torch
from torch.backends import mkldnn
from torch.overrides import TorchFunctionMode

# Runs of a cell that are recorded one by one, over steps, layers and directions. Theory takes 2
# seconds for 32 of them, and its time grows as their square.
MOST_RUNS = 64


class UnrolledLSTM(TorchFunctionMode):
    """LSTMs of few steps by PyTorch's own definition, in the place of one operation of oneDNN.

    On processors GRUs and plain recurrent layers have no such operation. Sums are those of the
    same numbers in another order, and derivatives are the same.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.lstm or kwargs or _runs(args) > MOST_RUNS:
            return func(*args, **kwargs)
        before = mkldnn.set_flags(False)[0]  # type: ignore[no-untyped-call]
        try:
            return func(*args)
        finally:
            mkldnn.set_flags(before)  # type: ignore[no-untyped-call]


def _runs(args: tuple[Any, ...]) -> int:
    """Of a padded batch (input, states, weights, biases, layers, …) or of a packed one."""
    if isinstance(args[1], torch.Tensor):  # packed: samples that are left at each step
        steps, (layers, _, _, both_ways) = len(args[1]), args[5:9]
    else:
        layers, _, _, both_ways, first = args[4:9]
        steps = args[0].shape[1 if first else 0]
    return int(steps * layers * (1 + both_ways))
