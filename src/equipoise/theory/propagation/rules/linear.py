r"""Products with a matrix of weights.

With v the mean square of the weights, C features and mixed positions s,

.. math:: K_{out}(r, r') = v\,C \sum_s K_{in}(rs, r's) + v_b, \qquad
          \Pi_{in}(rs, r's') = v\,C_{out}\,\Pi_{out}(r, r')\,[s = s'] .

Exact as C grows. Sources: [yang2019]; Xiao et al. 2018 (arXiv:1806.05393).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from equipoise.theory.propagation.call import Call, Pulled, Result, chained, rule
from equipoise.theory.propagation.exchangeable import Exchangeable, kron
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError, times
from equipoise.theory.propagation.rules.positions.features import spread_over, summed_over
from equipoise.theory.propagation.tensors import (
    bias_moments,
    is_centred,
    mean_square,
    require_random,
)
from equipoise.theory.propagation.values.covariances import (
    arranged,
    from_covariance,
    gaussian,
    measured,
)
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments


@rule("mm", "bmm")
def product(call: Call) -> Result:
    """``x @ w``, and a matrix of the batch times positions."""
    first, second = call.arguments[:2]
    if isinstance(first, Known) and isinstance(second, Moments):
        if first.parameter is not None and not first.data:
            return _from_the_left(call, first, second)
        return _by_matrices(first, second)
    return _linear(call, call.arguments[0], call.arguments[1], None)


@rule("addmm", "baddbmm")
def product_and_bias(call: Call) -> Result:
    """``bias + x @ w``."""
    bias, x, weight = call.arguments[:3]
    if call.argument("alpha") != 1 or call.argument("beta") != 1:
        raise UnpredictedError("a product whose two terms have factors, alpha and beta")
    return _linear(call, x, weight, bias)


def _linear(call: Call, x: object, weight: object, bias: object) -> Result:
    if not isinstance(weight, Known) or weight.data or weight.parameter is None:
        raise UnpredictedError("a product with a matrix that is no weight")
    if weight.value.ndim == 3 and len(weight.value) > 1:
        raise UnpredictedError("a batch of weight matrices")
    require_random(weight.value.reshape(-1, weight.value.shape[-1]).T)
    source = _source(x)
    *rows, mixed = source.layout.axes
    inputs = [atom for atom in mixed if atom.role == "feature"]
    if mixed and all(atom.role == "position" for atom in mixed) and isinstance(x, Moments):
        return over_positions(x, weight, bias)
    if len(inputs) < len(source.layout.with_role("feature")):
        raise UnpredictedError("weights that mix positions, not features")
    summed = [atom for atom in source.order if atom in mixed]
    kept = [atom for atom in source.order if atom not in mixed]
    fan_in = int(np.prod([atom.size for atom in inputs]))
    outputs = weight.value.shape[-1]
    variance = mean_square(weight.value)
    grown = times(inputs)
    offset, noise = bias_moments(bias, weight.value, grown)

    ordered = arranged(source.covariance, source.order, [*kept, *summed])
    read = summed_over(ordered, prod(atom.size for atom in summed))
    if is_centred(weight.value.reshape(-1, outputs).T, variance):
        shared = source.mean[source.places([*kept, *summed])].reshape(len(read.same), -1).sum(1)
        common = np.outer(shared, shared) * len(read.same) / len(ordered.same)
        read = Exchangeable(read.same - common, read.diff - common, read.samples)
    covariance = read * (variance * fan_in)
    if noise:
        covariance = Exchangeable(covariance.same + noise, covariance.diff + noise, read.samples)
    widening = call.node.widening
    layout = Layout((*rows, (Atom.new("feature", outputs, widening),)))
    scatter = source.scatter + float(1 / (fan_in * grown))
    means = np.full(len(read.same), offset)
    output = from_covariance(layout, kept, covariance, means)
    maker = frozenset({call.made_by(weight)})
    output = replace(output, scatter=scatter, others=maker, signs=frozenset() if offset else maker)
    # Wider layers have smaller weights, of the same variance times fan-in.
    fan_out = float(outputs * widening / grown)

    def pullback(gradient: Gradient) -> Pulled:
        size = _weight_gradient(ordered, gradient.pairs)
        if gradient.excess is not None:  # along the weights of the output themselves
            size += gradient.excess.total() * ordered.mean_diagonal / weight.value[..., 0].numel()
        found = [(str(weight.parameter), size)]
        if not isinstance(x, Moments):
            return Pulled(weights=found)
        spread = spread_over(gradient.pairs, len(ordered.same) // len(gradient.pairs.same))
        spread = arranged(spread * (variance * fan_out), [*kept, *summed], source.order)
        return Pulled([(x, Gradient(spread))], found)

    return Result(output, pullback)


def _from_the_left(call: Call, weight: Known, x: Moments) -> Result:
    """``w @ x``, as ``einsum`` writes it."""
    matrix = replace(weight, value=weight.value.transpose(-1, -2), layout=None)
    return from_the_left(x, lambda turned: _linear(call, turned, matrix, None))


def from_the_left(x: Moments, act: Callable[[Moments], Result]) -> Result:
    """``a @ x`` as ``(x.T @ a.T).T``, of which ``act`` is the product."""
    turned = _turned(x)
    result = act(turned)
    output = result.output
    assert isinstance(output, Moments)
    before = Result(turned, lambda gradient: Pulled([(x, gradient)]))
    after = Result(_turned(output), lambda gradient: Pulled([(output, gradient)]))
    return chained(chained(before, result), after)


def _turned(x: Moments) -> Moments:
    """The last two axes exchanged."""
    *rest, last, first = x.layout.axes
    return x.with_layout(Layout((*rest, first, last)), {})


@rule("_trilinear")
def bilinear(call: Call) -> Result:
    r"""``F.bilinear``: :math:`y_k = \sum_{ij} w_{kij} x_i z_j`.

    .. math:: K_{out} = v\,C_x C_z\,K_x K_z + v_b, \qquad
              \Pi_x = v\,C_{out} C_z\,\Pi K_z ,

    also for z = x, as every K is an average over features of its own.
    """
    x, weight, z = (call.argument(name) for name in ("i1", "i2", "i3"))
    if not isinstance(weight, Known) or weight.parameter is None or weight.data:
        raise UnpredictedError("a product of three tensors none of which is a weight")
    x, z = (_source(value) for value in (x, z))
    if x.order != z.order and [a.size for a in x.order] != [a.size for a in z.order]:
        raise UnpredictedError("a bilinear layer of two tensors with other positions")
    factors = call.argument("i1"), call.argument("i3")
    outputs, *inputs = (size for size in weight.value.shape if size > 1)
    count = prod(inputs)
    variance = mean_square(weight.value)
    K, L = x.covariance, z.covariance
    layout = Layout((*x.layout.axes[:-1], (Atom.new("feature", outputs, call.node.widening),)))
    covariance = K.times(L) * (variance * count)
    output = replace(
        gaussian(layout, x.order, covariance), others=frozenset({call.made_by(weight)})
    )

    def pullback(gradient: Gradient) -> Pulled:
        pairs = gradient.pairs
        found = [(str(weight.parameter), pairs.dot(K.times(L)))]
        received = []
        for given, own, other in ((factors[0], x, L), (factors[1], z, K)):
            if isinstance(given, Moments):
                width = count / own.layout.size("feature")
                received.append(
                    (given, Gradient(pairs.times(other) * (variance * outputs * width)))
                )
        return Pulled(received, found)

    return Result(output, pullback)


def _source(x: object) -> Moments:
    """What weights multiply: moments, or those of data, whose last axis are features then."""
    if isinstance(x, Moments):
        return x
    if not isinstance(x, Known):
        raise UnpredictedError("a product without a tensor")
    if not x.data or x.layout is None:
        raise UnpredictedError("a product of tensors whose axes were not followed")
    others = Layout(x.layout.axes[:-1]).with_open_as("position").axes
    features = tuple(Atom("feature", a.size, a.key) for a in x.layout.axes[-1])
    return measured(x.value, Layout((*others, features)))


def _by_matrices(matrices: Known, x: Moments) -> Result:
    r"""Matrices of the samples, such as the edges of a graph, times positions.

    :math:`K_{out} = A K A^\top`, averaged over samples and pairs of samples.
    """
    batch, places, *_ = x.layout.axes
    if x.order != places or [a.role for a in batch] != ["sample"] or matrices.parameter:
        raise UnpredictedError("a product with a matrix that is neither a weight nor of positions")
    A = matrices.value.detach().double().cpu().expand(batch[0].size, -1, -1).numpy()
    N, total = len(A), A.sum(0)
    place = Atom.new("position", A.shape[1])

    def sandwich(pairs: Exchangeable, left: str, right: str) -> Exchangeable:
        same = np.einsum(f"{left},ij,{right}->ab", A, pairs.same, A, optimize=True) / N
        own = np.einsum(f"{left},ij,{right}->ab", A, pairs.diff, A, optimize=True)
        sums = left[1:], right[1:]
        whole = np.einsum(f"{sums[0]},ij,{sums[1]}->ab", total, pairs.diff, total, optimize=True)
        return Exchangeable(same, (whole - own) / max(1, N * (N - 1)), pairs.samples)

    layout = Layout((batch, (place,), *x.layout.axes[2:]))
    mean = total @ x.mean / N
    output = from_covariance(layout, [place], sandwich(x.covariance, "nai", "nbj"), mean)

    def pullback(gradient: Gradient) -> Pulled:
        return Pulled([(x, Gradient(sandwich(gradient.pairs, "nia", "njb")))])

    return Result(output, pullback)


def over_positions(x: Moments, weight: Known, bias: object) -> Result:
    r"""Weights that mix positions, the same for every feature.

    New positions have weights of their own, so that two of them have nothing in common but what
    biases add to all features:
    :math:`K_{out}(t, t') = \delta_{tt'}\, v \sum_s K_{in}(s, s) + b_t b_{t'}`.
    """
    *rows, mixed = x.layout.axes
    kept = [atom for atom in x.order if atom not in mixed]
    ordered = arranged(x.covariance, x.order, [*kept, *mixed])
    outputs = weight.value.shape[-1]
    variance = mean_square(weight.value)
    shift = np.zeros(outputs)
    if isinstance(bias, Known):
        shift = bias.value.detach().double().flatten().cpu().numpy()
    summed = summed_over(ordered, prod(atom.size for atom in mixed))
    mean = np.tile(shift, len(summed.same))
    eye, common = np.eye(outputs), np.outer(mean, mean)
    same, diff = (kron(variance * block, eye) + common for block in (summed.same, summed.diff))
    place = Atom.new("position", outputs)
    layout = Layout((*rows, (place,)))
    covariance = Exchangeable(same, diff, ordered.samples)
    output = from_covariance(layout, [*kept, place], covariance, mean)

    def pullback(gradient: Gradient) -> Pulled:
        inner = summed_over(gradient.pairs, outputs)
        inputs = len(ordered.same) // len(summed.same)
        size = x.layout.count("feature") * inner.dot(summed) / outputs / inputs
        spread = spread_over(inner * variance, len(ordered.same) // len(inner.same))
        pairs = arranged(spread, [*kept, *mixed], x.order)
        return Pulled([(x, Gradient(pairs))], [(str(weight.parameter), size)])

    return Result(output, pullback)


def _weight_gradient(inputs: Exchangeable, gradient: Exchangeable) -> float:
    """Mean square of the derivatives of the loss by the weights."""
    mixed = len(inputs.same) // len(gradient.same)
    return spread_over(gradient, mixed).dot(inputs) / mixed
