"""What is known of a network of the benchmark before any training."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from equipoise import diagnosis
from equipoise_papers.sweeps.cell import Cell
from equipoise_papers.trainability.build import build
from equipoise_papers.trainability.rivals import scores
from equipoise_papers.trainability.space import Network
from equipoise_papers.trainability.tasks import task

# Batches of training have the network's own seed.
_OTHER_BATCH = 1_000_003


@dataclass(frozen=True, slots=True)
class Known:
    """One network before training.

    Args:
        predicted: Quantities from theory, by name; ``None`` where it does not reach the output.
        measured: The same of one pass.
        scores: What others compute of an untrained network, by name.
        refused: Why the library gives no verdict, if it does not; all else is empty then.
    """

    predicted: dict[str, float] | None
    measured: dict[str, float]
    scores: dict[str, float]
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Look(Cell[Known]):
    """One network, predicted and measured before training.

    Args:
        network: Which.
    """

    network: Network

    def run(self) -> Known:
        """Predict, measure and score."""
        source = task(self.network)
        model = build(self.network, source)
        size, seed = self.network.batch_size, self.network.seed + _OTHER_BATCH
        batch = next(source.batches(size, 1, seed))
        try:
            found = diagnosis.trainability(model, batch, batch_size=size, depth=False)
        except ValueError as error:  # such as a loss that is not finite
            return Known(None, {}, {}, str(error))
        return Known(
            predicted=None if found.predicted is None else _short(asdict(found.predicted)),
            measured=_short(asdict(found.measured)),
            scores=_short(scores(model, batch)),
        )


def _short(numbers: dict[str, float]) -> dict[str, float]:
    return {k: float(f"{v:.4g}") if math.isfinite(v) else v for k, v in numbers.items()}
