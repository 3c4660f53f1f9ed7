"""Cost of a Hessian-vector product in forward and backward passes, beside its flop floor.

Run ``python benchmarks/hessian_cost.py [--quick]``, on one thread. A product differentiates the
gradient's graph, which multiplies twice as often as a forward and a backward pass do, and as often
in the layer next to the data; PyTorch's counter gives the floor. The graph is kept from product to
product, so it is paid once; ``recompute=True`` pays it every time and keeps nothing. A whole probe
adds Lanczos' orthogonalisation and four products that measure rounding. Variants take turns in
short blocks, so that other work on the machine meets all alike; ratios are between the fastest.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from equipoise.instrument.replay import Replay
from equipoise.models import mlp
from equipoise.probes.hessian.blocks import whole
from equipoise.probes.hessian.measure import hessian
from equipoise.probes.hessian.product import HessianProduct

# Products per block of `hessian`, about what a tolerance of 1e-3 takes.
STEPS = 40


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    rows: int
    shape: tuple[int, ...]


def convolutional(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels, width in ((1, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), norm(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 9, 10))


def identity(width: int) -> nn.Module:
    return nn.Identity()


CASES = {
    "mlp": Case(lambda: mlp(784, 10, depth=3, width=256, norm="none"), 128, (784,)),
    "mlp bn": Case(lambda: mlp(784, 10, depth=3, width=256), 128, (784,)),
    "cnn": Case(lambda: convolutional(identity), 64, (1, 28, 28)),
    "cnn bn": Case(lambda: convolutional(nn.BatchNorm2d), 64, (1, 28, 28)),
}


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def variants(case: Case, *, rows: int, steps: int) -> dict[str, Callable[[], object]]:
    """One pass each, ready to be timed; ``hessian`` is the whole probe."""
    torch.manual_seed(0)
    model = case.build()
    batch = (torch.randn(rows, *case.shape), torch.randint(10, (rows,)))
    parameters = list(model.parameters())
    replay = Replay(model, loss_fn, batch)
    block = whole(replay)
    vector = torch.randn(sum(p.numel() for p in parameters))
    kept, anew = HessianProduct([replay]), HessianProduct([replay], recompute=True)
    return {
        "pass": lambda: torch.autograd.grad(loss_fn(model, batch), parameters),
        "graph": lambda: replay.gradient(create_graph=True),
        "product": lambda: kept(block, vector),
        "recomputed": lambda: anew(block, vector),
        "hessian": lambda: hessian(model, loss_fn, batch, steps=steps, tolerance=1e-12),
    }


def operations(run: Callable[[], object]) -> int:
    """Multiplications and additions in matrix products and convolutions."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def seconds(run: Callable[[], object], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begin) / repeats


def timings(
    runs: dict[str, Callable[[], object]], *, blocks: int, repeats: int
) -> dict[str, float]:
    """Seconds of the fastest block of each variant."""
    fastest = dict.fromkeys(runs, float("inf"))
    for _ in range(blocks):
        for name, run in runs.items():
            turns = 1 if name == "hessian" else repeats
            fastest[name] = min(fastest[name], seconds(run, turns))
    return fastest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="few rows and blocks, nothing asserted"
    )
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    steps = 4 if quick else STEPS
    print(f"in forward and backward passes; {steps} products in a probe")
    columns = f"{'graph':>6} {'floor':>6} {'product':>8} {'recomputed':>11} {'probe':>7}"
    print(f"{'model':8} {'pass':>8} {columns}")
    dear = []
    for name, case in CASES.items():
        runs = variants(case, rows=8 if quick else case.rows, steps=steps)
        found = timings(runs, blocks=1 if quick else 12, repeats=1 if quick else 4)
        floor = operations(runs["product"]) / operations(runs["pass"])
        unit = found["pass"]
        graph, product, anew, probe = (
            found[key] / unit for key in ("graph", "product", "recomputed", "hessian")
        )
        print(
            f"{name:8} {unit * 1e3:5.1f} ms {graph:6.2f} {floor:6.2f} {product:8.2f} {anew:11.2f} "
            f"{probe / steps:7.2f} per product"
        )
        if product > 0.9 * anew:
            dear.append(name)
    if dear and not quick:
        raise SystemExit(f"keeping the graph saves less than a tenth of a product for {dear}")


if __name__ == "__main__":
    main()
