r"""How far one step of an optimiser moves the output of a layer through its own weights.

With rows r of inputs x and gradients g of the loss by the outputs, the gradient of a weight from
input i is :math:`\sum_r g(r)x_i(r)`, and a step of size η changes the output by

.. math:: \Delta h(r) = -\eta\sum_{r'} g(r')\,\Theta(r', r), \qquad
          \Theta(r, r') = \sum_i x_i(r)x_i(r')

for SGD. With :math:`\Theta = nK` over n inputs, :math:`\Pi` the second moments of g, bars for
averages over rows, and inputs taken for Gaussian, which gives the terms in 1/n,

.. math:: \mathrm E[\Delta h^2] = \eta^2\Big[\big(1 + \tfrac1n\big)
          \overline{(\Theta\Pi\Theta)_{rr}}
          + \tfrac1n \operatorname{tr}(\Pi\Theta)\,\overline{\Theta_{rr}}\Big] .

The first step of Adam is the sign of the gradient. A weight's gradient has the variance
:math:`s^2 = \operatorname{tr}(\Pi\Theta)/n` and the covariance :math:`(g\Theta)(r)/n` with its
input, so that :math:`\mathrm E[\operatorname{sign}(g_i)x_i(r)] = \sqrt{2/\pi}\,(g\Theta)(r)/(ns)`:

.. math:: \mathrm E[\Delta h^2] = \eta^2\Big[\big(1 - \tfrac1n\big)\frac{2n}{\pi}
          \mathrm E_g\frac{\overline{(g\Theta)^2(r)}}{g\Theta g^\top}
          + \overline{\Theta_{rr}}\Big] .

With eigenvalues :math:`\lambda_k` and eigenvectors :math:`u_k` of
:math:`\Theta^{1/2}\Pi\Theta^{1/2}` the average of that ratio over Gaussian g is

.. math:: \frac1R \sum_k \lambda_k\,u_k^\top\Theta u_k
          \int_0^\infty \frac{dt}{1 + 2t\lambda_k}\prod_j (1 + 2t\lambda_j)^{-1/2} ,

over R rows. Changes by SGD grow as n times the gradient's size, those by Adam as n. Inputs with a
mean, such as those after a ReLU, make the square of Adam's up to :math:`\pi/2` times as large,
because the sign of their gradients is that of the mean. Averages over pairs of samples do not see
pairs that are alike in both inputs and gradients, such as two of one token: changes are then
larger than predicted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.theory.propagation.call import WEIGHTED
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.sites import Step
from equipoise.theory.propagation.tensors import mean_square
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments, Value

# Of the integral's variable; its ends decay as the root of e to this.
_LOGS = np.arange(-30.0, 30.0, 0.1)


def step(kernel: Exchangeable, gradient: Exchangeable, inputs: int, *, bias: bool = False) -> Step:
    """Changes of a layer's output.

    Args:
        kernel: Θ, products of two rows of inputs.
        gradient: Π, second moments of the derivatives of the loss by the outputs.
        inputs: n, weights of one output.
        bias: Whether a bias takes the step as well: an input that is 1 in every row.
    """
    if bias:
        kernel = Exchangeable(kernel.same + 1, kernel.diff + 1, kernel.samples)
    n = inputs + bias
    moved = (kernel @ gradient).dot(kernel) / kernel.rows
    size, shared = kernel.mean_diagonal, gradient.dot(kernel)
    if shared <= 0:
        return Step(0.0, 0.0)
    sign = (1 - 1 / n) * 2 * n / math.pi * _mean_ratio(kernel, gradient) + size
    return Step(sgd=(1 + 1 / n) * moved + shared * size / n, sign=sign)


def _mean_ratio(kernel: Exchangeable, gradient: Exchangeable) -> float:
    """Average over gradients of the mean of (gΘ)² over gΘg."""
    parts = []
    copies = (kernel.samples - 1, 1)
    for block, pairs, count in zip(kernel.blocks, gradient.blocks, copies, strict=True):
        values, vectors = np.linalg.eigh(block)
        root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
        rates, directions = np.linalg.eigh(root @ pairs @ root)
        rates = np.maximum(rates, 0)
        parts.append((count, rates, rates * (directions * (block @ directions)).sum(0)))
    t = np.exp(_LOGS)[:, None] / sum(count * rates.sum() for count, rates, _ in parts)
    logs, ratio = np.zeros(len(t)), np.zeros(len(t))
    for count, rates, weights in parts:
        scaled = 1 + 2 * t * rates
        logs += count * np.log(scaled).sum(1)
        ratio += count * ((1 / scaled) @ weights)
    integrand = t[:, 0] * np.exp(-logs / 2) * ratio
    return float(integrand.sum() * (_LOGS[1] - _LOGS[0]) / kernel.rows)


def first_steps(
    graph: Graph, values: Mapping[int, Sequence[Value]], gradients: Mapping[int, Gradient]
) -> dict[str, Step]:
    r"""Steps of all weights that one product takes, by name.

    The kernel is read from the predicted output, :math:`K_{out} = v\,\Theta + v_b`; weights
    that are zero do not tell it.

    Args:
        graph: A traced pass.
        values: Of every node, what is known of its outputs.
        gradients: By the identity of a value.
    """
    found: dict[str, Step] = {}
    uses: Counter[str] = Counter()
    for node in graph.nodes:
        output = values[node.number][0]
        if node.name not in WEIGHTED or not isinstance(output, Moments):
            continue
        parameters = _parameters(node, values)
        gradient = gradients.get(id(output))
        matrices = [(name, value) for name, value in parameters if value.ndim > 1]
        uses.update(name for name, _ in matrices)
        features = output.layout.size("feature")
        if len(matrices) != 1 or gradient is None or node.outputs[0].numel() == 0:
            continue
        name, weight = matrices[0]
        variance = mean_square(weight)
        mixes_positions = any(atom.role == "position" for atom in output.layout.axes[-1])
        if variance == 0 or (mixes_positions and node.name != "convolution"):
            continue
        biases = [mean_square(value) for _, value in parameters if value.ndim == 1]
        noise, K = sum(biases), output.covariance
        kernel = Exchangeable((K.same - noise) / variance, (K.diff - noise) / variance, K.samples)
        inputs = max(1, weight.numel() // features)
        found[name] = step(kernel, gradient.pairs, inputs, bias=bool(biases))
    return {name: one for name, one in found.items() if uses[name] == 1}


def _parameters(node: Node, values: Mapping[int, Sequence[Value]]) -> list[tuple[str, Tensor]]:
    """The parameters among the inputs of a node, also behind transpositions."""
    found = []
    for source in node.inputs:
        if isinstance(source, Made):
            value = values[source.node][source.index]
            if isinstance(value, Known) and value.parameter:
                found.append((value.parameter, value.value))
        elif isinstance(source, Given) and source.kind == "parameter":
            found.append((source.name, source.value))
    return found
