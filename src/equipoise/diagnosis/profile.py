"""Predict moments of activations and gradients at every operation of a model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from equipoise.diagnosis.problem import Problem
from equipoise.instrument.recording.graph import trace
from equipoise.instrument.types import LossFunction
from equipoise.theory.propagation.propagate import Propagation, propagate


def profile(
    model: nn.Module | Callable[[], nn.Module],
    data: object,
    *,
    loss_fn: LossFunction | None = None,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Propagation:
    r"""Predict second moments and gradients at every operation, beside one measurement of them.

    The model is traced on one real batch, in training mode. Covariances between samples and
    between positions are carried through every operation, for weights of the size that the
    model's have, and gradients back from the loss.

    Args:
        model: A model or its factory; the model is left untouched.
        data: A name, a ``DataLoader``, a ``Dataset``, an iterable of (input, target) batches, or
            a pair of tensors.
        loss_fn: ``loss_fn(model, batch)``; chosen by the targets if omitted.
        batch_size: Samples in the batch, where the data do not fix it.
        device: Where the model runs.
        seed: Seed of the weights of a factory, and of the batch.

    Returns:
        One :class:`~equipoise.theory.propagation.propagate.Site` for every operation that weights
        lie before, with its prediction or the reason why there is none, and the mean squared
        gradient of every matrix of weights.

    Raises:
        ValueError: If model, loss and data do not fit together.

    Examples:
        >>> from equipoise import models
        >>> found = profile(lambda: models.mlp(64, 10, depth=3, width=256), "digits")
        >>> [(site.operation, round(site.second_moment, 2)) for site in found.sites[:3]]
        [('mm', 0.34), ('native_batch_norm', 1.0), ('relu', 0.5)]
    """
    problem = Problem.prepare(
        model, data, loss_fn=loss_fn, batch_size=batch_size, device=device, seed=seed
    )
    return propagate(trace(problem.fresh(problem.seed), problem.first, problem.loss_fn))
