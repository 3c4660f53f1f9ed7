"""Trainings that are killed by SIGKILL, and resume; run as a script with a folder."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from papers_support.big_problems import EVERY, STEPS, interruptible, with_draws
from support.forked_ranks import together

# By number of ranks and name: kills one after the other, each of a rank in a step (counted from 1
# since the last resumption).
DEATHS = {
    1: {f"step {step}": [(0, step)] for step in range(1, STEPS + 1)}
    | {"again and again": [(0, 3), (0, 7), (0, 2), (0, 1), (0, 1), (0, 6)]},
    2: {"rank 0 in step 3": [(0, 3)], "one after the other": [(1, 8), (0, 2)]},
    # With three ranks, DDP could choose the order of sums; with two there is only one.
    3: {"rank 2 in step 8": [(2, 8)]},
}
# Kills while the checkpoint of step 10 is written: before which rename (from 1), the files that
# are left, and the step from which training resumes.
WRITES = {
    "half of the draft": (None, [".run.pt.part", "run.pt", "run.pt.previous"], EVERY),
    "before the renames": (1, [".run.pt.part", "run.pt", "run.pt.previous"], EVERY),
    "between the renames": (2, [".run.pt.part", "run.pt.previous"], EVERY),
}


def die(folder):
    """Leave a mark: exit codes do not tell this process from others that end because of it."""
    (folder / f"died-{time.monotonic_ns()}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def last_checkpoint(deaths):
    """Step of the checkpoint from which training resumes after these kills."""
    at = 0
    for _, step in deaths:
        at += (step - 1) // EVERY * EVERY
    return at


def killing(rank, folder, death):
    """A loss that kills its process in one step."""
    calls = []

    def loss_fn(model, batch):
        calls.append(1)
        if (rank, len(calls)) == death:
            die(folder)
        return with_draws(model, batch)

    return loss_fn


def training(rank, folder, death):
    """A training that may be killed; at its end it saves all states for the test."""
    result = interruptible(rank, folder / "run.pt", killing(rank, folder, death))
    torch.save(result, folder / f"rank-{rank}.pt")


def killed_while_writing(rank, folder, moment):
    rename = WRITES[moment][0]
    if rename is None:
        save = torch.save

        def half(state, file):
            if state["step"] <= EVERY:
                return save(state, file)
            file.write(b"PK half of it")
            file.flush()
            return die(folder)

        torch.save = half
    else:
        replace, calls = Path.replace, []

        def counted(path, target):
            calls.append(path)  # one of the first checkpoint, two of the second
            return die(folder) if len(calls) == 3 + rename else replace(path, target)

        Path.replace = counted
    training(rank, folder, None)


def end_and_codes(size, folder, deaths):
    """All kills, and the training that resumes after them: its end, and the kills' exit codes."""
    folder.mkdir()
    codes = [together(training, size, folder, folder, death)[death[0]] for death in deaths]
    assert len(list(folder.glob("died-*"))) == len(deaths)
    assert together(training, size, folder, folder, None) == [0] * size
    return [torch.load(folder / f"rank-{r}.pt", weights_only=False) for r in range(size)], codes


def main(folder):
    found = {}
    for size, kills in DEATHS.items():
        found[size, "uninterrupted"] = end_and_codes(size, folder / f"{size}", [])
        for name, deaths in kills.items():
            found[size, name] = end_and_codes(size, folder / f"{size} {name}", deaths)
    for moment in WRITES:
        place = folder / moment
        place.mkdir()
        (code,) = together(killed_while_writing, 1, place, place, moment)
        left = sorted(path.name for path in place.glob("*run.pt*"))
        assert len(list(place.glob("died-*"))) == 1
        assert together(training, 1, place, place, None) == [0]
        found[moment] = ([torch.load(place / "rank-0.pt", weights_only=False)], [code], left)
    torch.save(found, folder / "results.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
