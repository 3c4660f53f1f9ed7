import dataclasses

from equipoise.report.checkup.figures.smoothness import along_figure, smoothness_figure
from support.report_examples import smooth_start, smoothness, wild_arm


def test_every_arm_is_in_the_legend_once():
    figure = smoothness_figure(smoothness())
    for name in ("unchanged", "without normalisers"):
        assert figure.count(f">{name}</text>") == 1
    assert "loss along" in figure
    assert "step of training" in figure


def test_what_cannot_be_drawn_is_counted():
    wild = dataclasses.replace(smoothness(), arms=(wild_arm("wild"),))
    assert "Not drawn: 4 losses that the axis cannot show." in smoothness_figure(wild)


def test_losses_below_zero_have_a_linear_scale():
    measurement = smooth_start().arms[0].runs[0].measurements[0]
    below = dataclasses.replace(
        measurement, losses=tuple(loss - 2.3 for loss in measurement.losses)
    )
    assert "Not drawn" not in along_figure({"x": below})


def test_one_curve_needs_no_legend():
    measurement = smooth_start().arms[0].runs[0].measurements[0]
    assert ">x</text>" not in along_figure({"x": measurement})
    assert ">x</text>" in along_figure({"x": measurement, "y": measurement})


def test_two_drawings_are_equal():
    assert smoothness_figure(smoothness()) == smoothness_figure(smoothness())
