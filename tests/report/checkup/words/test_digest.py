import dataclasses
import math

import pytest

from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records import Estimate
from equipoise.report.checkup.words import digest
from support.report_examples import block


def with_rate(checkup, value):
    growth = dataclasses.replace(checkup.growth, rate=Estimate(value, 0.01, "measured"))
    return dataclasses.replace(checkup, growth=growth)


class TestVerdict:
    def test_names_growth_and_both_depths(self, deep):
        verdict = digest.verdict(deep)
        assert verdict.severity == "critical"
        assert verdict.sentence == "Gradients grow ×1.47 per layer"
        assert verdict.depths == "Trainable depth 42, model depth 32"

    @pytest.mark.parametrize(
        ("rate", "words"),
        [
            (0.8, "Gradients shrink ×0.800 per layer"),
            (1.001, "Gradients keep their size from layer to layer"),
            (math.nan, "Gradients are not finite: their growth could not be measured"),
        ],
    )
    def test_other_rates(self, deep, rate, words):
        assert digest.verdict(with_rate(deep, rate)).sentence == words

    def test_without_measurement_theory_speaks(self, deep):
        verdict = digest.verdict(dataclasses.replace(deep, growth=None))
        assert verdict.sentence == (
            "Gradients were not measured; theory says that they grow ×1.47 per layer"
        )

    def test_with_too_few_layers(self, deep):
        growth = GradientGrowth((), None, None, 1, 1)
        few = dataclasses.replace(deep, growth=growth, blocks=())
        assert digest.verdict(few).sentence.startswith("Too few layers")

    def test_without_anything(self, interrupted):
        verdict = digest.verdict(interrupted)
        assert verdict.severity is None
        assert verdict.depths == "Model depth 32"

    def test_an_unlimited_depth(self, deep):
        free = tuple(dataclasses.replace(b, max_depth=math.inf) for b in deep.blocks)
        verdict = digest.verdict(dataclasses.replace(deep, blocks=free))
        assert verdict.depths == "Trainable depth unlimited, model depth 32"


class TestMergedBlocks:
    def test_equal_neighbours_become_one_row(self, deep):
        (group,) = digest.merge_blocks(deep.blocks)
        assert group.name == "norm1 … norm31 (31 ×)"
        assert group.block.layer in {b.layer for b in deep.blocks}
        assert group.weight_variance[0] < 1 < group.weight_variance[1]

    def test_a_visible_difference_splits(self):
        wider = dataclasses.replace(block(2), features=512)
        groups = digest.merge_blocks([block(1), wider, block(3)])
        assert [group.name for group in groups] == ["norm1", "norm2", "norm3"]

    def test_remarks_are_collected(self, hostile, deep):
        assert len(digest.remarks(digest.merge_blocks(hostile.blocks))) == 20
        unstable = dataclasses.replace(block(1), rate=Estimate(1.1, 0.0, "theory", stable=False))
        (remark,) = set(digest.remarks(digest.merge_blocks([unstable]))) - set(unstable.caveats)
        assert "unstable" in remark


def test_the_predicted_rate_belongs_to_the_measured_one(deep):
    assert digest.predicted_rate(deep) == deep.comparisons[0].predicted
    assert digest.predicted_rate(dataclasses.replace(deep, comparisons=())) is None
    assert digest.predicted_rate(dataclasses.replace(deep, growth=None)) is None


def test_what_is_not_finite_is_worst(hostile):
    assert digest.worst_first(hostile.conditioning)[0].raw == math.inf


def test_predicted_steps_are_drawn_where_they_differ(deep):
    """A residual stream's growth falls from block to block; a plain network's does not."""
    names = [layer.layer for layer in deep.growth.layers]
    block = deep.blocks[0]
    rates = [Estimate(1 + 1 / (index + 1), 0.0, "recursion") for index in range(len(names))]

    def with_rates(rates):
        blocks = tuple(
            dataclasses.replace(block, layer=name, rate=rate)
            for name, rate in zip(names, rates, strict=True)
        )
        return dataclasses.replace(deep, blocks=blocks)

    steps = digest.predicted_steps(with_rates([*rates[:-1], None]))
    assert steps == tuple(rate.value for rate in rates[:-1])
    assert digest.predicted_steps(with_rates([rates[0]] * len(names))) == ()
    assert digest.predicted_steps(with_rates([None, *rates[1:]])) == ()
    assert digest.predicted_steps(dataclasses.replace(deep, growth=None)) == ()
