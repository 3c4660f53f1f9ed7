"""Trained panels: cells are pure, boundaries are found where they were put, verdicts can fail."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from equipoise.experiments.catalogue import EXPERIMENTS, FIGURES
from equipoise.experiments.style import empty_figure, house_style
from equipoise.experiments.yang2019 import depth_curves, fig2, fig4
from equipoise.experiments.yang2019.trainability import (
    Member,
    Stack,
    Trained,
    network,
    train_stack,
)
from equipoise.experiments.yang2019.trained_panels import Record, columns, line, run
from equipoise.layers import GhostBatchNorm1d
from equipoise.records import from_plain, to_plain

TINY = Stack(
    data="digits",
    activation="relu",
    batch_size=8,
    depth=3,
    eps=1e-3,
    width=16,
    samples=80,
    rates=(1e-3, 1e-2),
    seeds=(0, 1),
    test_samples=100,
)
BATCH_SIZES = ("yang2019.fig2a", "yang2019.fig2b", "yang2019.fig2c", "yang2019.fig2d")
WAYS = {
    "yang2019.fig4a": fig4.GAMMA,
    "yang2019.fig4b": fig4.BETA,
    "yang2019.fig4c": fig4.TANH_EPS,
    "yang2019.fig4d": fig4.RELU_EPS,
}
PANELS = (*BATCH_SIZES, *WAYS)


def ending_at(boundary, depth, rates, seeds, growth):
    """Networks that train down to a boundary and then, within an octave, no longer."""
    share = min(1.0, max(0.0, 0.5 - math.log2(depth / boundary)))
    members = tuple(
        Member(
            rate,
            seed,
            loss=abs(math.log(rate / 1e-3)) + 0.01 * seed,
            accuracy=0.1 + 0.7 * share * (rate > 1e-5) + 0.005 * seed,
            batch_accuracy=0.1 + 0.7 * share * (rate > 1e-5) + 0.003 * seed,
            diverged_at=None,
        )
        for rate in rates
        for seed in seeds
    )
    return Trained(members, growth, 0.1)


def growth_of(cell):
    return depth_curves.growth(cell.activation, cell.batch_size, cell.eps, cell.gamma, cell.beta)


def networks(name, boundary, scatter=1.1):
    """Networks of a panel at scale small, with boundaries where a function of 16ξ puts them."""
    stacks = [cell for cell in EXPERIMENTS[name].cells("small") if isinstance(cell, Stack)]
    places = list(dict.fromkeys(growth_of(cell) for cell in stacks))
    found = {}
    for cell in stacks:
        growth = growth_of(cell)
        # Columns scatter around the line: without scatter its factor would have no error.
        off = scatter ** (-1) ** places.index(growth)
        depth = min(1e6, off * boundary(Trained((), growth, 0.1).predicted_depth))
        stack = ending_at(depth, cell.depth, cell.rates, cell.seeds, growth)
        found[cell] = Record(trained=stack)
    return found


@pytest.fixture(scope="module")
def lines():
    """The predicted line of each panel, coarsely, at the batch size of its networks."""
    return {
        name: {
            cell: run(cell)
            for cell in EXPERIMENTS[name].cells("smoke")
            if not isinstance(cell, Stack) and (name in BATCH_SIZES or cell.batch_size == 64)
        }
        for name in PANELS
    }


def claims(name, boundary, **options):
    """What a panel's networks say; lines have tests of their own."""
    results = networks(name, boundary, **options)
    if name in BATCH_SIZES:
        checks, _ = fig2.network_checks(results)
    else:
        checks, _ = fig4.network_checks(WAYS[name], results)
    return {check.claim: check for check in checks}


