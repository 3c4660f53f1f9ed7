"""Predictions for many settings at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Unpack

from equipoise.numerics.options import named_options
from equipoise.records import wording
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike, as_activation
from equipoise.theory.batch_norm.explosion import depth_scale, max_trainable_depth
from equipoise.theory.batch_norm.fixed_point.sweep import solve_all
from equipoise.theory.batch_norm.setting import Setting, SettingOptions, as_setting


@dataclass(frozen=True, slots=True)
class SettingRecord:
    """A :class:`Setting` in plain values, as the rows of a table store it.

    Args:
        activation: Name of the activation.
        batch_size: Samples that share batch statistics.
        eps: Batch norm's ε.
        gamma: Its scale.
        beta: Its shift.
        weight_variance: Fan-in times the variance of the weights.
        bias_variance: Variance of the biases.
    """

    activation: str
    batch_size: int
    eps: float
    gamma: float
    beta: float
    weight_variance: float
    bias_variance: float


@dataclass(frozen=True, slots=True)
class Prediction(SettingRecord):
    """What theory predicts deep inside a wide random network of a setting.

    Args:
        rate: Factor per layer on the squared gradient norm, on the way back.
        depth_scale: Layers over which that norm changes by a factor of e.
        max_depth: Layers over which it changes by e^16; not the depth of a check-up, which is how
            many blocks of a model could train.
        q: Mean square of the pre-activations at the fixed point.
        c: Their correlation between two samples of a batch.
        kappa: q (1 − c), the variance that batch normalisation leaves after centring.

    Examples:
        >>> print(prediction_table(["relu"], [64], gamma=0.5)[0])
        relu at batches of 64, gamma = 0.5: the squared gradient norm changes by ×1.493 per layer,
        and by e¹⁶ over 40 layers
    """

    rate: Estimate
    depth_scale: float
    max_depth: float
    q: Estimate
    c: Estimate
    kappa: Estimate

    def __str__(self) -> str:
        changed = "".join(
            f", {name} = {value:g}"
            for name, plain in _PLAIN.items()
            if (value := getattr(self, name)) != plain
        )
        unstable = "; deep networks leave this fixed point" if self.rate.stable is False else ""
        return (
            f"{self.activation} at batches of {self.batch_size}{changed}: the squared gradient "
            f"norm changes by ×{wording.number(self.rate.value, 4)} per layer, and by e¹⁶ over "
            f"{wording.depth(self.max_depth)} layers{unstable}"
        )


# Values of a Setting that need no mention.
_PLAIN = {"eps": 0.0, "gamma": 1.0, "beta": 0.0, "weight_variance": 1.0, "bias_variance": 0.0}


@dataclass(frozen=True, slots=True)
class SpectrumPrediction(SettingRecord):
    """Every eigenvalue of a setting.

    Args:
        q: Mean square of the pre-activations at the fixed point.
        c: Their correlation between two samples of a batch.
        backward: Eigenvalues of the gradients' covariance along G, L and M.
        forward: Those of the pre-activations' covariance.
        cross_batch: The eigenvalue between two batches.
        stable: Whether networks stay near the fixed point.
    """

    q: Estimate
    c: Estimate
    backward: tuple[Estimate, Estimate, Estimate]
    forward: tuple[Estimate, Estimate, Estimate]
    cross_batch: Estimate
    stable: bool

    @property
    def largest_error(self) -> float:
        """The largest of all error bounds, absolute."""
        return max(
            part.error
            for part in (self.q, self.c, *self.backward, *self.forward, self.cross_batch)
        )


@named_options
def prediction_table(
    settings: Sequence[Setting | ActivationLike],
    batch_sizes: Sequence[int] | None = None,
    **options: Unpack[SettingOptions],
) -> list[Prediction]:
    """Predict rate, depth scale, trainable depth and fixed point for every setting.

    Instability is reported on each rate (``rate.stable``), not as a warning. Of many settings that
    differ in γ, β, ε or the batch size alone, some are solved and the others interpolated: in a
    third of the time or less, with errors of up to some 1e-8 where a single setting has 1e-12.
    Every number states its own, and ``method`` says how it was found.

    Args:
        settings: Settings; or activations, which are combined with every batch size and take
            the keywords of :class:`Setting`.
        batch_sizes: The batch sizes beside activations.

    Raises:
        ValueError: If any setting is out of range.

    Examples:
        >>> (row,) = prediction_table(["relu"], [64])
        >>> row.activation, round(row.rate.value, 4), round(row.max_depth)
        ('relu', 1.4931, 40)
        >>> [row.gamma for row in prediction_table([Setting("tanh", 8, gamma=0.5)])]
        [0.5]
    """
    rows = []
    every = list(_combinations(settings, batch_sizes, options))
    for setting, solution in zip(every, solve_all(every), strict=True):
        rate = replace(solution.rate, stable=solution.stable)
        rows.append(
            Prediction(
                **_plain(setting),
                rate=rate,
                depth_scale=depth_scale(rate) if rate.value > 0 else 0.0,
                max_depth=max_trainable_depth(rate) if rate.value > 0 else 0.0,
                q=solution.q,
                c=solution.c,
                kappa=solution.kappa,
            )
        )
    return rows


@named_options
def spectrum_table(
    settings: Sequence[Setting | ActivationLike],
    batch_sizes: Sequence[int] | None = None,
    **options: Unpack[SettingOptions],
) -> list[SpectrumPrediction]:
    """Fixed point and every eigenvalue for every setting.

    Arguments and errors as in :func:`prediction_table`.

    Examples:
        >>> (row,) = spectrum_table(["identity"], [9])
        >>> [round(part.value, 12) for part in row.forward]
        [0.0, 0.8, 0.8]
    """
    rows = []
    every = list(_combinations(settings, batch_sizes, options))
    for setting, solution in zip(every, solve_all(every), strict=True):
        rows.append(
            SpectrumPrediction(
                **_plain(setting),
                q=solution.q,
                c=solution.c,
                backward=solution.flagged(solution.backward),
                forward=solution.flagged(solution.forward),
                cross_batch=replace(solution.cross_rate, stable=solution.stable),
                stable=solution.stable,
            )
        )
    return rows


def _combinations(
    settings: Sequence[Setting | ActivationLike],
    batch_sizes: Sequence[int] | None,
    options: SettingOptions,
) -> Iterator[Setting]:
    for one in settings:
        # Adapted once for all batch sizes: an unknown module costs a search for kinks.
        setting = one if isinstance(one, Setting) else as_activation(one)
        for batch_size in batch_sizes if batch_sizes is not None else (None,):
            yield as_setting(setting, batch_size, options)


def _plain(setting: Setting) -> dict[str, Any]:
    values = {field.name: getattr(setting, field.name) for field in fields(setting)}
    return values | {"activation": setting.activation.name}
