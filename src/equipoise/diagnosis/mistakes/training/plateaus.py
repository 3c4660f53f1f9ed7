"""Weights that are too small together, so that no one of them can begin."""

from __future__ import annotations

import math

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.sources import PRODUCTS
from equipoise.numerics.pieces import norm
from equipoise.records import wording
from equipoise.records.finding import Finding

# Less than this part of the loss, and of what outputs could change, is a plateau. On the
# architectures and public models of the benchmarks it is 0.04 at least; with ReLU and weights of
# deviation 0.01, at a width of 64, it is 4e-4 with four layers and 1e-6 with six. A ResNet-18 with
# all weights divided by 1,000 is one, too: SGD with momentum takes 30 steps to leave it.
_FLAT = 3e-3
# Root mean square of all matrices' gradients below which Adam, which adds 1e-8, does not leave it
# in 800 steps at any of five rates: of 13 networks of papers/docs/faint_trainings.json below it
# two did, of 17 above all but one. Their biases, which have larger gradients, move first. With
# those of hidden layers frozen, GELU and weights of deviation 0.01 at a width of 64, it was left
# from gradients of 2e-11 in 500 steps, and not from 2e-14.
_TINY, _TINY_WITHOUT_BIASES = 3e-16, 1e-12
# Of a bias that Adam moves at once, by a hundredth of its rate.
_MOVES = 1e-10
# What Adam adds to the size of a gradient before it divides by that.
_OF_ADAM = 1e-8
ENDLESS = "Training does not leave its first plateau: layers are too small together"


def of_plateaus(traced: TracedPass) -> list[Finding]:
    """Training that starts at a saddle, where each gradient has other small layers as factors.

    What the loss would change, to first order, if a matrix alone were moved by its own norm or
    by that of rows of length 1, whatever is more, is compared with the loss, and with what it
    would change if all outputs were moved by 1. A single layer that starts small, such as a head
    of zeros, hides nothing: its own gradient is large.
    """
    graph = traced.graph
    if not all(map(math.isfinite, (graph.loss, *graph.weights.values()))):
        return []
    matrices = {n: p for n, p in graph.parameters.items() if p.ndim > 1 and p.requires_grad}
    moved = 0.0
    for name, square in graph.weights.items():
        if name in matrices:
            matrix = matrices[name].detach()
            length = max(norm(matrix), len(matrix) ** 0.5)
            moved = max(moved, length * math.sqrt(square * matrix.numel()))
    outputs = [
        node.gradients[0]
        for node in traced.after_layers
        if node.name in PRODUCTS and node.gradients and node.gradients[0] is not None
    ]
    most = max((norm(g) * g.numel() ** 0.5 for g in outputs), default=0.0)
    least = min(abs(graph.loss), most)
    if not (0 < moved < _FLAT * least < math.inf):
        return []
    squares = [square for n, square in graph.weights.items() if "bias" not in n.rpartition(".")[2]]
    largest = math.sqrt(max(squares))
    vectors = {n for n, p in graph.parameters.items() if p.ndim == 1 and p.requires_grad}
    biases = sorted(square for n, square in graph.weights.items() if n in vectors)
    # The last bias has a gradient whatever is before it, and only shifts all outputs.
    wakes = len(biases) > 1 and math.sqrt(biases[-2]) > _MOVES
    is_endless = largest < (_TINY if wakes else _TINY_WITHOUT_BIASES)
    return [
        Finding(
            "critical" if is_endless else "warning",
            ENDLESS
            if is_endless
            else "Training starts on a plateau: layers are too small together",
            "Moving any one matrix by the usual length of a matrix changes the loss by only "
            f"{wording.number(moved / abs(graph.loss))} of its value: each gradient has the other "
            "layers as factors. SGD stays at the loss of guessing for long. "
            + _of_adam(largest, is_endless),
            "Draw weights with a deviation of about fan_in ** -0.5, as nn.init.kaiming_normal_ "
            "does, and not with a fixed one such as 0.01; or put norms between the layers. "
            "Look for what makes activations small, such as a large eps of norms.",
        )
    ]


def _of_adam(largest: float, is_endless: bool) -> str:
    if not is_endless and largest > _OF_ADAM:
        return "Adam, whose steps do not shrink with gradients, leaves it sooner."
    size = f"the largest root mean square of a matrix's gradient is {wording.number(largest)}"
    adds = "and it adds 1e-8 before it divides by that"
    if is_endless:
        return f"So does Adam: {size}, {adds}."
    return f"Adam leaves it late, and at rates near 0.003 rather than 0.001: {size}, {adds}."
