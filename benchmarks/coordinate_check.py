"""Exponents over width of a standard parametrisation and of μP, measured and predicted.

Run ``python benchmarks/coordinate_check.py [--quick]``; it prints a table of
``docs/initialisation.md``. In μP (Yang and Hu 2021, arXiv:2011.14522) the last layer starts from a
standard deviation of 1/width; Adam's rates of matrices with as many inputs as the width fall as
1/width; SGD's rise as the width before the first hidden layer and in biases, and fall in the last
layer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn

from equipoise.diagnosis import coordinate_check

WIDTHS = (64, 128, 256, 512)
ADAM, SGD = 1e-3, 0.1
LAYERS = (1, 3, 5, 7)

Build = Callable[[int], nn.Sequential]
OptimizerOf = Callable[[nn.Module], torch.optim.Optimizer]


def standard(width: int) -> nn.Sequential:
    """Three hidden layers, PyTorch's default."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = 64
    for _ in range(3):
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(width, 10))


def mu(width: int) -> nn.Sequential:
    """The same at the edge of chaos, with a last layer that starts small."""
    model = standard(width)
    for number in LAYERS:
        nn.init.kaiming_normal_(model[number].weight, nonlinearity="relu")
        nn.init.zeros_(model[number].bias)
    nn.init.normal_(model[7].weight, std=1 / width)
    return model


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=ADAM)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=SGD)


def mu_adam(model: nn.Module) -> torch.optim.Optimizer:
    relative = model[3].in_features / WIDTHS[0]
    matrices = [model[number].weight for number in LAYERS[1:]]
    others = [model[1].weight, *(model[number].bias for number in LAYERS)]
    return torch.optim.Adam(
        [{"params": others}, {"params": matrices, "lr": ADAM / relative}], lr=ADAM
    )


def mu_sgd(model: nn.Module) -> torch.optim.Optimizer:
    relative = model[3].in_features / WIDTHS[0]
    rising = [model[1].weight, *(model[number].bias for number in LAYERS[:-1])]
    groups = [
        {"params": rising, "lr": SGD * relative},
        {"params": [model[3].weight, model[5].weight, model[7].bias]},
        {"params": [model[7].weight], "lr": SGD / relative},
    ]
    return torch.optim.SGD(groups, lr=SGD)


CASES: tuple[tuple[str, Build, OptimizerOf, bool], ...] = (
    ("standard, Adam", standard, adam, False),
    ("standard, SGD", standard, sgd, False),
    ("μP, Adam", mu, mu_adam, True),
    ("μP, SGD", mu, mu_sgd, True),
)


def row(name: str, build: Build, optimizer: OptimizerOf, widths: tuple[int, ...]) -> bool | None:
    """Print one line of the table; return whether learning rates carry over."""
    found = coordinate_check(build, "digits", widths, optimizer=optimizer)
    steps = [layer.first_step for layer in found.layers]
    cells = [
        f"{step.slope.value:.2f} ± {step.slope.error:.2f} ({step.predicted_slope:.2f})"
        for step in steps
    ]
    logits = found.layers[-1].change.slope
    cells.append(f"{logits.value:.2f} ± {logits.error:.2f}")
    told = {True: "yes", False: "no", None: "undecided"}[found.transfers]
    print(f"| {name} | {' | '.join(cells)} | {told} |".replace("-0.00", "0.00").replace("-", "−"))
    return found.transfers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three widths, two cases")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print("| | layer 1 | layer 2 | layer 3 | layer 4 | logits, 3 steps | carries over |")
    print("|---|---|---|---|---|---|---|")
    for name, build, optimizer, expected in CASES[::2] if quick else CASES:
        transfers = row(name, build, optimizer, WIDTHS[:3] if quick else WIDTHS)
        assert transfers is expected or (quick and transfers is None)


if __name__ == "__main__":
    main()
