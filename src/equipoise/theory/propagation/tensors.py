"""What is read off tensors: mean squares, products of rows, whether all elements are equal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.numerics import vectors
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Layout, UnpredictedError
from equipoise.theory.propagation.values.known import Known

Array = NDArray[np.float64]

# Of fewer inputs, sums are what they are; rows that are looked at.
_FEWEST_INPUTS, _FEW_ROWS = 6, 64
# Sum of fourth powers over the squared sum of squares: 1 for one input, 3/n for n Gaussian ones.
_COPIED = 0.75
# Share of outputs that is the sum of inputs.
_SUMMED = 0.1
# Elements of which products are taken at once, or a whole sample.
_LARGEST_PART = 1 << 22
# Elements that are converted at once, so that they stay in the cache.
_CHUNK = 1 << 14
# Terms of a sum in float32, and mean squares of which each term is safe there.
_STRETCH, _SMALL_SQUARE, _LARGE_SQUARE = 1 << 10, 1e-24, 1e24


def require_values(value: Tensor) -> None:
    """Raise where a tensor has a shape only.

    Raises:
        UnpredictedError: If its values were lost with an edit of the graph.
    """
    if value.is_meta:
        raise UnpredictedError("what was measured here does not hold after the change")


class SecondMoments:
    """Averages over features of products at two rows, of samples that come one after the other."""

    def __init__(self) -> None:
        self._samples = self._features = 0
        self._own: Array | None = None
        self._total: Array | None = None

    def add(self, array: Array) -> None:
        """Take some samples more.

        Args:
            array: Values, of shape ``[samples, P, features]``.
        """
        samples, positions, self._features = array.shape
        rows = array.swapaxes(0, 1).reshape(positions, -1)
        self._samples += samples
        self._own = _added(self._own, rows @ rows.T)
        self._total = _added(self._total, array.sum(0))

    def of(self, taken: int) -> Exchangeable:
        """The averages, of so many samples as there are taken to be."""
        assert self._own is not None
        assert self._total is not None
        samples, features, total = self._samples, self._features, self._total
        own = self._own.astype(np.float64, copy=False)
        diff = (total @ total.T - own) / max(1, samples * (samples - 1) * features)
        return Exchangeable(own / (samples * features), diff, taken)


def second_moments(array: Array, taken: int) -> Exchangeable:
    """Averages over features of products at two rows.

    Args:
        array: Values, of shape ``[samples, P, features]``.
        taken: How many samples there are taken to be.
    """
    found = SecondMoments()
    found.add(array)
    return found.of(taken)


class ScatterOfProducts:
    r"""Variance between samples of products of two positions, averaged over features.

    Of values ``[samples, P, features]``, less their mean over positions. With :math:`G_n` the
    products in sample n, :math:`(E \lVert G_n \rVert^2 - \lVert E G_n \rVert^2)
    / (\operatorname{tr} E G_n)^2`.
    """

    def __init__(self) -> None:
        self._samples = 0
        self._size = self._squares = 0.0
        self._products: Array | None = None
        self._rows: Array | None = None  # of which products are not taken yet

    def add(self, array: Array) -> None:
        """Take some samples more."""
        samples, positions, features = array.shape
        self._samples += samples
        if positions == 1:
            return
        centred = array - array.mean(1, keepdims=True)
        self._size += float((centred**2).sum(dtype=np.float64))
        if positions > features:  # products of columns are fewer, and have the same squares
            self._squares += sum(_squared(sample.T @ sample) for sample in centred)
            self._take_products()
            self._rows = centred.swapaxes(0, 1).reshape(positions, -1)
            return
        for sample in centred:
            products = sample @ sample.T
            self._squares += _squared(products)
            self._products = _added(self._products, products)

    def _take_products(self) -> None:
        if self._rows is not None:
            self._products = _added(self._products, self._rows @ self._rows.T)
            self._rows = None

    @property
    def value(self) -> float:
        """The variance; 0 where nothing differs from position to position."""
        if self._size <= 0:
            return 0.0
        rows = self._rows
        if self._products is None and rows is not None and len(rows) > rows.shape[1]:
            together = _squared(rows.T @ rows)
        else:
            self._take_products()
            assert self._products is not None
            together = _squared(self._products)
        squares, size = self._squares / self._samples, self._size / self._samples
        return (squares - together / self._samples**2) / size**2


def scatter_of_products(array: Array) -> float:
    """The same of all samples at once."""
    found = ScatterOfProducts()
    found.add(array)
    return found.value


def _added(total: Array | None, array: Array) -> Array:
    return array if total is None else np.add(total, array, out=total)


def _squared(products: Array) -> float:
    """Sum of squares."""
    return float((products**2).sum(dtype=np.float64))


def features_last(value: Tensor, layout: Layout) -> Array:
    """Values as ``[samples, positions, features]``."""
    arranged, shape = _arranged(value, layout)
    return _as_array(arranged, shape)


def samples_apart(value: Tensor, layout: Layout) -> Iterator[Array]:
    """The same, a few samples at a time."""
    arranged, shape = _arranged(value, layout)
    for some in torch.split(arranged, max(1, _LARGEST_PART // max(1, math.prod(shape[1:])))):
        yield _as_array(some, (len(some), *shape[1:]))


def _as_array(arranged: Tensor, shape: Sequence[int]) -> Array:
    return np.asarray(arranged.cpu().double().reshape(*shape).numpy())


def _arranged(value: Tensor, layout: Layout) -> tuple[Tensor, list[int]]:
    """The axes of samples, positions and features in this order, and how many there are of each.

    Raises:
        UnpredictedError: Of complex numbers, and without an axis of samples.
    """
    atoms = layout.atoms
    if value.is_complex():
        raise UnpredictedError("complex numbers that were not followed to here")
    if len(layout.with_role("sample")) != 1:
        raise UnpredictedError("no axis of samples was followed to here")
    sizes = [atom.size for atom in atoms]
    roles = ("sample", "position", "feature")
    order = [i for role in roles for i, atom in enumerate(atoms) if atom.role == role]
    shape = [math.prod(a.size for a in atoms if a.role == role) for role in roles]
    return value.detach().reshape(sizes).permute(order), shape


def is_uniform(value: Tensor) -> bool:
    """Whether all elements are equal."""
    return bool((value == value.flatten()[0]).all()) if value.numel() else False


def is_centred(filters: Tensor, size: float) -> bool:
    """Whether filters, one a row, of a mean square, sum to zero, as standardised ones do.

    Of independent weights, the squared means average to the mean square over their number.
    """
    fan_in = filters.shape[1]
    return fan_in > 1 and mean_square(filters.detach().mean(1)) * fan_in < 1e-3 * size


def require_random(rows: Tensor) -> None:
    """Raise for weights that leave outputs far from Gaussian, or alike.

    Args:
        rows: What every output is made of, one a row.

    Raises:
        UnpredictedError: If outputs copy single inputs, as of an identity, or if weights have a
            mean that gives all outputs their inputs' sum.
    """
    inputs = rows.shape[1]
    if inputs < _FEWEST_INPUTS or rows.is_meta or not rows.is_floating_point():
        return
    some = rows.detach()[:_FEW_ROWS].double()
    squares = some.square()
    sizes = squares.sum(1)
    if float(sizes.min()) > 0 and float((squares.square().sum(1) / sizes**2).mean()) > _COPIED:
        raise UnpredictedError("weights that copy single features, as an identity does")
    mean, square = float(rows.detach().mean(dtype=torch.float64)), mean_square(rows)
    if mean**2 * inputs > _SUMMED * square and mean**2 * rows.numel() > 25 * square:
        raise UnpredictedError("weights whose mean is not 0")


def mean_square(value: Tensor) -> float:
    """Average of squares, summed in float64.

    Stretches of float32 are summed as they are, three times as fast, as long as the result is far
    from where squares overflow or vanish; the errors of stretches average out, below 1e-7.
    """
    if not value.numel():
        return math.nan
    if value.layout is not torch.strided:
        kept = (value.coalesce() if value.is_sparse else value).detach().values()
        return mean_square(kept) * kept.numel() / value.numel() if kept.numel() else 0.0
    if value.is_complex():
        return 2 * mean_square(torch.view_as_real(value.detach().resolve_conj()))
    flat, count = _as_in_memory(value).flatten(), value.numel()
    if flat.device.type != "cpu" and flat.is_floating_point():
        return (
            vectors.length([flat]) ** 2 / count
        )  # each piece that is fetched waits for the device
    if flat.dtype == torch.float32 and flat.device.type == "cpu":
        rest = count % _STRETCH
        stretches = flat.numpy()[: count - rest].reshape(-1, _STRETCH)
        total = float(np.einsum("ij,ij->i", stretches, stretches).sum(dtype=np.float64))
        found = (total + (_squares(flat[count - rest :]) if rest else 0.0)) / count
        # Behind a layer that starts at zero, all gradients are.
        if _SMALL_SQUARE < found < _LARGE_SQUARE or (found == 0 and not flat.any()):
            return found
    return _squares(flat) / count


def _squares(flat: Tensor) -> float:
    parts = (flat[at : at + _CHUNK].double() for at in range(0, len(flat), _CHUNK))
    return sum(float(part @ part) for part in parts)


def _as_in_memory(value: Tensor) -> Tensor:
    """The axes in the order of memory."""
    value = value.detach()
    if value.is_contiguous():
        return value
    return value.permute(sorted(range(value.ndim), key=value.stride, reverse=True))


class Readings:
    """What is read off the tensors of one pass; views of the same memory are read once.

    The tensors must live, unchanged, as long as this.
    """

    def __init__(self) -> None:
        self._squares: dict[Any, float] = {}
        self._correlations: dict[Any, float] = {}

    def mean_square(self, value: Tensor) -> float:
        """The same as :func:`mean_square`."""
        memory = _memory_of(value)
        if memory is None:
            return mean_square(value)
        if memory not in self._squares:
            self._squares[memory] = mean_square(value)
        return self._squares[memory]

    def sample_correlation(self, x: Tensor, layout: Layout) -> float:
        r"""Second moment of two samples at one position over that of one, of a tensor.

        .. math:: \frac{\|\sum_n x_n\|^2 - \sum_n\|x_n\|^2}{(N-1)\sum_n\|x_n\|^2}

        Args:
            x: The tensor.
            layout: Its axes, one of whose atoms counts the N samples if there are several.

        Examples:
            >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
            >>> Readings().sample_correlation(x, Layout.of_batch((2, 2)))
            0.0
        """
        size = self.mean_square(x)
        sample = next((i for i, atom in enumerate(layout.atoms) if atom.role == "sample"), None)
        if sample is None or not size:  # a single sample has no axis of its own
            return 0.0
        alone = x.detach().reshape([atom.size for atom in layout.atoms])
        N = alone.shape[sample]
        if N < 2:
            return 0.0
        memory = _memory_of(alone)
        place = memory, N, alone.stride(sample)
        if memory is None or place not in self._correlations:
            total = alone.sum(sample, dtype=torch.promote_types(alone.dtype, torch.float32))
            found = (mean_square(total) / (N * size) - 1) / (N - 1)
            if memory is None or alone.data_ptr() != x.data_ptr():  # a copy does not live
                return found
            self._correlations[place] = found
        return self._correlations[place]


def _memory_of(value: Tensor) -> tuple[int, int, torch.dtype] | None:
    """What tensors have in common that are the same elements in some order.

    None where it cannot be said: of tensors with gaps or repetitions, and of what is not a plain
    tensor.
    """
    if type(value) not in (Tensor, nn.Parameter) or value.layout != torch.strided:
        return None
    if value.is_meta or not _as_in_memory(value).is_contiguous():
        return None
    return value.data_ptr(), value.numel(), value.dtype


def bias_moments(bias: object, weights: Tensor, grown: Fraction) -> tuple[float, float]:
    """Mean and mean square of a bias, of a layer whose inputs are that many times as many.

    A bias that has the variance of the weights, up to four standard errors, is drawn as PyTorch
    draws it, and shrinks with them. A mean within four standard errors of 0 is taken for none.
    """
    if not isinstance(bias, Known):
        return 0.0, 0.0
    size, own, count = mean_square(bias.value), mean_square(weights), bias.value.numel()
    mean = float(bias.value.detach().double().mean())
    if mean**2 * count <= 16 * (size - mean**2):
        mean = 0.0
    # The square of a uniform number has a variance of 4/5 of its squared mean.
    alike = abs(size - own) < 4 * own * math.sqrt(0.8 / count)
    return (0.0, size / float(grown)) if alike and not mean else (mean, size)
