r"""Elements drawn at random, where they depend on each other.

Sums, products and functions of several tensors have closed moments as long as the tensors are
independent, or functions of the same latents. Gates are neither: in
:math:`(1 - z) \odot h + z \odot c` both terms depend on z, in a recurrence over all steps before.
All of these treat every feature alike, so that one feature, at all positions of two samples, is
drawn many times: latents of tensors that weights made by their correlations, parameters that
differ between features by drawing the feature, and what operations make of them by running the
operations. Averages over draws are the moments of what comes out.

Back, with J the derivatives of an operation at the draws of its inputs, gradients of the two
samples are drawn as :math:`a_s + h`, of covariances :math:`\Pi_{same} - \Pi_{diff}` and
:math:`\Pi_{diff}`, independent of J, and

.. math:: \Pi^{in}_{same} = E[J^\top (a a^\top + h h^\top) J], \qquad
          \Pi^{in}_{diff} = E[J_1^\top h h^\top J_2] ,

which is exactly zero where :math:`\Pi_{diff}` is. Draws are handed on from one operation to the
next, so that gradients that meet again add up before squares. Eigenvectors of :math:`\Pi_{diff}`
with negative eigenvalues have two signs in the two samples. Averages over draws have errors of 1
to 2 %.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TypeAlias
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.exchangeable import Exchangeable, of_draws
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError
from equipoise.theory.propagation.values.covariances import from_covariance
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.moments import Drawn, Moments, OfParameter

Array = NDArray[np.float64]
# Takes one tensor ``[draws, P]`` for each input, and gives one.
Function: TypeAlias = Callable[..., Tensor]

DRAWS = 2048
# Whether the operation belongs to the loss, whose gradient is measured or drawn as a whole.
of_the_loss: ContextVar[bool] = ContextVar("of_the_loss", default=False)
# Of larger maps, draws would take too much memory.
MOST_POSITIONS = 256
# Of averages of squares of such numbers, draws tell nothing.
_LONGEST_TAIL = 300.0
_BINS = 40
# Of a gradient, less than this share is not drawn.
_NOTHING = 1e-6


def _rows(draws: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(draws.reshape(-1, draws.shape[-1])))


def _made(drawn: Drawn) -> Array:
    with torch.no_grad():
        found = drawn.function(*(_rows(values(x)) for x in drawn.inputs))
    return np.asarray(found.double().reshape(DRAWS, 2, -1).numpy())


def _array(rows: Tensor | None, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape) if rows is None else rows.double().numpy().reshape(shape)


def values(x: Moments) -> NDArray[np.float64]:
    """Elements of one feature at all positions of two samples, ``[DRAWS, 2, P]``."""
    if "values" not in x.draws:
        x.draws["values"] = _values(x)
    return x.draws["values"]


def _require_few(x: Moments) -> None:
    if x.positions > MOST_POSITIONS:
        raise UnpredictedError(f"tensors that depend on a third, at {x.positions} positions")


def _values(x: Moments) -> Array:
    _require_few(x)
    if x.drawn is not None:
        return _made(x.drawn)
    if x.moved is not None:
        before, move = x.moved
        if move is None:
            return values(before)
        found = values(before)
        if isinstance(move, float):
            return np.asarray(found * move)
        return np.asarray(found[..., move] if move.ndim == 1 else found @ move.T)
    g, nodes = latents(x), latent.nodes()[0]
    if len(x.table) == 1:
        return np.asarray(np.interp(g, nodes, x.table[0]))
    return np.stack([np.interp(g[..., p], nodes, x.table[p]) for p in range(x.positions)], 2)


def latents(x: Moments) -> Array:
    """The latents of the same elements, ``[DRAWS, 2, P]``."""
    if "latents" not in x.draws:
        x.draws["latents"] = _latents(x)
    return x.draws["latents"]


def _latents(x: Moments) -> Array:
    _require_few(x)
    if x.root is not None and x.root is not x and x.drawn is None:
        return latents(x.root)
    made = x.drawn is not None
    if x.moved is not None and not made:
        before, move = x.moved
        if move is None or isinstance(move, float):
            return latents(before)
        if move.ndim == 1:
            return latents(before)[..., move]
        made = True
    if not made:
        return _of_correlations(x.correlation, _generator(x, "latents"))
    std = np.where(x.std > 0, x.std, 1.0)
    standard = (values(x) - x.mean) / std
    typical = x.typical - latent.mean(x.typical)
    size = np.sqrt(latent.mean(typical**2))
    if x.gaussian or size <= 0:
        return np.asarray(standard)
    shape = np.maximum.accumulate(typical / size)
    return np.asarray(
        np.interp(standard, shape + 1e-12 * np.arange(len(shape)), latent.nodes()[0])
    )


def _of_correlations(pairs: Exchangeable, generator: np.random.Generator) -> Array:
    """Normal numbers of two samples with given covariances."""
    half = _white(generator, DRAWS // 2, 2 * pairs.positions)
    white = np.concatenate([half, -half]).reshape(DRAWS, 2, -1)
    common, apart = (
        white[:, i] @ _root(block).T
        for i, block in enumerate((pairs.same + pairs.diff, pairs.same - pairs.diff))
    )
    return np.asarray(np.stack([common + apart, common - apart], 1) / np.sqrt(2))


def _white(generator: np.random.Generator, count: int, dimensions: int) -> Array:
    """Independent normal numbers; if there are many, their sample has no correlations either."""
    white = generator.standard_normal((count, dimensions))
    if count > 4 * dimensions:
        white = np.linalg.solve(np.linalg.cholesky(white.T @ white / count), white.T).T
    return white


def _root(covariance: Array) -> Array:
    found, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(found, 0)))


def is_drawable(*tensors: Moments) -> bool:
    """Whether all that two of them depend on comes through the same tensors, which are drawn."""
    if of_the_loss.get():
        return False
    sources = [_sources(x) for x in tensors]
    for i, x in enumerate(tensors):
        for j, other in enumerate(tensors[:i]):
            for shared in (x.latents & other.latents) - x.made_by:
                ours, theirs = (sources[k].get(shared, set()) for k in (i, j))
                if len(ours) != 1 or ours != theirs:
                    return False
    return True


def _sources(x: Moments) -> dict[Hashable, set[Hashable]]:
    """Of every latent that elements depend on, through which tensors that are drawn.

    Tensors that were made of others in a way that draws do not follow are drawn by themselves.
    """
    found: dict[Hashable, set[Hashable]] = {}
    seen: set[int] = set()
    left = [x]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        (own,) = value.latents - value.others or {value.latent}
        if value.drawn is not None and value.drawn.inputs:
            left += value.drawn.inputs
            found.setdefault(own, set()).add(own)
        elif value.drawn is None and value.root is not None and value.root is not value:
            left.append(value.root)
        elif value.drawn is None and value.moved is not None:
            left.append(value.moved[0])
            found.setdefault(own, set()).add(own)
        else:
            for other in value.latents:
                named = other if isinstance(other, OfParameter) else own
                found.setdefault(other, set()).add(named)
    return found


def combined(
    inputs: Sequence[Moments], function: Function, layout: Layout, order: Sequence[Atom]
) -> Moments:
    """What is known of the result of a function of elements.

    Raises:
        UnpredictedError: If draws are not finite, or have no moments.
    """
    drawn = Drawn(tuple(inputs), function)
    found = _made(drawn)
    if not np.isfinite(found).all():
        raise UnpredictedError("values that are not finite on random pre-activations")
    mean = found.mean((0, 1))
    centred = found - mean
    square = (centred**2).mean((0, 1))
    fourth = (centred**4).mean((0, 1))
    if (fourth > _LONGEST_TAIL * square**2 + 1e-300).any():
        raise UnpredictedError("values with tails so long that they have no moments")
    covariance = of_draws(found, found, inputs[0].correlation.samples)
    constant = bool((square <= 1e-20 * (mean**2 + 1e-300)).all())
    shape = None if constant else shape_of(centred / np.sqrt(np.maximum(square, 1e-300)))
    output = from_covariance(layout, order, covariance, mean, shape).made_of(*inputs)
    # Behind it there may be roots and logarithms: all positions have one shape, but no element
    # lies beyond those that were drawn.
    output = output.within(found.min((0, 1)), found.max((0, 1)))
    output = replace(output, drawn=drawn)
    output.draws["values"] = found
    return output


def shape_of(standard: Array) -> Array:
    """Table of the law of standardised numbers, one row for all of them."""
    from scipy.special import ndtr

    flat = np.sort(standard.ravel())
    chance = (np.arange(len(flat)) + 0.5) / len(flat)
    table = np.interp(ndtr(latent.nodes()[0]), chance, flat)
    table -= latent.mean(table)
    size = np.sqrt(latent.mean(table**2))
    return np.asarray(table / size) if size > 0 else table


def pulled_back(output: Moments, gradient: Gradient) -> list[tuple[Moments, Gradient]]:
    """Gradients of what an output was drawn of."""
    assert output.drawn is not None
    tensors = [_rows(values(x)).requires_grad_() for x in output.drawn.inputs]
    given = map(_rows, draws_of(gradient, output))
    with torch.enable_grad():
        made = output.drawn.function(*tensors)
        pull = partial(torch.autograd.grad, made, tensors, retain_graph=True, allow_unused=True)
        found = [pull(part) for part in given]
    inputs = []
    for i, x in enumerate(output.drawn.inputs):
        parts = np.stack([_array(part[i], values(x).shape) for part in found])
        inputs.append((x, of_parts(x, parts, gradient.pairs.samples)))
    return inputs


def draws_of(gradient: Gradient, x: Moments) -> Array:
    """The gradients of two samples in two parts, a and h, of shape ``[2, DRAWS, 2, P]``."""
    pairs = gradient.pairs
    if gradient.draws is not None:
        own, common = (of_draws(part, part, pairs.samples) for part in gradient.draws)
        same = pairs.same - own.same - common.same
        pairs = Exchangeable(same, pairs.diff - common.diff, pairs.samples)
        if pairs.mean_diagonal < _NOTHING * gradient.pairs.mean_diagonal:
            return gradient.draws
    white = _white(_generator(x, "gradient"), DRAWS, 4 * pairs.positions).reshape(DRAWS, 4, -1)
    # Samples share what is alike in both, and have what is opposite with two signs.
    like, unlike = _root(pairs.diff), _root(-pairs.diff)
    alone = white[:, :2] @ _root(pairs.same - like @ like.T - unlike @ unlike.T).T
    first, second = white[:, 2] @ like.T, white[:, 3] @ unlike.T
    parts = np.stack([alone, np.stack([first + second, first - second], 1)])
    if np.ptp(gradient.weight) > 0:
        looked_up = np.interp(latents(x), latent.nodes()[0], gradient.weight)
        parts *= np.sqrt(np.maximum(looked_up, 0))
    return parts if gradient.draws is None else parts + gradient.draws


def _generator(x: Moments, purpose: str) -> np.random.Generator:
    """The same for every tensor with these latents, and for no other."""
    return np.random.default_rng(crc32(f"{purpose} of {x.latent!r}".encode()))


def of_parts(x: Moments, parts: Array, samples: int) -> Gradient:
    """The gradient of a tensor that has been drawn."""
    alone, common = (of_draws(part, part, samples) for part in parts)
    pairs = Exchangeable(alone.same + common.same, common.diff, samples)
    return Gradient(pairs, _weight(x, (parts**2).sum(0)), draws=parts)


def _weight(x: Moments, square: Array) -> Array:
    """How squares depend on the element's own latent, of shape ``[M]``."""
    nodes, weights = latent.nodes()
    if not square.mean() > 0 or x.is_constant:
        return np.ones_like(nodes)
    if "bins" not in x.draws:
        g = latents(x).ravel()
        edges = np.quantile(g, np.linspace(0, 1, _BINS + 1)[1:-1])
        x.draws["bins"] = np.searchsorted(edges, g)
    place = x.draws["bins"]
    counts = np.maximum(np.bincount(place, minlength=_BINS), 1)
    points = np.bincount(place, latents(x).ravel(), _BINS) / counts
    squares = np.bincount(place, square.ravel(), _BINS) / counts
    found = np.interp(nodes, points, squares)
    return np.asarray(found / (found @ weights))


def through(x: Moments, slope: Array, gradient: Gradient) -> Gradient:
    """The gradient before a function of single elements, whose derivative is a table."""
    g, nodes = latents(x), latent.nodes()[0]
    slopes = [
        np.interp(g[..., p], nodes, slope[min(p, len(slope) - 1)]) for p in range(x.positions)
    ]
    return of_parts(x, draws_of(gradient, x) * np.stack(slopes, 2), gradient.pairs.samples)
