"""The page of a reproduction as a browser lays it out, on a phone and on a desk."""

from __future__ import annotations

import pytest

from equipoise_papers.report.page import save_reproduction
from papers_support.reproduction_examples import REPORTS, whole
from support.browser import VIEWS, pytestmark, visit  # noqa: F401  # pytestmark skips


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
@pytest.mark.parametrize(("width", "mobile"), VIEWS)
def test_it_fits(browser, tmp_path, report, width, mobile):
    _, page = save_reproduction(report(tmp_path), tmp_path)
    visit(browser, page, width, mobile)
    assert browser.execute_script("return innerWidth") == width
    assert browser.execute_script("return document.scrollingElement.scrollWidth") <= width
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.get_log("browser") == []


def test_pictures_are_shown_and_grow(browser, tmp_path):
    _, page = save_reproduction(whole(tmp_path), tmp_path)
    visit(browser, page, 1280, False)
    widths = "return [...document.images].map(image => image.naturalWidth && image.width)"
    before = browser.execute_script(widths)
    assert len(before) == 6
    assert min(before) > 300
    browser.execute_script("document.querySelector('figure input').click()")
    assert browser.execute_script(widths)[0] > 1.5 * before[0]


def test_the_scheme_changes_the_page(browser, tmp_path):
    _, page = save_reproduction(whole(tmp_path), tmp_path)
    look = (
        "return [getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('.chip')).color]"
    )
    visit(browser, page, 1280, False, "light")
    light = browser.execute_script(look)
    visit(browser, page, 1280, False, "dark")
    dark = browser.execute_script(look)
    assert all(day != night for day, night in zip(light, dark, strict=True))
