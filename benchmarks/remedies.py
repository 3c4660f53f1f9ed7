"""Twenty sick networks: how often the proposed remedy helps, and how close it comes to the best.

Run ``python benchmarks/remedies.py --out FOLDER [--jobs N] [--minutes M] [--quick]``; it prints
the table of ``docs/fix.md``. Each network is raced as ``equipoise.fix`` does, and its choice is
trained again on other seeds and judged by test data; so is every arm, with all rates in full.
*Better*: the remedy beats the network as it is, in the t-interval of 9 in 10 cases over four
seeds. *Regret*: how much worse the choice is than the best of all arms on the very test, as a
share of the span from the network as it is to that best one; no loss counts as worse than that of
guessing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from remedies_on import networks, tasks
from remedies_on.exhaustive import Cell, Finished, is_better, mean_loss, shown


def _changed(
    build: Callable[[], nn.Module], change: Callable[[str, nn.Module], None]
) -> nn.Module:
    model = build()
    with torch.no_grad():
        for name, module in model.named_modules():
            change(name, module)
    return model


def _weights(factor: float, name: str, module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        module.weight.mul_(factor)


def _head(factor: float, name: str, module: nn.Module) -> None:
    if isinstance(module, nn.Linear) and module.out_features == 10:
        module.weight.mul_(factor)


def _biases(value: float, name: str, module: nn.Module) -> None:
    if isinstance(module, nn.Linear) and module.out_features != 10:
        module.bias.fill_(value)


def _scales(value: float, name: str, module: nn.Module) -> None:
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        module.weight.fill_(value)


def _shifts(value: float, name: str, module: nn.Module) -> None:
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        module.bias.fill_(value)


def _eps(value: float, name: str, module: nn.Module) -> None:
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        module.eps = value


def _sick(build: Callable[[], nn.Module], change: Callable[..., None], value: float) -> object:
    return partial(_changed, build, partial(change, value))


_DENSE = partial(networks.dense, 10, 64)
_PLAIN = partial(networks.dense, 10, 64, norm=False)
_TEXT = partial(networks.PostNorm, 10, 32, 44, 32)

# The quickest first.
CELLS = (
    Cell(
        "sigmoid, 8 layers, no norm",
        tasks.digits,
        partial(networks.dense, 8, 64, nn.Sigmoid, False),
        64,
        60,
    ),
    Cell("weights × 6, no norm", tasks.digits, _sick(_PLAIN, _weights, 6.0), 64, 60),
    Cell("weights / 5, no norm", tasks.digits, _sick(_PLAIN, _weights, 0.2), 64, 60),
    Cell("head × 100", tasks.digits, _sick(_PLAIN, _head, 100.0), 64, 60),
    Cell("β = -3 everywhere", tasks.digits, _sick(_DENSE, _shifts, -3.0), 64, 60),
    Cell("dead ReLU: biases of -10", tasks.digits, _sick(_PLAIN, _biases, -10.0), 64, 60),
    Cell("ε = 100", tasks.digits, _sick(_DENSE, _eps, 100.0), 64, 60),
    Cell(
        "γ = 0 everywhere",
        tasks.digits,
        _sick(partial(networks.plain, 6, 16), _scales, 0.0),
        32,
        60,
    ),
    Cell("U-Net, BN at batch 2", tasks.segmentation, partial(networks.UNet, 1, 2), 2, 120),
    Cell("ResNet, BN at batch 2", tasks.digits, partial(networks.residual, 3, 16), 2, 120),
    Cell("DCGAN generator at batch 4", tasks.drawing, networks.generator, 4, 120, "adam"),
    Cell("U-Net, BN at batch 4", tasks.segmentation, partial(networks.UNet, 1, 2), 4, 120),
    Cell("ResNet, BN at batch 4", tasks.digits, partial(networks.residual, 3, 16), 4, 120),
    Cell(
        "tanh, 40 layers, no norm",
        tasks.digits,
        partial(networks.dense, 40, 64, nn.Tanh, False),
        64,
        60,
    ),
    Cell(
        "ReLU, 30 layers, no norm",
        tasks.digits,
        partial(networks.dense, 30, 64, nn.ReLU, False),
        64,
        60,
    ),
    Cell("BN-ReLU, 32 layers", tasks.digits, partial(networks.dense, 32, 64), 64, 60),
    Cell(
        "BN-GELU, 30 layers, batch 256",
        tasks.digits,
        partial(networks.dense, 30, 64, nn.GELU),
        256,
        60,
    ),
    Cell("BN-ReLU, 60 layers", tasks.digits, partial(networks.dense, 60, 64), 64, 60),
    Cell("post-LN transformer, 10 blocks", tasks.text, _TEXT, 16, 60, "adam"),
    Cell(
        "ResNet, 110 layers, no norm",
        tasks.digits,
        partial(networks.residual, 54, 8, norm=False, stride=2),
        32,
        60,
    ),
)


def _regret(one: Finished) -> float:
    """Distance from the best arm, as a share of the span; 0 if nothing is better than as it is."""
    assert one.plain is not None
    best = min(mean_loss(arm, one.guess) for arm in one.arms)
    plain = mean_loss(one.plain, one.guess)
    taken = plain if one.chosen is None else mean_loss(one.chosen, one.guess)
    return max(0.0, (taken - best) / (plain - best)) if plain > best else 0.0


def table(found: Sequence[Finished]) -> None:
    """Print every network that was raced, and the sums."""
    raced = [one for one in found if one.plain is not None]
    print(
        "| network | as it is | proposed remedy | with it | best of all arms | its loss | regret |"
    )
    print("|---|---|---|---|---|---|---|")
    helped, regrets = 0, []
    for one in raced:
        assert one.plain is not None
        better = one.chosen is not None and is_better(one.chosen, one.plain, one.guess)
        helped += better
        name = "none" if one.chosen is None else one.chosen.name
        loss = "–" if one.chosen is None else f"{mean_loss(one.chosen, one.guess):.3f}"
        rest = "not trained | – | –"
        if one.whole:
            best = min(one.arms, key=lambda arm: mean_loss(arm, one.guess))
            regrets.append(_regret(one))
            rest = f"{best.name} | {mean_loss(best, one.guess):.3f} | {regrets[-1]:.0%}"
        plain = f"{mean_loss(one.plain, one.guess):.3f}"
        print(f"| {one.cell} | {plain} | {name} | {loss}{' *' if better else ''} | {rest} |")
    print(f"\nBetter than as it is beyond chance (*): {helped} of {len(raced)}.")
    if regrets:
        print(
            f"Regret: mean {statistics.fmean(regrets):.1%}, median "
            f"{statistics.median(regrets):.1%}, at most 5 % in {sum(r <= 0.05 for r in regrets)} "
            f"of the {len(regrets)} networks whose arms were all trained."
        )


def main() -> None:
    """Race, exhaust, and print."""
    quick = replace(CELLS[4], steps=6, family="weights", seeds=2)
    table(shown(CELLS, [quick], __doc__))


if __name__ == "__main__":
    main()
