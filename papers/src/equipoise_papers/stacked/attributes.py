"""Plain attributes of modules: compared between models, and restored after a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

# Attributes of every module; all others belong to its class.
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_COMPARED_BY_VALUE = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


def attributes(module: nn.Module) -> dict[str, Any]:
    """A module's attributes besides tensors and modules, its mode included."""
    return {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}


def changed_attributes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of the attributes that differ, or are in one of the two only."""
    names = {**before, **after}
    both = before.keys() & after.keys()
    return [name for name in names if name not in both or not _same(before[name], after[name])]


@contextmanager
def attributes_restored(model: nn.Module) -> Iterator[list[tuple[str, nn.Module, str]]]:
    """Restore the attributes of all modules at the end of the block.

    Yields:
        A list that is filled at the end with what had changed: a module's name, the module, the
        attribute.
    """
    changed: list[tuple[str, nn.Module, str]] = []
    modules = [(name, module, _restorer(module)) for name, module in model.named_modules()]
    try:
        yield changed
    finally:
        for name, module, restore in modules:
            changed.extend((name, module, attribute) for attribute in restore())


def _same(ours: object, theirs: object) -> bool:
    """Compare values of known types; objects of others, such as generators, never are the same."""
    if ours is theirs:
        return True
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, _COMPARED_BY_VALUE):
        return bool(ours == theirs)
    parts, others = _parts(ours), _parts(theirs)
    return parts is not None and others is not None and not changed_attributes(parts, others)


def _parts(value: object) -> dict[Any, Any] | None:
    """The contents of a dictionary, list, tuple or dataclass; ``None`` for anything else."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _restorer(module: nn.Module) -> Callable[[], list[str]]:
    """A function that restores a module's attributes, and returns the names of changed ones."""
    before = attributes(module)
    contents = {name: _contents_restorer(value) for name, value in before.items()}

    def restore() -> list[str]:
        refilled = [name for name, restore_contents in contents.items() if restore_contents()]
        replaced = changed_attributes(before, attributes(module))
        for name in replaced:
            vars(module).pop(name, None)
            if name in before:
                vars(module)[name] = before[name]
        return refilled + replaced

    return restore


def _contents_restorer(value: object) -> Callable[[], bool]:
    """A function that restores a container's contents, and returns whether they had changed."""
    before = _parts(value)
    if before is None:
        return lambda: False
    inner = [_contents_restorer(part) for part in before.values()]

    def restore() -> bool:
        inner_changed = [restore_inner() for restore_inner in inner]
        changed = bool(changed_attributes(before, _parts(value) or {}))
        if changed:
            _refill(value, before)
        return changed or any(inner_changed)

    return restore


def _refill(value: object, parts: dict[Any, Any]) -> None:
    if isinstance(value, dict):
        value.clear()
        value.update(parts)
    elif isinstance(value, list):
        value[:] = parts.values()
    else:
        for name, part in parts.items():
            setattr(value, name, part)
