"""Which learning rates the check-up calls too large or too small, and which of them train.

Run ``python benchmarks/learning_rates.py [--quick]``; it prints the tables of ``docs/checkup.md``
(five minutes). Five small networks are checked up with SGD with momentum and with Adam at rates
from 10⁻⁸ to 1,000, a factor of ten apart, and trained for 300 steps at each, on other batches than
those of the check-up. A rate trains if in the last quarter of its steps the loss has fallen at
least half as far as at the best of these rates.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from equipoise import models
from equipoise.diagnosis.optimizer.check import check_optimizer
from equipoise.diagnosis.optimizer.given import stepping_of
from equipoise.diagnosis.problem import Problem
from equipoise.instrument.random_states import seeded
from equipoise.training import train

RATES = [float(f"1e{power}") for power in range(-8, 4)]
STEPS, LAST = 300, 0.25
SGD, ADAM = partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"SGD, momentum": SGD, "Adam": ADAM}
OUTCOMES = ("too small", "falls", "undecided", "too large")


def plain_mlp() -> nn.Module:
    """Without a norm, in PyTorch's own initialisation."""
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(3):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def transformer() -> nn.Module:
    """Rows of an image as tokens."""
    block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    return nn.Sequential(
        nn.Flatten(1, 2),
        nn.Linear(8, 32),
        nn.TransformerEncoder(block, 2, enable_nested_tensor=False),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


class Recurrent(nn.Module):
    """Rows of an image as steps of a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.GRU(8, 48, batch_first=True), nn.Linear(48, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits after the last row."""
        outputs, _ = self.rows(images.flatten(1).unflatten(1, (8, 8)))
        return self.head(outputs[:, -1])  # type: ignore[no-any-return]  # of nn.Module


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "MLP": plain_mlp,
    "MLP of 12 layers, batch norm": lambda: models.mlp(64, 10, depth=12, width=64),
    "ResNet": lambda: models.resnet18(in_channels=1, width=4),
    "transformer": transformer,
    "GRU": Recurrent,
}


def losses(
    problem: Problem, make: Callable[..., torch.optim.Optimizer], steps: int
) -> list[float]:
    """The loss at the end of a training at every rate; infinite where it diverged."""
    found = []
    for rate in RATES:
        model = problem.fresh(0)
        with seeded(1):
            batches = problem.batches(steps, seed=1)
            history = train(model, batches, problem.loss_fn, make(model.parameters(), lr=rate))
        found.append(history.mean_loss(LAST) if history.diverged_at is None else float("inf"))
    return found


def main() -> None:
    """Print one line a network and optimiser, and how many rates of each outcome train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    trains: Counter[str] = Counter()
    called: Counter[str] = Counter()
    print("| network | optimiser | rates that train | called too small | called too large |")
    print("|---|---|---|---|---|")
    for name, build in list(NETWORKS.items())[: 1 if quick else None]:
        problem = Problem.prepare(build, "digits", batches=2)
        for label, make in list(OPTIMIZERS.items())[: 1 if quick else None]:
            final = losses(problem, make, 30 if quick else STEPS)
            start = problem_loss(problem)
            enough = [start - loss >= (start - min(final)) / 2 for loss in final]
            outcomes = [outcome(problem, partial(make, lr=rate)) for rate in RATES]
            called.update(outcomes)
            trains.update(one for one, good in zip(outcomes, enough, strict=True) if good)
            small, large = (
                [rate for rate, one in zip(RATES, outcomes, strict=True) if one == word]
                for word in ("too small", "too large")
            )
            good = [rate for rate, one in zip(RATES, enough, strict=True) if one]
            print(
                f"| {name} | {label} | {span(good)} | {span(small)} | {span(large)} |", flush=True
            )
    print("\n| called | rates | of them train |\n|---|---|---|")
    for one in OUTCOMES:
        print(f"| {one} | {called[one]} | {trains[one]} |")


def problem_loss(problem: Problem) -> float:
    """The loss before training."""
    with seeded(1), torch.no_grad():
        return float(problem.loss_fn(problem.fresh(0), problem.first))


def outcome(problem: Problem, optimizer: Callable[..., torch.optim.Optimizer]) -> str:
    """What the check-up says of one rate."""
    stepping, _ = stepping_of(
        problem.build, optimizer, problem.fresh(0), partial(problem.fresh, 0)
    )
    assert stepping is not None
    return check_optimizer(problem, stepping).outcome


def span(rates: list[float]) -> str:
    """The smallest and the largest of neighbouring rates."""
    return f"{min(rates):g} to {max(rates):g}" if rates else "none"


if __name__ == "__main__":
    main()
