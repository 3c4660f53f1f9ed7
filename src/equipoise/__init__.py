"""Equipoise keeps deep networks in balance: it predicts, measures and repairs.

The rooms are imported on first use, so that ``equipoise --help`` does not wait for torch.
"""

import importlib
from importlib.metadata import version
from typing import Any

__version__ = version("equipoise")
__all__ = [
    "BNP",
    "data",
    "diagnosis",
    "experiments",
    "integrations",
    "layers",
    "models",
    "preconditioners",
    "probes",
    "records",
    "report",
    "theory",
    "training",
]


def __getattr__(name: str) -> Any:
    if name == "BNP":
        return importlib.import_module("equipoise.preconditioners").BNP
    if name in __all__:
        return importlib.import_module(f"equipoise.{name}")
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
