"""Build the networks of the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from equipoise_papers.stacked.modules import Residual, SelfAttention
from equipoise_papers.trainability.space import Network
from equipoise_papers.trainability.tasks import Task

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
}
_GROUPS, _HEAD_FEATURES = 8, 16
# In a group without positions.
_LEAST_IN_A_GROUP = 16
# A perceptron behind attention is wider than its stream.
_HIDDEN = 2
_DEAD, _SATURATED, _MISSED, _LARGE = -3.0, 8.0, 0.02, 100.0


def build(network: Network, task: Task) -> nn.Sequential:
    """Build a network with the weights of its seed; PyTorch's random state is left as found."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(network.seed)
        model = nn.Sequential(_stem(network, task), _blocks(network), _head(network, task))
        _initialise(network, model)
    return model


class Characters(nn.Module):
    """Embedded characters with learned positions, ``[N, T]`` to ``[N, T, C]``."""

    def __init__(self, characters: int, length: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.positions = nn.Parameter(0.1 * torch.randn(length, width))

    def forward(self, x: Tensor) -> Tensor:
        """Embed."""
        embedded: Tensor = self.embedding(x) + self.positions
        return embedded


class Rows(nn.Module):
    """An image as a sequence of its rows, ``[N, C, H, W]`` to ``[N, H, width]``."""

    def __init__(self, channels: int, height: int, row: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels * row, width)
        self.positions = nn.Parameter(0.1 * torch.randn(height, width))

    def forward(self, x: Tensor) -> Tensor:
        """Embed."""
        embedded: Tensor = self.linear(x.transpose(1, 2).flatten(2)) + self.positions
        return embedded


class MeanOfTokens(nn.Module):
    """``[N, T, C]`` to ``[N, C]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Average."""
        return x.mean(1)


class ClassesSecond(nn.Module):
    """``[N, T, V]`` to ``[N, V, T]``, as cross-entropy wants it."""

    def forward(self, x: Tensor) -> Tensor:
        """Transpose."""
        return x.transpose(1, 2)


def _stem(network: Network, task: Task) -> nn.Module:
    width = network.width
    if network.layers == "attention":
        if task.is_text:
            return Characters(task.classes, task.inputs.shape[1], width)
        _, channels, height, row = task.inputs.shape
        return Rows(channels, height, row, width)
    if network.layers == "dense":
        return nn.Sequential(nn.Flatten(), nn.Linear(task.inputs[0].numel(), width))
    return nn.Conv2d(task.inputs.shape[1], width, 3, stride=2, padding=1)


def _head(network: Network, task: Task) -> nn.Module:
    last: list[nn.Module] = []
    if network.topology == "pre":
        last.append(_norm(network))
        if network.layers != "attention":
            last.append(_ACTIVATIONS[network.activation]())
    if network.layers == "attention":
        if task.is_text:
            linear = nn.Linear(network.width, task.classes)
            return nn.Sequential(*last, linear, ClassesSecond())
        last.append(MeanOfTokens())
    if network.layers == "convolution":
        last += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*last, nn.Linear(network.width, task.classes))


def _blocks(network: Network) -> nn.Sequential:
    make = _attention_block if network.layers == "attention" else _block
    blocks: list[nn.Module] = [make(network) for _ in range(network.depth)]
    if network.topology == "plain":  # the stem has no activation of its own
        blocks.insert(0, nn.Sequential(_norm(network), _ACTIVATIONS[network.activation]()))
    return nn.Sequential(*blocks)


def _block(network: Network) -> nn.Module:
    act, norm, mix = _ACTIVATIONS[network.activation], partial(_norm, network), _mixing(network)
    if network.topology == "plain":
        return nn.Sequential(mix(), norm(), act())
    if network.topology == "pre":
        branch = nn.Sequential(norm(), act(), mix(), norm(), act(), mix())
        return Residual(branch, network.residual_scale)
    if network.layers == "convolution":  # as the first residual networks
        branch = nn.Sequential(mix(), norm(), act(), mix(), norm())
        return nn.Sequential(Residual(branch, network.residual_scale), act())
    branch = nn.Sequential(mix(), act(), mix())
    return nn.Sequential(Residual(branch, network.residual_scale), norm())


def _attention_block(network: Network) -> nn.Module:
    width, act = network.width, _ACTIVATIONS[network.activation]
    heads = max(1, width // _HEAD_FEATURES)
    attention: nn.Module = SelfAttention(width, heads, causal=network.data == "text")
    hidden: nn.Module = nn.Sequential(
        nn.Linear(width, _HIDDEN * width), act(), nn.Linear(_HIDDEN * width, width)
    )
    parts: list[nn.Module] = []
    for branch in (attention, hidden):
        if network.topology == "pre":
            parts.append(Residual(nn.Sequential(_norm(network), branch), network.residual_scale))
        else:
            parts += [Residual(branch, network.residual_scale), _norm(network)]
    return nn.Sequential(*parts)


def _mixing(network: Network) -> Callable[[], nn.Module]:
    width, bias = network.width, network.norm != "batch"
    if network.layers == "convolution":
        return partial(nn.Conv2d, width, width, 3, padding=1, bias=bias)
    return partial(nn.Linear, width, width, bias=bias)


def _norm(network: Network) -> nn.Module:
    width, eps = network.width, network.eps
    of_images = network.layers == "convolution"
    match network.norm:
        case "none":
            return nn.Identity()
        case "batch":
            return (nn.BatchNorm2d if of_images else nn.BatchNorm1d)(width, eps=eps)
        case "layer":
            return nn.GroupNorm(1, width, eps=eps) if of_images else nn.LayerNorm(width, eps=eps)
        case "rms":
            return nn.RMSNorm(width, eps=eps)
        case "group":
            groups = _GROUPS if of_images else min(_GROUPS, width // _LEAST_IN_A_GROUP)
            return nn.GroupNorm(groups, width, eps=eps)


@torch.no_grad()
def _initialise(network: Network, model: nn.Sequential) -> None:
    stem, blocks, head = model
    assert isinstance(blocks, nn.Sequential)
    for module in (*stem.modules(), *head.modules()):
        _draw(module, 1.0)
    for number, block in enumerate(blocks):
        for module in block.modules():
            _draw(module, network.gain * _factor(network, number))
    start = {
        "weight": 0.0 if network.fault == "zero" else network.gamma,
        "bias": _DEAD if network.fault == "dead" else network.beta,
    }
    kind = type(_norm(network))
    for module in model.modules():
        if type(module) is kind:
            for name, parameter in module.named_parameters():
                parameter.fill_(start[name])
    if network.fault == "dead":
        for module in blocks.modules():
            if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
                module.bias.fill_(_DEAD)
    if network.fault == "head":
        *_, logits = (module for module in head.modules() if isinstance(module, nn.Linear))
        logits.weight.mul_(_LARGE)


def _draw(module: nn.Module, gain: float) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        module.weight.normal_(0, gain * module.weight[0].numel() ** -0.5)
        if module.bias is not None:
            module.bias.zero_()


def _factor(network: Network, number: int) -> float:
    if network.fault == "saturated":
        return _SATURATED
    if network.fault == "missed" and number % 3 == 2:
        return _MISSED
    return 0.0 if network.fault == "zero" and network.norm == "none" else 1.0
