r"""Networks whose weights are so small that their first gradients nearly vanish.

Weights of the benchmark have gains from 0.3 on, and its networks gradients above :math:`10^{-7}`.
``normal_(weight, std=0.01)`` in a chain without norms is beyond that. Such networks are drawn at
random, trained as those of :mod:`~equipoise_papers.trainability.longer`, and the coefficient of
their faintness is fitted with all others as they are:

.. math:: \min_{b \ge 0} \sum_n \log\big(1 + e^{-s_n(o_n - b x_n)}\big), \qquad s_n = \pm 1,

with the log-odds o of the other quantities.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from equipoise.files import write_text
from equipoise.training import cross_entropy
from equipoise_papers.trainability import longer
from equipoise_papers.trainability.build import build
from equipoise_papers.trainability.fitting import Array
from equipoise_papers.trainability.looks import Look
from equipoise_papers.trainability.outcome import TRAINED, measure_of
from equipoise_papers.trainability.space import Activation, Layers, Network
from equipoise_papers.trainability.tasks import task
from equipoise_papers.trainability.training import RATES, OptimizerName, train

NAME = "faintness"
# Activations that are 0 at 0; others keep what all samples have in common.
_ZERO_AT_ZERO = tuple(a for a in get_args(Activation) if a not in ("sigmoid", "softplus"))
_LAYERS: tuple[Layers, ...] = ("dense", "dense", "dense", "convolution")
_LEAST, _MOST = 1e-30, 1e-6
# Of the reference, as in the benchmark.
_STEPS = 100
_OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "adamw")
_RESAMPLES = 100
_MOST_OF_IT = 5.0


@dataclass(frozen=True, slots=True)
class Faint:
    """One network, before and after training.

    Args:
        network: Which.
        progress: The best of any tenth of a long training; ``None`` where its reference learns
            too little to compare with it.
        predicted: Quantities from theory, by name; ``None`` where it does not reach the output.
        measured: The same of one pass.
    """

    network: Network
    progress: float | None
    predicted: dict[str, float] | None
    measured: dict[str, float]

    def quantity(self, name: str, basis: str) -> float:
        """As the library joins both, where the smaller one counts for explosion and faintness."""
        measured = self.measured[name]
        if basis == "measured" or self.predicted is None:
            return measured
        if name in ("explosion", NAME):
            return min(self.predicted[name], measured)
        return (self.predicted[name] + measured) / 2


def networks() -> Iterator[Network]:
    """Draw networks with a largest gradient between 1e-30 and 1e-6; the same in every run."""
    draw = random.Random(0)
    while True:
        layers: Layers = draw.choice(_LAYERS)
        network = Network(
            layers=layers,
            topology="plain",
            norm="none",
            activation=draw.choice(_ZERO_AT_ZERO),
            depth=round(math.exp(draw.uniform(math.log(3), math.log(40)))),
            width=draw.choice((16, 32, 64, 128) if layers == "dense" else (16,)),
            batch_size=draw.choice((8, 16, 32, 64, 128) if layers == "dense" else (8, 16)),
            gain=round(math.exp(draw.uniform(math.log(0.03), math.log(0.8))), 3),
            data=draw.choice(("digits", "fashion-mnist", "shapes")),
            seed=draw.randrange(10**6),
        )
        if _LEAST < _largest_gradient(network) < _MOST:
            yield network


def _largest_gradient(network: Network) -> float:
    """Root mean square of the gradient of the matrix that has the largest one."""
    source = task(network)
    model = build(network, source)
    batch = next(source.batches(network.batch_size, 1, network.seed))
    matrices = [p for p in model.parameters() if p.ndim > 1]
    gradients = torch.autograd.grad(cross_entropy(model, batch), matrices)
    return max(float(gradient.double().square().mean().sqrt()) for gradient in gradients)


def progress_of(network: Network) -> float | None:
    """The best progress of any tenth of a long training, at any rate."""
    device = torch.device("cpu")
    short = [train(network.reference, o, RATES[o], _STEPS, device) for o in _OPTIMIZERS]
    progress = measure_of(short, short)
    if progress is None:
        return None
    curves = train(network, "adamw", longer.RATES, longer.STEPS, device).curves
    reached = (progress(loss) for curve in curves for loss in curve.losses)
    return float(f"{max(reached, default=-math.inf):.4g}")


def look(network: Network, progress: float | None) -> Faint:
    """Join what is known before training."""
    known = Look(network).run()
    return Faint(network, progress, known.predicted, known.measured)


def read(file: Path) -> list[Faint]:
    """What was computed so far, in the order of :func:`networks`; nothing without a file."""
    if not file.exists():
        return []
    found = json.loads(file.read_text(encoding="utf-8"))
    return [Faint(**{**one, "network": Network(**one["network"])}) for one in found]


def write(file: Path, found: Sequence[Faint]) -> None:
    """Replace a file; one network a line."""
    write_text(file, "[\n" + ",\n".join(json.dumps(asdict(one)) for one in found) + "\n]\n")


def with_faintness(fit: Mapping[str, Any], basis: str, found: Sequence[Faint]) -> dict[str, Any]:
    """A fit of the benchmark, with faintness as a further quantity.

    Args:
        fit: As it stands in ``calibration.json``.
        basis: What quantities are taken from.
        found: Networks that were trained.
    """
    known = [one for one in found if one.progress is not None]
    x = np.array([one.quantity(NAME, basis) for one in known])
    trained = np.array([float((one.progress or 0.0) >= TRAINED) for one in known])
    others = np.array(
        [
            fit["intercept"]
            + sum(b * one.quantity(name, basis) for name, b in fit["coefficients"].items())
            for one in known
        ]
    )
    coefficient = _coefficient(x, trained, others)
    draw = np.random.default_rng(0)
    places = [draw.integers(len(known), size=len(known)) for _ in range(_RESAMPLES)]
    variance = float(np.var([_coefficient(x[p], trained[p], others[p]) for p in places]))
    covariance = [*([*row, 0.0] for row in fit["covariance"])]
    covariance.append([0.0] * (len(covariance)) + [_short(variance)])
    return {
        **fit,
        "coefficients": {**fit["coefficients"], NAME: _short(-coefficient)},
        "covariance": covariance,
    }


def _coefficient(x: Array, trained: Array, others: Array) -> float:
    s = 2 * trained - 1
    found = minimize_scalar(
        lambda b: float(np.logaddexp(0, -s * (others - b * x)).sum()),
        bounds=(0.0, _MOST_OF_IT),
        method="bounded",
    )
    return float(found.x)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
