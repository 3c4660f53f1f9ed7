"""The page as a browser lays it out, on a phone and on a desk, by day and by night."""

import pytest

from equipoise.report.checkup.store import save
from equipoise.report.probe.page import save_probe
from support.browser import VIEWS, pytestmark, visit  # noqa: F401  # pytestmark skips
from support.probe_reports import PROBES


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "mobile"), VIEWS)
def test_layout(browser, tmp_path, checkup, width, mobile, scheme):
    page = save(checkup, tmp_path)
    visit(browser, page, width, mobile, scheme)
    assert browser.execute_script("return innerWidth") == width
    assert browser.execute_script("return document.scrollingElement.scrollWidth") <= width
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('svg')].map(figure => {"
        " const box = figure.getBoundingClientRect();"
        " return [box.width, box.height] })"
    )
    further = [part for part in (checkup.trial, checkup.smoothness) if part is not None]
    assert len(sizes) == (3 if checkup.growth else 0) + len(further)
    assert all(min(width, 300) <= w and h > 150 for w, h in sizes)
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
@pytest.mark.parametrize(("width", "mobile"), VIEWS)
def test_the_page_of_a_probe_fits(browser, tmp_path, probe, width, mobile):
    page = save_probe(probe(), tmp_path)
    visit(browser, page, width, mobile)
    assert browser.execute_script("return document.scrollingElement.scrollWidth") <= width
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.get_log("browser") == []


def test_letters_in_figures_are_legible_on_a_phone(browser, tmp_path, deep):
    page = save(deep, tmp_path)
    visit(browser, page, *VIEWS[0])
    smallest = browser.execute_script(
        "return Math.min(...[...document.querySelectorAll('svg')].flatMap(figure => {"
        " const scale = figure.getBoundingClientRect().width / figure.viewBox.baseVal.width;"
        " return [...figure.querySelectorAll('text')].map("
        "  text => scale * parseFloat(getComputedStyle(text).fontSize)) }))"
    )
    assert smallest >= 9


def test_the_scheme_changes_page_and_figures(browser, tmp_path, deep):
    page = save(deep, tmp_path)
    measurement = (
        "const stroke = document.querySelector('svg [style*=\"--figure-first\"]');"
        "return [getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('svg text')).fill,"
        " getComputedStyle(stroke).stroke]"
    )
    visit(browser, page, 1280, False, "light")
    light = browser.execute_script(measurement)
    visit(browser, page, 1280, False, "dark")
    dark = browser.execute_script(measurement)
    assert all(day != night for day, night in zip(light, dark, strict=True))


def test_a_hostile_page_runs_nothing_and_asks_for_nothing(browser, tmp_path, hostile):
    page = save(hostile, tmp_path)
    visit(browser, page, 1280, False)
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.execute_script("return document.images.length") == 0
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    # An open alert would make this raise.
    assert "alert(1)" in browser.title
