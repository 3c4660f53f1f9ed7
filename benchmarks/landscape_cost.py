"""Cost of probing the loss, relative to the passes that it cannot do without.

Run ``python benchmarks/landscape_cost.py [--quick]``. First, a landscape of 12 steps against its
floor of 13 forward and backward passes, a copy of the model for every step, and ``vmap`` over
parameters (which cannot keep running statistics). Then the covariate shift of a chain of 12
layers against a copy of the model and a whole pass for every layer. For k equal layers that
takes k(3k - 1) matrix products, and a shared prefix k² + 3k - 2: 2.36 times fewer for k = 12, and
3 times for many layers. What it gains beyond that are the copies.

All run on one thread and take turns; what is compared is the time that the thread was running, as
the median ratio of neighbours.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils.flop_counter import FlopCounterMode

from equipoise.probes.covariate_shift import covariate_shift
from equipoise.probes.landscape import landscape

RATE = 0.1
STEPS = tuple(RATE * 0.5 * 8 ** (k / 11) for k in range(12))
LAYERS, WIDTH = 12, 256
# The project's budget: multiples of the floor, and how much faster than naive.
MOST, LEAST = 1.05, 2.5

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Network:
    kind: str
    norm: bool
    rows: int

    def build(self) -> tuple[nn.Module, Batch]:
        """The network and a batch for it, from a fixed seed."""
        torch.manual_seed(0)
        model = _mlp(norm=self.norm) if self.kind == "mlp" else _cnn(norm=self.norm)
        return model, (torch.randn(self.rows, 1, 28, 28), torch.randint(10, (self.rows,)))


NETWORKS = [
    Network(kind, norm, rows)
    for kind, sizes in (("mlp", (16, 128)), ("cnn", (16, 64)))
    for rows in sizes
    for norm in (False, True)
]


def _mlp(*, norm: bool) -> nn.Module:
    parts: list[nn.Module] = [nn.Flatten()]
    for inputs in (784, 256, 256):
        parts += [nn.Linear(inputs, 256), *([nn.BatchNorm1d(256)] if norm else []), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(256, 10))


def _cnn(*, norm: bool) -> nn.Module:
    parts: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32), (32, 32)):
        parts.append(nn.Conv2d(inputs, outputs, 3, padding=1))
        parts += [*([nn.BatchNorm2d(outputs)] if norm else []), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(32 * 9, 10))


def _chain(*, norm: bool) -> list[nn.Module]:
    torch.manual_seed(0)
    normaliser = [nn.BatchNorm1d(WIDTH)] if norm else []
    return [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), *copy.deepcopy(normaliser), nn.ReLU())
        for _ in range(LAYERS)
    ]


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def squares(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def passes(model: nn.Module, batch: Batch) -> None:
    """The floor of a landscape."""
    for _ in range(1 + len(STEPS)):
        model.zero_grad()
        cross_entropy(model, batch).backward()


def copies(model: nn.Module, batch: Batch) -> list[Tensor]:
    """A landscape with a copy of the model for every step."""
    parameters = list(model.parameters())
    gradient = torch.autograd.grad(cross_entropy(model, batch), parameters)
    whole = torch.cat([g.flatten() for g in gradient])
    changes = []
    for step in STEPS:
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for parameter, g in zip(twin.parameters(), gradient, strict=True):
                parameter -= step * g
        here = torch.autograd.grad(cross_entropy(twin, batch), list(twin.parameters()))
        changes.append((torch.cat([g.flatten() for g in here]) - whole).norm())
    return changes


def mapped(model: nn.Module, batch: Batch) -> Tensor:
    """A landscape with all steps at once."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (batch[0],)), batch[1])

    gradient, _ = grad_and_value(loss)(parameters)
    steps = torch.tensor(STEPS)
    moved = {
        name: p - steps.reshape(-1, *(1,) * p.ndim) * gradient[name]
        for name, p in parameters.items()
    }
    here, _ = vmap(grad_and_value(loss))(moved)
    parts = [(here[name] - gradient[name]).flatten(1).square().sum(1) for name in gradient]
    changes: Tensor = torch.stack(parts).sum(0).sqrt()
    return changes


