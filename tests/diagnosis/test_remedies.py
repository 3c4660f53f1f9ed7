"""Remedies move parameters that the normalisers have, to the values that theory found."""

import pytest
from torch import nn

from equipoise.diagnosis import remedies
from equipoise.diagnosis.prediction.predict import predict
from equipoise.diagnosis.remedies import recommend
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records import Estimate
from support.diagnosis_examples import only, vectors

TODAY = Estimate(1.18, 0.01, "by hand")


def recommended(norm, measured=1.0):
    """Remedies for linear → norm → tanh, and the parameters of the norm when it was measured."""
    linear, seen = nn.Linear(8, 8, bias=False), []
    nn.init.constant_(linear.weight, 8**-0.5)
    _, network = predict(
        only(nn.Sequential(linear, norm, nn.Tanh(), nn.Linear(8, 2)), vectors(16, 8))
    )

    def measure(change):
        change()
        seen.append({name: float(p.detach().mean()) for name, p in norm.named_parameters()})
        return GradientGrowth((), Estimate(measured, 0.01, "by hand"), None, 2, 1)

    return recommend(network, 500, [norm], measure, TODAY), seen


def test_theory_finds_values_of_both_parameters():
    found, (shifted, scaled) = recommended(nn.LayerNorm(8))
    values = {remedy.parameter: remedy.value for remedy in found}
    assert values == pytest.approx({"bias": shifted["bias"], "weight": scaled["weight"]})
    for remedy in found:
        assert remedy.code == f"torch.nn.init.constant_(norm.{remedy.parameter}, {remedy.value:g})"
        assert remedy.predicted_rate.value < TODAY.value
        assert remedy.verified


@pytest.mark.parametrize(
    ("norm", "parameters"),
    [
        (nn.RMSNorm(8), {"weight"}),
        (nn.LayerNorm(8, bias=False), {"weight"}),
        (nn.LayerNorm(8, elementwise_affine=False), set()),
    ],
)
def test_only_parameters_that_are_there_are_moved(norm, parameters, monkeypatch):
    monkeypatch.setattr(remedies, "_mildest", lambda network, knob, depth: 0.5)
    found, seen = recommended(norm)
    assert {remedy.parameter for remedy in found} == parameters
    assert seen == [{"weight": 0.5}] * len(parameters)


@pytest.mark.parametrize(("measured", "verified"), [(1.1, True), (1.17, False)])
def test_a_remedy_is_verified_if_it_trains_a_quarter_more_layers(measured, verified, monkeypatch):
    monkeypatch.setattr(remedies, "_mildest", lambda network, knob, depth: 0.5)
    (remedy,), _ = recommended(nn.RMSNorm(8), measured)
    assert remedy.verified is verified
