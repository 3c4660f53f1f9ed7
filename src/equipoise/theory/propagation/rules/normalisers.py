r"""Normalisation.

Batch norm centres every feature over all M rows of the batch and divides by its standard
deviation. Averages over Gaussian rows are exact for any number of them, see :mod:`.few_rows`. On
maps of many positions they are taken, with :math:`K_c` the centred covariance,
:math:`\bar s = \operatorname{tr} K_c/M` and
:math:`\tau = \operatorname{tr} K_c^2/(\operatorname{tr} K_c)^2`, to first order in τ,

.. math:: K_{out} = \frac{K_c}{\bar s + \epsilon}\Big(1 + 2\tau \frac{\bar s^2}
          {(\bar s + \epsilon)^2}\Big) - \frac{2 K_c^2}{M (\bar s + \epsilon)^2},

times γ², plus β². The derivative subtracts from the gradient what is constant over rows and what
is along the output. What a gradient behind a function of the output has in common with it, for
latents z by :math:`\Pi \circ (E[\phi'\phi' z z] - E[\phi'\phi']\rho)`, is subtracted by its
total; for vectors this is the theorem's rate of growth, exactly. Where every feature has weights
of its own, E[1/S] is that over weights too, see :mod:`..filters`.

Layer and group norm treat the numbers of a sample likewise; over features alone, which are many,
layer norm divides by what they average to, and its gradients' mean square is that of a batch norm
of C rows, (C - 2)/(C - 3). Of a stream that layer norm gave, with a share a of the variance, the
sum of squares varies by 1 - a² of that and the mean by 1 - a, and a gradient that has nothing
along the stream behind it loses less: with the share r of that missing,
:math:`1 + (3 - a - 2a^2)/C` times :math:`1 - 2(1 - r)/C`. Source: [yang2019] for batch norm with
independent samples; the corrections are derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod

import numpy as np
import torch

from equipoise.records import wording
from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import Call, Pulled, Result, known_tensor, rule
from equipoise.theory.propagation.exchangeable import Exchangeable, Later
from equipoise.theory.propagation.few_rows import (
    FewRows,
    ManyRows,
    SteadyRows,
    of_two_draws,
    rows_of,
    steady_rows_of,
)
from equipoise.theory.propagation.layout import Atom, UnpredictedError
from equipoise.theory.propagation.rules.joining import each_part
from equipoise.theory.propagation.values.covariances import from_covariance
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments, Value

# Why nothing is predicted where a norm divides by the square root of its ε alone.
EQUAL_ROWS = "batch norm of rows that are all equal"
# With fewer features, what a group divides by is not what infinitely many would average to.
_FEWEST_FEATURES = 4
# With more directions that rows span, elements are as good as Gaussian after batch norm.
_SPHERICAL = 2000
# Of the rows that were drawn, beyond the scatter of features.
_BY_CHANCE = 0.05
# Of two rows one is the negative of the other, and nothing of a gradient is left.
_FEWEST_DIRECTIONS = 2


@rule("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
def batch_norm(call: Call) -> Result:
    """Batch norm, in training or in evaluation."""
    x, gamma, beta = (call.argument(name) for name in ("input", "weight", "bias"))
    training = call.argument("training")
    eps = call.argument("epsilon", call.argument("eps"))  # cuDNN's name, and the others'
    if not isinstance(x, Moments):
        raise UnpredictedError("batch norm of values that are no moments")
    roles = [atom.role for atom in x.layout.axes[1]]
    if training and roles == ["sample", "feature"] and not x.layout.axes[0]:
        return _within_samples(call, x, 1, _scale_and_shift(gamma, beta), eps)
    if any(role != "feature" for role in roles):
        raise UnpredictedError("batch norm over an axis with positions")
    if not training:
        return _by_running_statistics(call, x, eps)
    if x.correlation.samples * x.positions < 2:
        raise UnpredictedError("batch norm of a single row")
    centred = x.covariance.centred()
    trace = centred.mean_diagonal
    if trace <= 0:
        raise UnpredictedError(EQUAL_ROWS)
    # Rounded, so that layers share tables.
    directions = round((centred.rows * trace) ** 2 / centred.dot(centred), 9)
    if directions < _FEWEST_DIRECTIONS:
        raise UnpredictedError("batch norm of rows that differ in fewer than two directions")
    rows = steady_rows_of(centred, eps, x.steady)
    normal = rows.normalised()
    square, offset, power = _scale_and_shift(gamma, beta)
    covariance = normal
    if (square, power) != (1, 0):
        same, diff = (square * block + power for block in (normal.same, normal.diff))
        covariance = Exchangeable(same, diff, normal.samples)
    means = np.full(x.positions, offset)
    output = from_covariance(x.layout, x.order, covariance, means, _shape(x)).made_of(x)
    if x.gaussian and directions < _SPHERICAL:
        output = output.on_sphere(directions)  # rows were divided by their length
    output = replace(output, steady=1.0)

    gain, filters = x.filters.divided(trace, eps) if x.filters else (1.0, 1.0)
    if x.filters and x.filters.of_data:
        gain /= (trace + eps) * rows.inverse
    back = _WayBack(rows, normal, square * gain)
    doubt = _doubt(call, x, rows.inverse * gain)

    def pulled(pairs: Exchangeable, gradient: Gradient) -> Pulled:
        excess = gradient.excess
        if excess is not None:
            excess = excess.centred() * (square * gain / (trace + eps))
        if x.steady:  # it has nothing along x, which the norm before need not take off again
            nothing = pairs.times(x.correlation) * -1.0
            excess = nothing if excess is None else nothing + excess
        own = Gradient(pairs, gradient.weight, excess, filters=filters)
        return Pulled([(x, own)], doubt=doubt)

    def pullback(gradient: Gradient) -> Pulled:
        return pulled(back(gradient.pairs, _along(gradient)), gradient)

    def deferred(gradient: Gradient) -> Pulled:
        return pulled(_PulledLater(back, gradient.pairs, _along(gradient)), gradient)

    return Result(output, pullback, _nothing(call), deferred)


def _doubt(call: Call, x: Moments, predicted: float) -> float:
    """Logarithm of the average of 1/S over features, measured over predicted.

    It is 0 within two standard errors of as many features, and where it is not known: after a
    change, and of a part of a concatenation. Gradients before the norm are off by as much: where
    samples have less in common than theory says, as behind maxima over points, or rows fewer
    directions.
    """
    roots = call.node.outputs[2] if len(call.node.outputs) > 2 else None
    if roots is None or roots.is_meta or roots.numel() != x.layout.count("feature"):
        return 0.0
    squares = roots.detach().double().square().cpu().numpy()
    mean, count = float(squares.mean()), len(squares)
    if count < 2 or not mean > 0 or not predicted > 0:
        return 0.0
    found = math.log(mean / predicted)
    by_chance = 2 * float(squares.std()) / mean / math.sqrt(count)
    return math.copysign(max(abs(found) - by_chance - _BY_CHANCE, 0.0), found)


def _along(gradient: Gradient) -> float:
    """What a gradient has in common with the latents, on average over pairs of rows."""
    excess = gradient.excess
    return 0.0 if excess is None else excess.total() / excess.rows**2


@dataclass(frozen=True, eq=False)
class _WayBack:
    """The linear map from gradients behind batch norm to those before.

    Args:
        rows: What was normalised.
        normal: Its covariance after batch norm.
        square: γ², and by how much more gradients grow where filters differ.
    """

    rows: FewRows | ManyRows | SteadyRows
    normal: Exchangeable
    square: float

    def __call__(self, pairs: Exchangeable, along: float) -> Exchangeable:
        """The gradient's second moments, from those behind and :func:`_along`."""
        found = self.rows.pulled_back(pairs.centred()) * self.square
        if along:
            # What the gradient knows of x is its direction, of which J takes the same share.
            found = found + self.normal * (-self._lost * along / self.normal.mean_diagonal)
        return found.centred()

    def mean_diagonal(self, pairs: Exchangeable, along: float) -> float:
        """That of the result, without computing the result."""
        return self.square * self._dual.dot(pairs) / pairs.rows - self._lost * along

    @cached_property
    def _lost(self) -> float:
        return self.square * self.rows.radial_gain

    @cached_property
    def _dual(self) -> Exchangeable:
        return self.rows.dual.centred()


