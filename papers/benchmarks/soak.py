"""Sweeps and big trainings are disturbed a hundred times; nothing may be lost or different.

Run ``python papers/benchmarks/soak.py [--times 100] [--only WORK] [--quick]``, on Linux. It prints
the table of ``papers/docs/training.md``, and fails if anything went wrong.

Sweeps are ``equipoise reproduce yang2019.fig1a --jobs 2``, again and again into one folder until
all cells are finished, then into another folder. Trainings are ``train_big`` on digits with a
checkpoint every five steps, in one process or under ``torchrun`` in two, until they are finished.
Each run is disturbed once, at a random moment: by SIGKILL (of a worker or a rank, too), SIGTERM or
SIGINT, by a disk that is full (a limit on the size of files, which every write beyond it runs
into), or by a bit that is flipped in a stored file before it starts. After each disturbance:

- all processes are gone within three seconds, and the exit code is the signal's (torchrun waits up
  to thirty seconds for its ranks, and ends with 1, as does any script after Ctrl-C that has
  taken a step of one of PyTorch's optimizers);
- no traceback is printed by ``equipoise`` when it is asked to end;
- every record that was there is there, and has the same bytes, except for the one in which a bit
  was flipped, which is made again; a checkpoint in which one was flipped is refused by name;
- in the end no cell is there twice or missing, and all records and weights are those of an
  undisturbed run, to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from equipoise import BNP, data, layers, training
from equipoise_papers.big import ShuffledBatches, process_group, train_big

# Seconds in which everything has to end, and after which a run counts as stuck.
PROMISED, TORCHRUN, STUCK = 3.0, 30.0, 600.0
# A record of the sweep has 1 to 3 kB, a checkpoint 60 kB.
FULL = 512
STEPS, EVERY, PAUSE = 240, 5, 0.02
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
KINDS = (*SIGNALS, "SIGKILL of a child", "disk full", "flipped bit")
NO_ROOM = 3


@dataclass
class Found:
    """What one kind of disturbance did to one kind of work."""

    times: int = 0
    seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Work:
    """Something that can be disturbed and started again.

    ``command`` is of a folder; ``kept`` finds the files that may not change; ``result`` reads what
    the finished work has to be equal in.
    """

    name: str
    command: Callable[[Path], list[str]]
    kept: Callable[[Path], list[Path]]
    result: Callable[[Path], object]
    # torchrun ends with 1 after a signal, and lets ranks end first: up to 30 s, by its own choice.
    by_torchrun: bool = False


def members(session: int, folder: Path) -> list[int]:
    """Living processes of a session, and those that were told the folder, as torchrun's ranks."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            after = (entry / "stat").read_text().rpartition(") ")[2].split()
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        is_ours = int(after[3]) == session or str(folder).encode() in words
        if is_ours and after[0] != "Z" and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def start(command: list[str], log: Path, room: int | None = None) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, perhaps with files of limited size."""

    def limits() -> None:
        # Shells that run this in the background have children ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if room is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            # A pipe has no size: what is printed is not what runs out of room.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if room is not None else file,
            start_new_session=True,
            preexec_fn=limits,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )


def end(process: subprocess.Popen[bytes], folder: Path, log: Path) -> tuple[int, float]:
    """Wait until all processes of a command are gone; return its code and the seconds."""
    begun = time.monotonic()
    try:
        _, printed = process.communicate(timeout=STUCK)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, printed = process.communicate()
    if printed:
        log.write_bytes(printed)
    while members(process.pid, folder) and time.monotonic() - begun < STUCK:
        time.sleep(0.01)
    return process.returncode, time.monotonic() - begun


def contents(paths: list[Path]) -> dict[Path, bytes]:
    """What files hold."""
    return {path: path.read_bytes() for path in paths}


def flip(path: Path, chance: random.Random) -> None:
    """Flip one bit, as failing disks do: the file's time stays."""
    content, times = bytearray(path.read_bytes()), path.stat()
    place = chance.randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def disturb(
    work: Work, folder: Path, kind: str, chance: random.Random, lasts: float
) -> tuple[float | None, list[str], bool]:
    """Disturb one run; return seconds until it was gone, what went wrong, and whether it ended."""
    problems: list[str] = []
    log = folder.with_suffix(".log")
    before = contents(work.kept(folder))
    if kind == "flipped bit":
        if not before:
            kind = "SIGKILL"  # nothing to flip yet; the run makes something
        else:
            victim = chance.choice(sorted(before))
            flip(victim, chance)
            del before[victim]
    process = start(work.command(folder), log, FULL if kind == "disk full" else None)
    moment, seconds = chance.uniform(0.3, lasts), None
    try:
        process.wait(STUCK if kind in ("disk full", "flipped bit") else moment)
        code, _ = end(process, folder, log)
        ended = code == 0
        expected = {0, NO_ROOM} if kind == "disk full" else {0}
        if kind == "disk full" and work.name != "sweep":
            expected.add(1)  # torchrun's, and Python's, for any exception
    except subprocess.TimeoutExpired:
        ended = False
        target = process.pid
        if kind == "SIGKILL of a child":
            others = [pid for pid in members(process.pid, folder) if pid != process.pid]
            target = chance.choice(others) if others else process.pid
        number = SIGNALS.get(kind, signal.SIGKILL)
        if process.poll() is None:
            os.kill(target, number)
        code, seconds = end(process, folder, log)
        expected = {-number, 128 + number, 0}  # 0: it had just finished
        # torchrun's code, and that of any script that has used an optimizer of PyTorch and then
        # ends by Ctrl-C, with or without this library.
        expected |= (
            {1} if work.by_torchrun or (kind == "SIGINT" and work.name != "sweep") else set()
        )
        if target != process.pid:
            # A helper without which the work goes on, or the loss of a worker or a rank.
            expected, seconds, ended = {0, 1, 2}, None, code == 0
    if code not in expected:
        problems.append(f"exit code {code}")
    if seconds is not None and seconds > (TORCHRUN if work.by_torchrun else PROMISED):
        problems.append(f"{seconds:.1f} s until all processes were gone")
    printed = log.read_text("utf-8", "replace")
    if kind in ("SIGTERM", "SIGINT") and work.name == "sweep":
        problems += ["a traceback"] if "Traceback" in printed else []
    after = contents([path for path in before if path.exists()])
    if work.name == "sweep":
        problems += [f"{path.name} is lost" for path in before.keys() - after.keys()]
        problems += [f"{path.name} changed" for path in after if after[path] != before[path]]
    if problems:
        problems[-1] += f" (after {moment:.1f} s; {_told(printed)!r})"
    return seconds, problems, ended


