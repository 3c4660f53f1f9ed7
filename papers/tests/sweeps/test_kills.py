"""A sweep that is killed, interrupted or doubled has an undisturbed one's records in the end."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from papers_support.toy_tasks import (
    Draw,
    command_in,
    computed,
    interruptible_sweep_in,
    records,
    store_in,
    sweep_in,
)
from support.forked_ranks import server

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")

CELLS, SECONDS = 64, 0.01


@pytest.fixture(scope="module")
def fork():
    """Processes that find PyTorch imported, so that a sweep begins at once."""
    return server()


def undisturbed(cells, folder):
    sweep_in(folder, cells, jobs=1)
    return stored(cells, folder)


def stored(cells, folder):
    results = {cell: store_in(folder).load(cell) for cell in cells}
    return records({cell: result for cell, result in results.items() if result is not None})


def kill_in_the_middle(process, log, jobs, moment):
    """Kill a sweep some time after it has finished its first cell."""
    before = len(computed(log))
    process.start()
    while len(computed(log)) <= before + jobs and process.is_alive():
        time.sleep(0.001)
    time.sleep(moment)
    process.kill()
    process.join()


@pytest.mark.parametrize(("jobs", "kills"), [(1, 8), (2, 2)])
def test_ten_kills_change_no_record(fork, tmp_path, jobs, kills):
    """Eight kills of a sweep in one process, two of one that has two workers."""
    log, folder, moments = tmp_path / "log", tmp_path / "cells", random.Random(jobs)
    cells = tuple(Draw(seed, str(log), seconds=SECONDS) for seed in range(CELLS))
    killed = 0
    for _ in range(kills):
        process = fork.Process(target=sweep_in, args=(folder, cells, jobs))
        kill_in_the_middle(process, log, jobs, moments.uniform(0, 5 * SECONDS))
        killed += process.exitcode != 0
    assert killed == kills
    half = stored(cells, folder)
    assert 0 < len(half) < CELLS
    sweep_in(folder, cells, jobs=1)
    # Nothing is computed twice but what was being computed.
    assert len(computed(log)) <= CELLS + jobs * kills
    assert set(computed(log)) == set(range(CELLS))
    final = stored(cells, folder)
    assert {cell: final[cell] for cell in half} == half
    assert final == undisturbed(cells, tmp_path / "undisturbed")


def alive(pid):
    """Whether a process runs; of one that ended, its parent may not have taken notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def resource_trackers(pid):
    """Children of a process that remove its semaphores when it has ended without doing so."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {
        child
        for child in children
        if b"resource_tracker" in Path(f"/proc/{child}/cmdline").read_bytes()
    }


@pytest.mark.skipif(not Path("/proc").exists(), reason="asks the kernel for processes")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)],
    ids=["SIGKILL", "SIGTERM"],
)
def test_workers_end_with_their_command(fork, tmp_path, number, code):
    """In the middle of cells of 60 s, with two others finished; three seconds are promised."""
    log, folder, printed = tmp_path / "log", tmp_path / "cells", tmp_path / "printed"
    cells = tuple(Draw(seed, str(log), seconds=60.0 * (seed > 1)) for seed in range(4))
    process = fork.Process(target=command_in, args=(folder, cells, 2, printed))
    process.start()
    while len(computed(log)) < 4:
        time.sleep(0.01)
    workers = {line.split()[1] for line in log.read_text().splitlines()}
    trackers = resource_trackers(process.pid)
    os.kill(process.pid, number)
    process.join(30)  # less than a slow cell takes
    assert process.exitcode == code
    assert trackers
    deadline = time.monotonic() + 30
    while any(map(alive, workers | trackers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, workers | trackers))
    assert set(stored(cells, folder)) == set(cells[:2])
    # Nothing by the trackers, which remove the semaphores of processes that could not.
    said = "" if number == signal.SIGKILL else "equipoise toy: terminated.\n"
    assert printed.read_text() == said


def test_ctrl_c_ends_at_once_and_keeps_what_is_finished(fork, tmp_path):
    """In one process; callers of the library get the exception."""
    log, folder = tmp_path / "log", tmp_path / "cells"
    cells = tuple(Draw(seed, str(log), seconds=60.0 * (seed > 1)) for seed in range(4))
    process = fork.Process(target=interruptible_sweep_in, args=(folder, cells, 1))
    process.start()
    while len(computed(log)) < 3:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    process.join(30)  # less than a slow cell takes
    assert process.exitcode == 0
    assert set(stored(cells, folder)) == set(cells[:2])


def test_two_sweeps_of_one_store_do_not_disturb_each_other(fork, tmp_path):
    log, folder = tmp_path / "log", tmp_path / "cells"
    cells = tuple(Draw(seed, str(log)) for seed in range(30))
    both = [fork.Process(target=sweep_in, args=(folder, cells, 1)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert stored(cells, folder) == undisturbed(cells, tmp_path / "undisturbed")