class _PulledLater(Later):
    """What a way back makes of a gradient; those of several gradients are added up before."""

    _arguments: tuple[_WayBack, Exchangeable, float]

    def __init__(self, back: _WayBack, pairs: Exchangeable, along: float) -> None:
        super().__init__(partial(back, pairs, along), pairs.positions, pairs.samples)
        object.__setattr__(self, "_arguments", (back, pairs, along))

    @cached_property
    def mean_diagonal(self) -> float:
        """The trace over the number of rows."""
        back, pairs, along = self._arguments
        return back.mean_diagonal(pairs, along)

    def __add__(self, other: Exchangeable) -> Exchangeable:
        back, pairs, along = self._arguments
        if isinstance(other, _PulledLater) and other._arguments[0] is back:
            return _PulledLater(back, pairs + other._arguments[1], along + other._arguments[2])
        return super().__add__(other)


@torch.no_grad()
def _by_running_statistics(call: Call, x: Moments, eps: float) -> Result:
    r"""Batch norm in evaluation: :math:`(x - \mu)/\sqrt{\sigma^2 + \epsilon}`, μ and σ² given.

    Moments do not tell whether μ are the averages of these very features, as after training, or
    numbers that have nothing to do with them. The measured output does, as averages of the
    features follow from it: if they have most of μ in common, μ² is subtracted from K and K is
    divided by the average of σ², otherwise μ² is added and K multiplied with that of 1/σ².
    """
    gamma, beta = call.argument("weight"), call.argument("bias")
    mean, variance = (known_tensor(call.argument(f"running_{name}")) for name in ("mean", "var"))
    if mean is None or variance is None:
        raise UnpredictedError("batch norm without running statistics in evaluation mode")
    if call.output.is_meta:
        raise UnpredictedError("running statistics, which are those of the network before")
    square, offset, power = _scale_and_shift(gamma, beta)
    mean, variance = mean.double(), variance.double() + eps
    own, back = x.covariance, float((1 / variance).mean()) * square
    # Trained statistics are those of the features themselves; others have nothing to do with them.
    features = call.output.double().transpose(0, 1).flatten(1).mean(1)
    scale, shift = known_tensor(gamma), known_tensor(beta)
    features = features if shift is None else features - shift
    features = features if scale is None else features / scale
    features = features * variance.sqrt() + mean
    size = float(mean.square().mean())
    related = float((features * mean).mean()) / size > 0.5 if size > 0 else True
    common = size if related else -size
    divisor = float(variance.mean()) if related else 1 / float((1 / variance).mean())
    same, diff = (square * (block - common) / divisor + power for block in (own.same, own.diff))
    covariance = Exchangeable(same, diff, own.samples)
    means = np.full(x.positions, offset)
    found = from_covariance(x.layout, x.order, covariance, means, _shape(x)).made_of(x)

    def pullback(gradient: Gradient) -> Pulled:
        return Pulled([(x, Gradient(gradient.pairs * back, gradient.weight))])

    return Result(found, pullback, _nothing(call))


