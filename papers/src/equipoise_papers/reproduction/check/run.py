"""Compute a sample of published records anew with the code of today, and compare."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch

from equipoise import __version__
from equipoise.instrument import Progress
from equipoise.records import from_plain, to_plain
from equipoise.report import wording
from equipoise_papers.big.distributed import under_torchrun
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.reproduction.archive import read_packed
from equipoise_papers.reproduction.catalogue import EXPERIMENTS, find
from equipoise_papers.reproduction.check.compare import (
    TOLERANCE,
    Comparison,
    compare,
    left_out,
    mean_at,
    outcome_of,
)
from equipoise_papers.reproduction.check.evidence import Pair, Test, field_tests, shared_level
from equipoise_papers.reproduction.check.record import (
    Agreement,
    CheckedCells,
    Deviation,
    Evidence,
    PublishedCheck,
)
from equipoise_papers.reproduction.check.sample import allocate, draw
from equipoise_papers.reproduction.folders import cell_store
from equipoise_papers.reproduction.summary import duration
from equipoise_papers.sweeps.backends import Backend, Engine
from equipoise_papers.sweeps.cell import Cell, Result
from equipoise_papers.sweeps.grid import sweep
from equipoise_papers.sweeps.provenance import provenance
from equipoise_papers.sweeps.store import CellStore

DEFAULT_CELLS = 100
# Probability that a check of unchanged code finds it changed.
FAMILY_LEVEL = 0.01
# Fields that hold nothing but a cell's random numbers.
_SEEDS = ("seed", "seeds")
# A commit that nobody knows, in provenances.
_UNKNOWN = "unknown"

# What was written about a cell, as plain values.
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Stratum:
    """Published cells of one kind of one experiment.

    Args:
        experiment: Name that they are filed under.
        kind: Their class.
        cells: By digest.
    """

    experiment: str
    kind: str
    cells: dict[str, Cell[Any]]


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The published records of one store.

    Args:
        documents: By digest.
        groups: Digests of cells that differ by the seed alone.
    """

    documents: Mapping[str, Document]
    groups: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Compared:
    """A stratum's sample, before the level of tests is known."""

    stratum: _Stratum
    results: dict[str, Result[Any]]
    comparisons: dict[str, Comparison]
    pairs: dict[str, list[Pair]]
    tests: tuple[Test, ...]
    left_out: tuple[str, ...]


