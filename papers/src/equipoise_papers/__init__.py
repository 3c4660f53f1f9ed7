"""Every experiment of the four papers behind Equipoise, with records and verdicts.

Names are imported on first use, so that ``equipoise reproduce --help`` does not wait for torch.
"""

import importlib
from importlib.metadata import version
from typing import Any

__version__ = version("equipoise-papers")

_HOMES = {
    "reproduce": "reproduction.reproduce",
    "reproduce_all": "reproduction.everything",
    "catalogue": "reproduction.catalogue",
    "check_published": "reproduction.check.run",
    "gather": "reproduction.gather",
    "sweep_status": "reproduction.status",
    "pack": "reproduction.archive",
    "unpack": "reproduction.archive",
    "publish": "report.collect",
    "train_many": "stacked.train",
    "train_big": "big.train",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"equipoise_papers.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'equipoise_papers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
