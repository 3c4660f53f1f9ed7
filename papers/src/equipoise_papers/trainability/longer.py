"""Networks that do not train in the benchmark's steps, trained eight times as long.

Some need only more steps: where a signal is nearly lost, AdamW finds it after a plateau. What has
not come half as far as a good network in so many more steps is called not to train.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise.files import write_text
from equipoise_papers.devices import training_device
from equipoise_papers.trainability.outcome import TRAINED, Outcome, measure_of
from equipoise_papers.trainability.space import Network
from equipoise_papers.trainability.training import PARTS, Trained, Training, train

STEPS = 800
# Of AdamW, which leaves plateaus sooner than SGD.
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)


def key(network: Network) -> str:
    """Number of the design, and depth: different for every network of the benchmark."""
    return f"{network.seed}-{network.depth}"


def progress_of(network: Network, results: Mapping[Any, Any]) -> tuple[float, ...]:
    """Progress after each tenth of a long training, at the rate that is best by then."""
    by_network: dict[Network, list[Trained]] = {}
    for cell, record in results.items():
        if isinstance(cell, Training):
            by_network.setdefault(cell.network, []).append(record)
    progress = measure_of(by_network[network], by_network[network.reference])
    if progress is None:
        raise ValueError(f"the reference of {network} learns too little to compare with it")
    curves = train(network, "adamw", RATES, STEPS, training_device()).curves
    losses = (
        min((curve.losses[part] for curve in curves if len(curve.losses) > part), default=math.inf)
        for part in range(PARTS)
    )
    return tuple(float(f"{progress(loss):.4g}") for loss in losses)


def read(file: Path) -> dict[str, tuple[float, ...]]:
    """What was computed so far, by network; nothing if there is no file."""
    if not file.exists():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))
    return {name: tuple(map(float, values)) for name, values in found.items()}


def write(file: Path, found: Mapping[str, Sequence[float]]) -> None:
    """Replace a file; one network a line."""
    lines = (f"{json.dumps(name)}: {json.dumps(list(found[name]))}" for name in sorted(found))
    write_text(file, "{\n" + ",\n".join(lines) + "\n}\n")


def missing(found: Sequence[Outcome], known: Mapping[str, Sequence[float]]) -> Iterator[Outcome]:
    """Networks that have not trained and wait for a long training, cheap ones first."""
    for one in sorted(found, key=lambda one: (one.network.work, key(one.network))):
        if not one.trained and key(one.network) not in known:
            yield one


def continued(
    found: Sequence[Outcome], longer: Mapping[str, Sequence[float]]
) -> tuple[Outcome, ...]:
    """Outcomes after the long trainings; networks that wait for theirs are left out.

    Args:
        found: Outcomes of the short ones.
        longer: Progress in the long ones, by :func:`key`.
    """
    kept = []
    for one in found:
        later = longer.get(key(one.network))
        if later is not None:
            kept.append(replace(one, progress=max(one.progress, *later)))
        elif one.progress >= TRAINED:
            kept.append(one)
    return tuple(kept)