def check_published(
    page: str | Path,
    *,
    cells: int = DEFAULT_CELLS,
    seed: int = 0,
    only: str | None = None,
    scale: Scale = "small",
    out: str | Path = "reproduction",
    jobs: int | None = None,
    backend: Backend = "loky",
    scheduler: str | None = None,
    progress: Progress = lambda stage, done, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> PublishedCheck:
    """Compute a random sample of the published cells anew, and compare the records.

    Every kind of cell of every experiment is drawn at least once. Cells without a seed, such as
    predictions, must agree within rounding. Others may differ as far as noise explains it, which
    :mod:`equipoise_papers.reproduction.check.evidence` tests. Times are left out, and so are error
    bounds and methods of estimates.

    The check finds code that now fails, predictions that changed, and changes that move many
    sampled trainings of a kind to one side or beyond the scatter of the seeds. It cannot find a
    change that moves trainings by less than that, or that concerns only a few of the sampled
    cells. Where a processor gives the published records to the last bit, any change would show.

    New records are stored one by one under ``out/check-COMMIT``. The same call goes on after an
    interruption; another commit begins anew.

    Args:
        page: Folder of a report, with the packed records in ``records``.
        cells: How many to draw. A larger sample with the same seed holds the smaller one.
        seed: Which sample.
        only: An experiment or a figure, to draw from its cells alone.
        scale: Of the published records.
        out: Folder for the new records.
        jobs: Cells at once, as in :func:`equipoise_papers.reproduce`.
        backend: ``loky`` for processes on this machine, ``threading``, ``dask`` or ``ray``.
        scheduler: Address of the cluster's scheduler, for ``dask`` and ``ray``.
        progress: Called with the experiment's name, the finished and all of its drawn cells.
        say: Called with one line that says what the check will take, before it starts, and one for
            each experiment that is finished.

    Raises:
        ValueError: If there are no published records of this scale or name, cells are too few,
            the backend or the name is unknown, or ``out`` cannot be written to or holds the
            published records themselves.
        ChildProcessError: If a worker process was killed; everything finished is stored.
    """
    if cells < 1:
        raise ValueError(f"--cells must be at least 1, got {cells}.")
    if scale not in get_args(Scale):
        raise ValueError(f"scale must be one of {', '.join(get_args(Scale))}, got {scale!r}.")
    if under_torchrun():
        raise ValueError("check computes each cell in one process. Leave torchrun out.")
    engine = Engine(backend=backend, jobs=jobs, scheduler=scheduler)
    experiments = tuple(EXPERIMENTS.values()) if only is None else find(only)
    packed = read_packed(Path(page) / "records")
    strata = _strata(experiments, packed, scale)
    if not strata:
        raise ValueError(
            f"{str(page)!r} holds no records of {only or 'any experiment'} at scale {scale} that "
            "this version can compute. Name another --scale or --page."
        )
    sample = _drawn(strata, cells, seed)
    commit = _commit()
    root = Path(out) / f"check-{commit}"
    stores = {experiment.filed_under: cell_store(experiment, root) for experiment in experiments}
    _refuse_copies(stores, sample, packed)
    say(_price(stores, sample, packed, engine))
    compared = _computed(stores, sample, packed, engine, progress, say)
    level = shared_level([test for part in compared for test in part.tests], FAMILY_LEVEL)
    published = {(part.experiment, part.kind): len(part.cells) for part in strata}
    return PublishedCheck(
        published=str(page),
        folder=str(root),
        commit=commit,
        scale=scale,
        seed=seed,
        tolerance=TOLERANCE,
        family_level=FAMILY_LEVEL,
        level=level,
        rows=tuple(
            _row(
                part,
                level,
                packed[part.stratum.experiment],
                published[part.stratum.experiment, part.stratum.kind],
            )
            for part in compared
        ),
    )


def _commit() -> str:
    """Name the code of today, for the folder of its records."""
    commit = provenance(torch.device("cpu")).commit
    return __version__ if commit == _UNKNOWN else commit


def _strata(
    experiments: Sequence[Experiment], packed: Mapping[str, Mapping[str, Document]], scale: Scale
) -> list[_Stratum]:
    """Published cells that today's experiments have, by store and class."""
    found: dict[tuple[str, str], _Stratum] = {}
    for experiment in experiments:
        name = experiment.filed_under
        if name not in packed:
            continue
        store = cell_store(experiment, Path())
        for cell in experiment.cells_here(scale):
            key = store.digest(cell)
            document = packed[name].get(key)
            if document is None or document["record"] is None:
                continue
            kind = type(cell).__name__
            stratum = found.setdefault((name, kind), _Stratum(name, kind, {}))
            stratum.cells[key] = cell
    return list(found.values())


def _drawn(strata: Sequence[_Stratum], cells: int, seed: int) -> list[_Stratum]:
    shares = allocate({i: len(part.cells) for i, part in enumerate(strata)}, cells)
    return [
        replace(part, cells={key: part.cells[key] for key in draw(part.cells, shares[i], seed)})
        for i, part in enumerate(strata)
    ]


def _refuse_copies(
    stores: Mapping[str, CellStore],
    sample: Sequence[_Stratum],
    packed: Mapping[str, Mapping[str, Document]],
) -> None:
    """Refuse published records where new ones should be: they would agree with themselves."""
    for part in sample:
        for key, cell in part.cells.items():
            store = stores[part.experiment]
            if store.finished(cell) is not None and _is_copy(
                store.document(cell), packed[part.experiment][key]
            ):
                raise ValueError(
                    f"{str(store.path(cell))!r} is the published record itself, not one that was "
                    "computed anew. Name another folder with --out."
                )


def _is_copy(document: Document, published: Document) -> bool:
    """Whether one was written at the moment when the other was, after as long a computation.

    The length alone does not tell: short computations often take the same time to the last
    digit of the clock.
    """
    return all(document[name] == published[name] for name in ("created", "seconds"))


def _price(
    stores: Mapping[str, CellStore],
    sample: Sequence[_Stratum],
    packed: Mapping[str, Mapping[str, Document]],
    engine: Engine,
) -> str:
    seconds = [
        packed[part.experiment][key]["seconds"]
        for part in sample
        for key, cell in part.cells.items()
        if stores[part.experiment].finished(cell) is None
    ]
    drawn = sum(len(part.cells) for part in sample)
    experiments = wording.count(len({part.experiment for part in sample}), "experiment")
    line = f"{wording.count(drawn, 'cell')} of {experiments}"
    if len(seconds) < drawn:
        line += f", {drawn - len(seconds)} of them computed already"
    if not seconds:
        return line
    at_once = engine.jobs or os.cpu_count() or 1
    total = sum(seconds)
    line += f": about {duration(total)} by the published times"
    if at_once > 1 and engine.on_this_machine:
        line += f", {duration(total / at_once)} with {at_once} at once"
    return line


def _computed(
    stores: Mapping[str, CellStore],
    sample: Sequence[_Stratum],
    packed: Mapping[str, Mapping[str, Document]],
    engine: Engine,
    progress: Progress,
    say: Callable[[str], None],
) -> list[_Compared]:
    """Compute and compare store by store, with a line for each that is finished."""
    free = engine.jobs is None and engine.on_this_machine
    compared: list[_Compared] = []
    names = list(dict.fromkeys(part.experiment for part in sample))
    for number, name in enumerate(names, start=1):
        parts = [part for part in sample if part.experiment == name]
        cells = [cell for part in parts for cell in part.cells.values()]
        results = sweep(stores[name], cells, engine=engine, begin_here=free, progress=progress)
        shelf = _shelf(packed[name])
        found = [_compared(part, results, shelf) for part in parts]
        say(f"{number} of {len(names)}: {name}: {_counted(found)}")
        compared += found
    return compared


def _counted(parts: Sequence[_Compared]) -> str:
    closeness = [c.closeness for part in parts for c in part.comparisons.values()]
    failed = sum(len(part.results) for part in parts) - len(closeness)
    words = {"equal": "equal", "rounding": "within rounding", "differs": "different"}
    counts = [f"{closeness.count(key)} {word}" for key, word in words.items() if key in closeness]
    return ", ".join(counts + ([f"{failed} failed"] if failed else []))


def _shelf(documents: Mapping[str, Document]) -> _Shelf:
    groups: dict[str, list[str]] = {}
    for key, document in documents.items():
        if document["record"] is not None:
            groups.setdefault(_group(document["cell"]), []).append(key)
    return _Shelf(documents, groups)


def _group(cell: Any) -> str:
    return json.dumps(_seedless(cell), sort_keys=True)


def _seedless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _seedless(item) for key, item in value.items() if key not in _SEEDS}
    return value


