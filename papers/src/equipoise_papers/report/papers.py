"""The four papers, each with every figure and table in the paper's order.

A row without an experiment says why: a drawing that measures nothing, a statement that is proved
and tested instead, or a part of a paper that was not available. Rows say in our words what a
figure shows, with no number that the paper does not print.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise_papers.report import rows
from equipoise_papers.report.rows import Row


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper and everything in it that could be reproduced.

    Args:
        key: Key of the bibliography and first part of its experiments' names.
        title: Its title.
        reference: Authors, place and year.
        rows: Figures and tables in the paper's order, then statements.
    """

    key: str
    title: str
    reference: str
    rows: tuple[Row, ...]


PAPERS = (
    Paper(
        key="yang2019",
        title="A Mean Field Theory of Batch Normalization",
        reference="G. Yang, J. Pennington, V. Rao, J. Sohl-Dickstein, S. S. Schoenholz. ICLR "
        "2019. arXiv:1902.08129.",
        rows=rows.YANG2019,
    ),
    Paper(
        key="santurkar2018",
        title="How Does Batch Normalization Help Optimization?",
        reference="S. Santurkar, D. Tsipras, A. Ilyas, A. Mądry. NeurIPS 2018. arXiv:1805.11604.",
        rows=rows.SANTURKAR2018,
    ),
    Paper(
        key="lange2022",
        title="Batch Normalization Preconditioning for Neural Network Training",
        reference="S. Lange, K. Helfrich, Q. Ye. Journal of Machine Learning Research 23, 2022.",
        rows=rows.LANGE2022,
    ),
    Paper(
        key="yu2020",
        title="Toward Faster and Simpler Matrix Normalization via Rank-1 Update",
        reference="T. Yu, Y. Cai, P. Li. ECCV 2020. DOI 10.1007/978-3-030-58529-7_13. Supplement "
        "and abstracts; the main paper's body was not available.",
        rows=rows.YU2020,
    ),
)
