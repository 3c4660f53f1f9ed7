"""Many quick cases in one test: a test of its own costs three milliseconds for each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch


def each(names: str | tuple[str, ...], values: Iterable[Any], ids: Any = None) -> Callable:
    """Run a test, or all tests of a class, with each of these values, in one test.

    In the place of ``pytest.mark.parametrize`` where cases take a few milliseconds. All cases run,
    each with the random state that a test begins with; those that fail are told together, with
    their names. Other fixtures are shared by the cases.

    Args:
        names: Of the arguments, as for ``parametrize``.
        values: One for each case, or a tuple for several names.
        ids: Names of cases, or what names a value; their values by default.
    """
    single = isinstance(names, str)
    values = list(values)
    if callable(ids):
        ids = ["-".join(map(str, map(ids, [value] if single else value))) for value in values]
    labels = values if ids is None else list(ids)
    cases = [
        (label, {names: value} if single else dict(zip(names, value, strict=True)))
        for label, value in zip(labels, values, strict=True)
    ]

    def decorate(test: Any) -> Any:
        if not isinstance(test, type):
            return _looped(test, cases)
        for name, member in list(vars(test).items()):
            if name.startswith("test"):
                setattr(test, name, _looped(member, cases))
        return test

    return decorate


def _looped(test: Callable, cases: list[tuple[Any, dict[str, Any]]]) -> Callable:
    @functools.wraps(test)
    def run(*args: Any, **keywords: Any) -> None:
        failures: list[BaseException] = []
        for label, case in cases:
            torch.default_generator.manual_seed(0)
            try:
                test(*args, **keywords, **case)
            except (Exception, pytest.fail.Exception) as error:
                error.add_note(f"in the case {label}")
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise BaseExceptionGroup(f"{len(failures)} of {len(cases)} cases", failures)

    own = inspect.signature(test)
    others = [p for name, p in own.parameters.items() if name not in cases[0][1]]
    run.__signature__ = own.replace(parameters=others)
    return run
