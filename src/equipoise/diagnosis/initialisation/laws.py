r"""Whether the elements of a tensor follow a law.

With n elements of kurtosis κ, the variance has the relative error :math:`\sqrt{(\kappa-1)/n}`,
that of a mean of :math:`\nu = 2n/(\kappa-1)` squares of normal numbers. The ratio F of two
variances is compared in its cube root, which is nearly normal into the tails (E. Paulson, Annals
of Mathematical Statistics 13, 1942):

.. math:: z = \frac{(1 - a_2)F^{1/3} - (1 - a_1)}{\sqrt{a_2F^{2/3} + a_1}}, \qquad
          a_i = \frac{2}{9\nu_i} .

Small sums of squares of uniform numbers are more frequent than those of as many degrees of
freedom, so ν is never larger than n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from equipoise.diagnosis.initialisation.record import Form
from equipoise.numerics import vectors

Array = NDArray[np.float64]

# With fewer elements the cube root is not normal at the thresholds in use.
LEAST_ELEMENTS = 16
# Kolmogorov's distance of so many elements tells a normal law from one truncated at 2σ.
_MOST_SORTED = 2**16
# Standard deviations beyond which none of a billion normal numbers lies.
_FAR = 8.0
# A form is refused where its distance is as improbable as this, and named if no other is left.
_REFUSED = 1e-4
_ORTHOGONAL_ROWS = 16
_CUT = 2.0  # standard deviations at which JAX, TensorFlow and timm truncate
_CUT_STD = math.sqrt(
    1 - 2 * _CUT * math.exp(-(_CUT**2) / 2) / math.sqrt(2 * math.pi) / math.erf(_CUT / 2**0.5)
)


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """Moments and quantiles of elements that were drawn, or of a law that is known exactly.

    Args:
        count: How many elements were drawn; infinite for a known law.
        mean: Their average.
        std: Their standard deviation.
        kurtosis: Their fourth central moment over the squared variance; 3 where all are equal.
        sample: Some of them, in order.
    """

    count: float
    mean: float
    std: float
    kurtosis: float
    sample: Array

    @property
    def is_constant(self) -> bool:
        """Whether all elements are equal."""
        return self.std == 0

    @property
    def is_sparse(self) -> bool:
        """Whether most elements are zero."""
        return bool((self.sample == 0).mean() > 0.5)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance."""
        return float(self.count * min(1.0, 2 / max(self.kurtosis - 1, 1e-12)))

    def of_size(self, std: float, count: float = math.inf) -> Law:
        """A centred law as heavy in its tails, of a standard deviation known from ``count``."""
        return Law(count, 0.0, std, self.kurtosis, np.empty(0))


def law_of(values: Tensor) -> Law:
    """The law of a tensor's elements."""
    flat = values.detach().reshape(-1)
    if flat.device.type == "mps":  # which knows no float64
        flat = flat.cpu()
    sample = _sample(flat)
    if not len(sample):
        return Law(0, math.nan, math.nan, math.nan, sample)
    if bool((flat == flat[0]).all()):
        return Law(len(flat), float(flat[0]), 0.0, 3.0, sample)
    mean, variance, kurtosis = _moments(flat.float() if flat.element_size() < 4 else flat, sample)
    return Law(len(flat), mean, math.sqrt(variance), kurtosis, sample)


def _moments(flat: Tensor, sample: Array) -> tuple[float, float, float]:
    """Mean, variance and kurtosis.

    In two passes, which take a twentieth of the time of ``torch.var_mean`` on a CPU. The kurtosis
    is that of a sample, but where elements lie far outside: a normal law that is cut at ±2 by the
    inverse of its distribution function sets one element in millions to -2, as in timm.
    """
    mean = float(flat.mean(dtype=torch.float64))
    centred = flat - mean
    variance = vectors.length([centred]) ** 2 / (len(flat) - 1)
    low, high = (float(end) for end in torch.aminmax(centred))
    if max(-low, high) > _FAR * math.sqrt(variance):
        fourth = vectors.length([centred.square_()]) ** 2 / len(flat)
        return mean, variance, fourth / variance**2
    squares = np.square(sample - sample.mean())
    return mean, variance, float(np.square(squares).mean() / squares.mean() ** 2)


def joined(draws: Sequence[Law]) -> Law:
    """The law of several independent draws."""
    if all(draw.is_constant and draw.mean == draws[0].mean for draw in draws):
        return draws[0]
    mean = float(np.mean([draw.mean for draw in draws]))
    variances = [draw.std**2 + (draw.mean - mean) ** 2 for draw in draws]
    kurtosis = float(np.mean([draw.kurtosis for draw in draws]))
    sample = np.sort(np.concatenate([draw.sample for draw in draws]))
    count = sum(draw.count for draw in draws)
    return Law(count, mean, math.sqrt(float(np.mean(variances))), kurtosis, sample)


def _sample(flat: Tensor) -> Array:
    """A fixed random choice of the elements, in order."""
    if flat.numel() > _MOST_SORTED:
        # An element that is taken twice would count as two.
        generator = np.random.default_rng(0)
        chosen = generator.choice(flat.numel(), _MOST_SORTED, replace=False, shuffle=False)
        flat = flat[torch.from_numpy(chosen).to(flat.device)]
    return np.sort(flat.cpu().double().numpy())


