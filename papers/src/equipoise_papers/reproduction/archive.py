"""Pack the records of a scale into a few small files, which a repository can keep, and back.

Each store becomes ``NAME.jsonl.xz``: one record a line, in the order of their names, compressed.
The same records give the same bytes, and unpacking gives back the very files that were packed.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Collection, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from equipoise.files import write_bytes
from equipoise.records import from_plain
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.reproduction.folders import cell_store, cells_folder
from equipoise_papers.reproduction.gather import Gathered, gather
from equipoise_papers.sweeps.cell import Cell
from equipoise_papers.sweeps.store import SCHEMA, digest, is_undamaged

SUFFIX = ".jsonl.xz"


def stored_cells(root: str | Path, scale: Scale) -> dict[str, tuple[Path, ...]]:
    """Find the files of every known experiment's cells at a scale, by the name of their store.

    Cells that experiments share are listed once; stores without such a cell are left out.
    """
    files: dict[str, set[Path]] = {}
    for experiment in EXPERIMENTS.values():
        store = cell_store(experiment, Path(root))
        if not cells_folder(Path(root), experiment.filed_under).is_dir():
            continue
        found = {store.path(cell) for cell in experiment.cells(scale)}
        files.setdefault(experiment.filed_under, set()).update(filter(Path.is_file, found))
    return {name: tuple(sorted(found)) for name, found in sorted(files.items()) if found}


def pack(root: str | Path, target: str | Path, scale: Scale) -> tuple[Path, ...]:
    """Write a scale's records as one compressed file per store.

    Packed files that are there already are replaced, or removed if their store is gone.

    Args:
        root: Folder that :func:`equipoise_papers.reproduce` wrote to.
        target: Where to; made if it does not exist.
        scale: Which records.

    Returns:
        The files.
    """
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    packed = []
    for name, files in stored_cells(root, scale).items():
        packed.append(folder / f"{name}{SUFFIX}")
        write_bytes(packed[-1], _compressed(files))
    for path in {*folder.glob(f"*{SUFFIX}")} - {*packed}:
        path.unlink()
    return tuple(packed)


def unpack(source: str | Path, *, out: str | Path) -> Gathered:
    """Bring packed records into a folder, beside those that it holds already.

    Args:
        source: Folder with packed records, such as ``papers/docs/reproduction/records``.
        out: Folder for the records. :func:`equipoise_papers.reproduce` can then draw and judge
            them with ``redraw=True``.

    Raises:
        ValueError: If there is nothing to unpack, a file is damaged, or ``out`` holds a
            different record of the same cell. Nothing is written then.
    """
    archives = _archives(source)
    with TemporaryDirectory() as scratch:
        for archive in archives:
            _expand(archive, cells_folder(Path(scratch), archive.name.removesuffix(SUFFIX)))
        return gather([scratch], out=out)


def read_packed(
    source: str | Path, only: Collection[str] | None = None
) -> dict[str, dict[str, dict[str, Any]]]:
    """Read packed records without writing them anywhere.

    Args:
        source: Folder with packed records.
        only: Names of the stores to read; by default all.

    Returns:
        What :meth:`~equipoise_papers.sweeps.store.CellStore.save` wrote, by the name of the store
        and the cell's digest.

    Raises:
        ValueError: If there is nothing to read, or a file is damaged.
    """
    found = {}
    for archive in _archives(source, only):
        documents = _documents(archive)
        if not all(map(is_undamaged, documents.values())):
            raise ValueError(
                f"{str(archive)!r} has changed since it was written. Fetch it again, or compute "
                "the records with `equipoise reproduce`."
            )
        found[archive.name.removesuffix(SUFFIX)] = documents
    return found


def packed_records(
    source: str | Path, experiment: Experiment, scale: Scale
) -> dict[Cell[Any], Any]:
    """Read an experiment's packed records by cell; cells without one are left out.

    Raises:
        ValueError: If there is nothing to read, or a file is damaged.
    """
    store = cell_store(experiment, Path())
    documents = read_packed(source, [store.name])[store.name]
    found = ((cell, documents.get(store.digest(cell))) for cell in experiment.cells(scale))
    return {
        cell: from_plain(cell.record_type, document["record"])
        for cell, document in found
        if document is not None and document["record"] is not None
    }


def _archives(source: str | Path, only: Collection[str] | None = None) -> list[Path]:
    archives = [
        archive
        for archive in sorted(Path(source).glob(f"*{SUFFIX}"))
        if only is None or archive.name.removesuffix(SUFFIX) in only
    ]
    if not archives:
        raise ValueError(
            f"{str(source)!r} holds no packed records (*{SUFFIX}). Name the folder of a report "
            "that `equipoise reproduce report` wrote; they lie in its folder 'records'."
        )
    return archives


def _compressed(files: Iterable[Path]) -> bytes:
    lines = [json.dumps(_undamaged(path), separators=(",", ":")) + "\n" for path in files]
    # xz has no time stamp; half of a record is digits, of which it leaves a fifth less than gzip.
    return lzma.compress("".join(lines).encode(), preset=9)


def _undamaged(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if not is_undamaged(document):
        raise ValueError(
            f"{str(path)!r} has changed since it was written. Run `equipoise reproduce` again, "
            "which replaces it."
        )
    return document


def _expand(archive: Path, folder: Path) -> None:
    documents = _documents(archive)
    folder.mkdir(parents=True)
    for name, document in documents.items():
        # As `CellStore.save` writes it.
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def _documents(archive: Path) -> dict[str, dict[str, Any]]:
    """Read an archive's records, by the digests of their cells."""
    try:
        lines = lzma.decompress(archive.read_bytes()).decode().splitlines()
        documents = {}
        for document in map(json.loads, lines):
            if document["schema"] != SCHEMA:
                raise ValueError(f"schema {document['schema']!r} is not {SCHEMA}")
            identity = {key: document[key] for key in ("experiment", "revision", "cell")}
            documents[digest(identity)] = document
    except (lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{str(archive)!r} does not hold packed records of this version: {error}. Fetch it "
            "again, or compute the records with `equipoise reproduce`."
        ) from error
    return documents
