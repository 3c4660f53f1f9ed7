"""What initialisers promise: laws of the parameters that they draw on a copy of a model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from equipoise.diagnosis.initialisation.laws import Law, joined, law_of
from equipoise.instrument.compiled import uncompiled_name
from equipoise.instrument.modules import children_first
from equipoise.records.wording import said

Init: TypeAlias = Callable[[Any], object]

# Draws of a small parameter, and elements after which there are enough.
_ROUNDS = 16
_ENOUGH = 2**15
# Elements that may be drawn altogether, beyond two draws of everything.
_MOST_DRAWN = 2**22


def parameters_by_owner(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Every real parameter with the module that owns it, under each of its names.

    Examples:
        >>> [name for name, _, _ in parameters_by_owner(nn.Sequential(nn.Linear(1, 1)))]
        ['0.weight', '0.bias']
    """
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and parameter.is_floating_point() and parameter.numel():
                yield uncompiled_name(f"{name}.{key}" if name else key), module, parameter


def drawn_values(module: nn.Module, parameter: Tensor) -> Tensor:
    """The elements that an initialiser draws: all but the row of an embedding's padding."""
    values = parameter.detach()
    padding = getattr(module, "padding_idx", None)
    if isinstance(padding, int) and values.ndim == 2:
        return torch.cat([values[:padding], values[padding + 1 :]])
    return values


class Own(NamedTuple):
    """The law that a ``reset_parameters`` draws.

    Args:
        law: Of the elements.
        by_part: Whether the reset is that of a class that is not PyTorch's, or a model's own
            ``_init_weights``, and draws a layer inside of such a class.
    """

    law: Law
    by_part: bool


def own_laws(model: nn.Module) -> dict[str, Own]:
    """Laws of the parameters that each module's own ``reset_parameters`` draws.

    A module's children are drawn before it, as when it was built. A parameter under several names
    has a law under each. A model's ``_init_weights`` counts as the reset of parts that it
    knows by their class.

    Args:
        model: A copy that may be written to.
    """
    names = {id(module): name for name, module in model.named_modules()}
    laws: dict[str, Own] = {}
    known: dict[object, dict[str, Law]] = {}
    for module in children_first(model):
        reset = _reset_of(module)
        if reset is None:
            continue
        with contextlib.suppress(Exception):  # a user's reset may want arguments
            form = _form(module)
            found = known[form] if form in known else _laws_drawn(module, reset)
            known[form] = found
            name, is_torch = uncompiled_name(names[id(module)]), _is_of_torch(module)
            for key, law in found.items():
                by_part = "." in key and not is_torch
                laws[f"{name}.{key}" if name else key] = Own(law, by_part)
    for name, law in _laws_of_parts(model).items():
        laws[uncompiled_name(name)] = Own(law, by_part=True)
    return laws


def _laws_of_parts(model: nn.Module) -> dict[str, Law]:
    """Laws of the layers that a model's own ``_init_weights`` draws when it is given their part.

    That is how ``model.apply(model._init_weights)`` draws them, after it was given each layer. A
    model inside another one has its own.
    """
    laws: dict[str, Law] = {}

    def visit(name: str, part: nn.Module, init: Init | None) -> None:
        own = getattr(part, "_init_weights", init)
        for key, child in part.named_children():
            visit(f"{name}.{key}" if name else key, child, own)
        layers = nn.Module()
        layers._modules |= {
            key: child for key, child in part.named_children() if not any(child.children())
        }
        if callable(own) and not _is_of_torch(part) and layers._modules:
            with contextlib.suppress(Exception):  # it may be a function of something else
                if _is_drawn(layers, lambda: own(part)):
                    for key, law in _laws_drawn(layers, lambda: own(part)).items():
                        laws[f"{name}.{key}" if name else key] = law

    visit("", model, None)
    return laws


def init_laws(model: nn.Module, init: Init) -> dict[str, Law]:
    """Laws of the parameters that an init function changes, after every module's own reset.

    Args:
        model: A copy that may be written to.
        init: Takes modules, as given to ``model.apply``; or a tensor of weights, like the
            functions of ``torch.nn.init``.

    Raises:
        ValueError: If it can be applied neither to the modules nor to their weights, or changes
            nothing.
    """

    def to_modules() -> None:
        for module in children_first(model):
            init(module)

    def to_weights() -> None:
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                init(parameter)

    told = []
    for draw in (to_modules, to_weights):
        try:
            laws = _laws_drawn(model, draw, lambda: _reset(model))
        except Exception as error:  # users' code may raise anything
            told.append(said(error).splitlines()[0])
            continue
        if laws:
            return laws
        told.append("it left all parameters as they were")
    raise ValueError(
        f"init can be applied neither to the model's modules ({told[0]}) nor to its weights "
        f"({told[1]}). Give a function as for model.apply that knows the classes of the model's "
        "modules, or one of torch.nn.init, with functools.partial for its options."
    )


def _reset(model: nn.Module) -> None:
    for module in children_first(model):
        reset = _reset_of(module)
        if reset is not None:
            with contextlib.suppress(Exception):  # a user's reset may want arguments
                reset()


def _reset_of(module: nn.Module) -> Callable[[], object] | None:
    reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
    return reset if callable(reset) else None


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _form(module: nn.Module) -> object:
    """The same for modules of PyTorch that draw alike; other classes may keep a gain anywhere."""
    if not _is_of_torch(module):
        return id(module)
    parameters = tuple(
        (name, tuple(parameter.shape), parameter.dtype, parameter.device)
        for name, _, parameter in parameters_by_owner(module)
    )
    return type(module), module.extra_repr(), parameters


def _laws_drawn(
    module: nn.Module,
    draw: Callable[[], object],
    prepare: Callable[[], None] = lambda: None,
) -> dict[str, Law]:
    """Laws of the parameters that a function changes; what it leaves alone has none."""
    named = list(parameters_by_owner(module))
    draws: dict[str, list[Law]] = {name: [] for name, _, _ in named}
    size = sum(parameter.numel() for _, _, parameter in named)
    for _ in range(min(_ROUNDS, max(2, _MOST_DRAWN // max(size, 1)))):
        with torch.no_grad():
            for _, _, parameter in named:
                parameter.fill_(math.nan)
            prepare()
            before = [parameter.detach().clone() for _, _, parameter in named]
            draw()
        now = parameters_by_owner(module)  # an initialiser may have assigned new ones
        for (name, owner, parameter), old in zip(now, before, strict=True):
            values = drawn_values(owner, parameter)
            if _is_enough(draws[name]) or torch.equal(parameter, old):
                continue
            if bool(torch.isfinite(values).all()):
                draws[name].append(law_of(values))
        if all(map(_is_enough, draws.values())):
            break
    return {name: joined(found) for name, found in draws.items() if found}


def _is_drawn(module: nn.Module, draw: Callable[[], object]) -> bool:
    """Whether a function changes any parameter, seen by its first element."""
    firsts = [p.detach()[(0,) * p.ndim] for _, _, p in parameters_by_owner(module)]
    for first in firsts:
        first.fill_(math.nan)
    with torch.no_grad():
        draw()
    return any(not first.isnan() for first in firsts)


def _is_enough(draws: list[Law]) -> bool:
    """Whether more draws would tell no more; constants are known from two."""
    constant = len(draws) > 1 and all(law.is_constant for law in draws)
    return constant or sum(law.count for law in draws) >= _ENOUGH
