import math

import pytest
import torch
from torch.testing import assert_close

from equipoise.data import Source
from equipoise_papers.santurkar2018.deep_linear import gaussian_regression

DOUBLE = {"dtype": torch.float64}


def standard_errors(samples, expected):
    return abs(samples.mean() - expected) / (samples.std() / math.sqrt(len(samples)))


def matrix_of(problem):
    """The matrix behind the targets, one column of Aᵀ for each."""
    return torch.linalg.lstsq(problem.inputs, problem.targets).solution.T


class TestProblem:
    def test_the_papers_size_by_default(self):
        problem = gaussian_regression()
        assert problem.inputs.shape == problem.targets.shape == (1000, 10)
        assert problem.inputs.dtype == problem.targets.dtype == torch.float32
        assert problem.classes is None

    def test_targets_are_a_matrix_times_inputs(self):
        problem = gaussian_regression(**DOUBLE)
        A = matrix_of(problem)
        assert_close(problem.inputs @ A.T, problem.targets, rtol=0, atol=1e-12)

    def test_twin_noise_would_show(self):
        problem = gaussian_regression(**DOUBLE)
        noisy = problem.targets + 0.01 * torch.randn_like(problem.targets)
        fit = torch.linalg.lstsq(problem.inputs, noisy).solution
        assert (problem.inputs @ fit - noisy).abs().max() > 1e-3

    def test_inputs_are_standard_normal(self):
        x = gaussian_regression(5000, **DOUBLE).inputs.flatten()
        assert standard_errors(x, 0) < 3
        assert standard_errors(x.square(), 1) < 3
        assert standard_errors(x.pow(4), 3) < 3

    def test_the_matrix_is_standard_normal(self):
        A = matrix_of(gaussian_regression(500, width=100, **DOUBLE)).flatten()
        assert standard_errors(A, 0) < 3
        assert standard_errors(A.square(), 1) < 3

    def test_answering_0_costs_the_width_squared_per_sample(self):
        """Over matrices; within one problem samples share theirs."""
        problems = [gaussian_regression(100, seed=seed, **DOUBLE) for seed in range(200)]
        losses = torch.stack([p.targets.square().sum(1).mean() for p in problems])
        assert standard_errors(losses, 10**2) < 3


class TestRandomness:
    def test_a_seed_is_a_problem(self):
        one, two, other = (gaussian_regression(seed=seed) for seed in (0, 0, 1))
        assert torch.equal(one.inputs, two.inputs)
        assert torch.equal(one.targets, two.targets)
        assert not torch.equal(one.inputs, other.inputs)
        assert not torch.allclose(matrix_of(one), matrix_of(other))

    def test_types_differ_by_rounding_only(self):
        single, double = gaussian_regression(), gaussian_regression(**DOUBLE)
        assert torch.equal(single.inputs, double.inputs.float())
        assert torch.equal(single.targets, double.targets.float())

    def test_the_global_state_is_left_alone(self):
        state = torch.get_rng_state()
        gaussian_regression()
        assert torch.equal(torch.get_rng_state(), state)


def test_full_batches_hold_every_sample():
    problem = gaussian_regression(20, 3)
    assert isinstance(problem, Source)
    ((x, y),) = problem.batches(20, 1, torch.Generator().manual_seed(0))
    assert_close(x.sum(0), problem.inputs.sum(0))
    assert_close(y.sum(0), problem.targets.sum(0))


class TestErrors:
    @pytest.mark.parametrize("wrong", [{"samples": 0}, {"width": -1}])
    def test_sizes(self, wrong):
        ((name, value),) = wrong.items()
        with pytest.raises(ValueError, match=f"must be at least 1; got .*{name}={value}"):
            gaussian_regression(**wrong)

    def test_types(self):
        with pytest.raises(TypeError, match=r"dtype must be a floating type.*got torch\.int64"):
            gaussian_regression(dtype=torch.int64)
