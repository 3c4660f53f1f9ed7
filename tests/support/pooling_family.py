"""The second-order heads, as every contract test meets them."""

from dataclasses import dataclass, field
from typing import Any

import torch

from equipoise.pooling.heads.base import PoolingHead
from equipoise.pooling.heads.bilinear import BilinearPool
from equipoise.pooling.heads.compact import CompactBilinearPool
from equipoise.pooling.heads.isqrt import ISQRTPool
from equipoise.pooling.heads.log_euclidean import LogEuclideanPool
from equipoise.pooling.heads.matrix_power import MatrixPowerPool
from equipoise.pooling.heads.run import RUNPool
from support.cases import each

CHANNELS = 4


@dataclass(frozen=True)
class Member:
    """A head and its options; ``drawn`` are the buffers that depend on the seed."""

    kind: type[PoolingHead]
    options: dict[str, Any] = field(default_factory=dict)
    drawn: tuple[str, ...] = ()


START = ("run.start_vector",)
HASHES = ("sketch.places", "sketch.signs", "sketch.reached")
SKETCH = {"size": 16}
MACLAURIN = {"size": 16, "method": "random_maclaurin"}

FAMILY = {
    "bilinear": Member(BilinearPool),
    "bilinear full": Member(BilinearPool, {"vector": "full"}),
    "RUN": Member(RUNPool, {}, START),
    "RUN mean": Member(RUNPool, {"start": "mean", "num_steps": 1, "epsilon": 0.9}, START),
    "RUN ones": Member(RUNPool, {"start": "ones", "preserve_inner_products": True}),
    "RUN given": Member(RUNPool, {"start": torch.tensor([1.0, -2.0, 0.5, 3.0]), "eta": 0.9}),
    "iSQRT": Member(ISQRTPool),
    "iSQRT frobenius": Member(ISQRTPool, {"prenormalise": "frobenius", "iterations": 3}),
    "power": Member(MatrixPowerPool),
    "power 0.7": Member(MatrixPowerPool, {"exponent": 0.7, "relative_cutoff": 1e-6}),
    "log": Member(LogEuclideanPool, {"eps": 0.1}),
    "sketch": Member(CompactBilinearPool, {**SKETCH, "route": "gram"}, (*START, *HASHES)),
    "sketch fft": Member(CompactBilinearPool, {**SKETCH, "route": "fft"}, (*START, *HASHES)),
    "sketch alone": Member(CompactBilinearPool, {**SKETCH, "run": False}, HASHES),
    "maclaurin": Member(
        CompactBilinearPool, {**MACLAURIN, "route": "gram"}, (*START, "sketch.signs")
    ),
    "maclaurin direct": Member(
        CompactBilinearPool, {**MACLAURIN, "route": "direct"}, (*START, "sketch.signs")
    ),
}
every = each("member", FAMILY.values(), ids=FAMILY)
# A given start has as many entries as there are channels, whatever the reduction.
REDUCIBLE = {name: member for name, member in FAMILY.items() if name != "RUN given"}
every_reducible = each("member", REDUCIBLE.values(), ids=REDUCIBLE)


def build(member, *, dtype=torch.float64, **options):
    """A head in evaluation mode, whose reduction, if any, has met a batch before."""
    head = member.kind(CHANNELS, **{**member.options, **options}).to(dtype)
    if head.reduction is not None:
        norm = head.reduction.norm
        norm.running_mean.copy_(torch.linspace(-0.2, 0.1, len(norm.running_mean)))
        norm.bias.data.fill_(0.3)
    return head.eval()


def maps(samples=3, size=(3, 4), *, channels=CHANNELS, seed=0, dtype=torch.float64):
    """Rectified features, as networks give them, with a common direction."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, channels, *size, generator=generator, dtype=torch.float64)
    return (x.relu() + 0.1).to(dtype)


def both_ways(head, x, mask=None, *, seed=9):
    """Vectors, and the gradient of a random functional of them."""
    x = x.detach().requires_grad_()
    y = head(x, mask)
    generator = torch.Generator().manual_seed(seed)
    G = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(y, x, G.to(y))
    return y.detach(), gradient
