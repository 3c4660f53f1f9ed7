"""Bad arguments raise, with the value received and what to do about it."""

import math

import pytest

from equipoise.theory import (
    bsb1_fixed_point,
    critical_eps,
    explosion_rate,
    simulate_explosion_rate,
    simulate_networks,
)

ENTRANCES = [explosion_rate, bsb1_fixed_point, simulate_explosion_rate, simulate_networks]


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize(
    ("arguments", "value", "remedy"),
    [
        ({"batch_size": 3}, "got 3", "larger batch"),
        ({"batch_size": 0}, "got 0", "larger batch"),
        ({"batch_size": 4.5}, "got 4.5", "whole number"),
        ({"batch_size": True}, "got True", "whole number"),
        ({"eps": -1e-5}, "got -1e-05", "not negative"),
        ({"eps": math.nan}, "got nan", "finite"),
        ({"gamma": math.nan}, "got nan", "finite"),
        ({"gamma": math.inf}, "got inf", "finite"),
        ({"gamma": 0}, "gamma must not be 0", "no signal"),
        ({"beta": -math.inf}, "got -inf", "finite"),
        ({"weight_variance": 0.0}, "weight_variance must not be 0", "no signal"),
        ({"weight_variance": -1.0}, "got -1.0", "not negative"),
        ({"bias_variance": -0.5}, "got -0.5", "not negative"),
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
