"""Proposition 6: the operations of one step of BNP, counted one by one."""

import operator

import pytest


class Counted:
    """A number that counts what is done to it."""

    done = 0

    def __init__(self, value):
        self.value = value

    def _then(self, other, how):
        Counted.done += 1
        return Counted(how(self.value, other.value))

    def __add__(self, other):
        return self._then(other, operator.add)

    def __sub__(self, other):
        return self._then(other, operator.sub)

    def __mul__(self, other):
        return self._then(other, operator.mul)

    def __truediv__(self, other):
        return self._then(other, operator.truediv)


def total(numbers):
    first, *others = numbers
    for other in others:
        first = first + other
    return first


def one_step(n, m, rows, *, q_goes_into_sigma):
    """Algorithm 2 on numbers that count; the operations of each step."""
    number = Counted(1.5)
    h = [[number] * n for _ in range(rows)]
    weights, bias = [[number] * n for _ in range(m)], [number] * m
    keep, rest, many, q2, small = number, number, number, number, number
    counts = []

    def so_far():
        counts.append(Counted.done)
        Counted.done = 0

    Counted.done = 0
    means = [total(row[j] for row in h) / many for j in range(n)]
    gaps = [[row[j] - means[j] for row in h] for j in range(n)]
    variances = [total(gap * gap for gap in column) / many for column in gaps]
    so_far()
    means = [keep * old + rest * new for old, new in zip([number] * n, means, strict=True)]
    scales = [keep * old + rest * new for old, new in zip([number] * n, variances, strict=True)]
    scales = [scale + small for scale in scales]
    if q_goes_into_sigma:
        scales = [scale * q2 for scale in scales]
    so_far()
    weights = [
        [(weights[i][j] - means[j] * bias[i]) / scales[j] for j in range(n)] for i in range(m)
    ]
    if not q_goes_into_sigma:
        weights = [[weight / q2 for weight in row] for row in weights]
    bias = [bias[i] / q2 - total(weights[i][j] * means[j] for j in range(n)) for i in range(m)]
    so_far()
    return counts


# Features, outputs and samples.
SIZES = pytest.mark.parametrize(("n", "m", "rows"), [(3, 2, 5), (7, 4, 2)])


@SIZES
def test_operations_are_as_printed(n, m, rows):
    statistics, averages, gradients = one_step(n, m, rows, q_goes_into_sigma=False)
    assert statistics == 4 * n * rows
    assert averages <= 8 * n
    assert gradients == 6 * n * m + m  # the proposition has another m


@SIZES
def test_fewer_are_possible(n, m, rows):
    """q² may be multiplied into σ̃² once for all rows of the gradient."""
    _, averages, gradients = one_step(n, m, rows, q_goes_into_sigma=True)
    assert averages == 8 * n
    assert gradients == 5 * n * m + m
