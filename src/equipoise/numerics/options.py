"""Refuse keywords that a function does not take, and arguments of the wrong kind."""

from __future__ import annotations

import collections.abc
import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import (
    Any,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from equipoise.numerics.checks import check_flag
from equipoise.records.wording import closest, with_article

# What other libraries call it, and ours.
_ELSEWHERE = {"criterion": "loss_fn", "loader": "data", "dataloader": "data"}

P = ParamSpec("P")
R = TypeVar("R")


def named_options(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function refuse unknown keywords by its own name, with the closest that it takes.

    Keywords that it passes on are known by their ``Unpack[...]``; those of a record that it takes
    are named with the record. Flags are True or False. Where the function stumbles over an
    argument that is not of the annotated class, the argument is named instead of what Python says;
    errors that are raised on purpose are left as they are.

    Raises:
        TypeError: For an unknown keyword, or an argument of another class.
        ValueError: For a flag that is neither True nor False.

    Examples:
        >>> @named_options
        ... def layer(width, *, momentum=0.1, names: Iterable[str] = ()):
        ...     return len(list(names))
        >>> layer(3, momentun=0.2)
        Traceback (most recent call last):
        TypeError: layer has no option 'momentun'. Did you mean 'momentum'?
        >>> layer(3, names=5)
        Traceback (most recent call last):
        TypeError: names of layer must be something to iterate over; got 5, which is of type int.
    """
    parameters = inspect.signature(function).parameters
    own = {
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    order = [n for n, p in parameters.items() if p.kind is not p.KEYWORD_ONLY]
    shown = function.__qualname__.removesuffix(".__init__")

    @functools.cache
    def flags() -> frozenset[str]:
        hints = _annotations(function) or {}
        return frozenset(name for name in own if hints.get(name) in (bool, bool | None))

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = None if kwargs.keys() <= own else _annotations(function)
        if hints is not None:
            check_options(shown, kwargs, [*own - {"self"}, *_passed_on(hints)], _records(hints))
        given = dict(zip(order, args, strict=False)) | kwargs
        for name in flags() & given.keys():
            if given[name] is not parameters[name].default:  # such as None
                check_flag(**{name: given[name]})
        try:
            return function(*args, **kwargs)
        except (AttributeError, TypeError) as error:
            if not _was_raised_on_purpose(error):
                _blame(function, shown, {n: v for n, v in given.items() if n in own}, error)
            raise

    return checked


def _blame(
    function: Callable[..., Any], shown: str, given: dict[str, Any], error: Exception
) -> None:
    """Refuse the first argument that is not of the annotated kind, if there is one."""
    hints = _annotations(function) or {}
    for name, value in given.items():
        kind = _kind(hints.get(name))
        if kind is not None and not isinstance(value, kind.classes):
            told = " ".join(repr(value).split())
            inside = isinstance(getattr(value, "model", None), kind.classes)
            hint = " Give its `.model`." if inside else ""
            raise TypeError(
                f"{name} of {shown} must be {kind.words}; got {told:.60}, which is of type "
                f"{type(value).__name__}.{hint}"
            ) from error


class _Kind(NamedTuple):
    """What an argument may be: classes, and what to call them in a message."""

    classes: tuple[type, ...]
    words: str


# Functions check themselves which numbers they take, and how many.
_LOOKED_INTO = (Any, int, float, complex, object, bool, tuple, list, dict)


def _kind(hint: Any) -> _Kind | None:
    """The kind that an annotation allows, perhaps beside None; None if there are several."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    others = [part for part in parts if part is not type(None)]
    kind = get_origin(others[0]) or others[0] if len(others) == 1 else None
    none = (type(None),) if len(others) < len(parts) else ()
    or_none = " or None" if none else ""
    if kind is collections.abc.Callable:
        return _Kind((collections.abc.Callable, *none), f"a function{or_none}")
    if kind in (collections.abc.Iterable, collections.abc.Sequence):  # as an array is
        return _Kind((collections.abc.Iterable, *none), f"something to iterate over{or_none}")
    if not isinstance(kind, type) or kind in _LOOKED_INTO or getattr(kind, "_is_protocol", False):
        return None
    if kind is str:
        return _Kind((kind, *none), f"text{or_none}")
    known = {"Module": "torch.nn.Module", "Tensor": "torch.Tensor"}
    name = with_article(known.get(kind.__name__, kind.__name__))
    return _Kind((kind, *none), f"{name}{or_none}")


def _was_raised_on_purpose(error: BaseException) -> bool:
    """Whether a ``raise`` of this library made it, and not Python or another library."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return True
    home = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    if home not in ("equipoise", "equipoise_papers"):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


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
                    f"{name}={_imported(record)}({wrong}={given[wrong]!r})."
                )
        hint = closest(_ELSEWHERE.get(wrong, wrong), known) or f" It takes {', '.join(known)}."
        raise TypeError(f"{function} has no option {wrong!r}.{hint}")


def _imported(record: type) -> str:
    """The name by which users import a class: rooms export theirs."""
    package, room, *_ = [*record.__module__.split("."), ""]
    return f"{package}.{room}.{record.__name__}" if package == "equipoise" else record.__name__


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
