"""Leaves of nested containers, as pytree finds them, and faster where they are plain.

What elementary operations take and give are tuples, lists and dictionaries of tensors and numbers;
pytree describes their structure before it looks at them, which takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree as pytree


def leaves(values: Any) -> list[Any]:
    """The same as pytree's.

    Examples:
        >>> leaves((1, [2, {"a": 3}], None))
        [1, 2, 3, None]
    """
    kind = type(values)
    if kind is tuple or kind is list:
        found = []
        for value in values:
            found += leaves(value)
        return found
    if kind is dict:
        return leaves(list(values.values())) if values else []
    if _is_leaf(kind):
        return [values]
    rest: list[Any] = pytree.tree_leaves(values)
    return rest


def replaced(kinds: type | tuple[type, ...], change: Callable[[Any], Any], values: Any) -> Any:
    """The same containers with the leaves of some classes changed.

    Examples:
        >>> replaced(int, lambda value: value + 1, (1, [2.0, {"a": 3}]))
        (2, [2.0, {'a': 4}])
    """
    kind = type(values)
    if kind is tuple:
        return tuple([replaced(kinds, change, value) for value in values])
    if kind is list:
        return [replaced(kinds, change, value) for value in values]
    if kind is dict:
        return {key: replaced(kinds, change, value) for key, value in values.items()}
    if _is_leaf(kind):
        return change(values) if isinstance(values, kinds) else values
    return pytree.tree_map_only(kinds, change, values)


def _is_leaf(kind: type) -> bool:
    """Named tuples are containers without being registered."""
    return kind not in pytree.SUPPORTED_NODES and not issubclass(kind, tuple)
