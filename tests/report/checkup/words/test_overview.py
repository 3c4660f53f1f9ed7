import dataclasses
import math

from equipoise.report.checkup.words import overview


def test_what_is_not_finite_is_worst(hostile):
    assert overview.worst_first(hostile.conditioning)[0].raw == math.inf


def test_condition_numbers_of_a_sample_are_marked(deep):
    layer = dataclasses.replace(deep.conditioning[0], sampled_from=0, raw=30.0)
    part = dataclasses.replace(layer, layer="fc", sampled_from=10**6, sampling_error=math.log(2))
    assert [overview.condition(one, one.raw) for one in (layer, part)] == ["30.0", "≈30.0"]
    assert overview.sampled([layer]) == ""
    assert overview.sampled([part]).endswith("differs from the whole by ×2.00.")
    assert "At fc a part of the sample differs from the whole by ×2.00" in overview.sampled(
        [layer, part]
    )


def test_slight_causes_are_left_out(deep):
    kinds = [share.kind for share in overview.attribution(deep)]
    assert kinds == ["normalisers", "elementwise functions"]


class TestCoverage:
    def test_the_loss_does_not_count(self, deep):
        """Operations outside any module are the loss's."""
        assert overview.coverage(deep) == "96 of 96 operations"
        *inside, last = deep.sites
        loss = dataclasses.replace(last, module="", second_moment=None, reason="no rule")
        changed = dataclasses.replace(deep, sites=(*inside, loss))
        assert overview.coverage(changed) == "95 of 95 operations"
        assert overview.cuts(changed) == {}

    def test_what_is_not_predicted_stands_under_its_reason(self, deep):
        *inside, last = deep.sites
        cut = dataclasses.replace(last, second_moment=None, reason="no rule for relu")
        changed = dataclasses.replace(deep, sites=(*inside, cut))
        assert overview.coverage(changed) == "95 of 96 operations"
        assert overview.cuts(changed) == {"no rule for relu": ["norm32: relu"]}

    def test_copies_are_no_computation(self, deep):
        moved = dataclasses.replace(deep.sites[0], kind="reshapes")
        assert overview.computed([moved, deep.sites[1]]) == [deep.sites[1]]


def test_predictions_stand_beside_the_layers_that_they_are_for(deep):
    found = overview.predictions(dataclasses.replace(deep, predictions=deep.predictions[1:]))
    assert found[0] is None
    assert [one.layer for one in found[1:]] == [f"norm{i}" for i in range(2, 33)]
    assert overview.predictions(dataclasses.replace(deep, growth=None)) == []
