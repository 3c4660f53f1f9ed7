"""The fully connected networks of the mean field theory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from torch import nn

from equipoise.models.checks import check_choice, check_positive

MLPNorm = Literal["batch", "layer", "none"]

_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
}


def mlp(
    in_features: int,
    classes: int,
    *,
    depth: int,
    width: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
    norm: MLPNorm = "batch",
) -> nn.Sequential:
    r"""A fully connected classifier, normalised before each activation.

    .. math:: x^l = \phi(\mathrm{norm}(W^l x^{l-1})), \quad l = 1, \dots, \text{depth},
              \qquad \text{logits} = W x^{\text{depth}} + b .

    The layers are named ``flatten``, ``linear1``, ``norm1``, ``act1``, ``linear2``, …,
    ``head``. Before batch normalisation a linear layer has no bias, which would be subtracted
    at once. Weights keep PyTorch's default initialisation.

    Args:
        in_features: Numbers in one input, whatever its shape.
        classes: Number of logits.
        depth: Hidden layers.
        width: Neurons in each.
        activation: Called without arguments for each activation module.
        norm: ``"batch"``, ``"layer"`` or ``"none"``.

    Raises:
        ValueError: If a size is not positive, the norm is unknown, or ``activation`` is not
            a way to make modules.

    Shape:
        - Input: ``[N, ...]`` with ``in_features`` numbers per sample.
        - Output: ``[N, classes]``.

    Examples:
        >>> [name for name, _ in mlp(784, 10, depth=1, width=64).named_children()]
        ['flatten', 'linear1', 'norm1', 'act1', 'head']

    References:
        [yang2019] A mean field theory of batch normalization.
    """
    check_positive(in_features=in_features, classes=classes, depth=depth, width=width)
    check_choice("norm", norm, [*_NORMS, "none"])
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number in range(1, depth + 1):
        fan_in = in_features if number == 1 else width
        layers[f"linear{number}"] = nn.Linear(fan_in, width, bias=norm != "batch")
        if norm != "none":
            layers[f"norm{number}"] = _NORMS[norm](width)
        layers[f"act{number}"] = _activation(activation)
    layers["head"] = nn.Linear(width, classes)
    return nn.Sequential(layers)


def _activation(make: Callable[[], nn.Module]) -> nn.Module:
    # A module instance is callable too, but would be called on nothing.
    made = None if isinstance(make, nn.Module) or not callable(make) else make()
    if not isinstance(made, nn.Module):
        raise ValueError(
            f"activation must make a module when called, as nn.ReLU does; got {make!r}."
        )
    return made
