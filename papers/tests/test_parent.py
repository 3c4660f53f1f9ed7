"""A process that is bound to its parent ends with it; one that is not goes on."""

import os
import signal
import subprocess
import sys
import time

import pytest

from equipoise_papers.big import distributed

CHILD = """
import os, sys, time
from equipoise_papers.parent import end_with_parent
if sys.argv[1] == "bound":
    end_with_parent(os.getppid())
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1]])
"""


def is_running(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(") ")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("kind", ["bound", "free"])
def test_after_kill_9_of_its_parent(kind):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, kind, CHILD], stdout=subprocess.PIPE, text=True
    )
    with parent:
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
        parent.wait()
        end = time.monotonic() + (3 if kind == "bound" else 0.5)
        while is_running(child) and time.monotonic() < end:
            time.sleep(0.02)
        assert is_running(child) == (kind == "free")
        if kind == "free":
            os.kill(child, signal.SIGKILL)


def test_ranks_are_bound_to_torchrun_before_they_meet(monkeypatch):
    """Without it, two trainings would write one checkpoint after a kill -9 of torchrun."""
    bound = []

    class StopHereError(Exception):
        """Raised where ranks would meet."""

    def stop(*_, **__):
        raise StopHereError

    monkeypatch.setattr(distributed, "end_with_parent", bound.append)
    monkeypatch.setattr(distributed, "under_torchrun", lambda: True)
    monkeypatch.setattr(distributed.dist, "rendezvous", stop)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # else it is bound to a GPU, too
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(StopHereError), distributed.process_group():
        pass
    assert bound == [os.getppid()]
