"""Verdicts on well-known architectures, whole and broken in ten ways, beside short trainings.

Run ``python benchmarks/broken_architectures.py [--train] [NAME …]``; it prints the table of
``docs/trainability.md``: the probability that each network trains, and with ``--train`` its
progress, ln-loss below that of guessing, as a share of the whole network's, after 60 steps at the
best of five rates of AdamW. Images are scikit-learn's digits at 16 x 16 in three colours, texts
its descriptions of data, character by character; segmentation tells blank pixels from others.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures import ARCHITECTURES
from equipoise import data, diagnosis, models

STEPS, BATCH = 60, 32
QUICK = "transformer on images"
QUICK_CHANGES = ("none", "weights x 30")
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.InstanceNorm2d, nn.LayerNorm)
WEIGHTED = (nn.Linear, nn.Conv2d)

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Subject:
    """A network to be broken.

    Attributes:
        build: Makes it, from PyTorch's global generator.
        batches: Yields that many batches.
        loss: Of a model on a batch.
    """

    build: Callable[[], nn.Module]
    batches: Callable[[int], Iterator[Batch]]
    loss: Callable[[nn.Module, Any], Tensor]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu", help="where to train")
    args = parser.parse_args()
    print("| architecture | change | trains with | progress |", "|---|---|---|---|", sep="\n")
    for name, subject in subjects().items():
        if args.quick and name != QUICK:
            continue
        if not args.names or name in args.names:
            changes = QUICK_CHANGES if args.quick else ("none", *BROKEN)
            report(name, subject, changes, train=args.train, device=args.device)


def report(
    name: str, subject: Subject, changes: Sequence[str], *, train: bool, device: str
) -> None:
    """Print the rows of one architecture."""
    whole = 0.0
    for change in changes:
        torch.manual_seed(0)
        model = subject.build()
        batches = list(subject.batches(STEPS if train else 1))
        if change in BROKEN:
            BROKEN[change](model)
        if change == "inputs x 1000":
            if not batches[0][0].is_floating_point():
                continue
            batches = [(1000 * x, y) for x, y in batches]
        try:
            found = diagnosis.trainability(
                model, batches[:1], loss_fn=subject.loss, batch_size=BATCH, depth=False
            )
            chance = f"{found.probability:.3f} ({found.low:.3f} to {found.high:.3f})"
        except ValueError as error:
            chance = f"refused: {error}"
        progress = ""
        if train:
            there = [(x.to(device), y.to(device)) for x, y in batches]
            model.to(device)
            reached = max(gained(model, there, subject.loss, rate) for rate in RATES)
            whole = whole or reached
            progress = f"{reached / whole:.2f}"
        print(f"| {name} | {change} | {chance} | {progress} |", flush=True)


def gained(model: nn.Module, batches: list[Batch], loss_fn: Any, rate: float) -> float:
    """How far below that of guessing the loss falls; 0 if it does not."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    losses = []
    for batch in batches:
        loss = loss_fn(model, batch)
        if not torch.isfinite(loss):
            return 0.0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    targets = torch.cat([y.flatten() for _, y in batches])
    shares = torch.bincount(targets).double() / len(targets)
    guessing = float(-(shares[shares > 0] * shares[shares > 0].log()).sum())
    last = losses[-STEPS // 5 :]
    return max(0.0, guessing - math.fsum(last) / len(last))


def of_kind(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> list[nn.Module]:
    """All modules of some classes, in order."""
    return [module for module in model.modules() if isinstance(module, kinds)]


def scaled(factor: float) -> Callable[[nn.Module], None]:
    """Multiply all weights."""

    def change(model: nn.Module) -> None:
        for module in of_kind(model, WEIGHTED):
            module.weight.data.mul_(factor)

    return change


def dead(model: nn.Module) -> None:
    """Shift all that norms, and layers with a bias, return by -20."""
    for module in of_kind(model, (*NORMS, *WEIGHTED)):
        if module.bias is not None:
            module.bias.data.fill_(-20.0)


def zero_scale(model: nn.Module) -> None:
    """Start the scale of all norms at 0."""
    for module in of_kind(model, NORMS):
        module.weight.data.zero_()


def missed(model: nn.Module) -> None:
    """Leave every second matrix a hundred times too small."""
    for module in of_kind(model, WEIGHTED)[::2]:
        module.weight.data.mul_(0.01)


def large_head(model: nn.Module) -> None:
    """Make the last layer's weights 300 times larger."""
    of_kind(model, WEIGHTED)[-1].weight.data.mul_(300)


def without_norms(model: nn.Module) -> None:
    """Take all norms away, and double the weights."""
    _exchange(model, NORMS, lambda module: nn.Identity())
    scaled(2.0)(model)


def large_eps(model: nn.Module) -> None:
    """Add 10,000 to every variance."""
    for module in of_kind(model, NORMS):
        module.eps = 1e4


def saturated(model: nn.Module) -> None:
    """Hard sigmoids that all inputs lie beyond, in the place of activations."""
    _exchange(model, (nn.ReLU, nn.GELU, nn.SiLU), lambda module: Saturated())
    for layer in of_kind(model, (nn.TransformerEncoderLayer,)):
        layer.activation = Saturated()


class Saturated(nn.Module):
    """A sigmoid of 50 times its input, plus 5."""

    def forward(self, x: Tensor) -> Tensor:
        """Saturate."""
        return torch.sigmoid(50 * x) + 5


def _exchange(
    model: nn.Module,
    kinds: tuple[type[nn.Module], ...],
    make: Callable[[nn.Module], nn.Module],
) -> None:
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, kinds):
                setattr(parent, name, make(child))


BROKEN: dict[str, Callable[[nn.Module], None]] = {
    "shifts of -20": dead,
    "scales of 0": zero_scale,
    "weights x 30": scaled(30.0),
    "weights / 1000": scaled(1e-3),
    "every second matrix / 100": missed,
    "head x 300": large_head,
    "inputs x 1000": lambda model: None,
    "no norms, weights x 2": without_norms,
    "eps of 10000": large_eps,
    "saturated activations": saturated,
}


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Digits at 16 x 16 in three colours."""
    source = data.load("digits")
    assert isinstance(source, data.Samples)
    return F.interpolate(source.inputs, scale_factor=2).expand(-1, 3, -1, -1), source.targets


def images(count: int) -> Iterator[Batch]:
    """Digits with their classes."""
    x, y = digits()
    for chosen in torch.randint(len(x), (count, BATCH)):
        yield x[chosen], y[chosen]


def segmentations(count: int) -> Iterator[Batch]:
    """Digits with 1 at every pixel that is not blank."""
    for x, _ in images(count):
        yield x, (x[:, 0] > x.min()).long()


def texts(count: int) -> Iterator[Batch]:
    """Windows of 32 characters, and the next one of each."""
    names = sorted(files("sklearn.datasets.descr").iterdir(), key=lambda item: item.name)
    raw = "".join(n.read_text(encoding="utf-8") for n in names if n.name.endswith(".rst"))
    codes = torch.tensor([min(ord(letter), 99) for letter in raw])
    for starts in torch.randint(len(codes) - 33, (count, BATCH)):
        windows = torch.stack([codes[start : start + 33] for start in starts.tolist()])
        yield windows[:, :-1], windows[:, 1:]


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Of logits with the classes second."""
    return F.cross_entropy(model(batch[0]), batch[1])


def subjects() -> dict[str, Subject]:
    """The five, small enough to be trained."""
    known = {one.name: one for one in ARCHITECTURES}
    gpt, unet = known["gpt2"], known["unet_batch_norm"]
    vit = models.transformer_classifier(48, 10, tokens=16, depth=6)
    return {
        "ResNet-18": Subject(lambda: models.resnet18(width=16), images, cross_entropy),
        "pre-activation ResNet-110": Subject(
            lambda: models.resnet_cifar(110, preactivation=True), images, cross_entropy
        ),
        "transformer on images": Subject(lambda: copy.deepcopy(vit), images, cross_entropy),
        "GPT": Subject(gpt.build, texts, gpt.loss),
        "U-Net": Subject(unet.build, segmentations, cross_entropy),
    }


if __name__ == "__main__":
    main()
