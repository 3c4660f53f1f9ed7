"""Grids of independent cells: computed in parallel, kept one by one, merged."""

from equipoise_papers.sweeps.backends import BACKENDS, Backend, Engine, WorkerLostError
from equipoise_papers.sweeps.grid import sweep
from equipoise_papers.sweeps.merge import Choice, Conflict, choose, transfer
from equipoise_papers.sweeps.shard import Shard
from equipoise_papers.sweeps.store import CellStore
from equipoise_papers.sweeps.task import AnyResult, AnyTask, Result, Task

__all__ = [
    "Result",
    "Task",
    "CellStore",
    "Shard",
    "BACKENDS",
    "Backend",
    "Engine",
    "WorkerLostError",
    "sweep",
    "Choice",
    "Conflict",
    "choose",
    "transfer",
    "AnyResult",
    "AnyTask",
]
