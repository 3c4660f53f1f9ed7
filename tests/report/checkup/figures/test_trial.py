from equipoise.report.checkup.figures.trial import trial_figure
from support.report_examples import trial


def test_variants_without_a_curve_are_named_as_not_drawn():
    figure = trial_figure(trial())
    assert "Not drawn: 1 variant that diverged or was not tried." in figure
    assert figure.count(">standardised inputs</text>") == 1