class TestStacks:
    def test_a_cell_gives_the_same_record_whenever_it_runs(self):
        first = train_stack(TINY)
        torch.manual_seed(99)
        assert train_stack(TINY) == first
        assert from_plain(Trained, to_plain(first)) == first

    def test_the_global_random_state_is_left_alone(self):
        before = torch.get_rng_state()
        train_stack(TINY)
        assert torch.equal(torch.get_rng_state(), before)

    def test_networks_of_a_seed_differ_in_their_rate_alone(self):
        one, other = (network(TINY, 64, 10, seed=3).state_dict() for _ in range(2))
        assert all(torch.equal(one[name], other[name]) for name in one)
        another = network(TINY, 64, 10, seed=4).state_dict()
        assert not torch.equal(one["linear2.weight"], another["linear2.weight"])

    def test_networks_are_the_theorys(self):
        cell = replace(TINY, width=384, gamma=0.5, beta=2.0, eps=0.3)
        layers = list(network(cell, 784, 10, seed=0))
        hidden = [m for m in layers if isinstance(m, nn.Linear)][:-1]
        norms = [m for m in layers if isinstance(m, nn.BatchNorm1d)]
        assert len(hidden) == len(norms) == cell.depth
        assert all(module.bias is None for module in hidden)
        for module in hidden:
            # The variance of n normal numbers has a standard error of √(2/n) of itself.
            variance = float(module.weight.detach().var()) * module.in_features
            assert abs(variance - 1) < 4 * math.sqrt(2 / module.weight.numel())
        for norm in norms:
            assert (norm.eps, set(norm.weight.tolist()), set(norm.bias.tolist())) == (
                0.3,
                {0.5},
                {2.0},
            )
        assert [type(m) for m in layers[1:4]] == [nn.Linear, nn.BatchNorm1d, nn.ReLU]

    def test_statistics_over_sub_batches(self):
        layers = list(network(replace(TINY, step_samples=32), 64, 10, seed=0))
        norms = [m for m in layers if isinstance(m, GhostBatchNorm1d)]
        assert [norm.virtual_batch_size for norm in norms] == [TINY.batch_size] * TINY.depth

    def test_sub_batches_train_as_batches_of_their_own_would_not(self):
        """Same steps, other statistics."""
        ghost, plain = replace(TINY, step_samples=16), replace(TINY, batch_size=16)
        assert train_stack(ghost).members[0].loss != train_stack(plain).members[0].loss

    @pytest.mark.parametrize("optimizer", ["sgd", "rmsprop"])
    def test_shallow_networks_learn(self, optimizer):
        rate = {"sgd": 1e-2, "rmsprop": 1e-3}[optimizer]
        cell = replace(TINY, optimizer=optimizer, samples=2000, rates=(rate,), seeds=(0,))
        assert train_stack(cell).accuracies(rate)[0] > 0.5

    def test_divergence_is_a_record_and_guesses(self):
        found = train_stack(replace(TINY, rates=(1e-3, 1e30)))
        assert all(member.diverged_at is not None for member in found.at(1e30))
        assert found.accuracies(1e30) == (0.1, 0.1)
        assert found.best_rate == 1e-3
        assert to_plain(from_plain(Trained, to_plain(found))) == to_plain(found)

    def test_the_best_rate_has_the_lowest_loss_not_the_best_test(self):
        found = train_stack(TINY)
        members = tuple(
            replace(m, loss=m.rate, accuracy=0.9 if m.rate == 1e-2 else 0.2) for m in found.members
        )
        assert replace(found, members=members).best_rate == 1e-3