def _is_random(cell: Any) -> bool:
    """Whether a cell, as plain values, has a seed.

    Examples:
        >>> _is_random({"network": {"seed": 3}}), _is_random({"eps": 0.1, "seeds": []})
        (True, False)
    """
    if not isinstance(cell, dict):
        return False
    seeds = [cell[key] for key in _SEEDS if key in cell]
    return any(seed != [] for seed in seeds) or any(map(_is_random, cell.values()))


def _compared(
    part: _Stratum, results: Mapping[Cell[Any], Result[Any]], shelf: _Shelf
) -> _Compared:
    found = {key: results[cell] for key, cell in part.cells.items()}
    without: dict[str, str] = {}
    comparisons: dict[str, Comparison] = {}
    pairs: dict[str, list[Pair]] = {}
    for key, result in found.items():
        if result.record is None:
            continue
        document = shelf.documents[key]
        # Through today's class: fields that it has gained since get their defaults.
        before = to_plain(from_plain(result.cell.record_type, document["record"]))
        after = to_plain(result.record)
        excluded = left_out(part.experiment, after)
        without |= excluded
        comparisons[key] = compare(before, after, excluded)
        pairs[key] = _pairs(document, after, comparisons[key], shelf)
    random = [p for key in pairs if _is_random(shelf.documents[key]["cell"]) for p in pairs[key]]
    reasons = tuple(f"{field}: {reason}" for field, reason in without.items())
    return _Compared(part, found, comparisons, pairs, field_tests(random), reasons)


