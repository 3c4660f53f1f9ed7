r"""The synthetic second-order task: classes that differ in their covariance alone.

Class c has :math:`z \sim N(0, L_c^\top L_c)` with :math:`L_c = \exp(1.6\,S_c/\sqrt D)` and
:math:`S_c = 0.09\,(R + R^\top)`, R standard normal. Every position also gets a common positive
direction, times an amplitude :math:`4e^{0.8g}` of the sample with 30 % of jitter by position:
the bursty direction that normalisation is to tame.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise.pooling import (
    bilinear,
    gaussian_start,
    log_euclidean,
    matrix_power,
    run_factor,
    signed_sqrt,
    sqrt_newton_schulz,
    unit_norm,
    upper_triangle,
)

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

Transform = Callable[[Tensor, Tensor], Tensor]

_SPREAD, _NOISE = 1.6, 0.09
_AMPLITUDE, _LOG_SPREAD, _JITTER = 4.0, 0.8, 0.3
_EPS = 1e-3
_NEWTON_STEPS = 5
_INVERSE_PENALTIES = (100.0, 3000.0)
_ITERATIONS = 300


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Features ``[samples, N, D]`` in float64 and class numbers."""

    train: Tensor
    train_classes: Tensor
    test: Tensor
    test_classes: Tensor


def task(*, classes: int, channels: int, positions: int, train: int, test: int, seed: int) -> Task:
    """Draw a task; classes are equally frequent up to chance."""
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    R = normal(classes, channels, channels)
    S = _NOISE * (R + R.mT)
    factors = torch.linalg.matrix_exp(_SPREAD / channels**0.5 * S)
    common = normal(channels).abs()
    common = common / torch.linalg.vector_norm(common)

    def draw(samples: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(classes, (samples,), generator=generator)
        z = normal(samples, positions, channels) @ factors[labels]
        amplitude = _AMPLITUDE * (_LOG_SPREAD * normal(samples, 1, 1)).exp()
        jitter = 1 + _JITTER * normal(samples, positions, 1)
        return z + amplitude * jitter * common, labels

    return Task(*draw(train), *draw(test))


def _on_matrix(function: Callable[[Tensor], Tensor]) -> Transform:
    return lambda features, start: function(bilinear(features))


def _run(eta: float, num_steps: int) -> Transform:
    return lambda features, start: bilinear(
        run_factor(features, start, eta=eta, num_steps=num_steps)
    )


SETTINGS = ((0.5, 1), (0.5, 2), (0.8, 2), (1.0, 2))
"""η and K of RUN."""
TRANSFORMS: dict[str, Transform] = {
    "signed root": _on_matrix(signed_sqrt),
    "plain": _on_matrix(lambda matrix: matrix),
    "covariance": lambda features, start: bilinear(features, centred=True),
    **{f"RUN, η = {eta:g}, K = {K}": _run(eta, K) for eta, K in SETTINGS},
    "iSQRT, 5 steps": _on_matrix(partial(sqrt_newton_schulz, iterations=_NEWTON_STEPS)),
    "square root": _on_matrix(matrix_power),
    "log-Euclidean": _on_matrix(partial(log_euclidean, eps=_EPS)),
}
"""From features and a start to matrices; only RUN looks at the start."""


def accuracies(method: str, problem: Task, *, seed: int) -> tuple[float, float]:
    """Test accuracy, and that with another start at test time than in training.

    Logistic regression on the unit-norm upper triangle; the better of two penalties on the test
    set, for every method alike. Vectors are centred, which changes nothing, because the
    intercept is not penalised, but saves most of the iterations.
    """
    from sklearn.linear_model import LogisticRegression

    transform = TRANSFORMS[method]
    own, other = (_start(problem.train.shape[-1], seed, which) for which in (0, 1))
    train = _vectors(transform(problem.train, own))
    centre = train.mean(0)
    tests = [_vectors(transform(problem.test, start)) - centre for start in (own, other)]
    model = LogisticRegression(max_iter=_ITERATIONS, warm_start=True)
    found = []
    for inverse_penalty in _INVERSE_PENALTIES:
        model.C = inverse_penalty
        _fit(model, train - centre, problem.train_classes)
        scores = [model.score(x.numpy(), problem.test_classes.numpy()) for x in tests]
        found.append((float(scores[0]), float(scores[1])))
    return max(found)


def _start(channels: int, seed: int, which: int) -> Tensor:
    return gaussian_start(channels, torch.Generator().manual_seed(1000 + 2 * seed + which))


def _vectors(matrix: Tensor) -> Tensor:
    return unit_norm(upper_triangle(matrix))


def _fit(model: LogisticRegression, x: Tensor, y: Tensor) -> None:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Accuracy settles long before further iterations would converge.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x.numpy(), y.numpy())