class TestPanels:
    @pytest.mark.parametrize("name", PANELS)
    def test_the_paper_s_boundary_is_called_so(self, name):
        checks = claims(name, lambda predicted: predicted)
        missed = [claim for claim, check in checks.items() if not check.holds]
        # A quarter of the way is a quarter of an octave deeper: f = 19.
        assert [claim.split(", ")[-1] for claim in missed] == [
            "trained from a quarter of the way on"
        ]

    @pytest.mark.parametrize("name", PANELS)
    def test_a_boundary_at_half_the_depth_keeps_its_course_only(self, name):
        checks = claims(name, lambda predicted: predicted / 2)
        missed = [claim for claim, check in checks.items() if not check.holds]
        assert [claim for claim in missed if "f = 16" in claim]
        assert checks["f·ξ tells the boundary better than one depth for all"].holds

    @pytest.mark.parametrize("name", PANELS)
    def test_one_depth_for_all_is_no_course(self, name):
        checks = claims(name, lambda predicted: 22.0, scatter=1.0)
        assert not checks["f·ξ tells the boundary better than one depth for all"].holds
        assert not all(check.holds for claim, check in checks.items() if "train deeper" in claim)

    @pytest.mark.parametrize("name", BATCH_SIZES)
    def test_networks_that_train_at_any_depth(self, name):
        checks = claims(name, lambda predicted: 1000.0)
        assert not checks["networks deeper than about 50 layers do not train in any column"].holds

    def test_the_papers_own_rate_is_named_apart(self):
        checks = claims("yang2019.fig2a", lambda predicted: predicted)
        assert any("the source's own rate trains none" in check.found for check in checks.values())

    def test_digits_do_not_pass_for_colour_images(self, lines):
        name = "yang2019.fig2d"
        results = lines[name] | networks(name, lambda predicted: predicted)
        assert EXPERIMENTS["yang2019.fig2d"].judge(results).outcome == "partly"

    @pytest.mark.parametrize("name", PANELS)
    @pytest.mark.parametrize("known", ["all", "networks", "one network", "line"])
    def test_figures_are_drawn_from_any_records(self, name, known, lines):
        stacks = networks(name, lambda predicted: predicted / 1.5)
        results = {
            "all": lines[name] | stacks,
            "networks": stacks,
            "one network": dict(list(stacks.items())[:1]),
            "line": lines[name],
        }[known]
        with house_style():
            figure = empty_figure()
            EXPERIMENTS[name].draw(figure.subfigures(1, 1), results)
            figure.canvas.draw()

    def test_columns_at_one_rate_and_with_the_batch_s_statistics(self):
        results = networks("yang2019.fig2a", lambda predicted: predicted)
        best, slow, batch = (
            columns(results, "batch_size", **options)
            for options in ({}, {"rate": 1e-5}, {"batch_statistics": True})
        )
        assert [column.position for column in best] == [4, 8, 16, 32, 64, 128, 256]
        assert max(max(column.means) for column in slow) < 0.11
        assert best[0].accuracies[0] == pytest.approx((0.8, 0.805))
        assert batch[0].accuracies[0] == pytest.approx((0.8, 0.803))


class TestSettings:
    def test_whole_figures_have_four_panels(self):
        assert FIGURES["yang2019.fig2"][1] == BATCH_SIZES
        assert FIGURES["yang2019.fig4"][1] == tuple(WAYS)

    def test_panels_share_their_store_and_what_they_have_in_common(self):
        assert {EXPERIMENTS[name].filed_under for name in PANELS} == {"yang2019.trainability"}
        tanh, eps = (set(EXPERIMENTS[f"yang2019.fig4{panel}"].cells("small")) for panel in "ac")
        assert {(cell.gamma, cell.eps) for cell in tanh & eps if isinstance(cell, Stack)} == {
            (1.0, 1e-5)
        }

    def test_the_papers_scale_has_its_settings(self):
        for name in PANELS:
            stacks = [c for c in EXPERIMENTS[name].cells("paper") if isinstance(c, Stack)]
            assert {stack.width for stack in stacks} == {384}
            assert all(1e-5 in stack.rates for stack in stacks)
            assert min(stack.samples for stack in stacks) >= 600_000
        sub_batches = EXPERIMENTS["yang2019.fig2b"].cells("paper")
        assert {c.per_step for c in sub_batches if isinstance(c, Stack)} == {1000}
        assert {c.data for c in fig2.cells(fig2.OTHER_DATA, "paper") if isinstance(c, Stack)} == {
            "cifar10"
        }

    def test_networks_of_fig_4_are_near_the_line_at_eps_0(self):
        """PyTorch's batch norm needs an ε above 0; it must not move the line."""
        for setting in (fig4.GAMMA, fig4.BETA):
            for cell in fig4.cells(setting, "smoke"):
                if isinstance(cell, Stack):
                    at = (cell.activation, cell.batch_size)
                    there, ideal = (
                        depth_curves.growth(*at, eps, cell.gamma, cell.beta).value
                        for eps in (cell.eps, 0.0)
                    )
                    assert math.log(there) == pytest.approx(math.log(ideal), rel=0.01)

    def test_a_record_holds_a_point_or_networks(self):
        cells = fig2.cells(fig2.SGD, "smoke")
        records = {cell: run(cell) for cell in (cells[0], cells[-1])}
        assert len(line(records)) == 1
        assert [record.trained is None for record in records.values()] == [True, False]
