"""Predict without measuring: one setting of the theory, or the normalisers of a model."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any, Unpack, overload

import torch
from torch import nn

from equipoise.diagnosis.prediction.blocks import find_blocks
from equipoise.diagnosis.prediction.predict import predict as predict_block
from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.record import Block
from equipoise.instrument.recording.operations import record_operations
from equipoise.instrument.types import LossFunction
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.setting import Setting, SettingOptions
from equipoise.theory.table import Prediction, prediction_table


@overload
def predict(  # type: ignore[overload-overlap]  # a module with a whole number is an activation
    subject: Setting | ActivationLike,
    batch_size: int | None = None,
    /,
    **options: Unpack[SettingOptions],
) -> Prediction: ...


@overload
def predict(
    subject: nn.Module | Callable[[], nn.Module],
    data: object,
    /,
    *,
    loss_fn: LossFunction | None = None,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> tuple[Block, ...]: ...


def predict(subject: Any, given: Any = None, /, **options: Any) -> Any:
    r"""Predict how fast gradients grow per layer, before anything is trained or measured.

    With an activation and a batch size, deep inside a wide random network with batch norm; with a
    model and data, for every normaliser of the model whose surroundings theory covers.

    Args:
        subject: A :class:`~equipoise.theory.Setting`; an activation; or a model or its factory.
        given: Beside an activation the batch size, beside a model its data: a name, a
            ``DataLoader``, a ``Dataset``, an iterable of (input, target) batches, or a pair of
            tensors.
        options: Beside an activation the keywords of ``Setting`` (``eps``, ``gamma``, ``beta``,
            ``weight_variance``, ``bias_variance``); beside a model ``loss_fn``, ``batch_size``
            (64), ``device`` and ``seed``.

    Returns:
        For a setting, one :class:`~equipoise.theory.table.Prediction`: rate, depth scale,
        trainable depth and fixed point. For a model, one
        :class:`~equipoise.diagnosis.record.Block` per normaliser, in order of execution; its
        ``reason`` says why there is no prediction, if there is none.

    Raises:
        ValueError: If a number is out of range, or model, loss and data do not fit together.

    Examples:
        >>> round(predict("relu", 64).rate.value, 4)
        1.4931
        >>> from equipoise import models
        >>> blocks = predict(lambda: models.mlp(64, 10, depth=3, width=32), "digits")
        >>> [(block.layer, round(block.rate.value, 2)) for block in blocks]
        [('norm1', 1.49), ('norm2', 1.49), ('norm3', 1.49)]

    References:
        [yang2019], Theorem 9 for the rate.
    """
    if given is None or isinstance(given, Number):
        sizes: Any = None if given is None else [given]  # checked by the setting
        (prediction,) = prediction_table([subject], sizes, **options)
        return prediction
    problem = Problem.prepare(subject, given, **options)
    model = problem.fresh(problem.seed)
    operations = record_operations(model, problem.first, problem.loss_fn)
    return tuple(predict_block(found)[0] for found in find_blocks(operations))
