"""Fit the library's verdict to the outcomes, as the file that it ships with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise_papers.trainability import faint, fitting
from equipoise_papers.trainability.faint import Faint
from equipoise_papers.trainability.fitting import Array
from equipoise_papers.trainability.outcome import Outcome

# The quantity that speaks for training; all others speak against it.
_FAVOURABLE = "samples"
BASES = ("predicted", "measured", "both")
# What the library judges from: without theory it has the measurement alone, never the reverse.
_SHIPPED = ("measured", "both")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Outcomes as arrays.

    Args:
        names: Of the quantities.
        x: Their values by basis, each of shape ``[N, K]``. Where theory does not reach the
            output, the measured ones stand for the predicted ones.
        trained: 1 or 0, shape ``[N]``.
        progress: Shape ``[N]``.
        families: Of each network.
        designs: Networks of one number differ in depth alone.
    """

    names: tuple[str, ...]
    x: dict[str, Array]
    trained: Array
    progress: Array
    families: tuple[str, ...]
    designs: tuple[int, ...]

    @property
    def signs(self) -> Array:
        """Which sign each coefficient may have."""
        return np.array([1.0 if name == _FAVOURABLE else -1.0 for name in self.names])

    def held_out(self, basis: str) -> Array:
        """Probability of each network, by a fit to all other families."""
        return fitting.held_out(self.x[basis], self.trained, self.families, self.signs)


def table(found: Sequence[Outcome], threshold: float = 0.5) -> Table:
    """Arrange outcomes; networks have trained with a progress of the threshold."""
    names = tuple(name for name in found[0].known.measured if name != faint.NAME)
    measured = np.array([[one.known.measured[name] for name in names] for one in found])
    predicted = np.array(
        [[(one.known.predicted or one.known.measured)[name] for name in names] for one in found]
    )
    progress = np.array([one.progress for one in found])
    # As the library joins them: an explosion counts as far as both see it, and of a network
    # without any gradient as yet nothing is measured.
    both, explosion = (predicted + measured) / 2, names.index("explosion")
    both[:, explosion] = np.minimum(predicted, measured)[:, explosion]
    silent = measured[:, names.index("silence")] == 1
    both[silent] = predicted[silent]
    return Table(
        names,
        {"predicted": predicted, "measured": measured, "both": both},
        (progress >= threshold).astype(float),
        progress,
        tuple(one.network.family for one in found),
        tuple(one.network.seed for one in found),
    )


def calibration(
    found: Sequence[Outcome], trainings: int, faintly: Sequence[Faint]
) -> dict[str, object]:
    """The contents of the library's ``calibration.json``.

    Args:
        found: Outcomes of all networks.
        trainings: How many trainings they took.
        faintly: Networks with small gradients, which the others have none of.
    """
    data = table(found)
    return {
        "fits": {
            basis: faint.with_faintness(_fit(data, basis), basis, faintly) for basis in _SHIPPED
        },
        "networks": len(found),
        "trainings": trainings,
        "ranges": {
            name: [_short(float(values.min())), _short(float(values.max()))]
            for name, values in zip(data.names, data.x["both"].T, strict=True)
        }
        | {faint.NAME: [0.0, max(one.quantity(faint.NAME, "both") for one in faintly)]},
    }


def _fit(data: Table, basis: str) -> dict[str, object]:
    x, held_out = data.x[basis], data.held_out(basis)
    found = fitting.fit(x, data.trained, data.signs)
    order = np.argsort(held_out, kind="stable")
    covariance = fitting.covariance(x, data.trained, data.designs, data.signs)
    return {
        "intercept": _short(found.intercept),
        "coefficients": {
            name: _short(float(value))
            for name, value in zip(data.names, found.coefficients, strict=True)
        },
        "covariance": [[_short(float(value)) for value in row] for row in covariance],
        "held_out": [_short(float(held_out[i])) for i in order],
        "trained": [int(data.trained[i]) for i in order],
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")
