"""What modules keep as plain attributes: compared between models, and put back after a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

# What every module has; what comes on top are the settings of its class.
_COMMON = frozenset(vars(nn.Module())) - {"training"}
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


def settings(module: nn.Module) -> dict[str, Any]:
    """A module's attributes besides tensors and modules, its mode included."""
    return {name: value for name, value in vars(module).items() if name not in _COMMON}


def changed_settings(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of the settings that differ, or are in one of the two only."""
    names = {**before, **after}
    both = before.keys() & after.keys()
    return [name for name in names if name not in both or not _same(before[name], after[name])]


@contextmanager
def settings_put_back(model: nn.Module) -> Iterator[list[tuple[str, nn.Module, str]]]:
    """Put the settings of all modules back at the end.

    Yields:
        A list that gets, at the end, what had changed: a module's name, the module, the setting.
    """
    changed: list[tuple[str, nn.Module, str]] = []
    modules = [(name, module, _of_module(module)) for name, module in model.named_modules()]
    try:
        yield changed
    finally:
        for name, module, put_back in modules:
            changed.extend((name, module, setting) for setting in put_back())


def _same(ours: object, theirs: object) -> bool:
    """By value where a type says what its value is; a generator, for one, is a member's own."""
    if ours is theirs:
        return True
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, _PLAIN):
        return bool(ours == theirs)
    parts, others = _parts(ours), _parts(theirs)
    return parts is not None and others is not None and not changed_settings(parts, others)


def _parts(value: object) -> dict[Any, Any] | None:
    """What a container holds; None for what is no container of a known kind."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _of_module(module: nn.Module) -> Callable[[], list[str]]:
    """A function that puts a module's settings back, and names what had changed."""
    before = settings(module)
    inside = {name: _contents(value) for name, value in before.items()}

    def put_back() -> list[str]:
        refilled = [name for name, contents in inside.items() if contents()]
        replaced = changed_settings(before, settings(module))
        for name in replaced:
            vars(module).pop(name, None)
            if name in before:
                vars(module)[name] = before[name]
        return refilled + replaced

    return put_back


def _contents(value: object) -> Callable[[], bool]:
    """A function that puts a container's contents back, and says whether they had changed."""
    before = _parts(value)
    if before is None:
        return lambda: False
    inside = [_contents(part) for part in before.values()]

    def put_back() -> bool:
        refilled = [contents() for contents in inside]
        replaced = bool(changed_settings(before, _parts(value) or {}))
        if replaced:
            _refill(value, before)
        return replaced or any(refilled)

    return put_back


def _refill(value: object, parts: dict[Any, Any]) -> None:
    if isinstance(value, dict):
        value.clear()
        value.update(parts)
    elif isinstance(value, list):
        value[:] = parts.values()
    else:
        for name, part in parts.items():
            setattr(value, name, part)
