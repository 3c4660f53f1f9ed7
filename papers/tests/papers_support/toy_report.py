"""A paper of four rows about the toy experiment, and one that is never run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from equipoise_papers.experiments.experiment import Experiment
from equipoise_papers.report.claims import Claim
from equipoise_papers.report.papers import Paper
from equipoise_papers.report.rows import Row
from equipoise_papers.reproduction.catalogue import EXPERIMENTS

TOY = "toy.squares"
LATER = "toy.later"
PAPER = Paper(
    key="toy",
    title="On Squares",
    reference="Nobody. 2026.",
    rows=(
        Row("Fig. 1", "A drawing.", reason="It measures nothing."),
        Row("Fig. 2", "Three squares.", (TOY,)),
        Row("Fig. 3", "The same again.", see=("Fig. 2",), reason="As in Fig. 2."),
        Row("Table 1", "Three squares, later.", (LATER,)),
    ),
    claims={
        label: Claim(f"Does {label} hold?", "", "nowhere")
        for label in ("Fig. 1", "Fig. 2", "Fig. 3", "Table 1")
    },
)


@contextmanager
def catalogue_of(*experiments: Experiment) -> Iterator[None]:
    """Make these the whole catalogue; afterwards it is as before, in its order."""
    before = dict(EXPERIMENTS)
    EXPERIMENTS.clear()
    EXPERIMENTS.update({experiment.name: experiment for experiment in experiments})
    try:
        yield
    finally:
        EXPERIMENTS.clear()
        EXPERIMENTS.update(before)
