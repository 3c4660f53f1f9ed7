"""The summary in Markdown says what the first screen says, and nothing in it is markup."""

import dataclasses
import re

from equipoise.diagnosis.fix.record import Proposal
from equipoise.diagnosis.fix.remedy import Remedy
from equipoise.report.checkup.cell import cell, picture
from equipoise.report.checkup.markdown import markdown
from support.report_examples import deep_checkup, hostile_checkup


def test_verdict_headlines_and_code():
    deep = deep_checkup()
    text = markdown(deep)
    assert text.startswith("### ")
    assert all(finding.title in text for finding in deep.headlines)
    assert "```python\n" + "\n".join(deep.fix.code) in text


def test_without_a_race_the_code_is_that_of_the_verified_remedy():
    text = markdown(dataclasses.replace(deep_checkup(), fix=None))
    assert "```python\n# start batch norm's" in text


def test_what_theory_expects_more_of_is_shown_instead():
    proposal = Proposal(Remedy.named("norm=layer"), "norms", 0.97, ("model = changed(model)",))
    shown = dataclasses.replace(deep_checkup(), fix=None, proposal=proposal)
    promise = "# layer norm instead of every norm:\n# it then trains with a probability of 97 %"
    assert f"{promise}\nmodel = changed(model)" in markdown(shown)
    assert "norm.bias" not in markdown(shown)
    long = dataclasses.replace(proposal, code=("model.get_parameter(name)",) * 40)
    text = markdown(dataclasses.replace(shown, proposal=long))
    assert "equipoise.apply(model, found.proposal.remedy)" in text
    assert "get_parameter" not in text


def test_names_cannot_add_markup():
    text = re.sub(r"`[^`]*`", "", markdown(hostile_checkup()))  # code is literal
    assert "<script" not in text
    assert "<img" not in text
    assert "[bold]" not in text


def test_a_notebook_shows_the_first_screen_and_folds_the_page():
    deep = deep_checkup()
    shown = cell(deep)
    before, _, after = shown.partition("<details>")
    assert deep.verdict.sentence in before
    assert "srcdoc" in after
    assert "<script>alert" not in cell(hostile_checkup())


def test_the_picture_is_a_figure_in_real_colours():
    figure = picture(deep_checkup())
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert {line.get_color() for line in axes.get_lines()} <= {"#1d4ed8", "#b45309", "#111827"}
