"""What others compute of an untrained network to tell how it will train, larger for better.

Scores of architecture search were made to rank networks of one search space, not to say whether
one trains; they are computed here as published, on the network's own weights and one batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.instrument import Batch
from equipoise.training import cross_entropy
from equipoise_papers.trainability.build import Characters

# Of logarithms of what may be 0.
_TINY = 1e-300
_JACOBIAN_SHIFT = 1e-5
_PERTURBATION = 1e-2
_DIRECTION = 1e-3


@dataclass(slots=True)
class Untrained:
    """A network before training, with one batch of its data.

    Args:
        model: Stem, blocks and head, in training mode, in float64.
        batch: Inputs and targets.
    """

    model: nn.Sequential
    batch: Batch

    @property
    def embedded(self) -> Tensor:
        """Inputs that have derivatives: characters as embedded ones."""
        stem = self.model[0]
        x: Tensor = stem(self.batch[0]) if isinstance(stem, Characters) else self.batch[0].double()
        return x.detach()

    def after_embedding(self, x: Tensor) -> Tensor:
        """Logits of what :attr:`embedded` returns."""
        start = 1 if isinstance(self.model[0], Characters) else 0
        logits: Tensor = self.model[start:](x)
        return logits


Score = Callable[[Untrained], float]


def trainable_depth(network: Untrained) -> float:
    r"""Minus the depth in units of ξ: :math:`-L\,|\log\lambda|` [yang2019].

    λ is the rate at which squared gradient norms grow over the blocks, by least squares; 16ξ is
    the depth at which this score is -16.
    """
    with _outputs(network.model[1]) as outputs:
        loss = cross_entropy(network.model, network.batch)
    gradients = torch.autograd.grad(loss, outputs, allow_unused=True)
    logs = np.array([_log(g.square().sum()) for g in gradients if g is not None])
    if len(logs) < 2:
        return 0.0
    slope = np.polyfit(np.arange(len(logs)), logs, 1)[0]
    return float(-abs(slope) * len(logs))


def gradient_ratio(network: Untrained) -> float:
    """Minus the largest difference of logarithms of the gradients' norms of two layers."""
    norms = [_log(gradient.norm()) for _, gradient in _weights(network)]
    return min(norms) - max(norms)


def dead_units(network: Untrained) -> float:
    """Minus the share of units behind activations that are the same for the whole batch."""
    dead = units = 0
    with _outputs(network.model, _is_activation) as outputs, torch.no_grad():
        network.model(network.batch[0])
    for output in outputs:
        axis = 1 if output.ndim == 4 else -1
        rows = output.detach().movedim(axis, -1).flatten(0, -2)
        dead += int((rows.std(0) <= 1e-6 * rows.square().mean().sqrt()).sum())
        units += rows.shape[-1]
    return -dead / max(units, 1)


def grad_norm(network: Untrained) -> float:
    """Logarithm of the sum of all gradients' norms [abdelfattah2021]."""
    return _log(sum(gradient.norm() for _, gradient in _weights(network)))


def snip(network: Untrained) -> float:
    """Logarithm of the sum of weights times gradients, in absolute value [lee2019]."""
    return _log(sum((w * g).abs().sum() for w, g in _weights(network)))


def synflow(network: Untrained) -> float:
    """Logarithm of the sum of weights times gradients of the sum of outputs [tanaka2020].

    Weights are replaced by their absolute values and inputs by ones; batch norm divides by its
    running statistics, which are 1.
    """
    model = copy.deepcopy(network.model).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.abs_()
    other = Untrained(model, network.batch)
    output = other.after_embedding(torch.ones_like(network.embedded)[:1]).sum()
    weights = [p for p in model.parameters() if p.ndim > 1]
    gradients = torch.autograd.grad(output, weights, allow_unused=True)
    pairs = zip((w.detach() for w in weights), gradients, strict=True)
    return _log(sum((w * g).sum() for w, g in pairs if g is not None))


def jacob_cov(network: Untrained) -> float:
    """Spread of the eigenvalues of the correlations of input gradients [mellor2020]."""
    x = network.embedded.requires_grad_()
    (jacobian,) = torch.autograd.grad(network.after_embedding(x).sum(), x)
    with np.errstate(invalid="ignore", divide="ignore"):  # rows without any gradient
        correlations = np.nan_to_num(np.corrcoef(jacobian.flatten(1).numpy()))
    values = np.linalg.eigvalsh(np.atleast_2d(correlations)) + _JACOBIAN_SHIFT
    values = np.maximum(values, _JACOBIAN_SHIFT / 2)
    return float(-(np.log(values) + 1 / values).sum() / len(values))


