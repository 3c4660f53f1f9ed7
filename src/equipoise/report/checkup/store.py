"""A check-up on disk: ``report.json`` for machines, ``report.html`` for people."""

from __future__ import annotations

import json
from pathlib import Path

from equipoise.diagnosis.record import SCHEMA_VERSION, Checkup
from equipoise.files import write_text
from equipoise.records.codec import from_plain, write_json
from equipoise.report.checkup.page import render_checkup

JSON_NAME = "report.json"
HTML_NAME = "report.html"


def save(checkup: Checkup, directory: Path) -> Path:
    """Write a check-up as JSON and as HTML, each file whole or not at all; return the page.

    A recommended remedy is written too: ``remedy.json`` for ``equipoise.apply``, and, if it was
    trained, ``fix.py``.
    """
    # First the numbers: they cost a measurement, the page only a rendering.
    write_json(directory / JSON_NAME, checkup)
    if checkup.fix is not None and checkup.fix.best is not None:
        # It knows code of every remedy, and so needs torch; what only shows a report does not.
        from equipoise.diagnosis.fix.export import module_of

        write_json(directory / "remedy.json", checkup.fix.best)
        write_text(directory / "fix.py", module_of(checkup.fix.best))
    elif checkup.proposal is not None:
        write_json(directory / "remedy.json", checkup.proposal.remedy)
    return save_page(checkup, directory / HTML_NAME)


def save_page(checkup: Checkup, page: Path) -> Path:
    """Write only the HTML page, whole or not at all, and return its path."""
    write_text(page, render_checkup(checkup))
    return page


def load(source: str | Path) -> Checkup:
    """Read a check-up back.

    Args:
        source: A folder that :meth:`equipoise.diagnosis.Checkup.save` wrote to, or the JSON
            file itself.

    Raises:
        ValueError: If there is no report, or it is broken, or of another schema version.
    """
    path = Path(source)
    try:
        path, text = _read(path)
    except OSError as error:  # also of a name that is too long to ask for
        raise ValueError(
            f"cannot read {str(path)[:200]}: {error.strerror}. Name a folder that a check-up "
            f"wrote to, or its {JSON_NAME}."
        ) from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not valid JSON: {error}. Run the check-up again to write it anew."
        ) from error
    if not isinstance(data, dict) or "schema" not in data:
        raise ValueError(
            f'{path} is not a check-up: it has no "schema". Name the {JSON_NAME} of a check-up.'
        )
    if data["schema"] != SCHEMA_VERSION:
        raise ValueError(_other_schema(path, data))
    try:
        return from_plain(Checkup, data)
    except ValueError as error:
        raise ValueError(
            f"{path} is not a whole check-up: {error} Run the check-up again to write it anew."
        ) from error


def _other_schema(path: Path, data: dict[str, object]) -> str:
    found = data["schema"]
    newer = isinstance(found, int) and found > SCHEMA_VERSION
    remedy = (
        "Upgrade equipoise to read it."
        if newer
        else "Run the check-up again to write it in the new form."
    )
    return (
        f"{path} has schema version {found!r:.40}, written by equipoise "
        f"{data.get('equipoise', 'of unknown version')!s:.40}; this equipoise reads version "
        f"{SCHEMA_VERSION}. {remedy}"
    )


def _read(path: Path) -> tuple[Path, bytes]:
    """The JSON file that a path leads to, and what is in it.

    Raises:
        ValueError: If there is none.
        OSError: If it cannot be read.
    """
    if path.is_dir():
        path /= JSON_NAME
        if not path.is_file():
            raise ValueError(
                f"{path.parent} holds no {JSON_NAME}. Name a folder that a check-up wrote to, "
                "or run the check-up first."
            )
    elif not path.is_file():
        raise ValueError(
            f"{path} does not exist. Name a folder that a check-up wrote to, or its {JSON_NAME}."
        )
    return path, path.read_bytes()
