import re

import pytest

from support.pages import Outline, words
from support.report_examples import LONG_NAME, page_of


def test_the_facts_are_there():
    text = words(page_of("deep"))
    for fact in (
        "Will probably not train (12 %, between 5 and 22 %)",
        "It has 32 equal blocks",
        "About 21 could train (between 18 and 24)",
        "Trains with 91 %",
        "Keep fewer than 42 normalised layers",
        "1.467 ± 3×10⁻⁹",
        "1.471 ± 0.006",
        "96 of 96 operations",
        "96 operations that compute something, in numbers",
        "All 33 layers in numbers",
        "The worst 8 of 33 layers",
        "torch.nn.init.constant_(norm.bias, 0.5)",
        "2,149,898",
        "2026-11-21 10:39 UTC",
    ):
        assert fact in text
    assert {"norm1", "norm32", "fc33", "stem.conv"} <= set(text.replace(":", " ").split())


def test_an_interrupted_checkup():
    page = page_of("interrupted")
    assert "Interrupted." in page
    assert "<svg" not in page


def test_names_are_escaped():
    page = page_of("hostile")
    outline = Outline(page)
    assert not outline.all("script")
    assert not outline.all("img")
    text = "".join(outline.text)
    for name in ("<script>alert(1)</script>", "a&b", "$x_1$", "[red]fc[/red]", "{{ 7 * 7 }}"):
        assert name in text
    assert LONG_NAME in text
    assert page.encode("utf-8")


def test_no_event_handlers_and_no_requests(page):
    for tag, attributes in Outline(page).tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert "src" not in attributes
        for name in ("href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:,"))
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


class TestAccessibility:
    def test_document(self, page):
        outline = Outline(page)
        assert outline.all("html") == [{"lang": "en"}]
        assert len(outline.all("title")) >= 1
        assert any(meta.get("name") == "viewport" for meta in outline.all("meta"))
        assert len(outline.all("h1")) == len(outline.all("main")) == 1

    def test_identifiers(self, page):
        outline = Outline(page)
        ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        labels = [a["aria-labelledby"] for _, a in outline.tags if "aria-labelledby" in a]
        assert set(labels) <= set(ids)

    def test_table_headers_have_a_scope(self, page):
        assert all(header.get("scope") in {"col", "row"} for header in Outline(page).all("th"))

    def test_figures_have_names_and_captions(self, page):
        outline = Outline(page)
        assert all(svg["role"] == "img" and svg["aria-label"] for svg in outline.all("svg"))
        assert len(outline.all("figcaption")) == len(outline.all("figure"))

    @pytest.mark.parametrize("tone", ["critical", "warning", "note", "good", "none"])
    @pytest.mark.parametrize("dark", [False, True])
    def test_contrast_of_badges(self, tone, dark):
        colours = palette(page_of("deep"), dark)
        assert contrast(colours[tone], colours[f"{tone}-soft"]) >= 4.5
        assert contrast(colours[tone], colours["card"]) >= 4.5

    @pytest.mark.parametrize("dark", [False, True])
    @pytest.mark.parametrize("ground", ["page", "card"])
    def test_contrast_of_text(self, ground, dark):
        colours = palette(page_of("deep"), dark)
        assert contrast(colours["ink"], colours[ground]) >= 7
        assert contrast(colours["muted"], colours[ground]) >= 4.5
        assert contrast(colours["link"], colours[ground]) >= 4.5

    @pytest.mark.parametrize("dark", [False, True])
    @pytest.mark.parametrize("series", ["first", "second", "third"])
    def test_contrast_of_figures(self, series, dark):
        colours = palette(page_of("deep"), dark)
        assert contrast(colours[f"figure-{series}"], colours["card"]) >= 3


def palette(page, dark):
    """The style sheet's colours, dark ones laid over light ones."""
    light, night = page.split("@media (prefers-color-scheme: dark)")
    colours = re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light)
    return dict(colours + (re.findall(r"--([\w-]+): (#[0-9a-f]{6});", night) if dark else []))


def contrast(one, other):
    """WCAG 2's contrast ratio."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour):
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
