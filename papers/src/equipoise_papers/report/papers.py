"""The four papers, each with every figure and table in the paper's order.

A row without an experiment says why: a drawing that measures nothing, a statement that is proved
and tested instead, or a part of a paper that was not available. Rows say in our words what a
figure shows, with no number that the paper does not print.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from equipoise_papers.report import claims, rows
from equipoise_papers.report.claims import Claim
from equipoise_papers.report.record import Finding
from equipoise_papers.report.rows import Row

# The same for every paper; a test of tests/report compares them with the code.
_RULES = (
    "two methods are compared seed by seed, on the same weights and batches: the difference and "
    "its standard error over seeds; it holds, or is refuted, if a one-sided Student's t at 95 % "
    "says so, and is undecided otherwise; positive numbers of several decades by their logarithms",
    "“comparable” and “level” have margins that stand with each check, by the same test: "
    "certainly inside, certainly outside, or undecided",
    "a difference that is not significant is never a yes",
    "a sentence that can be read in two ways (what counts as trained, whether a loss adds up over "
    "samples) is judged by both: two answers leave it undecided, and the check shows them",
    "a sentence whose premise our run does not reach (a plateau, successive steps, statistics "
    "that have settled, large maps, one epoch for sentences about the end of training) is "
    "undecided, and the check says what is missing",
    "a sentence about a GPU's times is decided by a GPU's alone",
    "the outcome: holds if every sentence of the claim does; fails if one is refuted and none "
    "holds, mixed if one is refuted and others hold; partly open if none is refuted, some hold "
    "and others are undecided; undecided if none is decided",
)


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper and everything in it that could be reproduced.

    Args:
        key: Key of the bibliography and first part of its experiments' names.
        title: Its title.
        reference: Authors, place and year.
        rows: Figures and tables in the paper's order, then statements.
        claims: The paper's words about each row, by its label.
        rules: How claims are decided.
        found: What we found beyond the paper.
    """

    key: str
    title: str
    reference: str
    rows: tuple[Row, ...]
    claims: Mapping[str, Claim]
    rules: tuple[str, ...] = ()
    found: tuple[Finding, ...] = ()


PAPERS = (
    Paper(
        key="yang2019",
        title="A Mean Field Theory of Batch Normalization",
        reference="G. Yang, J. Pennington, V. Rao, J. Sohl-Dickstein, S. S. Schoenholz. ICLR "
        "2019. arXiv:1902.08129.",
        rows=rows.YANG2019,
        claims=claims.YANG2019,
        rules=(
            *_RULES,
            "trainable depths: intervals over columns and seeds as listed with each figure; "
            "trained means at least half-way from guessing to the column's best mean accuracy; a "
            "quarter of the way is tried as well, and two answers leave a sentence undecided",
        ),
        found=(
            Finding(
                "networks break the symmetry between samples at large batches", "new-symmetry"
            ),
            Finding(
                "the state of equal samples is stable from ε = σ_w²γ²φ′(β)² on", "new-critical-eps"
            ),
            Finding("forward and backward cross-batch rates are equal", "new-cross-batch"),
            Finding("errata", "yang2019"),
        ),
    ),
    Paper(
        key="santurkar2018",
        title="How Does Batch Normalization Help Optimization?",
        reference="S. Santurkar, D. Tsipras, A. Ilyas, A. Mądry. NeurIPS 2018. arXiv:1805.11604.",
        rows=rows.SANTURKAR2018,
        claims=claims.SANTURKAR2018,
        rules=_RULES,
        found=(
            Finding(
                "7 of 16 statements fail as printed; every corrected form holds", "santurkar2018"
            ),
        ),
    ),
    Paper(
        key="lange2022",
        title="Batch Normalization Preconditioning for Neural Network Training",
        reference="S. Lange, K. Helfrich, Q. Ye. Journal of Machine Learning Research 23, 2022.",
        rows=rows.LANGE2022,
        claims=claims.LANGE2022,
        rules=(
            *_RULES,
            "methods are compared by training loss; if test accuracies say the opposite, the "
            "sentence is undecided",
        ),
        found=(
            Finding("BNP for adaptive optimisers maps their step on both sides", "new-two-sided"),
            Finding("errata", "lange2022"),
        ),
    ),
    Paper(
        key="yu2020",
        title="Toward Faster and Simpler Matrix Normalization via Rank-1 Update",
        reference="T. Yu, Y. Cai, P. Li. ECCV 2020. DOI 10.1007/978-3-030-58529-7_13. Supplement "
        "and abstracts; the main paper's body was not available.",
        rows=rows.YU2020,
        claims=claims.YU2020,
        rules=_RULES,
        found=(
            Finding("RUN is a symmetric rank-two update", "new-rank-two"),
            Finding("errata in the supplement", "yu2020"),
        ),
    ),
)
