"""Fully connected networks and a graph network."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures._architecture import CLASSES, SIDE, Architecture, Batch, cross_entropy, images
from architectures._parts import Residual, initialise_

NODES = 32
FEATURES = 64  # of a node or an observation

# Where GELU networks are critical: weights of variance C_W / fan-in and biases of variance C_b
# keep pre-activations at variance K, and nearby inputs neither merge nor part
# [Roberts 2021, arXiv:2106.10165, section 5.3].
C_W, C_B = 1.98305826, 0.17292213
K = (3 + 17**0.5) / 2


def deep_mlp(width: int = 256, depth: int = 60) -> nn.Module:
    """Hidden GELU layers at criticality, without norm [Roberts 2021, arXiv:2106.10165]."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = 3 * SIDE**2
    for number in range(depth + 1):
        linear = nn.Linear(inputs, width if number < depth else CLASSES)
        # Inputs have mean square 1, to be brought to K at once.
        variance = K - C_B if number == 0 else C_W
        nn.init.normal_(linear.weight, std=(variance / inputs) ** 0.5)
        nn.init.normal_(linear.bias, std=C_B**0.5)
        layers += [linear, nn.GELU()]
        inputs = width
    return nn.Sequential(*layers[:-1])


def residual_mlp(width: int = 256, depth: int = 6) -> nn.Module:
    """Residual blocks of layer norm and one hidden ReLU layer, PyTorch's initialisation.

    The feed-forward half of a pre-norm transformer [Xiong 2020, arXiv:2002.04745].
    """
    blocks = [
        Residual(
            nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)),
            before=nn.LayerNorm(width),
        )
        for _ in range(depth)
    ]
    entry = nn.Linear(3 * SIDE**2, width)
    head = nn.Linear(width, CLASSES)
    return nn.Sequential(nn.Flatten(), entry, *blocks, nn.LayerNorm(width), head)


class ActorCritic(nn.Module):
    """Tanh networks for policy and value, orthogonal weights [Schulman 2017, arXiv:1707.06347]."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.policy = _tanh_mlp(width, CLASSES, 0.01)
        self.value = _tanh_mlp(width, 1, 1.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits ``[N, actions]`` and values ``[N]`` of observations ``[N, features]``."""
        return self.policy(x), self.value(x).squeeze(-1)


def _tanh_mlp(width: int, outputs: int, gain: float) -> nn.Sequential:
    hidden = [nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    head = nn.Linear(width, outputs)
    model = nn.Sequential(*hidden, head)
    initialise_(model, lambda weight: nn.init.orthogonal_(weight, gain=2**0.5), nn.Linear)
    nn.init.orthogonal_(head.weight, gain=gain)
    return model


def transitions(size: int, generator: torch.Generator) -> Batch:
    """Standard normal observations; actions, standardised advantages and returns."""
    x = torch.randn(size, FEATURES, generator=generator)
    actions = torch.randint(CLASSES, (size,), generator=generator)
    advantages, returns = torch.randn(2, size, generator=generator)
    return x, (actions, advantages, returns)


def ppo_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The clipped objective of the first step after a rollout, value loss and entropy bonus."""
    x, (actions, advantages, returns) = batch
    logits, values = model(x)
    log_probabilities = logits.log_softmax(-1)
    chosen = log_probabilities.gather(-1, actions[:, None]).squeeze(-1)
    ratio = (chosen - chosen.detach()).exp()
    clipped = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
    value_loss = 0.5 * F.mse_loss(values, returns)
    loss: Tensor = -clipped.mean() + 0.5 * value_loss - 0.01 * entropy.mean()
    return loss


class GINLayer(nn.Module):
    """An MLP of the sum of a node and its neighbours, with batch norm and ReLU."""

    def __init__(self, in_features: int, width: int):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.layers = nn.Sequential(
            nn.Linear(in_features, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
        )

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Nodes ``[N, nodes, width]`` from ``[N, nodes, features]``."""
        gathered = (1 + self.eps) * x + adjacency @ x
        y: Tensor = self.layers(gathered.flatten(0, 1)).unflatten(0, x.shape[:2])
        return y


class GIN(nn.Module):
    """Graph isomorphism network, every layer read out [Xu 2018, arXiv:1810.00826]."""

    def __init__(self, width: int = 128, depth: int = 4):
        super().__init__()
        widths = [FEATURES, *[width] * depth]
        self.layers = nn.ModuleList(GINLayer(*pair) for pair in pairwise(widths))
        self.heads = nn.ModuleList(nn.Linear(features, CLASSES) for features in widths)

    def forward(self, graph: tuple[Tensor, Tensor]) -> Tensor:
        """Logits of graphs: nodes ``[N, nodes, features]`` and adjacency ``[N, nodes, nodes]``."""
        x, adjacency = graph
        logits: Tensor = self.heads[0](x.sum(1))
        for layer, head in zip(self.layers, list(self.heads)[1:], strict=True):
            x = layer(x, adjacency)
            logits = logits + head(x.sum(1))
        return logits


def graphs(size: int, generator: torch.Generator) -> Batch:
    """Standard normal nodes on a ring, each the neighbour of the two on either side."""
    x = torch.randn(size, NODES, FEATURES, generator=generator)
    node = torch.arange(NODES)
    distance = (node[:, None] - node) % NODES
    steps = distance.minimum(NODES - distance)
    adjacency = ((steps == 1) | (steps == 2)).to(x.dtype).expand(size, -1, -1)
    return (x, adjacency), torch.randint(CLASSES, (size,), generator=generator)


OTHERS = (
    Architecture("deep_gelu_mlp", deep_mlp, images, cross_entropy),
    Architecture("residual_mlp", residual_mlp, images, cross_entropy),
    Architecture("ppo_actor_critic", ActorCritic, transitions, ppo_loss),
    Architecture("gin", GIN, graphs, cross_entropy),
)
