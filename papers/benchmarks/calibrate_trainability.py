"""Fit the verdict of the library to the benchmark's records, and print its tables.

Run ``python papers/benchmarks/calibrate_trainability.py [--records DIR] [--write] [--figure
FILE]``. Without ``--records`` it takes the records that the repository keeps; others are those of
``equipoise reproduce trainability --out DIR``. Networks that have not trained are judged after the
long trainings of ``longer_trainings.py``, and left out without one. ``--write`` replaces
``calibration.json`` of the library; without it nothing is changed. ``--quick`` prints the second
table alone. The tables are those of ``docs/trainability.md``.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import equipoise.diagnosis
from equipoise.files import write_text
from equipoise_papers.experiments import style
from equipoise_papers.reproduction.archive import packed_records
from equipoise_papers.reproduction.compute import collect
from equipoise_papers.reproduction.folders import cell_store
from equipoise_papers.reproduction.outputs import finished
from equipoise_papers.trainability import faint, fitting, longer
from equipoise_papers.trainability.calibrate import BASES, calibration, table
from equipoise_papers.trainability.drawing import draw_benchmark
from equipoise_papers.trainability.evaluation import (
    DepthLimit,
    depth_limits,
    share_near,
    standings,
)
from equipoise_papers.trainability.experiment import EXPERIMENT
from equipoise_papers.trainability.outcome import TRAINED, Outcome, outcomes
from equipoise_papers.trainability.training import Training

FILE = Path(equipoise.diagnosis.__file__).parent / "trainability" / "calibration.json"
KEPT = Path(__file__).parents[1] / "docs" / "reproduction" / "records"
LONGER = Path(__file__).parents[1] / "docs" / "longer_trainings.json"
FAINT = Path(__file__).parents[1] / "docs" / "faint_trainings.json"
THRESHOLDS = (0.25, TRAINED, 0.75)


def main() -> None:
    """Fit, print, and write if asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=Path, metavar="DIR")
    parser.add_argument("--longer", type=Path, default=LONGER, metavar="FILE")
    parser.add_argument("--faint", type=Path, default=FAINT, metavar="FILE")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.records is None:
        results = packed_records(KEPT, EXPERIMENT, "small")
    else:
        results = finished(collect(EXPERIMENT, "small", cell_store(EXPERIMENT, args.records)))
    short = outcomes(results)
    known = longer.read(args.longer)
    found = longer.continued(short, known)
    trained = [record for cell, record in results.items() if isinstance(cell, Training)]
    count = sum(len(record.curves) for record in trained) + len(known) * len(longer.RATES)
    networks = len({cell.network for cell in results if isinstance(cell, Training)})
    early = sum(one.trained for one in short)
    print(f"{networks:,} networks, {count:,} trainings, {len(short):,} judged networks of which ")
    print(f"{early:,} trained. {len(found):,} are known to the end of a long training:")
    print(f"{sum(one.trained for one in found):,} trained.\n")
    print_bases(found)
    if args.quick:
        return
    print_standings(found)
    print_thresholds(found)
    print_coefficients(found)
    print_depths(found)
    if args.figure is not None:
        with style.house_style():
            figure = Figure(figsize=(14, 4.6), layout="constrained")
            draw_benchmark(figure, found)
            figure.savefig(args.figure, dpi=90)
    if args.write:
        fits = calibration(found, count, faint.read(args.faint))
        write_text(FILE, json.dumps(fits, separators=(",", ":")) + "\n")
        print(f"\nwrote {FILE.name}")


def print_standings(found: tuple[Outcome, ...]) -> None:
    """ROC AUC of everything, overall and by family."""
    ranked = standings(found)
    families = sorted(ranked[0].by_family)
    print("| score | ROC AUC | 9 of 10 draws | " + " | ".join(families) + " |")
    print("|---|---|---|" + "---|" * len(families))
    for one in ranked:
        areas = " | ".join(_number(one.by_family[family]) for family in families)
        print(f"| {one.name} | {one.area:.3f} | {one.low:.3f} to {one.high:.3f} | {areas} |")
    print()


def print_bases(found: tuple[Outcome, ...]) -> None:
    """What theory and measurement give, alone and together."""
    by_name = {one.name: one for one in standings(found)}
    data = table(found)
    print("| from | ROC AUC | expected calibration error | right at one half |")
    print("|---|---|---|---|")
    for basis in BASES:
        one = by_name[f"Equipoise, {basis}"]
        right = float(((data.held_out(basis) >= 0.5) == (data.trained == 1)).mean())
        print(f"| {basis} | {one.area:.3f} | {one.calibration:.3f} | {right:.1%} |")
    print()


def print_thresholds(found: tuple[Outcome, ...]) -> None:
    """The same for other meanings of "trained"."""
    print("| trained from a progress of | networks that trained | ROC AUC | calibration error |")
    print("|---|---|---|---|")
    for threshold in THRESHOLDS:
        one = {s.name: s for s in standings(found, threshold)}["Equipoise, both"]
        share = float(np.mean([o.progress >= threshold for o in found]))
        print(f"| {threshold:g} | {share:.0%} | {one.area:.3f} | {one.calibration:.3f} |")
    print()


def print_coefficients(found: tuple[Outcome, ...]) -> None:
    """Intercept and coefficients with their standard errors."""
    data = table(found)
    print("| quantity | " + " | ".join(BASES) + " |")
    print("|---|" + "---|" * len(BASES))
    rows: dict[str, list[str]] = {name: [] for name in ("intercept", *data.names)}
    for basis in BASES:
        x = data.x[basis]
        fitted = fitting.fit(x, data.trained, data.signs)
        spread = fitting.covariance(x, data.trained, data.designs, data.signs).diagonal() ** 0.5
        values = (fitted.intercept, *fitted.coefficients)
        for name, value, error in zip(rows, values, spread, strict=True):
            rows[name].append(f"{value:+.2f} ± {error:.2f}")
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")
    print()


def print_depths(found: tuple[Outcome, ...]) -> None:
    """How near predicted depth limits are."""
    print("| from | limits seen | within a fifth | within a factor of 1.5 | of 2 | median ratio |")
    print("|---|---|---|---|---|---|")
    for basis in BASES:
        limits = [one for one in depth_limits(found, basis) if 0 < one.observed < math.inf]
        logs = [abs(_log_ratio(one)) for one in limits]
        near = share_near(limits, lambda _: True)
        wider = [sum(log <= math.log(factor) for log in logs) / len(logs) for factor in (1.5, 2)]
        ratio = math.exp(float(np.median([_log_ratio(one) for one in limits])))
        shares = " | ".join(f"{share:.0%}" for share in (near, *wider))
        print(f"| {basis} | {len(limits)} | {shares} | {ratio:.2f} |")


def _log_ratio(limit: DepthLimit) -> float:
    if limit.predicted == 0:
        return -math.inf
    return math.log(limit.predicted / limit.observed)


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


if __name__ == "__main__":
    main()
