"""Predict before training: one setting of the theory, or every operation of a model."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any, Unpack, get_type_hints, overload

import torch
from torch import nn

from equipoise.diagnosis.inputs.adapt import Loss
from equipoise.diagnosis.inputs.frameworks import is_lightning, is_trainer
from equipoise.diagnosis.problem import Problem
from equipoise.instrument.recording.tracer import trace
from equipoise.numerics.options import check_options
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.activation.catalogue import Activation
from equipoise.theory.batch_norm.setting import Setting, SettingOptions
from equipoise.theory.propagation.propagate import Propagation, propagate
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
    loss_fn: Loss | None = None,
    batch_size: int = 64,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> Propagation: ...


def predict(subject: Any, given: Any = None, /, **options: Any) -> Any:
    r"""Predict how gradients behave, before anything is trained.

    With an activation and a batch size: growth per layer deep inside a wide random network with
    batch norm. With a model and data: second moments and gradients at every operation. The model
    is traced on one real batch, in the mode that it is in; covariances between samples and
    between positions are carried through every operation, for weights of the size that the
    model's have, and gradients back from the loss.

    Args:
        subject: A :class:`~equipoise.theory.Setting`; an activation; or a model or its factory,
            which is left untouched.
        given: Beside an activation the batch size, beside a model its data: a name, a
            ``DataLoader``, a ``Dataset``, an iterable of (input, target) batches, or a pair of
            tensors.
        options: Beside an activation the keywords of ``Setting`` (``eps``, ``gamma``, ``beta``,
            ``weight_variance``, ``bias_variance``); beside a model ``loss_fn``, a function of
            model and batch, ``batch_size`` (64), where the data do not fix it, ``device`` and
            ``seed``, of a factory's weights and of the batch.

    Returns:
        For a setting, one :class:`~equipoise.theory.table.Prediction`: rate, depth scale,
        trainable depth and fixed point. For a model, a
        :class:`~equipoise.theory.propagation.propagate.Propagation`: one site for every
        operation that weights lie before, with what is predicted and what the traced pass
        measured, or the reason why nothing is predicted; the gradient of every matrix of
        weights; and what each kind of operation adds to the growth of gradients.

    Raises:
        ValueError: If a number is out of range, or model, loss and data do not fit together.
        TypeError: If an option is unknown.

    Examples:
        >>> round(predict("relu", 64).rate.value, 4)
        1.4931
        >>> from equipoise import models
        >>> found = predict(lambda: models.mlp(64, 10, depth=3, width=256), "digits")
        >>> [(site.operation, round(site.second_moment, 2)) for site in found.sites[:3]]
        [('mm', 0.34), ('native_batch_norm', 1.0), ('relu', 0.5)]
        >>> found.attribution[0].kind, round(found.attribution[0].each, 2)
        ('normalisers', 1.64)

    References:
        [yang2019], Theorems 7 and 8 for the rate; docs/propagation.md for models.
    """
    named = isinstance(subject, str | Setting | Activation)
    if named or isinstance(given, Number) or (given is None and not _brings_data(subject)):
        check_options("predict", options, get_type_hints(SettingOptions))
        sizes: Any = None if given is None else [given]  # checked by the setting
        try:
            (prediction,) = prediction_table([subject], sizes, **options)
        except ValueError as error:
            if given is None and callable(subject):
                raise ValueError(
                    f"{error} Without a second argument the first is an activation; a model is "
                    "predicted with its data: a DataLoader, a Dataset, a batch, or a name."
                ) from error
            raise
        return prediction
    check_options("predict", options, ("loss_fn", "batch_size", "device", "seed"))
    problem = Problem.prepare(subject, given, **options)
    model = problem.fresh(problem.seed)
    return propagate(trace(model, problem.first, problem.loss_fn).kept())


def _brings_data(subject: Any) -> bool:
    return is_trainer(subject) or (isinstance(subject, nn.Module) and is_lightning(subject))