@rule("native_layer_norm")
def layer_norm(call: Call) -> Result:
    """Layer norm over all features, and over positions if they are among its axes."""
    x, gamma, beta = (call.argument(name) for name in ("input", "weight", "bias"))
    axes, eps = call.argument("normalized_shape"), call.argument("eps")
    if not isinstance(x, Moments):
        raise UnpredictedError("layer norm of values that are no moments")
    within = [atom for axis in x.layout.axes[-len(axes) :] for atom in axis]
    return _over_features(call, x, within, x.layout.count("feature"), gamma, beta, float(eps or 0))


@rule("native_group_norm")
def group_norm(call: Call) -> Result:
    """Group norm, and instance norm as far as a group has several features."""
    x, gamma, beta = (call.argument(name) for name in ("input", "weight", "bias"))
    groups, eps = call.argument("group"), call.argument("eps")
    if not isinstance(x, Moments):
        raise UnpredictedError("group norm of values that are no moments")
    features = x.layout.count("feature") // groups

    def own(call: Call) -> Result:
        part = call.argument("input")
        within = [atom for axis in part.layout.axes[1:] for atom in axis]
        return _over_features(call, part, within, features, gamma, beta, float(eps or 0))

    # A group within a part of a concatenation is divided by what that part has.
    alone = x.parts and not any(part.layout.count("feature") % features for part in x.parts)
    return each_part(call, own, {}) if alone else own(call)


