"""Real processes for tests: forks of a server that has paid for its imports once.

A server, not pytest, must do the forking: pytest's workers have threads, which forks lose.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist

_PRELOADED = ["torch._dynamo", "torch.distributed.fsdp", "equipoise_papers.sweeps.grid"]
_PATIENCE = 60.0


def server():
    """The context whose processes are forks of one server, started by the first of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def results_of(script: Path, folder: Path):
    """Run a script that takes a folder and leaves ``results.pt`` there."""
    printed_by(script, folder, str(folder))
    return torch.load(folder / "results.pt", weights_only=False)


def printed_by(
    script: Path, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> str:
    """Run a script in a folder, in a fork of the server; what it prints is kept there."""
    given = (script, folder / "printed", arguments, environment or {})
    process = server().Process(target=_run, args=given)
    process.start()
    process.join(300)
    process.kill()
    process.join()
    printed = (folder / "printed").read_text("utf-8")
    assert process.exitcode == 0, printed
    return printed


def _run(script, path, arguments, environment):
    os.environ.update(environment)
    os.chdir(path.parent)
    with path.open("w") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


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