def naive_shift(blocks: list[nn.Module], batch: Batch) -> list[Tensor]:
    """Covariate shift with a copy of the model and a whole pass for every layer."""
    model = nn.Sequential(*blocks)
    parameters = list(model.parameters())
    gradient = torch.autograd.grad(squares(model, batch), parameters)
    per_layer = len(list(blocks[0].parameters()))
    shifts = []
    for layer in range(1, len(blocks)):
        twin = copy.deepcopy(model)
        own = list(twin.parameters())
        first = layer * per_layer
        with torch.no_grad():
            for parameter, g in zip(own[:first], gradient, strict=False):
                parameter -= RATE * g
        squares(twin, batch).backward()
        pairs = zip(own[first:], gradient[first:], strict=True)
        changes = [p.grad - g for p, g in pairs if p.grad is not None][:per_layer]
        shifts.append(torch.cat([change.flatten() for change in changes]).norm())
    return shifts


def taken(run: Callable[[], object]) -> float:
    begin = time.thread_time()
    run()
    return time.thread_time() - begin


def ratios(runs: dict[str, Callable[[], object]], base: str, *, blocks: int) -> dict[str, float]:
    """Median over blocks of each run's time, relative to that of the base beside it."""
    for run in runs.values() if blocks > 1 else ():  # warm up
        run()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(blocks):
        times = {name: taken(run) for name, run in runs.items()}
        for name, duration in times.items():
            found[name].append(duration / times[base])
    return {name: statistics.median(values) for name, values in found.items()}


def landscape_costs(network: Network, *, blocks: int) -> dict[str, float]:
    model, batch = network.build()
    runs: dict[str, Callable[[], object]] = {
        "floor": lambda: passes(model, batch),
        "equipoise": lambda: landscape(model, cross_entropy, batch, steps=STEPS),
        "losses only": lambda: landscape(
            model, cross_entropy, batch, steps=STEPS, gradients=False
        ),
        "deep copies": lambda: copies(model, batch),
    }
    if not network.norm:
        runs["vmap"] = lambda: mapped(model, batch)
    return ratios(runs, "floor", blocks=blocks)


def shift_runs(*, norm: bool, rows: int) -> dict[str, Callable[[], object]]:
    chain = _chain(norm=norm)
    batch = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
    model = nn.Sequential(*chain)

    def one_pass() -> None:
        model.zero_grad()
        squares(model, batch).backward()

    return {
        "pass": one_pass,
        "naive": lambda: naive_shift(chain, batch),
        "whole passes": lambda: covariate_shift(chain, squares, batch, RATE, share_prefix=False),
        "shared prefix": lambda: covariate_shift(chain, squares, batch, RATE),
    }


def operations(run: Callable[[], object]) -> int:
    """Floating point operations of all matrix products."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="few rows and blocks, nothing asserted"
    )
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    blocks = 1 if quick else 25
    dearer = []
    columns = ("equipoise", "losses only", "deep copies", "vmap")
    print(f"landscape of {len(STEPS)} steps, in units of {1 + len(STEPS)} passes")
    print(f"{'':16}{''.join(f'{name:>13}' for name in columns)}   target for equipoise {MOST}")
    networks = NETWORKS
    if quick:  # one of each kind, one of them with batch norm
        networks = [replace(n, rows=8) for n in (NETWORKS[0], NETWORKS[-1])]
    for network in networks:
        found = landscape_costs(network, blocks=blocks)
        label = f"{network.kind} {'bn ' if network.norm else '   '}N={network.rows}"
        cells = "".join(f"{found.get(name, float('nan')):13.2f}" for name in columns)
        print(f"{label:16}{cells}   {'met' if found['equipoise'] <= MOST else 'MISSED'}")
        if found["equipoise"] > found["deep copies"]:
            dearer.append(label)
    print(f"\ncovariate shift of {LAYERS} layers of {WIDTH}, in passes; target {LEAST} x faster")
    for norm in (True,) if quick else (False, True):
        runs = shift_runs(norm=norm, rows=8 if quick else 128)
        costs = ratios(runs, "pass", blocks=blocks)
        gain = costs["naive"] / costs["shared prefix"]
        work = operations(runs["naive"]) / operations(runs["shared prefix"])
        print(
            f"{'bn' if norm else '  '}  naive {costs['naive']:.1f}  whole passes "
            f"{costs['whole passes']:.1f}  shared prefix {costs['shared prefix']:.1f}  "
            f"{gain:.2f} x faster with {work:.2f} x less arithmetic  "
            f"{'met' if gain >= LEAST else 'MISSED'}"
        )
        if costs["shared prefix"] > costs["whole passes"]:
            dearer.append("a shared prefix")
    if dearer and not quick:
        raise SystemExit(f"dearer than the plain way: {', '.join(dearer)}")


if __name__ == "__main__":
    main()
