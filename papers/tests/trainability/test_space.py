"""Designs are drawn from declared ranges, again and again the same."""

import itertools

import pytest

from equipoise_papers.trainability.experiment import networks, trainings
from equipoise_papers.trainability.space import DEEPEST, FAMILIES, MOST_WORK, designs
from equipoise_papers.trainability.training import RATES
from papers_support.trainability_examples import EVERY_FAMILY


@pytest.fixture(scope="module")
def small():
    return networks("small")


def test_there_are_more_than_a_thousand_networks(small):
    assert len(set(small)) == len(small) >= 1000


def test_they_are_deterministic(small):
    assert networks("small") == small


def test_fewer_designs_are_the_first_of_more():
    few, more = list(designs(24)), list(designs(48))
    assert few == more[: len(few)]


def test_all_families_are_there(small):
    assert {(one.layers, one.topology) for one in small} == set(FAMILIES)


def test_they_stay_within_their_limits(small):
    assert all(1 <= one.depth <= DEEPEST for one in small)
    assert all(one.work <= MOST_WORK for one in small)
    assert all(0.3 <= one.gain <= 3 for one in small)
    assert all(one.batch_size >= 16 for one in small if one.layers == "attention")


def test_a_design_differs_in_depth_alone_which_doubles():
    for design in designs(24):
        first = design[0]
        depths = [one.depth for one in design]
        assert depths == sorted(set(depths))
        for one in design:
            same = first.at(one.depth)
            assert (one.gain, one.norm, one.width, one.seed, one.fault) == (
                same.gain,
                same.norm,
                same.width,
                same.seed,
                same.fault,
            )
        assert all(1.3 < b / a <= 3 for a, b in itertools.pairwise(depths))


def test_work_grows_with_depth_width_and_batch():
    for one in EVERY_FAMILY.values():
        assert one.at(4).work == 2 * one.at(2).work


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_a_reference_is_its_own_reference(name):
    reference = EVERY_FAMILY[name].reference
    assert reference.reference == reference
    assert (reference.fault, reference.depth) == ("none", 2)
    assert reference.family == name


def test_every_network_and_its_reference_are_trained_once(small):
    cells = trainings("small")
    assert len(set(cells)) == len(cells)
    wanted = {*small, *(one.reference for one in small)}
    assert {cell.network for cell in cells} == wanted
    assert len(cells) == len(wanted) * len(RATES)
