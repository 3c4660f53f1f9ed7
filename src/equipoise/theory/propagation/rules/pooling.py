r"""Maxima over windows, which may be whole axes.

The largest of k elements whose latents are correlated by r is a function of

.. math:: g^* = \sqrt r\,u + \sqrt{1 - r}\,\max_{i \le k} v_i ,

u and v standard normal. Its gradient reaches the selected element alone, so that the way back
depends on the latent: :math:`w(g) = k\,P(\text{selected} \mid g)`. Exact for windows
whose elements are equally correlated. Two windows with m elements in common, whose others are
correlated by s on average, have the correlation

.. math:: \frac{s + (1 - s)\,c_m}{r + (1 - r)\,c_k}, \qquad
          c_m = \operatorname{Cov}(\max(A, V), \max(B, V)),

V the largest of m independent v, A and B of k - m others each; :math:`c_k` is their variance.

Of two samples, an element is correlated by a with itself in the other one and by b with the
others of the window, :math:`\rho = (a - b)/(1 - r)` for v. The maxima have the covariance

.. math:: b + (1 - r)\,C_k(\rho), \qquad
          C_k(\rho) = \iint \Phi_2(x, y; \rho)^k - \Phi(x)^k\Phi(y)^k\,dx\,dy ,

and the same element is selected in both with probability :math:`C_k'(\rho)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.sparse import csr_array
from scipy.special import ndtr

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import Call, Pulled, Result, chained, rule
from equipoise.theory.propagation.exchangeable import Exchangeable, kron
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError
from equipoise.theory.propagation.rules.positions.features import features_as_positions
from equipoise.theory.propagation.rules.windows import Window, maps
from equipoise.theory.propagation.values.covariances import arranged
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments

Array = NDArray[np.float64]

# Nodes for what elements share, where what sets them apart spreads over more than this.
_SHARED_NODES, _SMOOTH = 128, 0.3


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(call: Call) -> Result:
    """Maxima over windows."""
    x = _moments(call)
    window = Window.of_pooling(call, x)
    order, layout, places = maps(x, window.outputs)
    return _with_indices(call, largest(x, order, window.members(), layout, places))


@rule("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(call: Call) -> Result:
    """Maxima over windows that share the map out among the outputs."""
    x = _moments(call)
    inputs, outputs = x.layout.shape[2:], tuple(call.output.shape[2:])
    members: Array = np.ones((1, 1))
    for n, m in zip(inputs, outputs, strict=True):
        i, j = np.arange(m)[:, None], np.arange(n)
        members = kron(members, ((j >= i * n // m) & (j < -(-(i + 1) * n // m))).astype(float))
    order, layout, places = maps(x, outputs)
    return _with_indices(call, largest(x, order, members, layout, places))


@rule("amax", "max")
def maximum_over(call: Call) -> Result:
    """Maxima over whole axes of positions, or of some of the features."""
    x, dims = _moments(call), call.argument("dim")
    if not isinstance(dims, int | list | tuple) or dims == []:
        raise UnpredictedError("a maximum over all axes, or of two tensors")
    chosen = {dim % len(x.layout.axes) for dim in ([dims] if isinstance(dims, int) else dims)}
    atoms = [atom for i in sorted(chosen) for atom in x.layout.axes[i]]
    features = [atom for atom in atoms if atom.role == "feature"]
    if features:
        if set(features) == set(x.layout.with_role("feature")):
            raise UnpredictedError("a maximum over all features")
        spread = features_as_positions(x, features)
        return chained(spread, maximum_over(call.with_first(spread.output)))
    if any(atom.role != "position" for atom in atoms):
        raise UnpredictedError("a maximum over samples")
    kept = [atom for atom in x.order if atom not in atoms]
    count = prod(atom.size for atom in atoms)
    keep = bool(call.argument("keepdim", False))
    axes = [() if i in chosen else axis for i, axis in enumerate(x.layout.axes)]
    layout = Layout(tuple(a for i, a in enumerate(axes) if keep or i not in chosen))
    members = kron(np.eye(x.positions // count), np.ones((1, count)))
    return _with_indices(call, largest(x, [*kept, *atoms], members, layout, kept))


def _moments(call: Call) -> Moments:
    x = call.arguments[0]
    if not isinstance(x, Moments):
        raise UnpredictedError(f"{call.node.name} of values that are no moments")
    return x


def _with_indices(call: Call, result: Result) -> Result:
    """With the further outputs, which say where maxima are."""
    latents = _moments(call).latents
    others = [Known(output, data=True, others=latents) for output in call.node.outputs[1:]]
    return replace(result, others=[(other, None) for other in others])


def largest(
    x: Moments, order: Sequence[Atom], members: Array, layout: Layout, places: Sequence[Atom]
) -> Result:
    """The largest of the members of windows.

    Args:
        x: The input.
        order: All positions of x, as the columns of ``members`` run over them.
        members: Which inputs are in the window of an output, of shape ``[outputs, inputs]``.
        layout: Of the output.
        places: Positions of the output.
    """
    correlation = arranged(x.correlation, x.order, order)
    inside, sparse = members.sum(1), csr_array(members)
    sums = [_on_both_sides(sparse, block) for block in (correlation.same, correlation.diff)]
    within = (np.diagonal(sums[0]) / inside - 1) / np.maximum(inside - 1, 1)
    within = np.clip(within, 0.0, 1.0)
    r = float(within.mean())
    counts = np.unique(inside)
    variances = np.array([_covariance_of_largest(n, n, n) for n in counts])
    own = within + (1 - within) * variances[np.searchsorted(counts, inside)]
    scale = np.sqrt(np.outer(own, own))
    pairs, common = np.outer(inside, inside), (sparse @ sparse.T).toarray()
    apart = (sums[0] - common) / np.maximum(pairs - common, 1)
    covariances = apart + (1 - apart) * _of_common(inside, common)
    shared, likeness = _between_samples(correlation.diff, sums[1], sparse, inside, within, common)
    same, diff = (np.clip(block / scale, -1, 1) for block in (covariances, shared))
    np.fill_diagonal(same, 1.0)
    g, _ = latent.nodes()
    rising = latent.rising(x.table)
    if len(rising) > 1:
        rising = members @ rising[x.places(order)] / inside[:, None]
    elif len(counts) > 1:
        rising = np.broadcast_to(rising, (len(inside), len(g)))
    table = np.empty_like(rising)
    selected = np.zeros_like(g)
    for count in counts:
        (below, levels), chosen = _largest(count, r)
        maximum = np.interp(ndtr(g), below, levels)
        rows = inside == count if len(rising) > 1 else slice(None)
        table[rows] = [np.interp(maximum, g, row) for row in rising[rows]]
        selected += chosen * float((inside == count).mean())
    output = Moments(
        layout, tuple(places), Exchangeable(same, diff, correlation.samples), table, gaussian=False
    )

    reach = csr_array((members / inside[:, None]).T)
    again = np.array([_selected_again(n, rho) for n, rho in zip(inside, likeness, strict=True)])
    others = np.where(inside > 1, (1 - again) * inside / np.maximum(inside - 1, 1), 1.0)

    def between(diff: Array) -> Array:
        """Of two samples: to the same element of both, or to two others."""
        own, spread = np.diagonal(diff), diff.copy()
        np.fill_diagonal(spread, own * others)
        found = _on_both_sides(reach, spread)
        found[np.diag_indices_from(found)] += sparse.T @ (own * (again - others / inside) / inside)
        return found

    def pullback(gradient: Gradient) -> Pulled:
        G = gradient.pairs
        # An element of two windows is the largest of both as often as of their union.
        union = inside[:, None] + inside - common
        diagonal = ((sparse.T @ (G.same / union)) * members.T).sum(1)
        same = _on_both_sides(reach, G.same - np.diag(G.diagonal))
        np.fill_diagonal(same, diagonal)
        pairs = Exchangeable(same, between(G.diff), G.samples)
        weight = selected if latent.is_rising(x.table) else np.ones_like(selected)
        return Pulled([(x, Gradient(arranged(pairs, order, x.order), weight))])

    return Result(output.made_of(x), pullback)


def _between_samples(
    diff: Array,
    sums: Array,
    windows: csr_array,
    inside: Array,
    within: Array,
    common: Array,
) -> tuple[Array, Array]:
    """Covariances of maxima of two samples, and ρ for every window.

    Args:
        diff: Correlations of elements of two samples.
        sums: Their sums over pairs of windows.
        windows: Which elements are in the window of an output, of shape ``[outputs, inputs]``.
        inside: How many they are.
        within: Mean correlation of two elements of a window.
        common: How many elements pairs of windows have in common.
    """
    own = np.asarray((windows * np.diagonal(diff)) @ windows.T.toarray())
    others = (sums - own) / np.maximum(np.outer(inside, inside) - common, 1)
    apart = np.sqrt(np.outer(1 - within, 1 - within))
    excess = own / np.maximum(common, 1) - others
    likeness = np.clip(excess / np.maximum(apart, 1e-12), -1, 1) * (common > 0)
    count = float(inside.max())
    parts = _of_common(inside, common) / _covariance_of_largest(count, count, count)
    return others + apart * _covariance_between(count, likeness) * parts, np.diagonal(likeness)


def _covariance_between(count: float, likeness: Array) -> Array:
    """C_k(ρ)."""
    covariance, _ = _of_two_samples(count)
    return np.asarray(covariance(np.arcsin(likeness)))


def _selected_again(count: float, likeness: float) -> float:
    """C_k'(ρ), from 0 to 1."""
    _, chance = _of_two_samples(count)
    return float(np.clip(chance(np.arcsin(likeness)), 0, 1))


