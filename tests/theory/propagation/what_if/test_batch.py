"""Another number of samples."""

import pytest
import torch

from support.what_if_models import (
    gradients,
    perceptron,
    predicted,
    residual,
    second_moments,
    vectors,
)

LOSSES = {
    "mean": lambda model, batch: model(batch[0]).mean(),
    "sum": lambda model, batch: model(batch[0]).sum(),
}


@pytest.fixture(
    scope="module",
    params=[(b, r, n) for b in (perceptron, residual) for r in LOSSES for n in ((16, 8), (8, 16))],
    ids=lambda p: f"{p[0].__name__} {p[1]} {p[2]}",
)
def answers(request):
    build, reduce, (traced, asked) = request.param
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build()
    found = predicted(model, vectors(traced), LOSSES[reduce])
    real = predicted(model, vectors(asked), LOSSES[reduce])
    return found, found.what_if(batch_size=asked), real


class TestBatchSize:
    def test_predicts_second_moments_of_the_other_batch(self, answers):
        _, answer, real = answers
        assert second_moments(answer) == pytest.approx(second_moments(real), rel=1e-4)

    def test_predicts_its_gradients(self, answers):
        _, answer, real = answers
        assert gradients(answer) == pytest.approx(gradients(real), rel=1e-4)

    def test_predicts_gradients_of_its_weights(self, answers):
        _, answer, real = answers
        ours, theirs = ({w.name: w.gradient for w in f.weights} for f in (answer, real))
        assert ours == pytest.approx(theirs, rel=1e-4)

    def test_which_are_not_those_of_this_batch(self, answers):
        found, _, real = answers
        assert found.weights[-1].gradient != pytest.approx(real.weights[-1].gradient, rel=0.1)


def test_batch_norm_of_one_sample_is_not_predicted():
    answer = predicted(perceptron(), vectors()).what_if(batch_size=1)
    assert "batch norm of a single row" in {site.reason for site in answer.sites}
