"""Watch and restore any PyTorch model: what every room above builds on."""

from equipoise.instrument import normalisers
from equipoise.instrument.random_states import RandomStates
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import Batch, LossFunction, Progress

__all__ = [
    # without a trace
    "untouched",
    "RandomStates",
    # which layers normalise, and how to register one's own
    "normalisers",
    # types
    "LossFunction",
    "Batch",
    "Progress",
]
