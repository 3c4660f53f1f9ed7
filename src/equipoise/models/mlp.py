"""The fully connected networks of the mean field theory and of preconditioning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from torch import nn

from equipoise.models.norms import CIFAR_GROUP_SIZE, Norm, make_norm
from equipoise.models.stack import stage
from equipoise.numerics.checks import check_size
from equipoise.numerics.options import named_options


@named_options
def mlp(
    in_features: int,
    classes: int,
    *,
    depth: int,
    width: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
    norm: Norm = "batch",
    after_activation: bool = False,
    norm_input: bool = False,
) -> nn.Sequential:
    r"""A fully connected classifier, normalised before or after each activation.

    .. math:: x^l = \phi(\mathrm{norm}(W^l x^{l-1})), \quad l = 1, \dots, \text{depth},
              \qquad \text{logits} = W x^{\text{depth}} + b ,

    or, with ``after_activation``, :math:`x^l = \mathrm{norm}(\phi(W^l x^{l-1} + b^l))`.

    The layers are named ``flatten``, ``linear1``, ``norm1``, ``act1``, ``linear2``, …,
    ``head``. A linear layer just before batch normalisation, or another that subtracts each
    neuron's mean, has no bias. Weights keep PyTorch's default initialisation;
    :func:`glorot_uniform_` gives TensorFlow's.

    Args:
        in_features: Numbers in one input, whatever its shape.
        classes: Number of logits.
        depth: Hidden layers.
        width: Neurons in each.
        activation: Called without arguments for each activation module.
        norm: A kind of :func:`make_norm` except ``"instance"``, with groups of 4 neurons where
            there are groups; or a function of the neurons that makes a module.
        after_activation: Whether normalisers follow the activations, as in the experiments of
            [lange2022].
        norm_input: Whether the flattened input is normalised too, by a layer named
            ``norm_input``.

    Raises:
        ValueError: If a size is not positive, the norm is unknown or unfit, ``activation`` is
            not a way to make modules, or the input is to be normalised by ``"none"``.

    Shape:
        - Input: ``[N, ...]`` with ``in_features`` numbers per sample.
        - Output: ``[N, classes]``.

    Examples:
        >>> [name for name, _ in mlp(784, 10, depth=1, width=64).named_children()]
        ['flatten', 'linear1', 'norm1', 'act1', 'head']

    References:
        [yang2019] A mean field theory of batch normalization;
        [lange2022], appendix B: 3 hidden layers of 100 neurons.
    """
    check_size(in_features=in_features, classes=classes, depth=depth, width=width)
    make = partial(make_norm, norm, dims=0, group_size=CIFAR_GROUP_SIZE)
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    if norm_input:
        if norm == "none":
            raise ValueError("norm_input=True needs a norm other than 'none'.")
        layers["norm_input"] = make(in_features)
    for number in range(1, depth + 1):
        layers |= stage(
            "linear",
            number,
            partial(nn.Linear, in_features if number == 1 else width, width),
            norm=make(width),
            activation=activation,
            after_activation=after_activation,
        )
    layers["head"] = nn.Linear(width, classes)
    return nn.Sequential(layers)
