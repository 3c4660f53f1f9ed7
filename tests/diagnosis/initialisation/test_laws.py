"""Deviations are standard normal under the law, out to the tails."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from equipoise.diagnosis.initialisation.laws import (
    form_of,
    form_z,
    joined,
    law_of,
    mean_z,
    scale_z,
    threshold,
)

NOTHING = np.empty(0)


def draws(name, count, runs=20_000):
    """Standardised elements, one row a tensor, and the law that they come from."""
    generator = torch.Generator().manual_seed(0)
    if name == "normal":
        x = torch.randn(runs, count, generator=generator)
    elif name == "uniform":
        x = math.sqrt(3) * (2 * torch.rand(runs, count, generator=generator) - 1)
    else:
        x = torch.distributions.Laplace(0, 0.5**0.5).icdf(
            torch.rand(runs, count, generator=generator)
        )
    return x.double().numpy(), law_of(x[:64]).of_size(1.0)


def scores(x, law):
    """The deviation of every row's standard deviation."""
    laws = (
        dataclasses.replace(law, count=x.shape[1], std=std)
        for std in np.sqrt((x**2).mean(1)).tolist()
    )
    return np.array([scale_z(found, law) for found in laws])


@pytest.mark.parametrize("count", [16, 256])
@pytest.mark.parametrize("name", ["normal", "uniform"])
def test_false_alarms_are_no_more_frequent_than_those_of_a_normal_score(name, count):
    z = scores(*draws(name, count))
    for limit, share in ((2.0, 0.0455), (3.0, 0.0027)):
        found, error = (np.abs(z) > limit).mean(), math.sqrt(share / len(z))
        assert found < share + 4 * error


def test_heavy_tails_taken_for_normal_ones_give_false_alarms():
    x, law = draws("laplace", 256)
    expected = (np.abs(scores(x, law)) > 3).mean()
    assert (np.abs(scores(x, dataclasses.replace(law, kurtosis=3.0))) > 3).mean() > 10 * expected


def test_a_wrong_scale_of_a_tenth_is_seen_in_five_thousand_elements():
    drawn = law_of(1.1 * torch.randn(5000, generator=torch.Generator().manual_seed(0)))
    assert scale_z(drawn, drawn.of_size(1.0)) > threshold(1000)
    assert abs(scale_z(drawn, drawn.of_size(1.1))) < 3


def test_constants_agree_with_themselves_only():
    zeros, ones = law_of(torch.zeros(9)), law_of(torch.ones(9))
    assert scale_z(zeros, ones) == mean_z(zeros, zeros) == 0
    assert mean_z(zeros, ones) == math.inf
    assert scale_z(law_of(torch.randn(9)), zeros) == math.inf


def test_a_mean_is_judged_by_its_error():
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    known = law_of(x).of_size(1.0)
    assert abs(mean_z(law_of(x), known)) < 3
    assert mean_z(law_of(x + 0.1), known) == pytest.approx(10, abs=3)


def drawn(name, *shape):
    x = torch.empty(*shape)
    init = {
        "normal": lambda: torch.nn.init.normal_(x, std=0.1),
        "uniform": lambda: torch.nn.init.uniform_(x, -1, 1),
        "truncated normal": lambda: torch.nn.init.trunc_normal_(x, std=0.1, a=-0.2, b=0.2),
        "orthogonal": lambda: torch.nn.init.orthogonal_(x),
        "constant": lambda: torch.nn.init.ones_(x),
        "other": lambda: torch.nn.init.normal_(x).exp_(),
    }
    return init[name]()


@pytest.mark.parametrize(
    "name", ["normal", "uniform", "truncated normal", "orthogonal", "constant", "other"]
)
def test_forms_are_told_apart(name):
    x = drawn(name, 128, 256)
    assert form_of(x, law_of(x)) == name


def test_few_elements_have_no_form():
    x = drawn("normal", 5, 7)
    assert form_of(x, law_of(x)) == "unclear"


def test_two_draws_of_one_form_agree_and_of_two_do_not():
    first, second, third = (law_of(drawn(n, 100, 100)) for n in ("normal", "normal", "uniform"))
    assert form_z(first, second) < 3
    assert form_z(first, third.of_size(0.1)) == 0  # no sample to compare with
    scaled = dataclasses.replace(third, sample=third.sample * first.std / third.std)
    assert form_z(first, scaled) > 5


def test_a_bound_is_seen_where_a_distance_is_too_little():
    generator = torch.Generator().manual_seed(0)
    bounded = law_of(2 * torch.rand(40_000, generator=generator) - 1)
    normal = law_of(bounded.std * torch.randn(432, generator=generator))
    assert abs(scale_z(normal, bounded)) < 3
    assert form_z(normal, bounded) > 8


def test_draws_of_a_bounded_law_are_seldom_beyond_the_others():
    generator = torch.Generator().manual_seed(0)
    other = law_of(torch.rand(4000, generator=generator))
    found = [form_z(law_of(torch.rand(400, generator=generator)), other) for _ in range(400)]
    # Two ends and a distance: at most three times what a normal score exceeds.
    assert np.mean(np.array(found) > 3.0) < 3 * 0.0027 + 4 * math.sqrt(0.0027 / 400)


def test_no_element_of_a_large_tensor_is_taken_twice():
    law = law_of(torch.arange(70_000.0))
    assert len(np.unique(law.sample)) == len(law.sample) == 2**16
    assert law.count == 70_000


def test_joined_draws_are_one_law():
    x = torch.randn(4, 3000, generator=torch.Generator().manual_seed(0))
    both, whole = joined([law_of(row) for row in x]), law_of(x)
    assert both.count == whole.count == 12_000
    assert both.std == pytest.approx(whole.std, rel=1e-3)
    assert np.array_equal(both.sample, whole.sample)
