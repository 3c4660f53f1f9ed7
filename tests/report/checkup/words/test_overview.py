import dataclasses
import math

from equipoise.records import Estimate
from equipoise.report.checkup.words import overview
from support.report_examples import block


class TestMergedBlocks:
    def test_equal_neighbours_become_one_row(self, deep):
        (group,) = overview.merge_blocks(deep.blocks)
        assert group.name == "norm1 … norm31 (31 ×)"
        assert group.block.layer in {b.layer for b in deep.blocks}
        assert group.weight_variance[0] < 1 < group.weight_variance[1]

    def test_a_visible_difference_splits(self):
        wider = dataclasses.replace(block(2), features=512)
        groups = overview.merge_blocks([block(1), wider, block(3)])
        assert [group.name for group in groups] == ["norm1", "norm2", "norm3"]

    def test_remarks_are_collected(self, hostile, deep):
        assert len(overview.remarks(overview.merge_blocks(hostile.blocks))) == 20
        unstable = dataclasses.replace(block(1), rate=Estimate(1.1, 0.0, "theory", stable=False))
        (remark,) = set(overview.remarks(overview.merge_blocks([unstable]))) - set(
            unstable.caveats
        )
        assert "unstable" in remark


def test_what_is_not_finite_is_worst(hostile):
    assert overview.worst_first(hostile.conditioning)[0].raw == math.inf


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

    steps = overview.predicted_steps(with_rates([*rates[:-1], None]))
    assert steps == tuple(rate.value for rate in rates[:-1])
    assert overview.predicted_steps(with_rates([rates[0]] * len(names))) == ()
    assert overview.predicted_steps(with_rates([None, *rates[1:]])) == ()
    assert overview.predicted_steps(dataclasses.replace(deep, growth=None)) == ()
