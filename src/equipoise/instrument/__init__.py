"""Watch and restore any PyTorch model: what every room above builds on."""

from equipoise.instrument.observers import observers_paused
from equipoise.instrument.random_states import RandomStates
from equipoise.instrument.replay import LossFunction
from equipoise.instrument.snapshot import untouched

__all__ = [
    # without a trace
    "untouched",
    "observers_paused",
    "RandomStates",
    # types
    "LossFunction",
]
