"""The page as a browser lays it out, on a phone and on a desk, by day and by night."""

import pytest

from support import probe_reports, report_examples
from support.browser import VIEWS, pytestmark, visit  # noqa: F401  # pytestmark skips


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Every page as a file: ``checkup-deep.html``, ``probe-whole.html``, …"""
    folder = tmp_path_factory.mktemp("pages")
    for name in report_examples.CHECKUPS:
        (folder / f"checkup-{name}.html").write_text(report_examples.page_of(name), "utf-8")
    for name in probe_reports.PROBES:
        (folder / f"probe-{name}.html").write_text(probe_reports.page_of(name), "utf-8")
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "mobile"), VIEWS)
@pytest.mark.parametrize("name", report_examples.CHECKUPS)
def test_layout(browser, pages, name, width, mobile, scheme):
    checkup = report_examples.CHECKUPS[name]()
    visit(browser, pages / f"checkup-{name}.html", width, mobile, scheme)
    assert browser.execute_script("return innerWidth") == width
    assert browser.execute_script("return document.scrollingElement.scrollWidth") <= width
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('svg')].map(figure => {"
        " const box = figure.getBoundingClientRect();"
        " return [box.width, box.height] })"
    )
    further = [part for part in (checkup.fix, checkup.smoothness) if part is not None]
    assert len(sizes) == (4 if checkup.growth else 0) + len(further)
    assert all(min(width, 300) <= w and h > 150 for w, h in sizes)
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("name", probe_reports.PROBES)
@pytest.mark.parametrize(("width", "mobile"), VIEWS)
def test_the_page_of_a_probe_fits(browser, pages, name, width, mobile):
    visit(browser, pages / f"probe-{name}.html", width, mobile)
    assert browser.execute_script("return document.scrollingElement.scrollWidth") <= width
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.get_log("browser") == []


def test_letters_in_figures_are_legible_on_a_phone(browser, pages):
    visit(browser, pages / "checkup-deep.html", *VIEWS[0])
    smallest = browser.execute_script(
        "return Math.min(...[...document.querySelectorAll('svg')].flatMap(figure => {"
        " const scale = figure.getBoundingClientRect().width / figure.viewBox.baseVal.width;"
        " return [...figure.querySelectorAll('text')].map("
        "  text => scale * parseFloat(getComputedStyle(text).fontSize)) }))"
    )
    assert smallest >= 9


def test_the_scheme_changes_page_and_figures(browser, pages):
    page = pages / "checkup-deep.html"
    measurement = (
        "const stroke = document.querySelector('svg [style*=\"stroke: var(--figure-first\"]');"
        "return [getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('svg text')).fill,"
        " getComputedStyle(stroke).stroke]"
    )
    visit(browser, page, 1280, False, "light")
    light = browser.execute_script(measurement)
    visit(browser, page, 1280, False, "dark")
    dark = browser.execute_script(measurement)
    assert all(day != night for day, night in zip(light, dark, strict=True))


def test_a_hostile_page_runs_nothing_and_asks_for_nothing(browser, pages):
    visit(browser, pages / "checkup-hostile.html", 1280, False)
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.execute_script("return document.images.length") == 0
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    # An open alert would make this raise.
    assert "alert(1)" in browser.title