def _pairs(document: Document, after: Any, comparison: Comparison, shelf: _Shelf) -> list[Pair]:
    """Every field that differs, with what other seeds say of it."""
    group = _group(document["cell"])
    members = [shelf.documents[key]["record"] for key in shelf.groups[group]]
    return [
        Pair(
            field=d.field,
            group=group,
            published=d.published,
            new=d.new,
            relative=d.relative,
            seeds=tuple(m for r in members if (m := mean_at(r, d.places)) is not None),
            published_outcomes=tuple(outcome_of(record, d.field) for record in members),
            new_outcome=outcome_of(after, d.field),
        )
        for d in comparison.differences
    ]


def _row(
    part: _Compared, level: float, documents: Mapping[str, Document], published: int
) -> CheckedCells:
    closeness = [comparison.closeness for comparison in part.comparisons.values()]
    failures = [f"{r.cell}: {r.failure}" for r in part.results.values() if r.record is None]
    differing = {k: c for k, c in part.comparisons.items() if c.closeness == "differs"}
    deviations = [
        _deviation(part, key, comparison, documents[key]) for key, comparison in differing.items()
    ]
    evidence = tuple(test.at(level) for test in part.tests)
    fixed = [key for key in differing if not _is_random(documents[key]["cell"])]
    return CheckedCells(
        experiment=part.stratum.experiment,
        kind=part.stratum.kind,
        published=published,
        cells=len(part.results),
        equal=closeness.count("equal"),
        rounding=closeness.count("rounding"),
        differing=len(differing),
        flipped=sum(bool(deviation.flips) for deviation in deviations),
        failed=len(failures),
        agreement=_agreement(bool(failures), bool(fixed), closeness, evidence, level),
        published_seconds=sum(documents[key]["seconds"] for key in part.results),
        seconds=sum(result.seconds for result in part.results.values()),
        left_out=part.left_out,
        evidence=evidence,
        deviations=tuple(sorted(deviations, key=lambda d: (-d.largest, d.cell))),
        failures=tuple(failures),
    )


def _agreement(
    failed: bool,
    fixed: bool,
    closeness: Sequence[str],
    evidence: Sequence[Evidence],
    level: float,
) -> Agreement:
    if failed:
        return "failed"
    if fixed or any(test.changed for test in evidence):
        return "changed"
    if "differs" in closeness:
        decisive = any(test.smallest_p <= level for test in evidence)
        return "noise" if decisive else "undecided"
    return "rounding" if "rounding" in closeness else "equal"


def _deviation(part: _Compared, key: str, comparison: Comparison, document: Document) -> Deviation:
    scaled = [abs(pair.scaled) for pair in part.pairs[key] if pair.scaled is not None]
    return Deviation(
        cell=str(part.results[key].cell),
        fields=tuple(d.field for d in comparison.differences),
        flips=tuple(d.field for d in comparison.differences if d.flipped),
        largest=max(scaled, default=0.0),
        commit=document.get("provenance", {}).get("commit", _UNKNOWN),
        created=document["created"],
    )
