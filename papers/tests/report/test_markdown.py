"""A reproduction as Markdown: an overview, a page per paper, and texts that stay texts."""

from __future__ import annotations

import re

import pytest

from equipoise_papers.report.markdown import escaped, overview, paper_page, save_markdown
from papers_support.reproduction_examples import REPORTS, whole


def cells(line):
    """Cells of a row of a table; an escaped bar does not end one."""
    return re.split(r"(?<!\\)\|", line)[1:-1]


@pytest.fixture(params=REPORTS.values(), ids=REPORTS)
def report(request, tmp_path):
    return request.param(tmp_path)


def test_every_row_is_in_the_overview_and_leads_to_its_section(report):
    text = overview(report)
    for paper in report.papers:
        headings = re.findall(r"^## (.*)$", paper_page(paper, report.scale), re.MULTILINE)
        assert headings == [row.label for row in paper.rows]
        for row in paper.rows:
            slug = re.sub(r"[^\w\- ]", "", row.label.lower().replace(" ", "-"))
            assert f"[{row.label}]({paper.key}.md#{slug})" in text


def test_tables_keep_their_columns(report):
    pages = [overview(report), *(paper_page(paper, report.scale) for paper in report.papers)]
    for page in pages:
        for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
            widths = {len(cells(line)) for line in table.splitlines()}
            assert len(widths) == 1


def test_the_facts_are_there(tmp_path):
    report = whole(tmp_path)
    text = overview(report) + paper_page(report.papers[0], "small")
    for fact in (
        "**2 claims hold, 1 is partly open, 1 is mixed, 1 fails** of 9 figures",
        "| ✔ **holds**<br>1 of 1 holds |",
        "| ◔ **partly open**<br>2 of 3 hold |",
        "| ◐ **mixed**<br>1 of 3 holds, 2 refuted |",
        "◐ **mixed**, 1 of 3 holds, 2 refuted, same setting: What Fig. 2, left shows.",
        "![What one.fig1 shows](figures/one.fig1.png)",
        "| by two orders of magnitude | a factor 3.2 | **no** |",
        "Unlike the paper:\n\n- CIFAR-10",
        "> “words of Fig. 1” (Section 2)",
        "How claims are decided:\n\n- seed by seed, by Student's t",
        "Computed by:\n\n- 12 cells: commit 1a2b3c4",
        "- **Yes:** [Fig. 1](one.md#fig-1) (Does Fig. 1 hold?)",
        "- **Partly:** [Fig. 2, left](one.md#fig-2-left)",
        "- **The whole claim fails:** [Table 1](two.md#table-1)",
        "| Does Fig. 1 hold? **Yes.** |",
        "**Does Fig. 2, left hold? Partly.**",
        "The questions asked of them: yes to 1, partly to 1, no to 1, undecided to 1.",
        "Refuted: by two orders of magnitude: a factor 3.2. Holds: BN trains faster.",
        "- **We found:** [it is wrong](../errata.md#one)",
        "Refuted: by two orders of magnitude: a factor 3.2.",
        "Scale small, 12 cells, 8 min:",
        "$ equipoise reproduce one.fig1 --scale small",
        "As in Fig. 1. See [Fig. 1](#fig-1).",
        "```{toctree}\n:hidden:\n\none\ntwo\n```",
    ):
        assert fact in text


def test_no_folder_of_the_machine_is_shown(tmp_path):
    report = whole(tmp_path)
    pages = (overview(report), *(paper_page(paper, "small") for paper in report.papers))
    assert all("/home/me" not in page for page in pages)


@pytest.mark.parametrize("text", ["<b>", "a*b*c", "[x](y)", "`code`", "$x$", "a|b", "{role}`x`"])
def test_active_characters_are_escaped(text):
    found = escaped(text)
    assert re.findall(r"(?<!\\)[`*\[\]{}<>$|]", found) == []
    assert re.sub(r"\\(.)", r"\1", found) == text


def test_plain_text_stays_as_it_is():
    assert escaped("κ(D) ≤ 10⁵, at B = 8: 1.79 ± 0.02") == "κ(D) ≤ 10⁵, at B = 8: 1.79 ± 0.02"


def test_a_line_break_does_not_end_a_row():
    assert escaped("a\n\nb") == "a b"


def test_files_are_written_and_old_figures_removed(tmp_path):
    old = tmp_path / "page" / "figures" / "one.fig9.png"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")
    files = save_markdown(whole(tmp_path), tmp_path / "page")
    assert not old.exists()
    assert {path.name for path in files} == {"index.md", "one.md", "two.md"} | {
        f"{name}.png"
        for name in ("one.fig1", "one.fig2", "one.fig3", "one.fig4", "two.table1", "two.fig2")
    }
    assert all(path.is_file() for path in files)


def test_every_figure_that_is_shown_is_there(tmp_path):
    report = whole(tmp_path)
    save_markdown(report, tmp_path / "page")
    shown = [
        target
        for paper in report.papers
        for target in re.findall(r"!\[.*?\]\((.*?)\)", paper_page(paper, "small"))
    ]
    assert shown
    assert all((tmp_path / "page" / target).is_file() for target in shown)