def _told(printed: str) -> str:
    """The exceptions that were printed, or else the end of it."""
    raised = re.findall(r"^.*?\w+(?:Error|Exception|Interrupt)\b.*$", printed, re.MULTILINE)
    return "; ".join(dict.fromkeys(raised))[:600] or printed.strip()[-300:]


def sweep(quick: bool) -> Work:
    """An experiment by the command line, with two workers."""
    scale = "smoke" if quick else "small"

    def records(folder: Path) -> list[Path]:
        return [path for path in folder.rglob("cells/*.json") if _finished(path)]

    def result(folder: Path) -> object:
        documents = [json.loads(path.read_text("utf-8")) for path in records(folder)]
        return sorted(json.dumps([d["cell"], d["record"]], sort_keys=True) for d in documents)

    def command(folder: Path) -> list[str]:
        options = ["--scale", scale, "--jobs", "1" if quick else "2", "--out", str(folder)]
        return [sys.executable, "-m", "equipoise", "reproduce", "yang2019.fig1a", *options]

    return Work("sweep", command, records, result)


def _finished(path: Path) -> bool:
    try:
        return json.loads(path.read_text("utf-8"))["record"] is not None
    except (ValueError, KeyError):
        return False


def big(ranks: int, pause: float) -> Work:
    """This script as a training in one process, or under torchrun in several."""

    def command(folder: Path) -> list[str]:
        run = [str(Path(__file__).resolve()), "--train", str(folder), "--pause", str(pause)]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        return [sys.executable, *(launch if ranks > 1 else []), *run]

    def result(folder: Path) -> object:
        return (folder / "end.json").read_text("utf-8")

    name = f"training, {ranks} ranks" if ranks > 1 else "training"
    return Work(name, command, lambda folder: sorted(folder.glob("run.pt")), result, ranks > 1)


