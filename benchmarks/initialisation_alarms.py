"""False alarms on healthy initialisations, and planted faults that are found.

Run ``python benchmarks/initialisation_alarms.py [--quick]``; it prints the table of
``docs/initialisation.md``. Healthy are the architectures of this folder with their own
initialisation, and with six others applied by ``model.apply``; those are checked twice, with the
init function named and without. An alarm is any fault that ``diagnosis.initialisation`` reports. A
planted fault counts as found if its kind and exactly its parameters are reported, nothing else.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from architectures import ARCHITECTURES
from architectures.residual_networks import bottleneck_block, resnet
from architectures.transformers import gpt2, gpt_explicit, vit
from equipoise import data
from equipoise.diagnosis import initialisation

HEALTHY = 100
QUICK_NAMES = ("ppo_actor_critic", "tcn")

Init = Callable[[nn.Module], object]


def apply_to(draw: Callable[[Tensor], object], *kinds: type[nn.Module]) -> Init:
    """An init function for ``model.apply``: weights of these kinds are drawn, biases are zero."""

    def init(module: nn.Module) -> None:
        # What is drawn into a computed weight would be lost.
        if isinstance(module, kinds) and not parametrize.is_parametrized(module):
            draw(module.weight)
            if isinstance(module, nn.Linear | _ConvNd) and module.bias is not None:
                nn.init.zeros_(module.bias)

    return init


LAYERS = (nn.Linear, _ConvNd)
INITIALISERS: dict[str, Init] = {
    "kaiming_normal_": apply_to(partial(nn.init.kaiming_normal_, nonlinearity="relu"), *LAYERS),
    "kaiming_normal_, fan_out": apply_to(
        partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu"), *LAYERS
    ),
    "xavier_uniform_": apply_to(nn.init.xavier_uniform_, *LAYERS),
    "normal_, 0.02": apply_to(partial(nn.init.normal_, std=0.02), *LAYERS, nn.Embedding),
    "trunc_normal_, ±2σ": apply_to(
        partial(nn.init.trunc_normal_, std=0.02, a=-0.04, b=0.04), *LAYERS, nn.Embedding
    ),
    "orthogonal_": apply_to(nn.init.orthogonal_, *LAYERS),
}


def healthy(count: int, names: tuple[str, ...] | None) -> list[tuple[str, nn.Module, Init | None]]:
    """Architectures with their own initialisation first, then with others in turn."""
    chosen = [a for a in ARCHITECTURES if names is None or a.name in names]
    variants: list[tuple[str, Init | None]] = [("own", None)]
    variants += list(INITIALISERS.items())
    found = []
    for number, architecture in enumerate(islice(cycle(chosen), count)):
        turn = number // len(chosen)
        # Neighbours in a turn have different initialisers.
        place = 0 if turn == 0 else 1 + (number + turn) % len(INITIALISERS)
        name, init = variants[place]
        torch.manual_seed(number)
        model = architecture.build()
        if init is not None:
            model.apply(init)
        found.append((f"{architecture.name}, {name}", model, init))
    return found


def false_alarms(count: int, names: tuple[str, ...] | None) -> int:
    """Check healthy models, print every alarm, and count models with one."""
    alarms, checks, begin = 0, 0, time.perf_counter()
    for name, model, init in healthy(count, names):
        faults = list(initialisation(model).faults)
        checks += 1
        if init is not None:
            faults += initialisation(model, init).faults
            checks += 1
        alarms += bool(faults)
        for fault in faults:
            print(f"false alarm in {name}: {fault.kind} at {', '.join(fault.parameters[:3])}")
    seconds = (time.perf_counter() - begin) / checks
    print(f"{alarms} of {count} healthy models with an alarm; {seconds:.1f} s a check")
    return alarms


@dataclass(frozen=True)
class Planted:
    """A model with one mistake.

    Attributes:
        name: The mistake.
        kind: The fault that should be reported.
        plant: Returns the model, the names that should be reported, and the init function.
    """

    name: str
    kind: str
    plant: Callable[[], tuple[nn.Module, set[str], Init | None]]


def he_mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    model.apply(INITIALISERS["kaiming_normal_"])
    return model


def missed_head():
    model = gpt_explicit()
    model.head.reset_parameters()
    return model, {"head.weight"}, None


def missed_inside():
    model = vit()
    model[5].branch[0].reset_parameters()
    return model, {"5.branch.0.weight"}, None


def fan_mode():
    model = resnet(bottleneck_block, (256, 512))
    names = {"5.branch.0", "6.branch.6"}
    for name in names:
        nn.init.kaiming_normal_(model.get_submodule(name).weight, nonlinearity="relu")
    return model, {f"{name}.weight" for name in names}, None


def fan_mode_everywhere():
    model = he_mlp(64, 256, 128, 512, 10)
    for layer in model[::2]:
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    init = partial(nn.init.kaiming_normal_, nonlinearity="relu")
    return model, {f"{n}.weight" for n in (0, 2, 4, 6)}, init


def residual_scaling():
    model = gpt2(width=64, heads=2, depth=12)
    names = {f"body.{n}.branch.out" for n in (4, 10, 18)}
    for name in names:
        nn.init.normal_(model.get_submodule(name).weight, std=0.02)
    return model, {f"{name}.weight" for name in names}, None


def drawn_as(dtype: torch.dtype):
    model = he_mlp(64, 256, 256, 256, 10)
    for layer in model[::2]:
        layer.weight.data = layer.weight.data.to(dtype).float()
    return model, {f"{n}.weight" for n in (0, 2, 4, 6)}, None


def coarse():
    model = he_mlp(64, 256, 256, 10).bfloat16()
    for layer in model[::2]:
        bound = layer.in_features**-0.5
        layer.weight.data = bound * (2 * torch.rand_like(layer.weight) - 1)
    return model, {"0.weight", "2.weight", "4.weight"}, None


def tied():
    model = gpt2()
    nn.init.normal_(model.tokens.weight)
    return model, {"tokens.weight", "head.weight"}, None


def untied():
    model = gpt_explicit()
    model.head.weight.data.copy_(model.tokens.weight.data)
    return model, {"tokens.weight", "head.weight"}, None


def copied_blocks():
    layer = nn.TransformerEncoderLayer(64, 2, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 3)
    random = [n for n, p in model.layers[0].named_parameters() if p.std() > 0]
    return model, {f"layers.{i}.{name}" for i in range(3) for name in random}, None


def trained() -> nn.Sequential:
    """A small convolutional network after 150 steps of Adam on digits."""
    model = nn.Sequential()
    channels = 1
    for width in (32, 64, 64):
        model += nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width))
        model += nn.Sequential(nn.ReLU())
        channels = width
    model += nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for x, y in data.load("digits").batches(128, 150, generator):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def half_loaded():
    model = trained()
    model[6].reset_parameters()
    return model, {"6.weight"}, None


def statistics_lost():
    model = trained()
    for norm in (model[1], model[4], model[7]):
        norm.reset_running_stats()
    return model, {"1", "4", "7"}, None


def not_finite():
    model = he_mlp(64, 128, 128, 128, 10)
    model[2].weight.data[3, 5] = math.nan
    return model, {"2.weight"}, None


def all_ones():
    model = he_mlp(64, 128, 128, 128, 10)
    nn.init.ones_(model[4].weight)
    return model, {"4.weight"}, None


def mis_scaled():
    model = he_mlp(64, 512, 256, 128, 10)
    model[4].weight.data *= 1.5
    return model, {"4.weight"}, None


def drawn_otherwise(draw: Callable[[Tensor], object]):
    """All linear layers of a transformer drawn by this, where normal_(0, 0.02) was meant."""
    model = vit()
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            draw(layer.weight)
    names = {name for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    init = apply_to(partial(nn.init.normal_, std=0.02), nn.Linear)
    return model, {f"{name}.weight" for name in names}, init


PLANTED = (
    Planted("head missed by the init function", "missed", missed_head),
    Planted("one linear layer missed", "missed", missed_inside),
    Planted("fan_in where siblings follow fan_out", "fan mode", fan_mode),
    Planted("fan_out, fan_in named", "fan mode", fan_mode_everywhere),
    Planted("residual scaling forgotten at 3 of 12", "residual scaling", residual_scaling),
    Planted("one hidden layer 1.5 times too large", "mis-scaled", mis_scaled),
    Planted(
        "variance for standard deviation, init named",
        "mis-scaled",
        partial(drawn_otherwise, partial(nn.init.normal_, std=0.0004)),
    ),
    Planted(
        "bound for standard deviation, init named",
        "mis-scaled",
        partial(drawn_otherwise, partial(nn.init.uniform_, a=-0.02, b=0.02)),
    ),
    Planted(
        "mean of 0.01, init named",
        "shifted",
        partial(drawn_otherwise, partial(nn.init.normal_, mean=0.01, std=0.02)),
    ),
    Planted("drawn in bfloat16", "low precision", partial(drawn_as, torch.bfloat16)),
    Planted("drawn in float16", "low precision", partial(drawn_as, torch.float16)),
    Planted("torch.rand in bfloat16", "low precision", coarse),
    Planted("embedding of std 1 tied to the head", "tied", tied),
    Planted("head copied from the embedding, not tied", "copied", untied),
    Planted("nn.TransformerEncoder copies its layers", "copied in sequence", copied_blocks),
    Planted("one layer of a checkpoint not loaded", "half loaded", half_loaded),
    Planted("running statistics not loaded", "running statistics", statistics_lost),
    Planted("one weight is NaN", "not finite", not_finite),
    Planted("weights all 1", "constant", all_ones),
)


def found(planted: Planted, seed: int) -> bool:
    """Whether exactly the planted fault is reported; prints what was."""
    torch.manual_seed(seed)
    model, names, init = planted.plant()
    faults = initialisation(copy.deepcopy(model), init).faults
    reported = {name for fault in faults for name in fault.parameters}
    right = {fault.kind for fault in faults} == {planted.kind} and reported == names
    kinds = "; ".join(f"{fault.kind}, {len(fault.parameters)}" for fault in faults) or "nothing"
    print(f"| {planted.name} | {kinds} | {'yes' if right else 'no'} |")
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few models")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print("| planted | reported, at how many parameters | found |")
    print("|---|---|---|")
    hits = [found(planted, seed) for seed, planted in enumerate(PLANTED[:: 9 if quick else 1])]
    names = QUICK_NAMES if quick else None
    alarms = false_alarms(len(names) if names else HEALTHY, names)
    assert all(hits)
    assert alarms <= 1


if __name__ == "__main__":
    main()