@lru_cache(maxsize=64)
def _of_two_samples(count: float) -> tuple[CubicSpline, CubicSpline]:
    """C_k and C_k' as functions of the arcsine of ρ, in which they are smooth."""
    angles = np.linspace(-np.pi / 2, np.pi / 2, 33)[1:]  # the least is not needed
    levels = np.linspace(-7.0, 7.0, 281)
    step = levels[1] - levels[0]
    density = np.exp(-(levels**2) / 2) / np.sqrt(2 * np.pi)
    # With the error of the sums below, which powers enlarge.
    summed = np.cumsum(density * step) - density * step / 2
    alone = np.outer(ndtr(levels) ** count, summed**count)
    covariances, chances = [], []
    for rho in np.sin(angles[:-1]):
        spread = np.sqrt(1 - rho**2)
        given = (levels[:, None] - rho * levels) / spread
        slices = ndtr(given) * density * step
        below = np.clip(np.cumsum(slices, axis=1) - slices / 2, 0, 1)
        covariances.append(float((below**count - alone).sum()) * step**2)
        joint = np.exp(-(given**2) / 2) / (np.sqrt(2 * np.pi) * spread) * density
        chances.append(count * float((joint * below ** (count - 1)).sum()) * step**2)
    covariances.append(_covariance_of_largest(count, count, count))
    return CubicSpline(angles, covariances), CubicSpline(angles, [*chances, 1.0])


