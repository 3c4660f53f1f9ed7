"""A figure is written whole, whoever else writes the same one."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise_papers.experiments.style import (
    empty_figure,
    house_style,
    logarithmic,
    save_figure,
)

PNG_END = b"IEND\xaeB`\x82"


def figure(values):
    with house_style():
        made = empty_figure()
        made.subplots().plot(values)
    return made


@pytest.fixture
def second_writer(monkeypatch):
    """A folder in which another writer saves a figure just before the first renames its draft."""
    rename, seen = Path.replace, []

    def interrupted(draft, target):
        if not seen:
            seen.append(target)
            save_figure(figure([3, 2, 1]), target.parent)
        return rename(draft, target)

    monkeypatch.setattr(Path, "replace", interrupted)


def test_two_writers_do_not_disturb_each_other(second_writer, tmp_path):
    path = save_figure(figure([1, 2, 3]), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"figure.png", "figure.svg"}
    assert path.read_bytes().endswith(PNG_END)
    assert (tmp_path / "figure.svg").read_text().rstrip().endswith("</svg>")


def test_with_a_common_draft_they_would(second_writer, tmp_path, monkeypatch):
    """The twin: the second writer takes the first one's draft away."""

    class Common:
        hex = "common"

    monkeypatch.setattr("equipoise.files.uuid4", Common)
    with pytest.raises(FileNotFoundError):
        save_figure(figure([1, 2, 3]), tmp_path)


def test_a_figure_that_cannot_be_drawn_leaves_the_old_one(tmp_path):
    path = save_figure(figure([1, 2, 3]), tmp_path)
    before = path.read_bytes()
    broken = figure([1, 2, 3])
    broken.axes[0].set_title(r"$\nonsense{$")
    with pytest.raises(ValueError, match="nonsense"):
        save_figure(broken, tmp_path)
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"figure.png", "figure.svg"}


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((0.3, 1.7), ["0.5", "1"]),
        ((0.18, 4.0), ["0.2", "0.5", "1", "2"]),
        ((30.0, 170.0), ["50", "100"]),
    ],
)
def test_a_short_logarithmic_axis_has_plain_labels(values, labels):
    made = figure(values)
    axes = made.axes[0]
    logarithmic(axes)
    low, high = axes.get_ylim()
    shown = [
        label.get_text()
        for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        if low <= place <= high
    ]
    assert shown == labels
    assert not any(label.get_text() for label in axes.get_yticklabels(minor=True))


def test_a_long_one_has_powers_of_ten():
    made = figure((1.0, 1e6))
    logarithmic(made.axes[0])
    assert any("10^{" in label.get_text() for label in made.axes[0].get_yticklabels())
