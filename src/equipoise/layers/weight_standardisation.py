"""Weight standardisation as a parametrisation that can be removed again."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from equipoise.numerics.options import named_options
from equipoise.numerics.precision import at_least_float32

_Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class WeightStandardisation(nn.Module):
    """Maps a stored weight to the standardised one that its layer uses.

    Attributes:
        eps: Added to every filter's variance.
    """

    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, weight: Tensor) -> Tensor:
        """Give every filter mean 0 and variance 1; the same in training and evaluation."""
        filters = at_least_float32(weight)
        dims = list(range(1, weight.ndim))
        variance, mean = torch.var_mean(filters, dims, correction=0, keepdim=True)
        return ((filters - mean) * (variance + self.eps).rsqrt()).to(weight.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Assigning to ``layer.weight`` sets the stored weight."""
        return weight

    def extra_repr(self) -> str:
        """Show ε."""
        return f"eps={self.eps}"


@named_options
def weight_standardise(module: nn.Module, *, eps: float = 1e-5) -> list[str]:
    r"""Standardise the filters of a layer, or of all convolutions inside a module, in place.

    .. math:: \hat W_i = (W_i - \mu_i) / \sqrt{\sigma_i^2 + \varepsilon}

    with the mean :math:`\mu_i` and the biased variance :math:`\sigma_i^2` of filter i.

    A convolution or linear layer is standardised itself. Of any other module, all ``Conv1d``,
    ``Conv2d`` and ``Conv3d`` are, shared ones once; layers that are already standardised, or
    whose filters have one weight (which would become 0), stay as they are. Training is on the
    stored weights, and gradients pass through the standardisation. Checkpoints hold
    ``parametrizations.weight.original`` for ``weight``, until
    ``torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")`` is called on a layer.

    Args:
        module: A layer or a model.
        eps: Added to every filter's variance.

    Returns:
        Names of the standardised layers within ``module``; its own is ``""``.

    Raises:
        ValueError: If ``module`` is a layer whose filters have one weight.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8))
        >>> weight_standardise(model)
        ['0']
        >>> bool(model[0].weight.mean((1, 2, 3)).abs().max() < 1e-6)
        True

    References:
        [qiao2019]
    """
    if isinstance(module, _Convolution | nn.Linear) and _filter_size(module) == 1:
        raise ValueError(
            f"{type(module).__name__} has filters of one weight, of shape "
            f"{tuple(module.weight.shape)}: standardised they are 0. Leave this layer as it is."
        )
    standardised = []
    for name, layer in module.named_modules():
        wanted = isinstance(layer, _Convolution) or (name == "" and isinstance(layer, nn.Linear))
        if wanted and not _is_standardised(layer) and _filter_size(layer) > 1:
            parametrize.register_parametrization(layer, "weight", WeightStandardisation(eps))
            standardised.append(name)
    return standardised


def _is_standardised(layer: nn.Module) -> bool:
    if not parametrize.is_parametrized(layer, "weight"):
        return False
    steps = layer.get_submodule("parametrizations.weight").children()
    return any(isinstance(step, WeightStandardisation) for step in steps)


def _filter_size(layer: nn.Module) -> int:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight[0].numel()
