"""Literal transcriptions: extended input matrices, and their condition numbers by SVD."""

from __future__ import annotations

import itertools

import numpy as np

_PADDING = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def extended(H):
    """Ĥ = [1, H]."""
    return np.hstack([np.ones((len(H), 1)), H])


def centring(H):
    """U with Ĥ U = [1, H − mean]."""
    n = H.shape[1]
    U = np.eye(n + 1)
    U[0, 1:] = -H.mean(0)
    return U


def scaling(H):
    """D with Ĥ U D = [1, (H − mean)/σ]."""
    return np.diag(np.concatenate([[1.0], 1 / H.std(0)]))


def condition(matrix, threshold=1e-10):
    """Largest over smallest nonzero singular value."""
    values = np.linalg.svd(matrix, compute_uv=False)
    values = values[values > threshold * values.max()]
    return values.max() / values.min()


def rank(matrix, threshold=1e-10):
    values = np.linalg.svd(matrix, compute_uv=False)
    return int((values > threshold * values.max()).sum())


def unfolded(module, inputs):
    """One row per sample and output position, entry by entry; a list over groups.

    Args:
        module: A convolution.
        inputs: Array of shape ``[N, C, ...]``.
    """
    dims = len(module.kernel_size)
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    if module.padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        padding = [(t // 2, t - t // 2) for t in totals]
    elif module.padding == "valid":
        padding = [(0, 0)] * dims
    else:
        padding = [(p, p) for p in module.padding]
    widths = [(0, 0), (0, 0), *padding]
    padded = np.pad(inputs, widths, mode=_PADDING[module.padding_mode])
    sizes = [
        (length - d * (k - 1) - 1) // s + 1
        for length, d, k, s in zip(padded.shape[2:], dilation, kernel, stride, strict=True)
    ]
    share = inputs.shape[1] // module.groups
    matrices = []
    for group in range(module.groups):
        rows = []
        for n in range(len(inputs)):
            for position in itertools.product(*map(range, sizes)):
                row = []
                for channel in range(group * share, (group + 1) * share):
                    for tap in itertools.product(*map(range, kernel)):
                        at = tuple(
                            p * s + t * d
                            for p, s, t, d in zip(position, stride, tap, dilation, strict=True)
                        )
                        row.append(padded[(n, channel, *at)])
                rows.append(row)
        matrices.append(np.array(rows))
    return matrices
