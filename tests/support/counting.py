"""A counter that probes do not put back, as it is a context variable."""

from contextvars import ContextVar

_COUNT = ContextVar("_COUNT", default=0)


def counted() -> None:
    _COUNT.set(_COUNT.get() + 1)


def start() -> None:
    _COUNT.set(0)


def count() -> int:
    return _COUNT.get()
