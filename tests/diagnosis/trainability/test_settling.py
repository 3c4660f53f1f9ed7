"""Steps until weights that were drawn too small have grown beside their steps."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from equipoise.diagnosis.prediction import traced, traced_after_step
from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.trainability.calibration import calibration
from equipoise.diagnosis.trainability.judge import REASONS, judge
from equipoise.diagnosis.trainability.settling import sensitivity, settling
from equipoise.theory.propagation.propagate import propagate

N = 32


class Branch(nn.Module):
    """A layer beside a stream."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Sequential(nn.LayerNorm(N), nn.Linear(N, N), nn.GELU(), nn.Linear(N, N))

    def forward(self, x):
        return x + self.inside(x)


class OwnNorm(nn.Module):
    """An RMS norm written as arithmetic."""

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def drawn(model, std):
    """With all matrices of one standard deviation."""
    torch.manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)
    return model


def chain(depth, std, norm=lambda: nn.LayerNorm(N)):
    blocks = [[nn.Linear(N, N), norm(), nn.GELU()] for _ in range(depth)]
    layers = [layer for block in blocks for layer in block]
    return drawn(nn.Sequential(*layers, nn.Linear(N, 4)), std)


def stream(depth, std):
    return drawn(
        nn.Sequential(*(Branch() for _ in range(depth)), nn.LayerNorm(N), nn.Linear(N, 4)), std
    )


def passes(model):
    """A traced pass, and those after a step."""
    generator = torch.Generator().manual_seed(1)
    batch = torch.randn(64, N, generator=generator), torch.arange(64) % 4
    problem = Problem.prepare(model, batch)
    fresh = problem.fresh()
    found = propagate(traced(problem, fresh).graph)
    return found, partial(traced_after_step, problem, fresh)


@pytest.mark.parametrize("depth", [3, 8])
class TestSensitivity:
    """By which part outputs change for each part by which all weights do."""

    def test_steps_of_a_chain_add_up(self, depth):
        assert sensitivity(*passes(chain(depth, 1e-3))) == pytest.approx(
            depth * math.sqrt(N), rel=0.4
        )

    def test_those_of_small_branches_beside_a_stream_do_not(self, depth):
        assert sensitivity(*passes(stream(depth, 1e-3))) < math.sqrt(N)


class TestSettling:
    """It takes from the log-odds of deep chains of small weights behind norms, of no others."""

    @pytest.mark.parametrize(
        ("std", "norm"),
        [(1e-3, lambda: nn.LayerNorm(N)), (1e-4, lambda: nn.LayerNorm(N)), (1e-3, OwnNorm)],
    )
    def test_deep_chains_lose(self, std, norm):
        assert settling(*passes(chain(12, std, norm))) > 4

    @pytest.mark.parametrize(
        "model",
        [
            pytest.param(lambda: chain(12, 0.1), id="weights of the usual size"),
            pytest.param(lambda: chain(3, 1e-4), id="few layers"),
            pytest.param(lambda: chain(12, 1e-4, lambda: nn.BatchNorm1d(N)), id="batch norm"),
            pytest.param(lambda: stream(12, 1e-4), id="a stream"),
        ],
    )
    def test_others_lose_nothing(self, model):
        assert settling(*passes(model())) == 0


def test_it_is_the_reason_of_the_verdict():
    found, stepped = passes(chain(12, 1e-3))
    known = judge(found, 64, calibration(), stepped=stepped)
    assert known.probability < 0.2
    assert (known.reason, known.outside) == (REASONS["settling"], ("settling",))
    assert known.depth is None  # theory of the first pass knows nothing of it
    assert judge(found, 64, calibration()).probability > 0.9


def test_a_step_leaves_the_model_as_it_was():
    model = chain(3, 1e-3)
    problem = Problem.prepare(model, (torch.randn(8, N), torch.arange(8) % 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first, second = (traced_after_step(problem, model, 0.01).loss for _ in range(2))
    assert first == second
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
