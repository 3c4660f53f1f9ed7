"""Time and agreement of the explosion rate: quadrature against simulated networks.

Run ``make bench``. For every case the table gives

* the median time of one solution (all eigenvalues and the fixed point, no memory of earlier
  ones), beside the budget that the project sets itself;
* a seeded simulation of wide networks: rate, standard error, and distance in standard errors;
* how many times longer simulation takes, and would take for an accuracy of 1e-4.

The floor of a smooth case is two passes over 64 + 128 nodes, four powers of values and slopes
against up to 128 polynomials: 2·2·4·(64² + 128²) = 0.33 MFLOP, about 0.1 ms for a BLAS in its
least favourable shape. The rest is the overhead of some 150 calls of NumPy and PyTorch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from equipoise.records import Estimate
from equipoise.theory import as_activation, simulate_explosion_rate
from equipoise.theory.batch_norm.setting import make_setting
from equipoise.theory.batch_norm.solver.solve import solve

ACCURACY = 1e-4


@dataclass(frozen=True)
class Case:
    activation: str
    batch_size: int
    budget: float  # seconds, warm, one core
    eps: float = 0.0
    gamma: float = 1.0
    beta: float = 0.0

    def __str__(self) -> str:
        extras = {"ε": self.eps, "γ": self.gamma - 1 and self.gamma, "β": self.beta}
        extra = "".join(f" {name}={value:g}" for name, value in extras.items() if value)
        return f"{self.activation} B={self.batch_size}{extra}"


CASES = (
    Case("identity", 16, 2e-3),
    Case("tanh", 8, 2e-3),
    Case("gelu", 16, 2e-3),
    Case("silu", 32, 2e-3),
    Case("relu", 16, 5e-3),
    Case("relu", 64, 5e-3),
    Case("relu", 32, 5e-3, beta=1.0),
    Case("hardtanh", 64, 5e-3),
    Case("relu", 5, 0.1),
    Case("hardtanh", 6, 0.1, beta=0.3),
    Case("alpha_relu(1.5)", 6, 0.1),
    Case("tanh", 16, 0.1, eps=0.1),
    Case("gelu", 8, 0.1, eps=1e-3),
    Case("relu", 8, 1.0, eps=0.1, beta=0.5),
    Case("hardtanh", 6, 1.0, eps=0.01),
)


def timed(call: Callable[[], object], repeats: int) -> float:
    """Median seconds of one call, after a first one that fills the caches of quadrature rules."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def simulate(case: Case, width: int, networks: int, depth: int) -> tuple[Estimate, float]:
    start = time.perf_counter()
    estimate = simulate_explosion_rate(
        as_activation(case.activation),
        case.batch_size,
        width=width,
        networks=networks,
        depth=depth,
        eps=case.eps,
        gamma=case.gamma,
        beta=case.beta,
        generator=torch.Generator().manual_seed(1),
    )
    return estimate, time.perf_counter() - start


def main() -> None:
    """Print the table and assert what it illustrates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small networks, fewer repeats")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    width, networks, depth = (400, 8, 12) if quick else (1500, 12, 16)
    cases = CASES[::3] if quick else CASES

    print(f"one thread; simulation: {networks} networks, width {width}, depth {depth}")
    head = f"{'case':30} {'rate':>13} {'time':>9} {'budget':>8}"
    print(f"{head} {'simulated':>18} {'z':>5} {'ratio':>8} {'at 1e-4':>9}")
    scores, ratios, late = [], [], []
    for case in cases:
        setting = make_setting(
            case.activation,
            case.batch_size,
            eps=case.eps,
            gamma=case.gamma,
            beta=case.beta,
            weight_variance=1.0,
            bias_variance=0.0,
        )
        rate = solve(setting).rate
        seconds = timed(partial(solve.__wrapped__, setting), 3 if quick else 15)
        simulated, spent = simulate(case, width, networks, depth)
        z = (simulated.value - rate.value) / simulated.error
        equal = spent / seconds * (simulated.error / (ACCURACY * rate.value)) ** 2
        scores.append(z)
        ratios.append(equal)
        late += [str(case)] if seconds > case.budget else []
        print(
            f"{case!s:30} {rate.value:13.10f} {seconds * 1e3:6.2f} ms {case.budget * 1e3:5.0f} ms "
            f"{simulated!s:>18} {z:5.1f} {spent / seconds:8.0f} {equal:9.1e}"
        )
    rms = (sum(z * z for z in scores) / len(scores)) ** 0.5
    print(f"root-mean-square z {rms:.2f}; median ratio at 1e-4 {statistics.median(ratios):.1e}")
    print(f"over budget: {', '.join(late) or 'none'}")
    assert max(map(abs, scores)) < 4.5, "theory and simulation disagree"
    assert quick or statistics.median(ratios) > 1e4, "simulation is not 10⁴ times slower"


if __name__ == "__main__":
    main()
