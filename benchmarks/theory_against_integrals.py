r"""Time and accuracy of every eigenvalue: our solution, the paper's integrals, simulation.

Run ``make bench``. For every case, at ε = 0, the table gives

* the median time of one solution, which yields all eleven numbers at once (fixed point, backward
  and forward eigenvalues, cross-batch), and the largest relative error that it claims for κ and
  the backward eigenvalues;
* the time of ``scipy.integrate.dblquad``, at its default tolerance of 1.5e-8, for κ, λ_G (Theorem
  7), λ_L and λ_M alone: the literal double integrals over two samples,

  .. math:: E[g(w_1, w_2)] = \iint_{Z>0} g\,p\,dw_1dw_2, \quad
            p = \frac{(B-3)(B(B-2))^{2-B/2}}{2\pi}\,Z^{(B-5)/2},

  how often it evaluates an integrand, and its largest relative distance to ours;
* how many times longer both that and a simulation of wide networks take; the latter for λ_G
  alone and for an accuracy of 1e-4, extrapolated by the square of its standard error.

The floor of a smooth solution is 0.33 MFLOP (see ``theory_against_simulation.py``) on 0.2 MB that
stay in the cache. The least that a product of two 21-point Kronrod rules takes are 441 evaluations
of some 40 FLOP for each of four integrals, 0.07 MFLOP and no memory; but SciPy calls Python for
each, which takes a microsecond, and adapts: the column of calls says how often. A compiled
integrand would spare the interpreter, not the calls.

Unsplit kinks are where the literal integrals fail: with ReLU at B = 128 they err by 2e-3, mostly
in λ_M, while dblquad on the four quadrants agrees with ours to 1e-14. At B = 4 and 5 the gradients
of random networks have no fourth moment, so simulation takes even longer than its standard error
says.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from scipy.integrate import IntegrationWarning, dblquad

from equipoise.theory import Setting
from equipoise.theory.batch_norm.fixed_point.solve import solve_by_quadrature
from equipoise.theory.simulation.gradients import simulate_explosion_rate
from theory_against_simulation import ACCURACY, timed

Scalar = Callable[[float], float]
Pair = Callable[[float, float], float]


@dataclass(frozen=True)
class Function:
    """An activation and its slope as plain Python, the fastest that dblquad can call."""

    value: Scalar
    slope: Scalar


FUNCTIONS = {
    "tanh": Function(math.tanh, lambda x: 1 - math.tanh(x) ** 2),
    "gelu": Function(
        lambda x: x * math.erfc(-x * math.sqrt(0.5)) / 2,
        lambda x: (
            math.erfc(-x * math.sqrt(0.5)) / 2 + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        ),
    ),
    "relu": Function(lambda x: max(x, 0.0), lambda x: float(x > 0)),
    "hardtanh": Function(lambda x: min(max(x, -1.0), 1.0), lambda x: float(-1 < x < 1)),
    "alpha_relu(1.5)": Function(
        lambda x: max(x, 0.0) ** 1.5, lambda x: 1.5 * math.sqrt(max(x, 0.0))
    ),
}
CASES = (
    *(("tanh", B) for B in (4, 5, 8, 16, 64, 128)),
    *(("gelu", B) for B in (8, 64)),
    *(("relu", B) for B in (4, 5, 8, 16, 64, 128)),
    *(("hardtanh", B) for B in (8, 64)),
    *(("alpha_relu(1.5)", B) for B in (5, 16, 64)),
)
QUICK = (("tanh", 8), ("relu", 64))
SMOOTH = ("tanh", "gelu")


class TwoSamples:
    """Averages over two samples of a batch, by adaptive quadrature over the ellipse Z > 0."""

    def __init__(self, batch_size: int) -> None:
        self.B = batch_size
        self.calls = 0

    def average(self, g: Pair) -> float:
        """E[g(w₁, w₂)]."""
        B, n = self.B, self.B - 1
        constant = (B - 3) * (B * (B - 2)) ** (2 - B / 2) / (2 * math.pi)

        def integrand(w2: float, w1: float) -> float:
            self.calls += 1
            Z = B * (B - 2) - B * (w1 * w1 + w2 * w2) + (w1 - w2) ** 2
            # The inner rule's ends may round to the other side of the ellipse.
            return g(w1, w2) * constant * Z ** ((B - 5) / 2) if Z > 0 else 0.0

        def half_chord(w1: float) -> float:
            return math.sqrt(max(B * (B - 2) * (n - w1 * w1), 0.0)) / n

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IntegrationWarning)
            value, _ = dblquad(
                integrand,
                -math.sqrt(n),
                math.sqrt(n),
                lambda w1: -w1 / n - half_chord(w1),
                lambda w1: -w1 / n + half_chord(w1),
            )
        return float(value)


def integrands(phi: Function, B: int) -> tuple[Pair, Pair, Pair, Pair]:
    """Those of κ, and of κ(B − 3) times λ_G, λ_L and λ_M, as the formulas are written."""

    def kappa(w1: float, w2: float) -> float:
        return phi.value(w1) ** 2 - phi.value(w1) * phi.value(w2)

    def lambda_g(w1: float, w2: float) -> float:
        first = phi.slope(w1)
        return (B - 1 - w1 * w1) * first**2 + (1 + w1 * w2) * first * phi.slope(w2)

    def lambda_l(w1: float, w2: float) -> float:
        a, b, first = w1 / math.sqrt(B), w2 / math.sqrt(B), phi.slope(w1)
        P11, P12 = 1 - 1 / B - a * a, -1 / B - a * b
        g = 1 / B**2 - 2 * a * a / (B * (B - 1)) + a * a * (1 - a * a) / (B - 1)
        h = 1 / B**2 - (a + b) ** 2 / (B * (B - 2)) + a * b * (1 - a * a - b * b) / (B - 2)
        return B * (first**2 * (P11**2 - g) - 2 * first * phi.slope(w2) * (P11 * P12 - h))

    def lambda_m(w1: float, w2: float) -> float:
        a, b = w1 / math.sqrt(B), w2 / math.sqrt(B)
        own, both = a * a + b * b, (a + b) ** 2
        third = a * b + both / (B - 2) + (both + own - 1) / ((B - 2) * (B - 3))
        factor = 1 - own - both / (B - 2) + 2 * a * b * third
        return B * phi.slope(w1) * phi.slope(w2) * factor

    return kappa, lambda_g, lambda_l, lambda_m


def literal(name: str, batch_size: int) -> tuple[tuple[float, ...], int]:
    """κ, λ_G, λ_L, λ_M and the number of evaluations."""
    law = TwoSamples(batch_size)
    kappa, *scaled = (law.average(g) for g in integrands(FUNCTIONS[name], batch_size))
    return (kappa, *(s / (kappa * (batch_size - 3)) for s in scaled)), law.calls


def simulation_seconds(name: str, batch_size: int, rate: float, quick: bool) -> float:
    """What networks would take for the rate at an accuracy of 1e-4."""
    width, networks, depth = (300, 6, 10) if quick else (1000, 12, 16)
    start = time.perf_counter()
    simulated = simulate_explosion_rate(
        name,
        batch_size,
        width=width,
        networks=networks,
        depth=depth,
        generator=torch.Generator().manual_seed(1),
    )
    spent = time.perf_counter() - start
    return spent * (simulated.error / (ACCURACY * rate)) ** 2


@dataclass(frozen=True)
class Row:
    """One case: seconds of the three ways, and errors relative to κ and λ_G."""

    name: str
    batch_size: int
    ours: float
    claimed: float
    quadrature: float
    calls: int
    distance: float
    simulation: float

    def __str__(self) -> str:
        return (
            f"{self.name:16} {self.batch_size:4} {self.ours * 1e3:6.2f} ms {self.claimed:7.0e} "
            f"{self.quadrature:7.2f} s {self.calls:9} {self.distance:7.0e} "
            f"{self.quadrature / self.ours:7.0f} {self.simulation / self.ours:10.1e}"
        )


def measure(name: str, batch_size: int, quick: bool) -> Row:
    solve_again = partial(solve_by_quadrature.__wrapped__, Setting(name, batch_size))
    solution = solve_again()
    ours = timed(solve_again, 3 if quick else 15)
    start = time.perf_counter()
    values, calls = literal(name, batch_size)
    quadrature = time.perf_counter() - start
    estimates = (solution.kappa, *solution.backward)
    scales = (solution.kappa.value, *[solution.rate.value] * 3)
    return Row(
        name,
        batch_size,
        ours,
        max(e.error / scale for e, scale in zip(estimates, scales, strict=True)),
        quadrature,
        calls,
        max(
            abs(value - e.value) / scale
            for e, value, scale in zip(estimates, values, scales, strict=True)
        ),
        simulation_seconds(name, batch_size, solution.rate.value, quick),
    )


def main() -> None:
    """Print the table and assert what it illustrates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two cases, fewer repeats")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)

    print("one thread; ratios: how many times longer than ours")
    print(
        f"{'case':21} {'ours':>9} {'error':>7} {'dblquad':>9} {'calls':>9} {'error':>7} "
        f"{'ratio':>7} {'simulated':>10}"
    )
    rows = []
    for name, batch_size in QUICK if quick else CASES:
        rows.append(measure(name, batch_size, quick))
        print(rows[-1], flush=True)

    by_quadrature = statistics.median(row.quadrature / row.ours for row in rows)
    by_simulation = statistics.median(row.simulation / row.ours for row in rows)
    print(f"median ratios: dblquad {by_quadrature:.0f}, simulation at 1e-4 {by_simulation:.1e}")
    smooth, kinked = (
        max(row.distance for row in rows if (row.name in SMOOTH) == kind) for kind in (True, False)
    )
    print(f"largest distance of dblquad: smooth {smooth:.0e}, with kinks {kinked:.0e}")
    assert max(row.claimed for row in rows) < 1e-12, "our errors are larger than claimed here"
    assert smooth < 1e-8, "the paper's integrals and ours disagree"
    assert kinked < 1e-2, "not even unsplit kinks explain how they disagree"
    assert quick or by_quadrature > 100, "dblquad is not 100 times slower"
    assert quick or by_simulation > 1e4, "simulation is not 10⁴ times slower"


if __name__ == "__main__":
    main()
