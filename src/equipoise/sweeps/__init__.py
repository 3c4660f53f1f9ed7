"""Grids of independent cells: computed in parallel, kept one by one, merged."""

from equipoise.sweeps.backends import BACKENDS, Backend, Engine, WorkerLostError
from equipoise.sweeps.grid import sweep
from equipoise.sweeps.merge import Choice, Conflict, choose, transfer
from equipoise.sweeps.shard import Shard
from equipoise.sweeps.store import CellStore
from equipoise.sweeps.task import AnyResult, AnyTask, Result, Task

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
