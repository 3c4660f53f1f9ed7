"""Compare two records of one cell, number by number, whatever their class."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Closeness = Literal["equal", "rounding", "differs"]

# Rounding, relative to the largest number of a field. Single precision has 1.2e-7, so that this is
# eight roundings; double precision and quadratures (1e-9) stay far below. A training in which
# rounding has grown differs by 1e-4 and more after a hundred steps.
TOLERANCE = 1e-6
# What double precision leaves of numbers of order one that should be zero, such as error bounds.
_NOTHING = 1e-12
# Squares of larger numbers overflow; a loss of this size has diverged in any case.
_HUGE = 1e150

_TIME = "a time"
_RATIO = "a ratio of times"
_MANNER = "how a number was computed, not what it is"
# Fields whose names do not say that they are made of times.
_RATIOS = {
    "lange2022.table1": ("rows.ratio", "rows.median", "rows.floor"),
}

# A place in a record: names of fields and places in lists.
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field in which two records differ by more than rounding.

    Args:
        field: Names of the fields on the way, with dots; numbers of a list share one.
        published: Mean of the published numbers, where both records have finite ones; ``None``
            if no such pair differs.
        new: Mean of the new ones.
        relative: Mean of the differences, new minus published, each divided by the mean size of
            both numbers: one huge number of a training that diverges does not outweigh the rest.
        places: Where these numbers stand.
        flipped: Whether a number is finite in one record only.
    """

    field: str
    published: float | None
    new: float | None
    relative: float | None
    places: tuple[Path, ...]
    flipped: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """How close two records are.

    Args:
        closeness: In a word.
        differences: Fields that differ by more than rounding.
    """

    closeness: Closeness
    differences: tuple[FieldDifference, ...]


def left_out(experiment: str, record: Any) -> dict[str, str]:
    """Fields of a record that differ by nature, and why.

    Args:
        experiment: Name that the record is filed under.
        record: As plain values.

    Examples:
        >>> left_out("lange2022.table1", {"rows": [{"milliseconds": 1.0, "ratio": 1.0, "n": 3}]})
        {'rows.milliseconds': 'a time', 'rows.ratio': 'a ratio of times'}
    """
    fields = dict.fromkeys(field_of(path) for path in leaves(record))
    ratios = _RATIOS.get(experiment, ())
    manners = _manners(fields)
    reasons: dict[str, str] = {}
    for field in fields:
        if _is_time(field):
            reasons[field] = _TIME
        elif field in ratios:
            reasons[field] = _RATIO
        elif field in manners:
            reasons[field] = _MANNER
    return reasons


def compare(published: Any, new: Any, without: Mapping[str, str] | None = None) -> Comparison:
    """Compare two records of the same cell.

    Numbers are paired by their place. Texts must be the same.

    Args:
        published: As plain values, such as :func:`equipoise.records.to_plain` gives.
        new: The other.
        without: Fields to leave out.

    Examples:
        >>> compare({"loss": 0.5, "steps": 7}, {"loss": 0.5 + 1e-9, "steps": 7}).closeness
        'rounding'
        >>> compare({"loss": 0.5, "steps": 7}, {"loss": 0.6, "steps": 7}).differences[0].field
        'loss'
    """
    fields: dict[str, list[tuple[Path, Any, Any]]] = {}
    before, after = leaves(published), leaves(new)
    for path in before | after:
        if (field := field_of(path)) not in (without or {}):
            # What one record lacks counts as None there, as where a training diverged.
            fields.setdefault(field, []).append((path, before.get(path), after.get(path)))
    if all(old == now for places in fields.values() for _, old, now in places):
        return Comparison("equal", ())
    found = tuple(filter(None, (_difference(field, places) for field, places in fields.items())))
    return Comparison("differs" if found else "rounding", found)


def mean_at(record: Any, places: tuple[Path, ...]) -> float | None:
    """Mean of a record's finite numbers at some places; ``None`` if there are none."""
    found = leaves(record)
    return _mean([number for place in places if (number := finite(found.get(place))) is not None])


def outcome_of(record: Any, field: str) -> float:
    """Mean of a field's numbers; infinite if any of them is missing or not finite."""
    found = [value for path, value in leaves(record).items() if field_of(path) == field]
    numbers = [finite(value) for value in found]
    mean = None if None in numbers else _mean([n for n in numbers if n is not None])
    return math.inf if mean is None else mean


def leaves(record: Any) -> dict[Path, Any]:
    """Everything in plain values that is no list and no dictionary, by its place.

    Examples:
        >>> leaves({"curve": [0.5, {"x": None}]})
        {('curve', 0): 0.5, ('curve', 1, 'x'): None}
    """
    return dict(_walk(record, ()))


def field_of(path: Path) -> str:
    """Name a place without its numbers in lists.

    Examples:
        >>> field_of(("rows", 3, "loss"))
        'rows.loss'
    """
    return ".".join(part for part in path if isinstance(part, str))


def finite(value: Any) -> float | None:
    """A number as a float, truth as 0 or 1; ``None`` of texts, of nothing, and of infinity."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return max(-_HUGE, min(float(value), _HUGE))


def _walk(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _walk(item, (*path, name))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _walk(item, (*path, place))
    else:
        yield path, value


def _difference(field: str, places: list[tuple[Path, Any, Any]]) -> FieldDifference | None:
    pairs = [(path, finite(old), finite(new)) for path, old, new in places]
    both = [(path, old, new) for path, old, new in pairs if old is not None and new is not None]
    flipped = any((old is None) != (new is None) for _, old, new in pairs)
    size = max((max(abs(old), abs(new)) for _, old, new in both), default=0.0)
    differ = any(abs(old - new) > max(TOLERANCE * size, _NOTHING) for _, old, new in both)
    # Of two that are no finite numbers, such as texts.
    others = any(old != new for _, old, new in places if finite(old) is None is finite(new))
    if not (flipped or differ or others):
        return None
    if not differ:
        return FieldDifference(field, None, None, None, (), flipped)
    return FieldDifference(
        field,
        _mean([old for _, old, _ in both]),
        _mean([new for _, _, new in both]),
        _mean([2 * (new - old) / ((abs(new) + abs(old)) or 1.0) for _, old, new in both]),
        tuple(path for path, _, _ in both),
        flipped,
    )


def _mean(numbers: list[float]) -> float | None:
    return math.fsum(number / len(numbers) for number in numbers) if numbers else None


def _manners(fields: Iterable[str]) -> set[str]:
    """Error bounds and methods of estimates: a better quadrature changes them, and no number.

    Examples:
        >>> sorted(_manners(["rate.value", "rate.error", "rate.method", "error"]))
        ['rate.error', 'rate.method']
    """
    parts: dict[str, set[str]] = {}
    for field in fields:
        place, _, name = field.rpartition(".")
        parts.setdefault(place, set()).add(name)
    return {
        f"{place}.{name}"
        for place, names in parts.items()
        if place and {"value", "error", "method"} <= names
        for name in ("error", "method")
    }


def _is_time(field: str) -> bool:
    """Whether a field's name says that it is a time or a speed.

    Examples:
        >>> _is_time("step_seconds"), _is_time("rows.milliseconds"), _is_time("evaluations.step")
        (True, True, False)
    """
    name = field.rpartition(".")[2]
    return name.endswith(("seconds", "_per_second"))
