"""Where and with what a record was computed: its numbers depend on that, above all times."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

# Where the source is not a checkout, such as a copy on another machine.
COMMIT_VARIABLE = "EQUIPOISE_COMMIT"
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a record was computed by.

    Args:
        commit: Of the source, with ``+`` if files differed; ``unknown`` outside a checkout.
        torch: Version of PyTorch.
        device: ``cpu`` or the name of the GPU.
        threads: Threads that PyTorch computed with.
        cores: Cores that this machine has.
        load: Mean number of running processes over the minute before; nan where the system does
            not say. Above the number of cores, times say little.
    """

    commit: str
    torch: str
    device: str
    threads: int
    cores: int
    load: float

    def words(self) -> str:
        """Write it on one line.

        Examples:
            >>> Provenance("1a2b3c4", "2.12.0", "cpu", 1, 2, 3.14).words()
            'commit 1a2b3c4, torch 2.12.0, cpu, 1 thread, 2 cores, load 3.1'
        """
        threads = f"{self.threads} thread{'s' if self.threads != 1 else ''}"
        return (
            f"commit {self.commit}, torch {self.torch}, {self.device}, {threads}, "
            f"{self.cores} cores, load {self.load:.1f}"
        )


def provenance(device: torch.device) -> Provenance:
    """Describe this process as it is now.

    Args:
        device: Where the record is computed.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return Provenance(
        commit=_commit(),
        torch=torch.__version__,
        device=name,
        threads=torch.get_num_threads(),
        cores=os.cpu_count() or 1,
        load=round(os.getloadavg()[0], 2) if platform.system() != "Windows" else float("nan"),
    )


@cache
def _commit() -> str:
    named = os.environ.get(COMMIT_VARIABLE)
    if named:
        return named
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        # A package that is installed inside somebody else's checkout is no part of it.
        tracked = ["git", "-C", str(folder), "ls-files", "--error-unmatch", Path(__file__).name]
        subprocess.run(tracked, capture_output=True, check=True, timeout=10)
        found = subprocess.run(command, capture_output=True, check=True, timeout=10, text=True)
    except (OSError, subprocess.SubprocessError):
        return _UNKNOWN
    return found.stdout.strip() or _UNKNOWN
