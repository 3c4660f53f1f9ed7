from equipoise.report.checkup.figures.fix import fix_figure
from support.report_examples import fixing


def test_arms_without_a_curve_are_named_as_not_drawn():
    figure = fix_figure(fixing())
    assert "Not drawn: 1 arm that diverged." in figure
    assert figure.count(">as it is</text>") == 1
