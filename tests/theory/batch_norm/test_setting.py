"""A setting in both its forms; bad arguments raise, with the value received and the remedy."""

import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch

from equipoise.records import to_plain
from equipoise.theory import (
    Setting,
    as_activation,
    backward_spectrum,
    bsb1_fixed_point,
    critical_eps,
    cross_batch,
    explosion_rate,
    forward_spectrum,
    gegenbauer_expansion,
    group_norm,
    iterate_map,
    layer_norm,
    residual_growth,
    simulate_networks,
    simulate_spectra,
    stability,
    weight_gradients,
)
from equipoise.theory.activation.catalogue import ACTIVATIONS
from equipoise.theory.batch_norm.tune import tune
from equipoise.theory.simulation.gradients import simulate_explosion_rate
from equipoise.theory.simulation.spectra import sample_spectra
from equipoise.theory.table import prediction_table, spectrum_table
from support.cases import each

ENTRANCES = [Setting, explosion_rate, bsb1_fixed_point, simulate_networks]

OPTIONS = {"gamma": 0.5, "beta": 0.3, "weight_variance": 1.4, "bias_variance": 0.2}
SMALL = {"width": 8, "networks": 2, "depth": 4}
BOTH_FORMS = {
    "explosion_rate": explosion_rate,
    "weight_gradients": weight_gradients,
    "bsb1_fixed_point": bsb1_fixed_point,
    "critical_eps": critical_eps,
    "backward_spectrum": backward_spectrum,
    "forward_spectrum": forward_spectrum,
    "cross_batch": cross_batch,
    "stability": stability,
    "gegenbauer_expansion": lambda *args, **o: gegenbauer_expansion(*args, terms=4, **o),
    "tune": lambda *args, **o: tune(*args, depth=100, **o),
    "residual_growth": lambda *args, **o: residual_growth(*args, blocks=3, **o),
    "iterate_map": lambda *args, **o: iterate_map(*args, steps=2, **o),
    "iterate_map from a start": lambda *args, **o: iterate_map(
        *args, steps=2, start=np.diag(np.arange(1.0, 9)), **o
    ),
    "simulate_networks": lambda *args, **o: simulate_networks(*args, **SMALL, **o),
    "simulate_explosion_rate": lambda *args, **o: simulate_explosion_rate(*args, **SMALL, **o),
    "simulate_spectra": lambda *args, **o: simulate_spectra(*args, **SMALL, **o),
    "sample_spectra": lambda *args, **o: sample_spectra(*args, samples=16, **o),
}


class TestSetting:
    def test_activations_are_adapted(self):
        tanh = ACTIVATIONS["tanh"]
        for given in ("tanh", torch.nn.Tanh(), torch.tanh, tanh):
            assert Setting(given, 8).activation is tanh

    def test_equal_settings_have_one_hash(self):
        settings = {Setting("relu", 8), Setting("relu", 8.0, eps=0), Setting("relu", 8, gamma=-1)}
        assert settings == {Setting("relu", 8)}
        assert Setting("relu", 9) not in settings
        assert Setting("elu(0.5)", 8) == Setting(torch.nn.ELU(0.5), 8)

    def test_it_is_frozen_and_replaced_with_the_same_checks(self):
        setting = Setting("relu", 8)
        with pytest.raises(FrozenInstanceError):
            setting.eps = 0.1
        assert replace(setting, eps=0.1) == Setting("relu", 8, eps=0.1)
        with pytest.raises(ValueError, match=r"must be a number in \[0, inf\)"):
            replace(setting, eps=-0.1)

    def test_its_repr_shows_what_was_set(self):
        setting = Setting(as_activation(lambda x: x, name="mine"), 8, beta=0.5, eps=1e-5)
        assert repr(setting) == "Setting('mine', 8, eps=1e-05, beta=0.5)"


