"""Refuse keywords that a function does not take, in words that help to find the right one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints, is_typeddict

from equipoise.records.wording import closest

# What other libraries call it, and ours.
_ELSEWHERE = {"criterion": "loss_fn", "loader": "data", "dataloader": "data"}

P = ParamSpec("P")
R = TypeVar("R")


def named_options(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function refuse unknown keywords by its own name, with the closest that it takes.

    Keywords that it passes on are known by their ``Unpack[...]``; those of a record that it takes
    are named with the record.

    Examples:
        >>> @named_options
        ... def layer(width, *, momentum=0.1): ...
        >>> layer(3, momentun=0.2)
        Traceback (most recent call last):
        TypeError: layer has no option 'momentun'. Did you mean 'momentum'?
    """
    own = {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = None if kwargs.keys() <= own else _annotations(function)
        if hints is not None:
            name = function.__qualname__.removesuffix(".__init__")
            taken = [*own - {"self"}, *_passed_on(hints)]
            check_options(name, kwargs, taken, _records(hints))
        return function(*args, **kwargs)

    return checked


def check_options(
    function: str,
    given: dict[str, Any],
    known: Iterable[str],
    records: dict[str, type] | None = None,
) -> None:
    """Refuse keywords that are not known.

    Args:
        function: Its name.
        given: The keywords that it got.
        known: Those that it takes.
        records: Dataclasses that it takes, by the name of the parameter.

    Raises:
        TypeError: Naming the function, the keyword and the closest known one.
    """
    known = sorted(known)
    for wrong in given:
        if wrong in known:
            continue
        for name, record in (records or {}).items():
            if wrong in {field.name for field in fields(record)}:
                raise TypeError(
                    f"{function} has no option {wrong!r}: it belongs in {name}, as in "
                    f"{name}={record.__name__}({wrong}={given[wrong]!r})."
                )
        hint = closest(_ELSEWHERE.get(wrong, wrong), known) or f" It takes {', '.join(known)}."
        raise TypeError(f"{function} has no option {wrong!r}.{hint}")


def _annotations(function: Callable[..., Any]) -> dict[str, Any] | None:
    try:
        return get_type_hints(function)
    except NameError:  # of a type that is imported for type checkers alone: Python refuses then
        return None


def _passed_on(hints: dict[str, Any]) -> Iterator[str]:
    for hint in hints.values():
        for part in get_args(hint):
            if is_typeddict(part):
                yield from get_type_hints(part)


def _records(hints: dict[str, Any]) -> dict[str, type]:
    return {
        name: part
        for name, hint in hints.items()
        if name != "return"
        for part in (hint, *get_args(hint))
        if isinstance(part, type) and is_dataclass(part)
    }