def naswot(network: Untrained) -> float:
    """Log-determinant of how often two samples have units on the same side of 0 [mellor2021]."""
    with _inputs(network.model, _is_activation) as inputs, torch.no_grad():
        network.model(network.batch[0])
    codes = torch.cat([(x.detach() > 0).flatten(1).double() for x in inputs], 1)
    kernel = (codes @ codes.T + (1 - codes) @ (1 - codes).T) / codes.shape[1]
    return float(torch.linalg.slogdet(kernel)[1].clamp_min(-1e4) / len(codes))


def zen_score(network: Untrained) -> float:
    """Logarithm of the outputs' change with noise, batch norms' scales added [lin2021]."""
    generator = torch.Generator().manual_seed(0)
    like = network.embedded
    x, noise = (torch.randn(like.shape, generator=generator, dtype=like.dtype) for _ in "xe")
    with _inputs(network.model, _is_batch_norm) as inputs, torch.no_grad():
        first = network.after_embedding(x)
    with torch.no_grad():
        second = network.after_embedding(x + _PERTURBATION * noise)
    scales = [h.transpose(0, 1).flatten(1).var(1, correction=0).mean().sqrt() for h in inputs]
    return _log((second - first).norm()) + sum(map(_log, scales))


def slope_of_correlations(network: Untrained) -> float:
    r"""Minus :math:`|\log C'(1)|`, where C maps correlations of inputs to those of outputs.

    The slope at 1 is by how much two nearly equal inputs are driven apart [martens2021].
    """
    x = network.embedded
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    nudge = _DIRECTION * x.square().mean().sqrt() * noise
    with torch.no_grad():
        before, after = (network.after_embedding(z) for z in (x, x + nudge))
    grown = (after - before).square().sum() / before.square().sum()
    return -abs(_log(grown) - _log(nudge.square().sum() / x.square().sum()))


SCORES: dict[str, Score] = {
    "depth over ξ": trainable_depth,
    "gradient ratio": gradient_ratio,
    "dead units": dead_units,
    "grad_norm": grad_norm,
    "snip": snip,
    "synflow": synflow,
    "jacob_cov": jacob_cov,
    "NASWOT": naswot,
    "Zen-score": zen_score,
    "C-map slope": slope_of_correlations,
}


def scores(model: nn.Sequential, batch: Batch) -> dict[str, float]:
    """All scores of a network, which is not changed.

    Args:
        model: Stem, blocks and head.
        batch: Inputs and targets.
    """
    x, y = batch
    own = copy.deepcopy(model).double().train()
    return {
        name: score(Untrained(own, (x.double() if x.is_floating_point() else x, y)))
        for name, score in SCORES.items()
    }


def _weights(network: Untrained) -> list[tuple[Tensor, Tensor]]:
    """Matrices of weights with their gradients."""
    weights = [p for p in network.model.parameters() if p.ndim > 1]
    loss = cross_entropy(network.model, network.batch)
    gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
    return [(w.detach(), g) for w, g in zip(weights, gradients, strict=True)]


def _log(value: Tensor | float) -> float:
    number = float(value.detach() if isinstance(value, Tensor) else value)
    return math.log(max(number, _TINY)) if math.isfinite(number) else math.log(1e300)


def _is_activation(module: nn.Module) -> bool:
    return type(module).__module__ == "torch.nn.modules.activation"


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)


@contextmanager
def _outputs(
    model: nn.Module, wanted: Callable[[nn.Module], bool] | None = None
) -> Iterator[list[Tensor]]:
    """Outputs of a model's wanted modules, or of its children, in order."""
    found: list[Tensor] = []
    modules = model.children() if wanted is None else filter(wanted, model.modules())
    hooks = [m.register_forward_hook(lambda _m, _x, y: found.append(y)) for m in modules]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _inputs(model: nn.Module, wanted: Callable[[nn.Module], bool]) -> Iterator[list[Tensor]]:
    """Inputs of a model's wanted modules, in order."""
    found: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _m, x, _y: found.append(x[0]))
        for module in filter(wanted, model.modules())
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