def train(folder: Path, pause: float) -> None:
    """A big training, which goes on from its checkpoint; a damaged one gives way to the last."""
    folder.mkdir(parents=True, exist_ok=True)
    with process_group() as here:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
        )
        model = layers.convert(model, "batch", "synchronised").model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        bnp = BNP(model).attach(optimizer)
        digits = data.split("digits").train

        def slow_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            time.sleep(pause)
            return training.cross_entropy(model, batch)

        run = train_big(
            model,
            ShuffledBatches(digits.inputs, digits.targets, batch_size=64, steps=STEPS, seed=0),
            slow_loss,
            optimizer,
            also={"bnp": bnp},
            checkpoint=folder / "run.pt",
            checkpoint_every=EVERY,
        )
        if here.leads:
            weights = {name: value.tolist() for name, value in model.state_dict().items()}
            draft = folder / "end.part"
            draft.write_text(json.dumps([run.history.losses, weights]), "utf-8")
            draft.replace(folder / "end.json")


def gives_way(folder: Path) -> bool:
    """What the error message says to do about a damaged checkpoint: take the one before."""
    previous = folder / "run.pt.previous"
    if previous.exists():
        previous.replace(folder / "run.pt")
    else:
        (folder / "run.pt").unlink(missing_ok=True)
    return True


def soak(work: Work, times: int, chance: random.Random, root: Path) -> dict[str, Found]:
    """Disturb work in turns of all kinds, in as many folders as it takes."""
    begun = time.monotonic()
    truth_folder = root / f"{work.name} undisturbed"
    code, _ = end(start(work.command(truth_folder), root / "log"), truth_folder, root / "log")
    assert code == 0, (root / "log").read_text("utf-8")
    truth, lasts = work.result(truth_folder), min(20.0, time.monotonic() - begun)
    found = {kind: Found() for kind in KINDS}
    number, folder = 0, root / f"{work.name} 0"
    for turn in range(times):
        kind = KINDS[turn % len(KINDS)]
        seconds, problems, ended = disturb(work, folder, kind, chance, lasts)
        if kind == "flipped bit" and not ended and work.name != "sweep":
            refused = (folder.with_suffix(".log")).read_text("utf-8", "replace")
            if "run.pt" in refused:  # by name; nothing is guessed
                problems = [] if gives_way(folder) else problems
        one = found[kind]
        one.times += 1
        one.problems += problems
        one.seconds += [] if seconds is None else [seconds]
        print(f"{work.name}, {kind}: {'; '.join(problems) or 'fine'}", file=sys.stderr, flush=True)
        if ended or turn == times - 1:
            if not ended:
                end(start(work.command(folder), root / "log"), folder, root / "log")
            if work.result(folder) != truth:
                one.problems.append("the end differs from an undisturbed run's")
            shutil.rmtree(folder)
            number += 1
            folder = root / f"{work.name} {number}"
    print(f"{work.name}: {number} whole runs equal the undisturbed one", file=sys.stderr)
    return found


def table(work: Work, found: dict[str, Found]) -> list[str]:
    """A row for each kind of disturbance."""
    rows = []
    for kind, one in found.items():
        times = one.seconds
        gone = f"{statistics.median(times):.1f}, at most {max(times):.1f}" if times else "–"
        rows.append(f"| {work.name} | {kind} | {one.times} | {gone} | {len(one.problems)} |")
    return rows


def main() -> None:
    """Disturb everything, print the table, and fail if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("sweep", "training", "training, 2 ranks"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--pause", type=float, default=PAUSE, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train is not None:
        train(args.train, args.pause)
        return
    chance = random.Random(args.seed)
    rows, problems = [], []
    works = [sweep(args.quick)] if args.quick else [sweep(False), big(1, PAUSE), big(2, PAUSE)]
    shares = (1.0,) if args.quick else (0.5, 0.3, 0.2)
    with tempfile.TemporaryDirectory() as root:
        for work, share in zip(works, shares, strict=True):
            if args.only not in (None, work.name):
                continue
            times = 1 if args.quick else round(share * args.times)
            found = soak(work, times, chance, Path(root))
            rows += table(work, found)
            problems += [problem for one in found.values() for problem in one.problems]
    print("| work | disturbed by | times | seconds until all was gone | problems |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))
    if problems:
        raise SystemExit("\n".join(["", *problems]))


if __name__ == "__main__":
    main()
