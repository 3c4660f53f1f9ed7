"""Convert records to plain JSON values and back."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from equipoise.files import write_text

Record = TypeVar("Record")

# Types of fields that stay as they are.
_PLAIN = (str, int, bool)
# JSON has no non-finite numbers, but a report must be able to store a diverged gradient.
_NON_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def to_plain(value: Any) -> Any:
    """Turn records into dictionaries, tuples into lists and non-finite floats into strings.

    Numbers of NumPy become Python's.

    Examples:
        >>> from equipoise.records import Estimate
        >>> to_plain(Estimate(math.inf, 0.5, "measured"))
        {'value': 'Infinity', 'error': 0.5, 'method': 'measured', 'stable': None}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def from_plain(record: type[Record], data: Any) -> Record:
    """Rebuild a record of the given type from :func:`to_plain`'s output.

    Raises:
        ValueError: If a field is missing or unknown, or a value has the wrong type.

    Examples:
        >>> from equipoise.records import Estimate
        >>> from_plain(Estimate, {"value": "NaN", "error": 0, "method": "m"})
        Estimate(value=nan, error=0.0, method='m', stable=None)
    """
    return typing.cast(Record, _decode(record, data, record.__name__))


def write_json(path: Path, record: Any) -> None:
    """Write a record as JSON; an interrupted write leaves the old file."""
    write_text(path, json.dumps(to_plain(record), indent=1, allow_nan=False) + "\n")


def _decode(kind: Any, data: Any, where: str) -> Any:
    # First what large records hold most of.
    if type(data) is kind and (kind in _PLAIN or (kind is float and data - data == 0.0)):
        return data
    origin, arguments = _parts(kind)
    if origin in (typing.Union, types.UnionType):
        return None if data is None else _decode(_only_value_type(arguments), data, where)
    if origin is tuple:
        _expect(isinstance(data, list | tuple), "a list", data, where)
        if arguments == (float, Ellipsis) and _are_finite(data):
            return tuple(data)
        kinds = arguments
        if arguments[-1:] == (Ellipsis,):
            kinds = (arguments[0],) * len(data)
        _expect(len(data) == len(kinds), f"a list of {len(kinds)}", data, where)
        pairs = enumerate(zip(kinds, data, strict=True))
        return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in pairs)
    if origin in (dict, Mapping):
        _expect(isinstance(data, dict), "an object", data, where)
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in data.items()}
    if origin is typing.Literal:
        _expect(data in arguments, f"one of {arguments}", data, where)
        return data
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, data, where)
    if kind is float:
        if isinstance(data, str) and data in _NON_FINITE:
            return _NON_FINITE[data]
        is_number = isinstance(data, int | float) and not isinstance(data, bool)
        _expect(is_number, "a number", data, where)
        _expect(abs(data) <= sys.float_info.max, "a number that a float can hold", data, where)
        return float(data)
    _expect(isinstance(data, kind), f"a {kind.__name__}", data, where)
    return data


def _are_finite(data: Iterable[Any]) -> bool:
    """Whether all are floats of Python that need no look of their own."""
    return all(type(item) is float and item - item == 0.0 for item in data)


def _decode_record(kind: Any, data: Any, where: str) -> Any:
    _expect(isinstance(data, dict), "an object", data, where)
    hints, required = _fields(kind)
    unknown = sorted(data.keys() - hints.keys())
    if unknown:
        raise ValueError(f"{where} has unknown fields {unknown}; known are {sorted(hints)}.")
    missing = sorted(required - data.keys())
    if missing:
        raise ValueError(f"{where} lacks the fields {missing}.")
    return kind(**{k: _decode(hints[k], item, f"{where}.{k}") for k, item in data.items()})


@functools.cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind), typing.get_args(kind)


@functools.cache
def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of a record's fields, and the names of those without a default."""
    hints, fields = typing.get_type_hints(kind), dataclasses.fields(kind)
    required = frozenset(
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )
    return {field.name: hints[field.name] for field in fields}, required


def _only_value_type(arguments: tuple[Any, ...]) -> Any:
    (kind,) = (argument for argument in arguments if argument is not type(None))
    return kind


def _expect(holds: bool, need: str, data: Any, where: str) -> None:
    if not holds:
        raise ValueError(f"{where} must be {need}, got {data!r:.80}.")
