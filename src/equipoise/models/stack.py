"""One weight layer with its normaliser and activation, as plain networks stack them."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from equipoise.models.norms import subtracts_constants


def stage(
    weight: str,
    number: int | str,
    make: Callable[..., nn.Module],
    *,
    norm: nn.Module,
    activation: Callable[[], nn.Module] = nn.ReLU,
    after_activation: bool = False,
) -> dict[str, nn.Module]:
    """Weight layer, normaliser and activation by name, in the order of execution.

    Args:
        weight: Kind of the weight layer, the first part of its name.
        number: Second part of all three names.
        make: Makes the weight layer when called with ``bias=``.
        norm: The normaliser; an identity is left out.
        activation: Called without arguments for the activation.
        after_activation: Whether the normaliser follows the activation.
    """
    # The normaliser would subtract a bias at once, unless the activation stands between.
    bias = after_activation or not subtracts_constants(norm)
    layers = {f"{weight}{number}": make(bias=bias)}
    normaliser = {} if isinstance(norm, nn.Identity) else {f"norm{number}": norm}
    act = {f"act{number}": make_activation(activation)}
    return layers | (act | normaliser if after_activation else normaliser | act)


def make_activation(make: Callable[[], nn.Module]) -> nn.Module:
    """Make an activation module.

    Raises:
        ValueError: If it makes no module.
    """
    # A module instance is callable too, but would be called on nothing.
    made = None if isinstance(make, nn.Module) or not callable(make) else make()
    if not isinstance(made, nn.Module):
        raise ValueError(
            f"activation must make a module when called, as nn.ReLU does; got {make!r}."
        )
    return made
