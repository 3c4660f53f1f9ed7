"""Records of what probes measure; they need no torch, so that a stored report is shown without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from equipoise.records.estimate import Estimate
from equipoise.records.wording import factor, number, spread, table

Direction = Literal["gradient", "random", "given"]


@dataclass(frozen=True, slots=True)
class LayerGradients:
    r"""Activations and gradients of one layer, averaged over batches and replicates.

    Args:
        layer: Name of the layer in the model.
        kind: Its class, such as ``BatchNorm2d``.
        rows: Samples, times positions for feature maps.
        features: Neurons or channels.
        gradient: Mean of :math:`\|\partial E/\partial h\|^2` over replicates, with h the
            pre-activations: the normaliser's input, or the output of the parametrised layer.
        weight_gradient: Mean of :math:`\|\partial E/\partial W\|^2` for the weights that
            make h, where there are any.
        second_moment: Mean of :math:`h^2`; the theory's :math:`q`.
        correlation: Mean product of two different rows over the mean square of one; the
            theory's :math:`c`.
        sharing: Rows over which the layer averages to normalise; ``None`` if it normalises by
            single samples or running statistics, or not at all.
    """

    layer: str
    kind: str
    rows: int
    features: int
    gradient: Estimate
    weight_gradient: Estimate | None
    second_moment: Estimate
    correlation: Estimate
    sharing: int | None = None


@dataclass(frozen=True, slots=True)
class GradientGrowth:
    """Gradient norms per layer, and the growth fitted through them.

    Args:
        layers: One entry per watched layer, in order of execution.
        rate: Factor by which the squared gradient norm with respect to pre-activations grows
            per layer on the way back (above 1: early layers receive larger gradients), with
            its standard error over replicates; ``None`` with fewer than three layers.
        weight_rate: The same for weight gradients.
        replicates: How many independent initialisations were averaged.
        batches: How many batches each of them saw.
        fitted: Which of the layers the fits go through.
        left_out: Layers that did not run on every batch, as with stochastic depth.
    """

    layers: tuple[LayerGradients, ...]
    rate: Estimate | None
    weight_rate: Estimate | None
    replicates: int
    batches: int
    fitted: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The growth, and a line for each layer.

        Examples:
            >>> one = Estimate(1.0, 0.1, "simulation")
            >>> layer = LayerGradients("fc", "Linear", 8, 4, one, None, one, one)
            >>> print(GradientGrowth((layer,), None, None, 2, 1))
            growth per layer towards the input unknown
            layer  kind    ‖∂L/∂h‖²     mean h²      correlation
            fc     Linear  1.00 ± 0.10  1.00 ± 0.10  1.00 ± 0.10
        """
        grown = "unknown" if self.rate is None else factor(self.rate)
        rows = [
            (one.layer, one.kind, *map(spread, (one.gradient, one.second_moment, one.correlation)))
            for one in self.layers
        ]
        heads = ("layer", "kind", "‖∂L/∂h‖²", "mean h²", "correlation")
        return f"growth per layer towards the input {grown}\n{table([heads, *rows])}"


