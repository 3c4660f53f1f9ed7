"""Networks of every family are built as declared, faults included."""

import dataclasses

import pytest
import torch
from torch import nn

from equipoise.training import cross_entropy
from equipoise_papers.stacked.train import train_many
from equipoise_papers.trainability.build import build
from equipoise_papers.trainability.tasks import task
from papers_support.trainability_examples import EVERY_FAMILY, network

every_family = pytest.mark.parametrize("name", EVERY_FAMILY)


def built(one):
    return build(one, task(one))


def batch_of(one):
    return next(task(one).batches(8, 1, 0))


def matrices(model):
    return [m.weight for m in model[1].modules() if isinstance(m, nn.Linear | nn.Conv2d)]


@every_family
class TestFamilies:
    def test_they_have_finite_logits_for_their_data(self, name):
        one = EVERY_FAMILY[name]
        x, y = batch_of(one)
        model = built(one)
        logits = model(x)
        assert logits.shape[:2] == (8, task(one).classes)
        assert logits.isfinite().all()
        assert cross_entropy(model, (x, y)).isfinite()

    def test_weights_follow_the_seed(self, name):
        one = EVERY_FAMILY[name]
        first, again, other = (
            list(built(x).parameters()) for x in (one, one, dataclasses.replace(one, seed=4))
        )
        assert all(map(torch.equal, first, again))
        assert not all(map(torch.equal, first, other))

    def test_the_random_state_is_left_as_found(self, name):
        before = torch.get_rng_state()
        built(EVERY_FAMILY[name])
        assert torch.equal(before, torch.get_rng_state())

    def test_the_gain_is_that_of_the_blocks(self, name):
        one = EVERY_FAMILY[name]
        for ours, theirs in zip(
            *(matrices(built(dataclasses.replace(one, gain=gain))) for gain in (1.0, 2.0)),
            strict=True,
        ):
            torch.testing.assert_close(2 * ours, theirs)

    def test_more_blocks_are_more_layers(self, name):
        one = EVERY_FAMILY[name]
        assert len(matrices(built(one.at(6)))) == 3 * len(matrices(built(one)))

    def test_a_stack_computes_what_single_networks_do(self, name):
        one = EVERY_FAMILY[name]
        batches = [(x[None].expand(2, *x.shape), y[None].expand(2, *y.shape))
                   for x, y in task(one).batches(8, 2, 0)]  # fmt: skip
        stacked, alone = (
            train_many(
                [built(one) for _ in range(2)],
                batches,
                cross_entropy,
                torch.optim.SGD,
                (0.01, 0.1),
                method=method,
            )
            for method in ("stacked", "one by one")
        )
        for a, b in zip(stacked, alone, strict=True):
            assert a.losses == pytest.approx(b.losses, rel=1e-4)


class TestFaults:
    def test_dead_shifts_leave_no_gradient(self):
        one = network(norm="none", fault="dead", depth=4)
        model = built(one)
        cross_entropy(model, batch_of(one)).backward()
        assert not matrices(model)[0].grad.any()

    def test_zero_scales(self):
        model = built(network(norm="batch", fault="zero"))
        norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
        assert norms
        assert not any(m.weight.any() for m in norms)

    def test_zero_weights_without_norms(self):
        assert not any(w.any() for w in matrices(built(network(norm="none", fault="zero"))))

    @pytest.mark.parametrize(
        ("fault", "factors"),
        [("none", [1, 1, 1]), ("saturated", [8, 8, 8]), ("missed", [1, 0.02, 1])],
    )
    def test_weights_are_larger_or_missed(self, fault, factors):
        """In plain networks the first of the blocks is the stem's activation."""
        fine, wrong = (matrices(built(network(depth=3, fault=f))) for f in ("none", fault))
        assert [
            float((b.norm() / a.norm()).detach()) for a, b in zip(fine, wrong, strict=True)
        ] == (pytest.approx(factors))

    def test_a_large_head(self):
        fine, wrong = (built(network(fault=fault)) for fault in ("none", "head"))
        torch.testing.assert_close(100 * fine[2][-1].weight, wrong[2][-1].weight)

    def test_large_inputs(self):
        torch.testing.assert_close(
            100 * task(network()).inputs, task(network(fault="input")).inputs
        )
