"""Ten tasks of a new user: commands, attempts and seconds to each answer.

Run ``python benchmarks/ten_tasks.py [--python PYTHON] [--quick]``; it prints the table of
``docs/ten_tasks.md``. The files of ``benchmarks/ten_tasks/`` are copied to a folder of their own,
where every command is run with the programs of an environment, by default this one. In a fresh
environment with the wheel they need nothing else but scikit-learn and pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_FILES = Path(__file__).parent / "ten_tasks"


@dataclass(frozen=True)
class Task:
    """Something that a new user wants.

    Args:
        wish: In the user's words.
        command: What answers it, for a shell.
        answer: A pattern of the answer in what it prints.
    """

    wish: str
    command: str
    answer: str


_VERDICT = r"(?:Will|May|Whether) .*"
TASKS = (
    Task(
        "Will my ResNet-18 train?",
        "equipoise checkup nets.py:ResNet18 --data digits --batch-size 32",
        _VERDICT,
    ),
    Task(
        "Which norm for my U-Net at batches of 2? (a budget of 30 s)",
        "equipoise checkup nets.py:UNet --data data.py:masks --fix norms --budget 30s",
        r"(?s)(?<=───\n ).*?(?= {5,}\n [0-9])",
    ),
    Task(
        "How deep can BN-ReLU and BN-GELU be at a batch of 64?",
        "equipoise theory --activation relu gelu --batch-size 64",
        r"(?s)relu.*?\n.*?gelu.*?\n",
    ),
    Task(
        "Let my test suite fail for what cannot train",
        "python -m pytest -q -p no:cacheprovider test_trains.py",
        r"\d passed",
    ),
    Task("Gradient growth during my own loop, as CSV", "python watched.py", r".*rows in .*"),
    Task("Batches of one sample, resumed", "python one_by_one.py", r".*bit for bit.*"),
    Task(
        "Which of my 50 layers makes gradients explode?",
        "equipoise checkup nets.py:chain --arg bad=23 --data digits",
        r"(?<=[▲●] )(?:One step|Activations).*",
    ),
    Task(
        "The verdict as JSON",
        "equipoise checkup nets.py:chain --arg depth=4 --data digits --json"
        ' | python -c \'import json, sys; print(json.load(sys.stdin)["verdict"]["sentence"])\'',
        _VERDICT,
    ),
    Task(
        "Check a model that takes a dictionary and makes its own loss",
        "equipoise checkup nets.py:Reader --data data.py:words",
        _VERDICT,
    ),
    Task("RUN in the place of my matrix square root", "python pooled.py", r"square root: .*"),
)


def run(task: Task, folder: Path, environment: dict[str, str]) -> str:
    """Run a task, and describe it as a row."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        task.command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = re.search(task.answer, done.stdout)
    answer = " ".join(found.group().split()) if found else f"none: {done.stderr.strip()[-200:]}"
    command = task.command.replace("|", "\\|")
    return f"| {task.wish} | `{command}` | {wall:.1f} s | {processor:.1f} s | {answer} |"


def main() -> None:
    """Run them in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--quick", action="store_true", help="one of them")
    args = parser.parse_args()
    programs = str(args.python.absolute().parent)
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
    }
    print("| task | command | seconds | of the processor | answer |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "home"
        shutil.copytree(_FILES, place)
        for task in TASKS[2:3] if args.quick else TASKS:
            print(run(task, place, environment), flush=True)


if __name__ == "__main__":
    main()
