"""Base classes from packages that may not be installed."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def base_class(name: str, *modules: str, extra: str) -> type:
    """The class of the first module that is installed.

    Args:
        name: Of the class.
        modules: To look for, in this order, but first the ones that are in use already.
        extra: Extra of Equipoise that installs one of them.

    Returns:
        That class; without any of the modules a stand-in, so that subclasses can be defined and
        documented, but not created.

    Examples:
        >>> base_class("OrderedDict", "collections", extra="none")
        <class 'collections.OrderedDict'>
        >>> base_class("Callback", "not_installed.callbacks", extra="callbacks")()
        Traceback (most recent call last):
        ModuleNotFoundError: ... needs not_installed: pip install 'equipoise[callbacks]'
    """
    for module in sorted(modules, key=lambda module: module not in sys.modules):
        try:
            found: type = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            # An installed package that lacks a requirement of its own shall say so.
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
        else:
            return found
    return _stand_in(modules[0].partition(".")[0], extra)


def _stand_in(package: str, extra: str) -> type:
    class StandIn:
        def __new__(cls, *_: Any, **__: Any) -> Any:
            raise ModuleNotFoundError(
                f"{cls.__module__}.{cls.__qualname__} needs {package}: "
                f"pip install 'equipoise[{extra}]'",
                name=package,
            )

    return StandIn