def _on_both_sides(matrix: csr_array, block: Array) -> Array:
    """M K Mᵀ."""
    return np.asarray((matrix @ (matrix @ block).T).T)


def _largest(count: float, r: float) -> tuple[tuple[Array, Array], Array]:
    """Law of g* as chances and quantiles, and w(g)."""
    g, _ = latent.nodes()
    spread = np.sqrt(max(1 - r, 1e-12))
    u, weights = _shared() if spread > _SMOOTH else latent.nodes()
    levels = np.linspace(-8.5, 8.5, 1201)
    below = ndtr((levels[:, None] - np.sqrt(r) * u) / spread) ** count @ weights
    # Selected at g: all others, given g, are below; they share u given g.
    given = np.sqrt(r) * g[:, None] + np.sqrt(1 - r) * u
    chance = ndtr((g[:, None] - np.sqrt(r) * given) / spread) ** (count - 1) @ weights
    return (below, levels), np.asarray(chance / latent.mean(chance))


@lru_cache(maxsize=1)
def _shared() -> tuple[Array, Array]:
    """Nodes and weights of what elements share, enough where they also differ."""
    u, weights = np.polynomial.hermite_e.hermegauss(_SHARED_NODES)
    return u, weights / weights.sum()


def _of_common(inside: Array, common: Array) -> Array:
    """c_m for all pairs of windows."""
    found = np.zeros_like(common)
    rows, columns = np.nonzero(common)
    triples = np.stack([inside[rows], inside[columns], common[rows, columns]], 1)
    kinds, which = np.unique(triples, axis=0, return_inverse=True)
    values = np.array([_covariance_of_largest(*kind) for kind in kinds])
    found[rows, columns] = values[which.ravel()]
    return found


@lru_cache(maxsize=1024)
def _covariance_of_largest(first: float, second: float, common: float) -> float:
    """Of two sets of independent standard normal numbers, some of which are in both."""
    levels = np.linspace(-8.5, 8.5, 1201)
    step = levels[1] - levels[0]
    density = common * ndtr(levels) ** (common - 1) * np.exp(-(levels**2) / 2)
    density /= density.sum()
    means = []
    for count in (first, second):
        above = 1 - ndtr(levels) ** (count - common)
        beyond = np.cumsum(above[::-1])[::-1] - above / 2  # of the others, over that in common
        means.append(levels + step * beyond)
    one, other = (mean - density @ mean for mean in means)
    return float(density @ (one * other))
