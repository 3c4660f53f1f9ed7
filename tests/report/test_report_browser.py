"""The page as a browser lays it out, on a phone and on a desk, by day and by night."""

import shutil

import pytest
import test_report_probe

from equipoise.report import save
from equipoise.report.probe_page import save_probe

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver on the path"
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
VIEWS = [(390, True), (1280, False)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def visit(browser, page, width, mobile, scheme="light"):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": mobile},
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    browser.get(page.as_uri())
    browser.execute_script(
        "document.querySelectorAll('details').forEach(folded => { folded.open = true })"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "mobile"), VIEWS)
def test_layout(browser, tmp_path, checkup, width, mobile, scheme):
    _, page = save(checkup, tmp_path)
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


@pytest.mark.parametrize("probe", test_report_probe.PROBES.values(), ids=test_report_probe.PROBES)
@pytest.mark.parametrize(("width", "mobile"), VIEWS)
def test_the_page_of_a_probe_fits(browser, tmp_path, probe, width, mobile):
    _, page = save_probe(probe(), tmp_path)
    visit(browser, page, width, mobile)
    assert browser.execute_script("return document.scrollingElement.scrollWidth") <= width
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.get_log("browser") == []


def test_letters_in_figures_are_legible_on_a_phone(browser, tmp_path, deep):
    _, page = save(deep, tmp_path)
    visit(browser, page, *VIEWS[0])
    smallest = browser.execute_script(
        "return Math.min(...[...document.querySelectorAll('svg')].flatMap(figure => {"
        " const scale = figure.getBoundingClientRect().width / figure.viewBox.baseVal.width;"
        " return [...figure.querySelectorAll('text')].map("
        "  text => scale * parseFloat(getComputedStyle(text).fontSize)) }))"
    )
    assert smallest >= 9


def test_the_scheme_changes_page_and_figures(browser, tmp_path, deep):
    _, page = save(deep, tmp_path)
    look = (
        "const stroke = document.querySelector('svg [style*=\"--figure-first\"]');"
        "return [getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('svg text')).fill,"
        " getComputedStyle(stroke).stroke]"
    )
    visit(browser, page, 1280, False, "light")
    light = browser.execute_script(look)
    visit(browser, page, 1280, False, "dark")
    dark = browser.execute_script(look)
    assert all(day != night for day, night in zip(light, dark, strict=True))


def test_a_hostile_page_runs_nothing_and_asks_for_nothing(browser, tmp_path, hostile):
    _, page = save(hostile, tmp_path)
    visit(browser, page, 1280, False)
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.execute_script("return document.images.length") == 0
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    # An open alert would make this raise.
    assert "alert(1)" in browser.title
