"""What models must have in common to train together, and to be computed as one stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest

import torch
from torch import nn

from equipoise_papers.stacked.attributes import attributes, changed_attributes


class CannotStackError(ValueError):
    """Why models cannot be computed as one stack; each can still train alone."""


def check_models(models: Sequence[nn.Module], rates: Sequence[float]) -> None:
    """Refuse what no method can train: other shapes, shared weights, a wrong number of rates.

    Raises:
        ValueError: Naming what differs.
    """
    if not models:
        raise ValueError("train_many needs at least one model, got none.")
    if not any(parameter.requires_grad for parameter in models[0].parameters()):
        raise ValueError("train_many needs models with parameters to train; these have none.")
    if len(rates) != len(models):
        raise ValueError(
            f"train_many needs one rate per model; got {len(rates)} for {len(models)}."
        )
    first = _shapes(models[0])
    for number, model in enumerate(models[1:], start=1):
        shapes = _shapes(model)
        for name in first | shapes:
            if first.get(name) != shapes.get(name):
                raise ValueError(
                    f"models must be of one architecture, but {name!r} is "
                    f"{first.get(name, 'missing')} in model 0 and "
                    f"{shapes.get(name, 'missing')} in model {number}."
                )
    _check_nothing_shared(models)


def check_stackable(models: Sequence[nn.Module]) -> None:
    """Refuse models that one stack cannot compute.

    Raises:
        CannotStackError: Naming the module and the reason.
    """
    first = dict(models[0].named_modules(remove_duplicate=False))
    order = _names_in_order(models[0])
    for number, model in enumerate(models):
        modules = dict(model.named_modules(remove_duplicate=False))
        for name in first.keys() ^ modules.keys():
            raise CannotStackError(
                f"module {name!r} is in only one of model 0 and model {number}; a stack needs the "
                "same modules everywhere."
            )
        _check_order(order, _names_in_order(model), number)
        for name, module in modules.items():
            _check_same(name, first[name], module, number)
            _check_no_generators_and_hooks(name, module, number)


def described(name: str, module: nn.Module) -> str:
    """A module in messages: its name, if it has one, and its class."""
    return f"{name!r} ({type(module).__name__})" if name else type(module).__name__


def _shapes(model: nn.Module) -> dict[str, str]:
    tensors = chain(model.named_parameters(), model.named_buffers())
    return {
        name: f"{tuple(t.shape)} {t.dtype} on {t.device}{'' if t.requires_grad else ', frozen'}"
        for name, t in tensors
    }


def _check_nothing_shared(models: Sequence[nn.Module]) -> None:
    owners: dict[int, int] = {}
    for number, model in enumerate(models):
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            if owners.setdefault(id(tensor), number) != number:
                raise ValueError(
                    f"models {owners[id(tensor)]} and {number} share {name!r}; each needs its own "
                    "weights and buffers, as copy.deepcopy gives."
                )


def _names_in_order(model: nn.Module) -> list[tuple[str, str]]:
    """Names of modules and tensors as registered, each with the first name of the same object.

    The order counts: tensors are stacked by position, and modules called in this order.
    """
    return [
        *_with_first_names(model.named_modules(remove_duplicate=False)),
        *_with_first_names(model.named_parameters(remove_duplicate=False)),
        *_with_first_names(model.named_buffers(remove_duplicate=False)),
    ]


def _with_first_names(named: Iterable[tuple[str, object]]) -> Iterator[tuple[str, str]]:
    first: dict[int, str] = {}
    for name, value in named:
        yield name, first.setdefault(id(value), name)


def _check_order(
    ours: Sequence[tuple[str, str]], theirs: Sequence[tuple[str, str]], number: int
) -> None:
    nothing = ("nothing", "nothing")
    for (name, first), (other, others_first) in zip_longest(ours, theirs, fillvalue=nothing):
        if name != other:
            raise CannotStackError(
                f"{other!r} of model {number} stands in the place of {name!r} of model 0; a "
                "stack needs the same order everywhere."
            )
        if first != others_first:
            raise CannotStackError(
                f"{name!r} is the same as {first!r} in model 0, and as {others_first!r} in model "
                f"{number}; a stack needs the same tensors shared everywhere."
            )


def _check_same(name: str, ours: nn.Module, theirs: nn.Module, number: int) -> None:
    if type(ours) is not type(theirs):
        raise CannotStackError(
            f"module {described(name, ours)} of model 0 is a {type(theirs).__name__} in model "
            f"{number}."
        )
    for attribute in changed_attributes(attributes(ours), attributes(theirs)):
        raise CannotStackError(
            f"module {described(name, ours)} has another {attribute} in model {number} than in "
            "model 0; a stack computes all models alike."
        )


def _check_no_generators_and_hooks(name: str, module: nn.Module, number: int) -> None:
    if any(isinstance(value, torch.Generator) for value in attributes(module).values()):
        raise CannotStackError(
            f"module {described(name, module)} of model {number} draws from a generator of its "
            "own, and a stack draws for all models at once."
        )
    if any(_hooks(module)):
        raise CannotStackError(
            f"module {described(name, module)} of model {number} has hooks, which a stack would "
            "not call. Remove them."
        )


def _hooks(module: nn.Module) -> Iterator[object]:
    yield from (module._forward_hooks, module._forward_pre_hooks)
    yield from (module._backward_hooks, module._backward_pre_hooks)
    for parameter in module.parameters(recurse=False):
        yield from (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