def _over_features(
    call: Call,
    x: Moments,
    within: list[Atom],
    features: int,
    gamma: object,
    beta: object,
    eps: float,
) -> Result:
    """Divide by what features, and the positions ``within``, average to."""
    pooled = [atom for atom in x.order if atom in within]
    x.require_even(features * prod(atom.size for atom in pooled))
    if pooled and len(pooled) < len(x.order):
        raise UnpredictedError("a norm over some of the positions")
    if pooled:
        return _within_samples(call, x, features, _scale_and_shift(gamma, beta), eps)
    square, offset, _ = _scale_and_shift(gamma, beta)
    if features < _FEWEST_FEATURES:
        words = wording.count(features, "feature")
        raise UnpredictedError(f"a norm over {words}, where {_FEWEST_FEATURES} are the fewest")
    divisor = np.sqrt(x.std**2 + eps)
    table = np.sqrt(square) * (x.table - x.mean[:, None]) / divisor[:, None] + offset
    output = replace(x.with_table(_shortened(table), gaussian=x.gaussian), balanced=1.0)
    # Features of one row are rows of a batch norm of their own: (C - 2)/(C - 3) without ε.
    variance, zero = np.array([[float((x.std**2).mean())]]), np.zeros((1, 1))
    unit = Exchangeable(np.ones((1, 1)), zero, features)
    row = rows_of(Exchangeable(variance, zero, features).centred(), eps)
    pulled = float(row.pulled_back(unit.centred()).mean_diagonal)
    gaussian = pulled * (float(variance[0, 0]) + eps) / (1 - 2 / features)
    inverse = 1 + (gaussian - 1) * (1 - (math.sqrt(x.balanced) + 2 * x.balanced) / 3)

    def pullback(gradient: Gradient) -> Pulled:
        size = square / np.outer(divisor, divisor)
        same = gradient.pairs.same * size
        left = 1 - 2 * (1 - gradient.orthogonal) / features
        same[np.diag_indices_from(same)] *= inverse * left
        pairs = Exchangeable(same, gradient.pairs.diff * size, gradient.pairs.samples)
        excess = gradient.excess and gradient.excess.scaled(np.sqrt(square) / divisor)
        return Pulled([(x, Gradient(pairs, gradient.weight, excess, orthogonal=1.0))])

    return Result(output, pullback, _nothing(call))


def _within_samples(
    call: Call, x: Moments, features: int, affine: tuple[float, float, float], eps: float
) -> Result:
    """Divide a group of features by what it has at all positions of a sample.

    Within a sample this is batch norm, with features in the place of samples; two samples are
    divided by numbers of their own.
    """
    K, (square, offset, power) = x.covariance, affine
    group = Exchangeable(K.same, np.outer(x.mean, x.mean), features).centred()
    if group.rows < _FEWEST_FEATURES or group.mean_diagonal <= 0:
        raise UnpredictedError("a norm over fewer than four numbers")
    rows = rows_of(group, eps)
    normal = rows.normalised()
    other = Exchangeable(K.diff, np.outer(x.mean, x.mean), features).centred()
    across = of_two_draws(rows, group, other).same
    covariance = Exchangeable(square * normal.same + power, square * across + power, K.samples)
    output = from_covariance(
        x.layout, x.order, covariance, np.full(x.positions, offset), _shape(x)
    ).made_of(x)
    alone = x.filters if features == 1 and x.filters and not x.filters.of_data else None
    gain, filters = alone.divided(group.mean_diagonal, eps) if alone else (1.0, 1.0)

    def pullback(gradient: Gradient) -> Pulled:
        jacobian = rows.jacobian
        nothing = np.zeros_like(gradient.pairs.same)
        own = Exchangeable(gradient.pairs.same, nothing, features).centred()
        other = Exchangeable(gradient.pairs.diff, nothing, features).centred()
        other = jacobian @ other @ jacobian
        own = rows.pulled_back(own)
        pairs = Exchangeable(square * own.same, square * other.same, K.samples) * gain
        # What a group has along itself is taken off, of which a feature is one part.
        left = (1 - 1 / features) * square / (group.mean_diagonal + eps)
        excess = gradient.excess and gradient.excess * left
        return Pulled([(x, Gradient(pairs, gradient.weight, excess, filters=filters))])

    return Result(output, pullback, _nothing(call))


def _shape(x: Moments) -> np.ndarray | None:
    """The law of the standardised elements; None if it is Gaussian."""
    if x.gaussian:
        return None
    table = latent.rising(x.typical[None])[0]
    centred = table - latent.mean(table)
    return np.asarray(centred / np.sqrt(latent.mean(centred**2)))


def _shortened(table: np.ndarray) -> np.ndarray:
    """One row if all are equal."""
    return table[:1] if np.allclose(table, table[:1], rtol=1e-13, atol=0) else table


def _nothing(call: Call) -> list[tuple[Value, None]]:
    """Statistics, which nothing but the backward pass reads."""
    return [(Known(output), None) for output in call.node.outputs[1:]]


def _scale_and_shift(gamma: object, beta: object) -> tuple[float, float, float]:
    """Averages over features of γ², β and β²."""
    scale, shift = (
        None if tensor is None else tensor.detach().double()
        for tensor in (known_tensor(gamma), known_tensor(beta))
    )
    square = 1.0 if scale is None else float(scale.square().mean())
    if shift is None:
        return square, 0.0, 0.0
    return square, float(shift.mean()), float(shift.square().mean())