@dataclass(frozen=True, slots=True)
class LayerConditioning:
    """Condition numbers of one layer's extended input matrix Ĥ = [1, H].

    Args:
        layer: Name of the layer in the model.
        kind: Its class.
        rows: Rows of Ĥ: samples, times output positions for a convolution.
        columns: Columns of Ĥ: inputs of one output unit, plus one for the bias.
        raw: Condition number of Ĥ on its range.
        centred: After subtracting column means.
        scaled: After centring and dividing by column standard deviations, as batch
            normalisation preconditioning does.
        scale_spread: κ(D), largest over smallest column scale, the leading 1 included.
        zero_singular_values: Columns minus numerical rank of Ĥ; singular values that rounding
            of the activations explains count as zero.
        constant_features: Columns of H without any variance; they cannot be scaled.
        method: ``svd``, or ``gram``, which cannot see condition numbers beyond about 10⁷.
        skipped: The reason why the layer was not measured; ``None`` if it was.
        sampled_from: How many rows there are, if condition numbers are those of a sample of
            ``rows`` of them; 0 if all were taken.
        sampling_error: Size of the logarithm of the raw condition number over that of half of
            the sample, or of one and a half times as many rows as columns if that is more.

    Examples:
        >>> sample = LayerConditioning("0", "Linear", 5, 11, 2, 2, 2, 2, 6, 0, "svd", None, 90)
        >>> sample.batch_rows, sample.rank_lost
        (90, None)
    """

    layer: str
    kind: str
    rows: int
    columns: int
    raw: float
    centred: float
    scaled: float
    scale_spread: float
    zero_singular_values: int
    constant_features: int
    method: str
    skipped: str | None = None
    sampled_from: int = 0
    sampling_error: float = 0.0

    @property
    def batch_rows(self) -> int:
        """Rows of the batch, of which a sample may have been measured."""
        return self.sampled_from or self.rows

    @property
    def rank_lost(self) -> int | None:
        """Directions without a gradient; ``None`` where the sample is too small to tell."""
        if self.sampled_from and self.rows < self.columns:
            return self.columns - self.batch_rows if self.batch_rows < self.columns else None
        return self.zero_singular_values


@dataclass(frozen=True, slots=True)
class LayerShift:
    r"""How much the gradient of one layer changes when all earlier layers take their step.

    Args:
        layer: Name of the layer in the model.
        kind: Its class.
        parameters: Number of its trainable numbers; shared ones count in the first layer that
            uses them.
        l2: :math:`\|G_i - G_i'\|`.
        cosine: Between :math:`G_i` and :math:`G_i'`, ideally 1; ``nan`` if one is zero.
        gradient_norm: :math:`\|G_i\|`, before the earlier layers take their step.
        moved_gradient_norm: :math:`\|G_i'\|`, after it.
        zero_gradient: Whether one of the two is exactly zero.
    """

    layer: str
    kind: str
    parameters: int
    l2: float
    cosine: float
    gradient_norm: float
    moved_gradient_norm: float
    zero_gradient: bool


@dataclass(frozen=True, slots=True)
class CovariateShift:
    """Internal covariate shift of every layer, for one batch and one step of the optimiser.

    Args:
        layers: One entry per layer, in the order in which they are applied.
        loss: Loss before the step.
        relative_floor: Resolution of the coarsest type among parameters and loss. A difference
            of less than this times the gradient's norm is rounding.
        shared_prefix: Whether passes reused the outputs of layers that had moved already.
    """

    layers: tuple[LayerShift, ...]
    loss: float
    relative_floor: float
    shared_prefix: bool

    def __str__(self) -> str:
        """A line for each layer.

        Examples:
            >>> layer = LayerShift("fc", "Linear", 9, 0.5, 0.875, 1.0, 1.5, False)
            >>> print(CovariateShift((layer,), 2.0, 1e-7, True))
            layer  kind    ‖gradient‖  change  cosine
            fc     Linear  1.00        0.500   0.875
        """
        rows = [
            (one.layer, one.kind, *map(number, (one.gradient_norm, one.l2, one.cosine)))
            for one in self.layers
        ]
        return table([("layer", "kind", "‖gradient‖", "change", "cosine"), *rows])


