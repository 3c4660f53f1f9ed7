"""Run a page from top to bottom, as a reader does who copies every block of code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from equipoise.cli.main import main
from support.forked_ranks import printed_by

_BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
_CELL = re.compile(r"^```\{code-cell\} \w+\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (?P<name>\w+\.py)\n")
_EXIT_CODE = re.compile(r"# exit code (\d+)")


def run(page: Path, folder: Path) -> int:
    """Run a page's blocks in a folder, which is the current one and on Python's path.

    A block that begins with the name of a file becomes that file; other Python is one session;
    lines after ``$`` and steps of CI are commands, whose exit code is 0 or the one in a comment. A
    command that was run before, as a step of CI that the page has tried out in a terminal, is not
    run again.

    Returns:
        How many blocks there were.

    Raises:
        AssertionError: If a command ends otherwise, or nobody knows how to run a block.
    """
    names: dict[str, object] = {"__name__": page.stem}
    done: set[str] = set()
    blocks = list(_BLOCK.finditer(page.read_text("utf-8")))
    for block in blocks:
        kind, text = block["kind"], block["text"]
        if kind == "python" and (named := _FILE.match(text)):
            (folder / named["name"]).write_text(text, "utf-8")
        elif kind == "python":
            exec(compile(text, f"{page.name}: {text.splitlines()[0]}", "exec"), names)
        elif kind in ("console", "yaml"):
            for command in re.findall(r"^(?:\$|- run:) (.*)$", text, re.MULTILINE):
                command = command.partition(">>")[0].strip()
                if command not in done:
                    _run_command(command)
                done.add(command)
        else:
            raise AssertionError(f"{page.name} has a block of {kind}, which is not run.")
    return len(blocks)


def run_cells(page: Path) -> int:
    """Run a notebook's cells, as building the documents does, and count them."""
    names: dict[str, object] = {"__name__": page.stem}
    cells = [cell["text"] for cell in _CELL.finditer(page.read_text("utf-8"))]
    for cell in cells:
        exec(compile(cell, f"{page.name}: {cell.splitlines()[0]}", "exec"), names)
    return len(cells)


def _run_command(command: str) -> None:
    expected = _EXIT_CODE.search(command)
    program, *arguments = shlex.split(command, comments=True)
    if program == "equipoise":
        found = main(arguments)
    else:
        assert program == "pytest", command
        printed_by(Path(pytest.__file__).with_name("__main__.py"), Path.cwd(), *arguments)
        found = 0
    assert found == int(expected[1] if expected else 0), command
