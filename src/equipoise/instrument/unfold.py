"""The matrix that a convolution multiplies, with one row per sample and output position."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_MODES = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "replicate",
    "circular": "circular",
}


def unfold(module: nn.modules.conv._ConvNd, inputs: Tensor, rows: Tensor | None = None) -> Tensor:
    """Unfold inputs for any dimension, stride, padding, dilation and number of groups.

    Args:
        module: A convolution.
        inputs: Shape ``[N, C, ...]``, or ``[C, ...]`` for a single sample.
        rows: Numbers of the rows that are wanted, of N·positions; by default all.

    Returns:
        Shape ``[groups, N·positions, C/groups·taps]``, columns ordered as ``weight[0]``.

    Examples:
        >>> import torch
        >>> conv = nn.Conv1d(1, 1, 2)
        >>> unfold(conv, torch.tensor([[[1.0, 2.0, 3.0]]]))
        tensor([[[1., 2.],
                 [2., 3.]]])
    """
    dims = len(module.kernel_size)
    if inputs.ndim == dims + 1:
        inputs = inputs[None]
    patches = F.pad(
        inputs, list(module._reversed_padding_repeated_twice), mode=_MODES[module.padding_mode]
    )
    for axis in range(dims):
        span = module.dilation[axis] * (module.kernel_size[axis] - 1) + 1
        # The new window is the last dimension; dilation skips entries of it.
        patches = patches.unfold(2 + axis, span, module.stride[axis])
        patches = patches[..., :: module.dilation[axis]]
    if rows is not None:
        places = torch.unravel_index(rows, (len(patches), *patches.shape[2 : 2 + dims]))
        chosen = patches.movedim(1, 1 + dims)[places]  # [rows, C, *taps]
        return chosen.reshape(len(rows), module.groups, -1).transpose(0, 1)
    n, channels = patches.shape[:2]
    groups = module.groups
    patches = patches.reshape(n, groups, channels // groups, *patches.shape[2:])
    positions = list(range(3, 3 + dims))
    taps = list(range(3 + dims, 3 + 2 * dims))
    ordered = patches.permute(1, 0, *positions, 2, *taps)
    return ordered.reshape(groups, -1, module.weight[0].numel())
