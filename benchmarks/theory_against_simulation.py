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
from equipoise.theory import Setting
from equipoise.theory.batch_norm.fixed_point.solve import solve_by_quadrature
from equipoise.theory.simulation.gradients import simulate_explosion_rate

ACCURACY = 1e-4


@dataclass(frozen=True)
class Case:
    setting: Setting
    budget: float  # seconds, warm, one core

    def __str__(self) -> str:
        setting = self.setting
        extras = {"ε": setting.eps, "β": setting.beta}
        extra = "".join(f" {name}={value:g}" for name, value in extras.items() if value)
        return f"{setting.activation.name} B={setting.batch_size}{extra}"


CASES = (
    Case(Setting("identity", 16), 2e-3),
    Case(Setting("tanh", 8), 2e-3),
    Case(Setting("gelu", 16), 2e-3),
    Case(Setting("silu", 32), 2e-3),
    Case(Setting("relu", 16), 5e-3),
    Case(Setting("relu", 64), 5e-3),
    Case(Setting("relu", 32, beta=1.0), 5e-3),
    Case(Setting("hardtanh", 64), 5e-3),
    Case(Setting("relu", 5), 0.1),
    Case(Setting("hardtanh", 6, beta=0.3), 0.1),
    Case(Setting("alpha_relu(1.5)", 6), 0.1),
    Case(Setting("tanh", 16, eps=0.1), 0.1),
    Case(Setting("gelu", 8, eps=1e-3), 0.1),
    Case(Setting("relu", 8, eps=0.1, beta=0.5), 1.0),
    Case(Setting("hardtanh", 6, eps=0.01), 1.0),
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
        case.setting,
        width=width,
        networks=networks,
        depth=depth,
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
        rate = solve_by_quadrature(case.setting).rate
        solve_again = partial(solve_by_quadrature.__wrapped__, case.setting)
        seconds = timed(solve_again, 3 if quick else 15)
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
