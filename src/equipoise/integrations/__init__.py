"""BNP, and a monitor of the training, in the loops of Lightning and Hugging Face.

The packages are extras: importing this room imports none of them, using a module of it needs its
extra, as in ``pip install equipoise[lightning]``.
"""

import importlib
from types import ModuleType

__all__ = ["huggingface", "lightning"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"equipoise.integrations.{name}")
    raise AttributeError(f"module 'equipoise.integrations' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
