"""Published figures, reproduced: one package per paper."""

from equipoise.experiments.catalogue import catalogue, find
from equipoise.experiments.experiment import Experiment
from equipoise.experiments.gather import gather
from equipoise.experiments.reproduce import reproduce
from equipoise.experiments.status import sweep_status
from equipoise.experiments.terminal import show

__all__ = [
    "Experiment",
    "catalogue",
    "find",
    "gather",
    "reproduce",
    "show",
    "sweep_status",
]
