"""Real processes for tests: forks of one script, which has paid for its imports once.

A script, not pytest, must do the forking: pytest's workers have threads, which forks lose.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist

TESTS = Path(__file__).parents[1]
_PATHS = os.pathsep.join(map(str, (TESTS, TESTS.parent / "papers" / "tests")))
_PATIENCE = 60.0


def results_of(script: Path, folder: Path):
    """Run a script that takes a folder and leaves ``results.pt`` there."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": _PATHS}
    done = subprocess.run(
        [sys.executable, script, folder],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(folder / "results.pt", weights_only=False)


def together(function, size, folder, *args):
    """Run ``function(rank, *args)`` in ``size`` processes of one gloo group.

    Returns the exit codes, negative for signals. When one has ended badly, the others, which may
    wait for it, are killed.
    """
    import_module("torch._dynamo")  # here, because every rank's optimizer would
    meet = folder / f"meet-{time.monotonic_ns()}"
    children = [_fork(function, rank, size, meet, args) for rank in range(size)]
    codes = {}
    deadline = time.monotonic() + _PATIENCE
    while len(codes) < size:
        for child in [c for c in children if c not in codes]:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                codes[child] = os.waitstatus_to_exitcode(status)
        if len(codes) < size and (any(codes.values()) or time.monotonic() > deadline):
            time.sleep(0.2)  # others may be about to die of the same
            for child in [c for c in children if c not in codes]:
                os.kill(child, signal.SIGKILL)
                codes[child] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.005)
    return [codes[child] for child in children]


def _fork(function, rank, size, meet, args):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        if size > 1:
            dist.init_process_group("gloo", f"file://{meet}", rank=rank, world_size=size)
        function(rank, *args)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
