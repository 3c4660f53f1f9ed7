"""The cost of RUN and of the other normalisations: time, CPU time, saved bytes, lower bounds."""

from __future__ import annotations

from equipoise_papers.experiments.experiment import Experiment
from equipoise_papers.yu2020.speed.cells import cells
from equipoise_papers.yu2020.speed.drawing import draw
from equipoise_papers.yu2020.speed.verdict import judge

EXPERIMENT = Experiment(
    name="yu2020.speed",
    # 2: every turn is kept.
    revision=2,
    title="Cost of RUN and of the other normalisations, alone and in whole heads",
    claim="330 times as fast as Newton–Schulz in full bilinear pooling, 5,400 times as fast as "
    "an SVD in compact pooling; O(KDN) against O(KD³).",
    choices=(
        "times depend on the machine and on what else runs: records are those of one run, on one "
        "thread, methods in turns after two warm-ups; times are medians over turns of "
        "process CPU time, on a GPU of time, ratios medians over turns of those in the same turn; "
        "a GPU has four times the CPU's samples",
        "in brackets are the first and the third quartile over turns; a limit between them leaves "
        "a sentence undecided. Between sizes, which were not timed in turns, a power's brackets "
        "go from the third quartile of one to the first of the other",
        "O(KDN) and O(KD³) speak of operations, which are counted, not of times: at these sizes a "
        "CPU's are those of memory and of calls, too, and a GPU's of calls",
        "rectified normal features, float32; forward and backward with an upstream gradient of "
        "ones; η = 0.5",
        "the paper's speed-ups are of a GPU, with code and sizes that were not available; 330 is "
        "not expected on a CPU, where a good eigendecomposition beats Newton–Schulz",
        "normalisations that read second moments get them ready-made; heads read channel-first "
        "maps and end in the upper triangle, or in a tensor sketch of 8,192",
        "floors, of a CPU alone: operations of forward and backward at the rate of a "
        "1024 × 1024 product, or compulsory reads and writes at the rate of a copy, whichever "
        "takes longer; both rates are measured in the cell",
        "every method is this library's own, of which the faster ones are ahead of public code",
    ),
    cells=cells,
    draw=draw,
    judge=judge,
)
