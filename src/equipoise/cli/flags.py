"""What the library calls an option of Python, the command line calls a flag."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar, cast

T = TypeVar("T")

# Options as the library's messages and findings write them.
FLAGS = {
    "budget=60": "--budget 60s",
    'fix="bnp"': "--fix bnp",
    "fix=True": "--fix",
    "smoothness=SmoothnessOptions()": "--smoothness",
    "smoothness=True": "--budget",
    "preconditioning=True": "--preconditioning",
    "hessian=True": "--hessian",
    "loss_fn=": "--loss file.py:name",
    "optimizer=": "--optimizer file.py:name",
    "data_dir=": "--data-dir",
    "download=True": "--download",
}
_OPTION = re.compile("|".join(rf"\b{re.escape(option)}(?!\w)" for option in FLAGS))


def in_flags(value: T) -> T:
    """A text, or a record with all texts in it, that names flags instead of options.

    Examples:
        >>> in_flags("Name the folder with `data_dir=`.")
        'Name the folder with `--data-dir`.'
    """
    changed: object = value
    if isinstance(value, str):
        changed = _OPTION.sub(lambda found: FLAGS[found[0]], value)
    elif isinstance(value, tuple) and type(value) is tuple:
        parts = tuple(map(in_flags, value))
        changed = value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    elif is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in fields(value)}
        new = {name: in_flags(part) for name, part in old.items()}
        other = {name: part for name, part in new.items() if part is not old[name]}
        changed = replace(value, **other) if other else value
    return cast(T, changed)
