"""Remedies move parameters of batch norms to the mildest value that theory finds sufficient."""

import math

import pytest
import torch
from torch import nn

from equipoise import models
from equipoise.diagnosis import remedies
from equipoise.diagnosis.remedies import Outlook, recommend
from equipoise.probes.record import GradientGrowth
from equipoise.records import Estimate

TODAY = Estimate(1.5, 0.01, "by hand")


def model(**keywords):
    return models.mlp(8, 2, depth=2, width=8, **keywords)


def by_law(law, depth):
    """Growth per layer that depends on the value of the parameters, and what a depth makes of it.

    With a growth of e^16 over the depth, a network trains with a probability of 0.95.
    """

    def predict(parameters):
        values = {float(tensor.flatten()[0]) for tensor in parameters.values()}
        kinds = {name.rpartition(".")[2] for name in parameters}
        assert len(values) <= 1
        rate = law(*(values or {0.0}), *(kinds or {""}))
        odds = math.log(19) + 16 - depth * abs(math.log(rate))
        return Outlook(Estimate(rate, 0.0, "law"), 1 / (1 + math.exp(-odds)))

    return predict


def falls_with_shift(value, kind):
    return math.exp(0.4 / (1 + 3 * value)) if kind != "weight" else math.exp(0.4)


def recommended(network, law=falls_with_shift, *, depth=60, measured=1.1):
    seen = []

    def measure(change):
        change()
        seen.append({n: float(p.detach().mean()) for n, p in network.named_parameters()})
        return GradientGrowth((), Estimate(measured, 0.01, "by hand"), None, 2, 1)

    return recommend(network, by_law(law, depth), measure, TODAY), seen


def test_the_mildest_value_that_suffices_is_tried():
    (remedy,), (tried,) = recommended(model())
    assert (remedy.parameter, remedy.value) == ("bias", 0.2)  # 0.1 trains 52 layers, 0.2 64
    assert remedy.predicted_probability > 0.95
    assert tried["norm1.bias"] == tried["norm2.bias"] == pytest.approx(0.2)
    assert remedy.code == "torch.nn.init.constant_(norm.bias, 0.2)"
    assert remedy.verified


@pytest.mark.parametrize(("patience", "predictions", "value"), [(9.0, 8, 0.2), (2.5, 3, 0.4)])
def test_when_time_is_up_the_mildest_one_seen_is_tried(monkeypatch, patience, predictions, value):
    """Predictions take a second each: that of the model as it is, then those of a bisection."""
    clock = [0.0]
    monkeypatch.setattr(remedies.time, "process_time", lambda: clock[0])

    def predict(parameters):
        clock[0] += 1
        return by_law(falls_with_shift, 60)(parameters)

    measured = GradientGrowth((), Estimate(1.1, 0.01, "by hand"), None, 2, 1)
    (remedy,) = recommend(model(), predict, lambda change: measured, TODAY, patience)
    assert (remedy.parameter, remedy.value) == ("bias", value)
    assert clock[0] == predictions


def test_the_best_value_is_tried_where_none_suffices():
    (remedy,), _ = recommended(model(), depth=1000)
    assert remedy.value == 2.0
    assert remedy.predicted_probability < 0.95


def test_what_does_not_help_is_no_remedy():
    assert recommended(model(), lambda value, kind: 1.5) == ((), [])


def test_where_theory_is_silent_nothing_is_tried():
    network = model()
    before = {name: p.clone() for name, p in network.named_parameters()}
    found = recommend(network, lambda parameters: None, lambda change: change(), TODAY)
    assert found == ()
    assert all(torch.equal(before[name], p) for name, p in network.named_parameters())


def test_scales_are_tried_downwards():
    def falls_with_scale(value, kind):
        return math.exp(0.4 * value) if kind == "weight" else math.exp(0.4)

    (remedy,), _ = recommended(model(), falls_with_scale)
    assert (remedy.parameter, remedy.value) == ("weight", 0.6)


def test_only_batch_norms_are_moved():
    network = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    assert recommended(network) == ((), [])


def test_parameters_that_start_elsewhere_move_on_from_there():
    network = model()
    with torch.no_grad():
        for norm in (network.norm1, network.norm2):
            norm.bias.fill_(0.3)
    (remedy,), _ = recommended(network)
    assert remedy.value > 0.3


def test_trained_parameters_are_left_alone():
    network = model()
    with torch.no_grad():
        network.norm1.bias.normal_()
    found, _ = recommended(network)
    assert found == ()


@pytest.mark.parametrize(("measured", "verified"), [(1.3, True), (1.45, False)])
def test_a_remedy_is_verified_if_it_trains_a_quarter_more_layers(measured, verified):
    (remedy,), _ = recommended(model(), measured=measured)
    assert remedy.verified is verified