@dataclass(frozen=True, slots=True)
class Landscape:
    r"""Loss and gradient along a line through the parameters.

    The points are :math:`\theta_\eta = \theta - \eta d`. Numbers that overflow are kept, as
    ``inf`` or ``nan``.

    Args:
        direction: What d is: the gradient g of the loss, a random vector of the same norm, or
            one that the caller gave.
        steps: η, in the caller's order.
        losses: :math:`\mathcal L(\theta_\eta)` at every step.
        gradient_changes: :math:`\|\nabla\mathcal L(\theta_\eta) - g\|` at every step; ``None``
            if only losses were asked for.
        cosines: Between :math:`\nabla\mathcal L(\theta_\eta)` and g; ``nan`` where one is zero.
        initial_loss: :math:`\mathcal L(\theta)`.
        gradient_norm: :math:`\|g\|`.
        direction_norm: :math:`\|d\|`.
        parameter_norm: :math:`\|\theta\|`.
        relative_floor: Resolution of the coarsest type among parameters and loss. A gradient
            change of less than this times the gradient's norm is rounding.
        zero_gradient: Whether g is exactly zero.
    """

    direction: Direction
    steps: tuple[float, ...]
    losses: tuple[float, ...]
    gradient_changes: tuple[float, ...] | None
    cosines: tuple[float, ...] | None
    initial_loss: float
    gradient_norm: float
    direction_norm: float
    parameter_norm: float
    relative_floor: float
    zero_gradient: bool

    def __str__(self) -> str:
        """The gradient and β, and a line for each step.

        Examples:
            >>> print(Landscape("gradient", (0.5,), (1.0,), (2.0,), (1.0,), 2.0, 4.0, 4.0, 1.0,
            ...                 1e-7, False))
            along the gradient: loss 2.00, ‖gradient‖ 4.00, effective smoothness β 1.00
            step   loss  change of the gradient  cosine
            0.500  1.00  2.00                    1.00
        """
        along = {"given": "a given direction", "random": "a random direction"}
        line = (
            f"along {along.get(self.direction, 'the gradient')}: loss {number(self.initial_loss)}"
        )
        line += f", ‖gradient‖ {number(self.gradient_norm)}"
        columns = [self.steps, self.losses]
        heads = ["step", "loss"]
        if self.gradient_changes is not None and self.cosines is not None:
            line += f", effective smoothness β {number(self.beta)}"
            columns += [self.gradient_changes, self.cosines]
            heads += ["change of the gradient", "cosine"]
        rows = [tuple(map(number, row)) for row in zip(*columns, strict=True)]
        return f"{line}\n{table([tuple(heads), *rows])}"

    @property
    def distances(self) -> tuple[float, ...]:
        r""":math:`\|\eta d\|` at every step."""
        return tuple(abs(step) * self.direction_norm if step else 0.0 for step in self.steps)

    @property
    def betas(self) -> tuple[float, ...] | None:
        r""":math:`\|\nabla\mathcal L(\theta_\eta) - g\| / \|\eta d\|`; ``nan`` at distance 0."""
        if self.gradient_changes is None:
            return None
        pairs = zip(self.gradient_changes, self.distances, strict=True)
        return tuple(change / distance if distance else math.nan for change, distance in pairs)

    @property
    def beta(self) -> float:
        r"""Effective β-smoothness: the largest of :attr:`betas`.

        Points at distance 0 do not count. ``nan`` if there are no others, or if one is ``nan``.
        """
        moved = [b for b, d in zip(self.betas or (), self.distances, strict=False) if d]
        return _extremes(moved)[1] if moved else math.nan

    @property
    def loss_band(self) -> tuple[float, float]:
        """Smallest and largest loss over the steps; both ``nan`` if one loss is."""
        return _extremes(self.losses)

    @property
    def gradient_change_band(self) -> tuple[float, float] | None:
        """Smallest and largest gradient change over the steps; both ``nan`` if one is."""
        if self.gradient_changes is None:
            return None
        return _extremes(self.gradient_changes)

    @property
    def step_errors(self) -> tuple[float, ...]:
        """Bound on the relative error of each step from rounding the moved parameters.

        At 1 or more, the step may be lost altogether, as happens to small steps in half precision.
        """
        unit = self.relative_floor / 2
        return tuple(
            unit * (1 + self.parameter_norm / distance) if distance else 0.0
            for distance in self.distances
        )


def _extremes(values: Sequence[float]) -> tuple[float, float]:
    """Smallest and largest value; ``nan`` if one is ``nan``, which ``min`` may hide."""
    if any(map(math.isnan, values)):
        return math.nan, math.nan
    return min(values), max(values)
