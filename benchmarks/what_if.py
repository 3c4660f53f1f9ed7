"""What-if answers, against models that were really changed.

Run ``python benchmarks/what_if.py [--quick] [NAME …]``; it prints the table of
``docs/propagation.md``. A model is traced once for each of three initialisations, and asked what
would be if it were another one. That other one is built and traced as well, on a batch of its own.
Compared at every operation that both have, by module: the mean squared gradient as asked for, with
the prediction for the other model and with what is measured on it, and for scale the prediction
with the measurement. Errors are logarithms of ratios, averaged over initialisations.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import Any

import torch
from torch import Tensor, nn

from architectures import ARCHITECTURES, Architecture
from architectures._architecture import cross_entropy, images
from architectures._parts import Residual, Times
from architectures.others import GIN, residual_mlp
from architectures.transformers import gpt_explicit, mixer, vit
from equipoise import models
from equipoise.instrument.recording.graph import Graph
from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import Propagation, propagate
from equipoise.theory.propagation.sites import Site

SEEDS = 3
BATCH_SIZE = 16  # of the model that is asked
QUICK = ("residual_mlp",)

Build = Callable[[], nn.Module]
Key = tuple[str, str, int]


@dataclass(frozen=True)
class Case:
    """A question, and the model that is its answer.

    Attributes:
        name: Of the model that is asked.
        changes: What it is asked.
        changed: Builds the model that it would be.
    """

    name: str
    changes: dict[str, Any]
    changed: Build


MODELS = {
    **{architecture.name: architecture for architecture in ARCHITECTURES},
    "batch_norm_mlp": Architecture(
        "batch_norm_mlp", partial(models.mlp, 3072, 10, depth=8, width=256), images, cross_entropy
    ),
}


def swapped(build: Build, kind: type[nn.Module], make: Callable[[Any], nn.Module]) -> nn.Module:
    """The model with other modules in the place of those of one kind."""
    model = build()
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, kind):
                setattr(parent, name, make(child))
    return model


@torch.no_grad()
def adjusted(
    build: Build, kind: type[nn.Module] | UnionType, adjust: Callable[[Any], object]
) -> nn.Module:
    """The model after a change of its modules of one kind."""
    model = build()
    for module in model.modules():
        if isinstance(module, kind):
            adjust(module)
    return model


def _case(name: str, changed: Build | None = None, **changes: Any) -> Case:
    return Case(name, changes, changed or MODELS[name].build)


def with_activation(name: str, old: type[nn.Module], new: Build, word: str) -> Case:
    """A question about an activation."""
    return _case(name, partial(swapped, MODELS[name].build, old, lambda _: new()), activation=word)


def with_norm(
    name: str, old: type[nn.Module], make: Callable[[Any], nn.Module], **how: Any
) -> Case:
    """A question about a norm."""
    return _case(name, partial(swapped, MODELS[name].build, old, make), **how)


def with_adjusted(
    name: str, kind: type[nn.Module] | UnionType, adjust: Callable[[Any], object], **how: Any
) -> Case:
    """A question about numbers."""
    return _case(name, partial(adjusted, MODELS[name].build, kind, adjust), **how)


def _groups(norm: Any) -> nn.Module:
    return nn.GroupNorm(32, norm.num_features, eps=norm.eps)


def _rms(norm: Any) -> nn.Module:
    return nn.RMSNorm(norm.normalized_shape, eps=norm.eps)


def _layer_norm(norm: Any) -> nn.Module:
    return nn.LayerNorm(norm.num_features, eps=norm.eps)


def _one_group(norm: Any) -> nn.Module:
    return nn.GroupNorm(1, norm.num_features, eps=norm.eps)


def _instances(norm: Any) -> nn.Module:
    return nn.InstanceNorm2d(norm.num_features, eps=norm.eps, affine=True)


def _fill(name: str, value: float) -> Callable[[nn.Module], Tensor]:
    return lambda module: getattr(module, name).fill_(value)


def _set(name: str, value: object) -> Callable[[nn.Module], None]:
    return lambda module: setattr(module, name, value)


def _scale_branch(factor: float) -> Callable[[Any], object]:
    def scale(block: Any) -> None:
        block.after_branch = Times(factor)
        block.branch.register_forward_hook(lambda _, __, output: block.after_branch(output))

    return scale


def _multiply_weights(factor: float) -> Callable[[Any], Tensor]:
    return lambda layer: layer.weight.mul_(factor)


def _gelu_with_shift(build: Build) -> nn.Module:
    model = swapped(build, nn.ReLU, lambda _: nn.GELU())
    return adjusted(lambda: model, nn.BatchNorm1d, _fill("bias", 0.5))


_mlp = partial(models.mlp, 3072, 10)

CASES = (
    with_activation("residual_mlp", nn.ReLU, nn.GELU, "gelu"),
    with_norm("residual_mlp", nn.LayerNorm, _rms, norm="rms"),
    with_adjusted("residual_mlp", Residual, _scale_branch(0.1), residual_scale=0.1),
    with_adjusted("residual_mlp", nn.Linear, _multiply_weights(2), gain=2.0),
    _case("residual_mlp", partial(residual_mlp, depth=18), depth=3),
    _case("residual_mlp", partial(residual_mlp, width=512), width=2),
    _case("residual_mlp", batch_size=4),
    with_activation("batch_norm_mlp", nn.ReLU, nn.Tanh, "tanh"),
    with_norm("batch_norm_mlp", nn.BatchNorm1d, _layer_norm, norm="layer"),
    with_norm("batch_norm_mlp", nn.BatchNorm1d, lambda _: nn.Identity(), norm="none"),
    with_adjusted("batch_norm_mlp", nn.BatchNorm1d, _fill("bias", 1.0), beta=1.0),
    with_adjusted("batch_norm_mlp", nn.BatchNorm1d, _set("eps", 0.1), eps=0.1),
    _case("batch_norm_mlp", partial(_mlp, depth=15, width=256), depth=2),
    _case("batch_norm_mlp", partial(_mlp, depth=8, width=512), width=2),
    _case("batch_norm_mlp", batch_size=64),
    _case(
        "batch_norm_mlp",
        partial(_gelu_with_shift, MODELS["batch_norm_mlp"].build),
        activation="gelu",
        beta=0.5,
        batch_size=32,
    ),
    with_norm("resnet18", nn.BatchNorm2d, _groups, norm="group", groups=32),
    with_adjusted("resnet18", nn.BatchNorm2d, _fill("weight", 0.5), gamma=0.5),
    _case("resnet18", batch_size=64),
    with_activation("resnet50", nn.ReLU, nn.SiLU, "silu"),
    with_norm("mobilenet_v2", nn.BatchNorm2d, _one_group, norm="layer"),
    with_activation("vgg11", nn.ReLU, nn.Tanh, "tanh"),
    with_adjusted("vgg11", nn.Conv2d | nn.Linear, _multiply_weights(1.5), gain=1.5),
    with_activation("convnext_without_layer_scale", nn.GELU, nn.ReLU, "relu"),
    with_norm("dcgan_discriminator", nn.BatchNorm2d, _instances, norm="instance"),
    _case("gin", partial(GIN, width=256), width=2),
    _case("vit", partial(vit, depth=8), depth=2),
    _case(
        "vit",
        partial(adjusted, partial(vit, width=256), nn.Linear, _multiply_weights(0.5**0.5)),
        width=2,
    ),
    _case("mlp_mixer", partial(mixer, depth=8), depth=2),
    _case("gpt_explicit", partial(gpt_explicit, depth=8), depth=2),
    with_norm("gpt_explicit", nn.LayerNorm, _rms, norm="rms"),
    with_adjusted("gpt2", Residual, _scale_branch(0.5), residual_scale=0.5),
)


def graph_of(model: Architecture, build: Build, batch_size: int, seed: int) -> Graph:
    """One traced pass."""
    torch.manual_seed(seed)
    batch = model.batch(batch_size, torch.Generator().manual_seed(seed))
    return trace(build(), batch, model.loss)


def keyed(found: Propagation) -> dict[Key, Site]:
    """Sites by module, operation and which of its kind in the module it is."""
    seen: Counter[tuple[str, str]] = Counter()
    sites = {}
    for site in found.sites:
        if site.operation == "detach":  # for autograd's sake
            continue
        place = site.module, site.operation
        sites[(*place, seen[place])] = site
        seen[place] += 1
    return sites


def answers(case: Case, seeds: int) -> Iterator[tuple[dict[Key, Site], dict[Key, Site], float]]:
    """Sites as asked for, those of the other model, and seconds, of every initialisation."""
    model = MODELS[case.name]
    for seed in range(seeds):
        asked = propagate(graph_of(model, model.build, BATCH_SIZE, seed))
        begin = time.perf_counter()
        answer = asked.what_if(**case.changes)
        seconds = time.perf_counter() - begin
        size = case.changes.get("batch_size", BATCH_SIZE)
        yield keyed(answer), keyed(propagate(graph_of(model, case.changed, size, seed))), seconds


def log_ratio(first: float | None, second: float | None) -> float | None:
    """The logarithm of a ratio, if there is one."""
    return math.log(first / second) if first and second else None


@dataclass(frozen=True)
class Errors:
    """Mean absolute errors of all operations.

    Attributes:
        q: Second moments as asked for, against those predicted for the other model.
        predicted: The same for gradients.
        measured: Gradients as asked for, against those measured on the other model.
        prediction: Gradients predicted for the other model, against the same.
        seconds: That an answer takes.
    """

    q: list[float]
    predicted: list[float]
    measured: list[float]
    prediction: list[float]
    seconds: float


def errors(case: Case, seeds: int) -> Errors:
    """Compare an answer with the model that it is about."""
    found: dict[str, dict[Key, list[float]]] = defaultdict(lambda: defaultdict(list))
    seconds = []
    for answer, real, duration in answers(case, seeds):
        seconds.append(duration)
        for key in answer.keys() & real.keys():
            ours, theirs = answer[key], real[key]
            if theirs.is_start:
                continue
            for name, ratio in (
                ("q", log_ratio(ours.second_moment, theirs.second_moment)),
                ("predicted", log_ratio(ours.gradient, theirs.gradient)),
                ("measured", log_ratio(ours.gradient, theirs.measured_gradient)),
                ("prediction", log_ratio(theirs.gradient, theirs.measured_gradient)),
            ):
                if ratio is not None:
                    found[name][key].append(ratio)
    means = {
        name: [abs(statistics.mean(ratios)) for ratios in by_key.values()]
        for name, by_key in found.items()
    }
    return Errors(**means, seconds=statistics.median(seconds))


def row(case: Case, found: Errors) -> str:
    """One line of the table."""
    changes = ", ".join(f"{name}={value!r}" for name, value in case.changes.items())
    cells = [
        f"{statistics.median(part):.3f}, {max(part):.3f}"
        for part in (found.q, found.predicted, found.measured, found.prediction)
    ]
    return (
        f"| {case.name} | `{changes}` | {len(found.predicted)} | {' | '.join(cells)} | "
        f"{1000 * found.seconds:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="models that are asked; all by default")
    parser.add_argument("--quick", action="store_true", help="two questions, one seed")
    arguments = parser.parse_args()
    names = arguments.names or (QUICK if arguments.quick else list(MODELS))
    unknown = set(names) - set(MODELS)
    if unknown:
        parser.error(f"no model {sorted(unknown)}; there are {list(MODELS)}")
    torch.set_num_threads(1)
    print(
        "| model | what if | operations | q | ln G, to the prediction | to the measurement | "
        "prediction to measurement | ms |"
    )
    print("|---|---|---|---|---|---|---|---|")
    cases = [case for case in CASES if case.name in names]
    for case in cases[:2] if arguments.quick else cases:
        found = errors(case, 1 if arguments.quick else SEEDS)
        print(row(case, found), flush=True)
        assert statistics.median(found.q) < 0.02, "second moments are not the other model's"
        assert statistics.median(found.predicted) < 0.15, "gradients are not the other model's"


if __name__ == "__main__":
    main()
