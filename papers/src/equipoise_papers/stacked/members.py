"""What models that train together must have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest

import torch
from torch import nn

from equipoise_papers.stacked.settings import changed_settings, settings


class CannotStackError(ValueError):
    """Why models cannot be computed as one stack; each can still train alone."""


def check_members(models: Sequence[nn.Module], rates: Sequence[float]) -> None:
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
    """Refuse models that one computation cannot stand for.

    Raises:
        CannotStackError: Naming the module and what is the matter with it.
    """
    first = dict(models[0].named_modules(remove_duplicate=False))
    places = _places(models[0])
    for number, model in enumerate(models):
        modules = dict(model.named_modules(remove_duplicate=False))
        for name in first.keys() ^ modules.keys():
            raise CannotStackError(
                f"module {name!r} is in only one of model 0 and model {number}; a stack needs the "
                "same modules everywhere."
            )
        _check_places(places, _places(model), number)
        for name, module in modules.items():
            _check_same(name, first[name], module, number)
            _check_own(name, module, number)


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


def _places(model: nn.Module) -> list[tuple[str, str]]:
    """Names in the order of registration, each with the first name of what it stands for.

    Stacks are made by position, and modules called in this order.
    """
    return [
        *_first_names(model.named_modules(remove_duplicate=False)),
        *_first_names(model.named_parameters(remove_duplicate=False)),
        *_first_names(model.named_buffers(remove_duplicate=False)),
    ]


def _first_names(named: Iterable[tuple[str, object]]) -> Iterator[tuple[str, str]]:
    first: dict[int, str] = {}
    for name, thing in named:
        yield name, first.setdefault(id(thing), name)


def _check_places(
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
                f"{number}; a stack shares alike everywhere."
            )


def _check_same(name: str, ours: nn.Module, theirs: nn.Module, number: int) -> None:
    if type(ours) is not type(theirs):
        raise CannotStackError(
            f"module {described(name, ours)} of model 0 is a {type(theirs).__name__} in model "
            f"{number}."
        )
    for setting in changed_settings(settings(ours), settings(theirs)):
        raise CannotStackError(
            f"module {described(name, ours)} has another {setting} in model {number} than in "
            "model 0; a stack computes all members alike."
        )


def _check_own(name: str, module: nn.Module, number: int) -> None:
    """Refuse what would be called, or drawn from, for single members."""
    if any(isinstance(value, torch.Generator) for value in settings(module).values()):
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
