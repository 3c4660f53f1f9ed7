"""Published figures, reproduced: one package per paper."""

from equipoise.experiments.archive import pack, unpack
from equipoise.experiments.catalogue import catalogue, find
from equipoise.experiments.experiment import Experiment
from equipoise.experiments.gather import gather
from equipoise.experiments.reproduce import reproduce
from equipoise.experiments.reproduce_all import reproduce_all
from equipoise.experiments.reproduction_report import collect_report, publish
from equipoise.experiments.status import sweep_status
from equipoise.experiments.terminal import show

__all__ = [
    # reproduce
    "reproduce",
    "reproduce_all",
    "publish",
    "collect_report",
    "show",
    # what there is
    "Experiment",
    "catalogue",
    "find",
    # records
    "sweep_status",
    "gather",
    "pack",
    "unpack",
]
