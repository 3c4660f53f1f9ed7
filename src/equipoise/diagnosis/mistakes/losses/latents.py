r"""Divergences of latent variables that pull the wrong way, too hard, or hardly.

A variational autoencoder draws :math:`z = \mu + \sigma\varepsilon`, and its loss adds to the error
of what is decoded

.. math:: w \cdot \mathrm{KL} = \tfrac{w}{2} \sum (\mu^2 + \sigma^2 - 1 - \log \sigma^2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.repeated import loss_with
from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of
from equipoise.diagnosis.sources import DRAWN, PRODUCTS, either_way, following
from equipoise.instrument.recording.graph import Made, Node
from equipoise.records import wording
from equipoise.records.finding import Finding

# How many times as far means are moved, to see how the loss grows with them: by the square.
_FAR, _FARTHER, _SQUARE = 100.0, 1000.0, 0.02
# How far logarithms of deviations are moved, and which part of the change expected there tells.
_LOG_FAR, _PART = 5.0, 0.1
# How far both weights of the divergence may be apart, near and far, that the collapse is sure of.
_NEAR, _ALIKE = 2.0, 0.2
# Where the divergence counts otherwise near zero.
_BENDING = {"abs", "clamp", "clamp_min", "maximum", "relu", "threshold", "softplus"}
# Samples of which the spread of targets is known.
_ENOUGH = 16
# By how much the divergence may weigh less than where nothing pays any more, and be found.
_SURE = 2.0
# Multiplications, and numbers at once, that trying answers may take.
_EFFORT, _NUMBERS = 1e9, 2e7
# Parts of the way from the mean to a sample at which codes are tried.
_PARTS = (0.25, 0.5, 1.0)
# Noise, as a part of the variance, that nobody means to model.
_SLIGHT = 3e-4
# By which the weights of numbers may differ.
_ROUNDING = 1e-3


def of_latents(traced: TracedPass) -> list[Finding]:
    """A divergence that is subtracted, outweighs all that decoding can win, or hardly counts."""
    draws = list(_draws(traced))
    found = _divergence(draws[0], traced) if len(draws) == 1 else None
    return [] if found is None else [found]


@dataclass(frozen=True, slots=True)
class _Draw:
    """Numbers drawn from a law that weights make.

    Args:
        node: Adds both.
        mean: The mean.
        deviation: What random numbers are multiplied by.
    """

    node: Node
    mean: Made
    deviation: Made


def _draws(traced: TracedPass) -> Iterator[_Draw]:
    """Those that later layers take."""
    for node in traced.graph.nodes:
        if node.name != "add" or len(node.inputs) != 2 or node.number not in traced.before_layers:
            continue
        for mean, noise in either_way(node):
            scaled = traced.origin_of(noise)
            if not isinstance(mean, Made) or scaled is None or scaled.name != "mul":
                continue
            if not traced.depends_on_weights(mean) or len(scaled.inputs) != 2:
                continue
            for deviation, drawn in either_way(scaled):
                origin = traced.origin_of(drawn)
                if origin is None or origin.name not in DRAWN or not isinstance(deviation, Made):
                    continue
                if traced.depends_on_weights(deviation):
                    yield _Draw(node, mean, deviation)


def _divergence(draw: _Draw, traced: TracedPass) -> Finding | None:
    """What the loss does where the law moves, and what is decoded stays as it is."""
    graph = traced.graph
    fixed = {node.number for node in graph.nodes if node.name in PRODUCTS}
    mean = traced.tensor(draw.mean).detach()
    half = 0.5 * float(mean.double().square().sum()) / len(mean)
    if not (half > 0 and math.isfinite(half)):
        return None

    def change(made: Made, value: Tensor) -> float:
        return loss_with(graph, {made: value}, fixed) - graph.loss

    far, farther = (change(draw.mean, by * mean) for by in (_FAR, _FARTHER))
    expected = (_FARTHER**2 - 1) / (_FAR**2 - 1)
    if not abs(farther - expected * far) <= _SQUARE * abs(farther) or far == 0:
        return None
    weight = farther / ((_FARTHER**2 - 1) * half)
    if weight < 0:
        return _finding_of_sign("It falls with the square of the means, without bound", draw)
    logarithm, factor = _logarithm(draw.deviation, traced)
    deviation = traced.tensor(logarithm).detach()

    def moved(by: float) -> Tensor:
        return deviation + by / factor if factor else deviation * math.exp(by)

    count = deviation.numel() / len(deviation)
    size = float(traced.tensor(draw.deviation).detach().double().square().mean())
    rise = weight * count * 0.5 * size * math.exp(2 * _LOG_FAR)
    if change(logarithm, moved(_LOG_FAR)) < -_PART * rise:
        return _finding_of_sign("It falls with the variances, without bound", draw)
    if change(logarithm, moved(-_LOG_FAR)) < -_PART * weight * count * _LOG_FAR:
        return _finding_of_sign("It falls as the variances go to zero, without bound", draw)
    slight = _slight(weight, draw, traced)
    if slight is not None:
        return slight
    near = change(draw.mean, _NEAR * mean) / ((_NEAR**2 - 1) * half)
    if not abs(near - weight) <= _ALIKE * weight or _bends(draw, fixed, traced):
        return None
    return _collapse(weight, draw, traced)


def _finding_of_sign(detail: str, draw: _Draw) -> Finding:
    return Finding(
        "critical",
        "The divergence of the latent variables has the wrong sign",
        f"It is to keep means and variances of what is drawn{place_of(draw.node)} near 0 and "
        f"1. {detail}.",
        "loss = reconstruction + (-0.5 * (1 + logvar - mu**2 - logvar.exp())).sum(1).mean()",
    )


def _logarithm(deviation: Made, traced: TracedPass) -> tuple[Made, float]:
    """What the deviation is the exponential of, and times what; itself and 0 if of nothing."""
    made, factor = deviation, 1.0
    found: tuple[Made, float] = (deviation, 0.0)
    is_inside = False
    while True:
        node = traced.nodes[made.node]
        if len(node.inputs) != 1 or not isinstance(source := node.inputs[0], Made):
            return found
        if node.name == "exp" and not is_inside:
            is_inside, found = True, (source, factor)
        elif not is_inside and (
            node.name == "sqrt" or (node.name == "pow" and node.arguments[1] == 0.5)
        ):
            factor *= 0.5
        elif node.name in ("mul", "div") and is_inside and (number := float(node.arguments[1])):
            factor *= number if node.name == "mul" else 1 / number
            found = (source, factor)
        else:
            return found
        made = source


def _bends(draw: _Draw, fixed: Set[int], traced: TracedPass) -> bool:
    """Whether the divergence goes through what cuts or turns it, as free bits do."""
    open_ones = [node for node in traced.graph.nodes if node.number not in fixed]
    first = [node for node in open_ones if draw.mean in node.inputs]
    behind = (*first, *following((node.number for node in first), open_ones))
    return any(node.name in _BENDING and node.outputs[0].requires_grad for node in behind)


def _collapse(weight: float, draw: _Draw, traced: TracedPass) -> Finding | None:
    """A divergence so dear that the best encoder tells nothing, by the theory of rate and error.

    With error d(x, y), no code is worth its price if, for all y, the mean over samples x of
    exp((d(x, mean) - d(x, y)) / weight) is at most 1.
    """
    compared = _only_comparison(draw, traced)
    if compared is None:
        return None
    targets, gains = compared
    price = weight / _SURE
    mean = targets.mean(0, keepdim=True)
    directions = torch.cat([targets - mean, _main_directions(targets - mean)])
    for part in _PARTS:
        won = gains(targets, mean + part * directions) - gains(targets, mean)
        if bool((torch.logsumexp(won / price, 0) > math.log(len(targets))).any()):
            return None
    most = float((gains(targets, targets).diagonal() - gains(targets, mean)[:, 0]).mean())
    return Finding(
        "critical",
        "The latent variables will tell nothing: their divergence costs too much",
        f"One nat of what is drawn{place_of(draw.node)} costs {wording.number(weight)}, and "
        f"decoding everything without an error would win {wording.number(most)}: the loss is "
        "least where the encoder gives all samples the same law.",
        "Sum both terms alike: the error over all numbers of a sample and the divergence over its "
        "latent variables, and average over samples; or multiply the divergence by less.",
    )


def _slight(weight: float, draw: _Draw, traced: TracedPass) -> Finding | None:
    """A divergence that counts as if the data were known to a small part of their spread."""
    compared = _only_comparison(draw, traced)
    if compared is None:
        return None
    targets, gains = compared
    mean = targets.mean(0, keepdim=True)
    # What all errors of samples that are answered by their mean cost, in the loss's own unit.
    most = float((gains(targets, targets).diagonal() - gains(targets, mean)[:, 0]).mean())
    part = weight * targets.shape[1] / (2 * most) if most > 0 else math.inf
    if part > _SLIGHT:
        return None
    return Finding(
        "note",
        "The divergence of the latent variables hardly counts",
        f"It counts as much as if data had a noise of {wording.percent(part**0.5)} of their "
        f"standard deviation: what is drawn{place_of(draw.node)} may lie anywhere, and samples "
        "from the prior look like none of the data.",
        "This is meant for an autoencoder that another model samples from. Otherwise sum both "
        "terms alike: the error over all numbers of a sample and the divergence over its latent "
        "variables.",
    )


def _only_comparison(
    draw: _Draw, traced: TracedPass
) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]] | None:
    """Targets, and what each would win by an answer; None if more depends on what is drawn."""
    comparing = [
        (node, target)
        for node in traced.after_layers
        if node.name in _GAINS and len(node.inputs) == 2
        for output, target in either_way(node)
        if traced.depends_on_weights(output) and traced.is_of_data_alone(target)
    ]
    if len(comparing) != 1:
        return None
    node, target = comparing[0]
    if _reaches_the_loss(draw.node, node, traced):
        return None
    targets = traced.tensor(target).detach().double()
    each = _weight_of_each(node, targets.numel(), traced)
    if each is None or targets.ndim < 2 or len(targets) < _ENOUGH:
        return None
    if len(targets) != len(traced.tensor(draw.mean)) or not bool(torch.isfinite(targets).all()):
        return None
    own, scale = _GAINS[node.name], each * len(targets)
    rows = targets.flatten(1)
    features = rows.shape[1]
    most = min((_EFFORT / features) ** 0.5, _NUMBERS / features)
    return rows[: max(_ENOUGH, int(most))], lambda x, y: scale * own(x, y)


def _squared(x: Tensor, y: Tensor) -> Tensor:
    return 2 * x @ y.t() - x.square().sum(1)[:, None] - y.square().sum(1)


def _binary(x: Tensor, y: Tensor) -> Tensor:
    inside = y.clamp(1e-6, 1 - 1e-6)
    return x @ inside.log().t() + (1 - x) @ (1 - inside).log().t()


# What samples x win if they are answered by each of y, by the operation that compares them.
_GAINS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse_loss": _squared,
    "sub": _squared,
    "binary_cross_entropy": _binary,
    "binary_cross_entropy_with_logits": _binary,
}


def _weight_of_each(node: Node, count: int, traced: TracedPass) -> float | None:
    """How much the loss grows with the error at one number; None if that differs."""
    if node.name == "sub":
        squares = [
            one
            for one in traced.graph.nodes
            if Made(node.number, 0) in one.inputs
            and (
                (one.name == "pow" and one.arguments[1] == 2)
                or (one.name == "mul" and len(set(one.inputs)) < len(one.inputs))
            )
        ]
        if len(squares) != 1:
            return None
        (node,) = squares
    gradient = node.gradients[0] if node.gradients else None
    if gradient is None or not gradient.numel():
        return None
    low, high = float(gradient.min()), float(gradient.max())
    if low <= 0 or high - low > _ROUNDING * high:
        return None
    # PyTorch's losses, which reduce themselves, have 1 for a mean and 2 for a sum.
    is_mean = (
        gradient.numel() == 1
        and not node.is_pointwise
        and 2 not in (*node.arguments, *node.keywords.values())
    )
    return low / count if is_mean else low


def _reaches_the_loss(start: Node, closed: Node, traced: TracedPass) -> bool:
    """Whether gradients lead from the loss to an operation on ways around another one."""
    open_ones = (
        node
        for node in traced.graph.nodes
        if node is not closed and any(x.requires_grad for x in node.outputs)
    )
    behind = {node.number for node in following({start.number}, open_ones)}
    result = traced.graph.result
    return result is not None and result.node in {start.number, *behind}


def _main_directions(centred: Tensor) -> Tensor:
    """Along the largest spread, both ways, by one standard deviation."""
    _, sizes, axes = torch.linalg.svd(centred, full_matrices=False)
    step = axes[:1] * sizes[0] / len(centred) ** 0.5
    return torch.cat([step, -step])
