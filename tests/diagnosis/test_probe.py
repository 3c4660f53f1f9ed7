"""One call of every probe: the numbers are theirs, and the model is not changed."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from equipoise import measure as probe
from equipoise import models, probes
from equipoise.diagnosis import SmoothnessOptions
from equipoise.diagnosis.record import Probe
from equipoise.diagnosis.smoothness.measure import points_around
from equipoise.records import from_plain, to_plain
from equipoise.training import cross_entropy
from support.diagnosis_examples import DIGITS

SHORT = SmoothnessOptions(steps=4, measurements=2, seeds=1)


def build():
    return models.mlp(64, 10, depth=4, width=16)


@pytest.fixture(scope="module")
def whole():
    return probe(build, DIGITS, training=SHORT, hessian=True, batch_size=16)


def test_it_prints_as_a_few_lines(whole):
    lines = str(whole).splitlines()
    assert lines[0].startswith(f"{whole.target} on {whole.data}, learning rate ")
    assert lines[1].startswith("gradients grow ×")
    assert len(str(whole)) < 1000


class TestTheNumbers:
    def test_are_the_probes_own(self, whole):
        torch.manual_seed(0)
        model = build()
        (batch,) = DIGITS.batches(16, 1, torch.Generator().manual_seed(0))
        steps = points_around(whole.rate)
        assert whole.landscape == probes.landscape(model, cross_entropy, batch, steps=steps)
        assert whole.shift == probes.covariate_shift(model, cross_entropy, batch, whole.rate)
        assert whole.growth.batches == 4
        assert [layer.layer for layer in whole.growth.layers] == [f"norm{i}" for i in range(1, 5)]

    def test_the_rate_is_the_best_of_the_training(self, whole):
        assert (whole.rate, whole.rate_origin) == (whole.training.arms[0].rate, "tuned")

    def test_curvature_is_whole_and_per_layer(self, whole):
        blocks = [block.block for block in whole.hessian.blocks]
        assert blocks[:2] == ["linear1", "norm1"]
        assert whole.hessian.whole.parameters == whole.parameters
        assert whole.hessian.largest.value >= max(
            block.largest.value - block.largest.error for block in whole.hessian.blocks
        )

    def test_the_record_survives_being_stored(self, whole):
        assert to_plain(from_plain(Probe, to_plain(whole))) == to_plain(whole)


class TestOptions:
    def test_without_training_the_rate_is_a_common_one(self):
        found = probe(build, DIGITS, training=None, batch_size=16)
        assert (found.rate, found.rate_origin, found.training) == (0.1, "reference", None)
        assert (found.hessian, found.findings) == (None, ())

    def test_a_rate_may_be_given(self):
        found = probe(build, DIGITS, rate=0.02, training=SHORT, batch_size=16)
        assert (found.rate, found.rate_origin) == (0.02, "given")
        assert all(arm.rate == 0.02 and arm.rates == () for arm in found.training.arms)
        assert found.landscape.steps[0] == pytest.approx(0.01)

    def test_the_model_is_left_alone(self):
        model = build()
        before = copy.deepcopy(model.state_dict())
        state = torch.get_rng_state()
        probe(lambda: model, DIGITS, training=None, hessian=True, batch_size=16)
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rate": -1.0}, "rate must be a finite number above 0; got -1.0"),
            ({"rate": -1.0, "training": None}, "rate must be a finite number above 0; got -1.0"),
            ({"batch_size": 1}, "batch size 1 is too small"),
        ],
    )
    def test_wrong_ones_are_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            probe(build, DIGITS, **{"batch_size": 16, "training": SHORT, **options})


@pytest.mark.parametrize("stage", ["measuring gradients", "measuring smoothness"])
def test_an_interrupt_keeps_what_was_finished(stage):
    def progress(name, done, total):
        if name == stage and done:
            raise KeyboardInterrupt

    found = probe(build, DIGITS, training=SHORT, batch_size=16, progress=progress)
    assert found.interrupted
    assert (found.growth is not None) == (stage == "measuring smoothness")
    assert (found.landscape, found.training) == (None, None)
    assert from_plain(Probe, to_plain(found)) == found


def test_a_failure_keeps_what_was_finished():
    failure = RuntimeError("modified by an inplace operation")

    def progress(name, done, total):
        if name == "measuring smoothness":
            raise failure

    with pytest.raises(
        ValueError, match=r"^while measuring smoothness: .* Leave steps to"
    ) as error:
        probe(build, DIGITS, training=SHORT, batch_size=16, progress=progress)
    assert error.value.__cause__ is failure
    assert error.value.finished.growth is not None
    assert error.value.finished.interrupted


def test_so_does_an_exit():
    def progress(name, done, total):
        if name == "measuring smoothness":
            raise SystemExit("enough")

    with pytest.raises(ValueError, match=r"^while .*exits with 'enough'\. Leave out") as error:
        probe(build, DIGITS, training=SHORT, batch_size=16, progress=progress)
    assert error.value.finished.growth is not None


def test_a_loss_that_overflows_along_the_way_is_kept():
    def steep(model, batch):
        return model(batch[0]).square().mean() + sum(
            (1e2 * p).square().sum().square() for p in model.parameters()
        )

    found = probe(build, DIGITS, loss_fn=steep, rate=10.0, training=None, batch_size=16)
    assert math.inf in found.landscape.losses
    assert from_plain(Probe, to_plain(found)) is not None