def scale_z(found: Law, intended: Law) -> float:
    """Difference of two standard deviations, in standard errors.

    Examples:
        >>> drawn = Law(1000, 0.0, 1.1, 3.0, np.empty(0))
        >>> round(scale_z(drawn, drawn.of_size(1.0)), 1)
        4.4
    """
    if intended.std == 0 or math.isnan(intended.std):
        return 0.0 if found.std == intended.std else math.inf
    first, second = 2 / (9 * max(found.freedom, 1)), 2 / (9 * max(intended.freedom, 1))
    root = math.pow(found.std / intended.std, 2 / 3)
    return ((1 - second) * root - (1 - first)) / math.sqrt(second * root**2 + first)


def mean_z(found: Law, intended: Law) -> float:
    """Difference of two means, in standard errors."""
    error = math.sqrt(found.std**2 / found.count + intended.std**2 / intended.count)
    difference = found.mean - intended.mean
    if error == 0:
        return 0.0 if difference == 0 else math.inf
    return difference / error


def form_z(found: Law, intended: Law) -> float:
    """How improbable the largest distance of two distribution functions is, as a z-score.

    Elements beyond all that were drawn of the other law are counted as well: few of them are too
    little for a distance, and too much for a law with a bound.
    """
    a, b = found.sample, intended.sample
    if found.is_constant or intended.is_constant or not len(b):
        return 0.0
    return max(_distance_z(a, b), _beyond_z(a, b), _beyond_z(-a[::-1], -b[::-1]))


def _distance_z(a: Array, b: Array) -> float:
    """The z-score of Kolmogorov's distance of two samples, each in order."""
    both = np.concatenate([a, b])
    order = np.argsort(both, kind="stable")  # merges what is in order already
    steps = np.where(order < len(a), 1 / len(a), -1 / len(b))
    ordered = both[order]
    last_of_equals = np.append(ordered[1:] != ordered[:-1], True)
    distance = float(np.abs(np.cumsum(steps)[last_of_equals]).max())
    return _normal_score(distance * math.sqrt(len(a) * len(b) / (len(a) + len(b))))


def _beyond_z(a: Array, b: Array) -> float:
    r"""The z-score of how many elements of one sample exceed all of the other.

    The k largest of all are of the first sample with the probability
    :math:`\prod_{i<k} (n - i)/(n + m - i)`, whatever the law is.
    """
    n, both = len(a), len(a) + len(b)
    k = n - int(np.searchsorted(a, b[-1], side="right"))
    logs = special.gammaln([n + 1, n - k + 1, both + 1, both - k + 1])
    return float(-special.ndtri_exp(logs[0] - logs[1] - logs[2] + logs[3] - math.log(2)))


def _normal_score(distance: float) -> float:
    """The z-score that is as improbable as Kolmogorov's scaled distance."""
    probability = max(float(special.kolmogorov(distance)), 1e-300)
    return float(-special.ndtri(min(probability, 1.0) / 2))


def form_of(values: Tensor, law: Law) -> Form:
    """The form of the law that the elements of a tensor follow."""
    if law.is_constant:
        return "constant"
    if is_orthogonal(values):
        return "orthogonal"
    x = (law.sample - law.mean) / law.std
    count = len(x)
    steps = np.arange(1, count + 1) / count
    functions: dict[Form, Array] = {
        "normal": special.ndtr(x),
        "uniform": np.clip((1 + x / math.sqrt(3)) / 2, 0, 1),
        "truncated normal": _truncated(x),
    }
    possible = [
        form
        for form, function in functions.items()
        if special.kolmogorov(_distance(steps, function) * math.sqrt(count)) > _REFUSED
    ]
    if not possible:
        return "other"
    return possible[0] if len(possible) == 1 else "unclear"


def _truncated(x: Array) -> Array:
    whole = np.clip(_CUT_STD * x, -_CUT, _CUT)
    low = special.ndtr(-_CUT)
    return np.asarray((special.ndtr(whole) - low) / (1 - 2 * low))


def _distance(steps: Array, function: Array) -> float:
    return float(max((steps - function).max(), (function - steps + 1 / len(steps)).max()))


def is_orthogonal(values: Tensor) -> bool:
    """Whether rows, or columns where they are fewer, are orthogonal and of one length."""
    if values.ndim < 2:
        return False
    matrix = values.detach().flatten(1)
    matrix = matrix if len(matrix) <= matrix.shape[1] else matrix.T
    if len(matrix) < 2:
        return False
    rows = matrix[:_ORTHOGONAL_ROWS].cpu().double()
    gram = rows @ rows.T
    size = float(gram.diagonal().mean())
    tolerance = 8 * torch.finfo(values.dtype).eps * math.sqrt(rows.shape[1])
    eye = torch.eye(len(rows), dtype=gram.dtype)
    return size > 0 and float((gram / size - eye).abs().max()) < tolerance


def threshold(tests: int, chance: float = 1e-3) -> float:
    """Standard errors that none of so many independent tests exceeds, but by this chance.

    Examples:
        >>> round(threshold(1, chance=0.05), 2), round(threshold(300), 2)
        (1.96, 4.65)
    """
    return float(-special.ndtri(chance / (2 * max(tests, 1))))