class TestBothForms:
    @pytest.mark.parametrize("name", BOTH_FORMS)
    def test_a_setting_is_its_keywords(self, name):
        call = BOTH_FORMS[name]
        one, other = call(Setting("tanh", 8, **OPTIONS)), call("tanh", 8, **OPTIONS)
        assert repr(to_plain(one)) == repr(to_plain(other))
        assert repr(to_plain(one)) != repr(to_plain(call("tanh", 8, gamma=0.6)))

    def test_without_batches(self):
        setting = Setting("tanh", 64, eps=0.1, **OPTIONS)
        assert layer_norm(setting) == layer_norm("tanh", eps=0.1, **OPTIONS)
        assert group_norm(setting, 6) == group_norm("tanh", 6, eps=0.1, **OPTIONS)

    @pytest.mark.parametrize("table", [prediction_table, spectrum_table])
    def test_tables(self, table):
        settings = [Setting(name, B, **OPTIONS) for name in ("relu", "tanh") for B in (8, 16)]
        rows = table(settings)
        assert rows == table(["relu", "tanh"], [8, 16], **OPTIONS)
        assert [(row.activation, row.batch_size) for row in rows][1:3] == [
            ("relu", 16),
            ("tanh", 8),
        ]
        for name, value in OPTIONS.items():
            assert {getattr(row, name) for row in rows} == {value}

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("relu",), "batch_size is missing"),
            ((Setting("relu", 8), 16), r"got batch_size beside Setting\('relu', 8\), .*replace\("),
        ],
    )
    def test_half_a_setting_is_refused(self, arguments, message):
        with pytest.raises(TypeError, match=message):
            explosion_rate(*arguments)

    def test_keywords_beside_a_setting_are_refused(self):
        with pytest.raises(TypeError, match="got eps, beta beside Setting"):
            explosion_rate(Setting("relu", 8), eps=0.1, beta=0.2)
        with pytest.raises(TypeError, match="got gamma beside Setting"):
            layer_norm(Setting("relu", 8), gamma=0.1)

    def test_unknown_keywords_are_refused(self):
        with pytest.raises(TypeError, match=r"no option 'epsilon'\. Did you mean 'eps'"):
            explosion_rate("relu", 8, epsilon=0.1)


@each("entrance", ENTRANCES)
@each(
    ("arguments", "value", "remedy"),
    [
        ({"batch_size": 3}, "got 3", "larger batch"),
        ({"batch_size": 0}, "got 0", "larger batch"),
        ({"batch_size": 4.5}, "got 4.5", "whole number"),
        ({"batch_size": True}, "got True", "whole number"),
        ({"eps": -1e-5}, "got -1e-05", r"in \[0, inf\)"),
        ({"eps": math.nan}, "got nan", r"in \[0, inf\)"),
        ({"gamma": math.nan}, "got nan", r"in \(-inf, inf\)"),
        ({"gamma": math.inf}, "got inf", r"in \(-inf, inf\)"),
        ({"gamma": 0}, "gamma must not be 0", "no signal"),
        ({"beta": -math.inf}, "got -inf", r"in \(-inf, inf\)"),
        ({"weight_variance": 0.0}, "weight_variance must not be 0", "no signal"),
        ({"weight_variance": -1.0}, "got -1.0", r"in \[0, inf\)"),
        ({"bias_variance": -0.5}, "got -0.5", r"in \[0, inf\)"),
    ],
    ids=str,
)
def test_a_number_out_of_range_is_refused(entrance, arguments, value, remedy):
    batch_size = arguments.get("batch_size", 8)
    options = {key: part for key, part in arguments.items() if key != "batch_size"}
    with pytest.raises(ValueError, match=remedy) as error:
        entrance("relu", batch_size, **options)
    assert value in str(error.value)


@pytest.mark.parametrize("options", [{"gamma": 0}, {"beta": math.nan}, {"batch_size": 2}])
def test_critical_eps_refuses_them_too(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        critical_eps("tanh", **options)


@pytest.mark.parametrize("batch_size", [8.0, 8])
def test_whole_numbers_of_any_type_are_batch_sizes(batch_size):
    assert explosion_rate("tanh", batch_size) == explosion_rate("tanh", 8)


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_an_activation_that_is_flat_where_samples_fall_is_refused(eps):
    """At B = 4 samples stay within ±√3, where ReLU(w - 3) is 0."""
    with pytest.raises(ValueError, match=r"beta = -3.*Choose a beta"):
        explosion_rate("relu", 4, beta=-3.0, eps=eps)


@each("name", ["relu", "tanh"])
@each("options", [{"gamma": 1e308}, {"gamma": 1e-308}, {"beta": 1e200}], ids=str)
def test_numbers_whose_squares_overflow_are_refused(name, options):
    with pytest.raises(ValueError, match="range of float64"):
        Setting(name, 8, **options)


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_an_eps_far_below_rounding_is_none(name):
    plain, tiny = explosion_rate(name, 8), explosion_rate(name, 8, eps=1e-320)
    assert abs(plain.value - tiny.value) <= plain.error + tiny.error
