"""Equipoise keeps deep networks in balance: it predicts, measures and repairs.

Nine verbs stand in front; everything else is in the rooms, such as :mod:`equipoise.theory`. Names
are imported on first use, so that ``equipoise --help`` does not wait for torch.
"""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.diagnosis.checkup import checkup
    from equipoise.diagnosis.fix.applied import apply
    from equipoise.diagnosis.fix.measure import fix
    from equipoise.diagnosis.predict import predict
    from equipoise.diagnosis.probe import measure
    from equipoise.diagnosis.trainability.measure import assert_trainable
    from equipoise.preconditioners import BNP
    from equipoise.probes import track
    from equipoise.theory.batch_norm.tune import tune

__version__ = version("equipoise")
__all__ = [
    "BNP",
    "apply",
    "assert_trainable",
    "checkup",
    "fix",
    "measure",
    "predict",
    "track",
    "tune",
]

_HOMES = {
    "BNP": ("preconditioners", "BNP"),
    "apply": ("diagnosis.fix.applied", "apply"),
    "fix": ("diagnosis.fix.measure", "fix"),
    "assert_trainable": ("diagnosis.trainability.measure", "assert_trainable"),
    "checkup": ("diagnosis.checkup", "checkup"),
    "measure": ("diagnosis.probe", "measure"),
    "predict": ("diagnosis.predict", "predict"),
    "track": ("probes", "track"),
    "tune": ("theory.batch_norm.tune", "tune"),
}
_ROOMS = (
    "data",
    "diagnosis",
    "instrument",
    "integrations",
    "layers",
    "models",
    "pooling",
    "preconditioners",
    "probes",
    "records",
    "report",
    "theory",
    "training",
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, attribute = _HOMES[name]
        if module.startswith("diagnosis"):
            importlib.import_module("equipoise.report")  # what diagnosis returns shows itself
        return getattr(importlib.import_module(f"equipoise.{module}"), attribute)
    if name in _ROOMS:
        return importlib.import_module(f"equipoise.{name}")
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")


def __dir__() -> list[str]:
    hidden = {"Any", "TYPE_CHECKING", "importlib", "version"}
    return sorted({*globals(), *__all__, *_ROOMS} - hidden)
