"""What condition numbers of inputs cost is known from shapes, before anything is decomposed."""

import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.preconditioning.sizes import (
    MOST_ENTRIES,
    MOST_POSITIONS,
    Size,
    samples_wanted,
    seconds,
    sizes,
)


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def test_rows_and_columns_of_layers_that_run_once():
    shared = nn.Linear(10, 10)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10), shared, shared
    )
    found = sizes(model, (torch.randn(5, 3, 7, 7), torch.zeros(5, dtype=torch.long)), loss)
    assert found == [Size(5, 9, 27), Size(5, 1, 36)]
    assert all(not module._forward_pre_hooks for module in model.modules())


def test_positions_of_tokens_are_rows():
    model = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7), nn.Flatten(0, 1))
    tokens = torch.zeros(4, 300, dtype=torch.long)
    found = sizes(model, (tokens, tokens.flatten()), loss)
    assert found == [Size(4, 300, 8)]
    assert samples_wanted(found) == 4  # 1,200 rows


def test_nothing_runs_nothing_is_wanted():
    assert samples_wanted([]) == 0
    assert seconds(nn.Linear(1, 1), [], 0, 0.1)[0] > 0  # the passes themselves


def test_matrices_that_are_not_decomposed_cost_nothing():
    model, small, large = nn.Linear(1, 1), Size(64, 1, 10), Size(64, 1, MOST_ENTRIES)
    assert seconds(model, [small, large], 64, 0.1) == seconds(model, [small], 64, 0.1)


def test_positions_cost_a_pass_each_up_to_those_that_are_measured():
    def hessian(positions):
        inputs, both = seconds(nn.Linear(1, 1), [Size(8, positions, 9)], 8, 1.0)
        return both - inputs

    assert hessian(MOST_POSITIONS) > 10 * hessian(1)
    assert hessian(MOST_POSITIONS + 1) < hessian(1)


def test_samples_that_share_statistics_have_no_hessian():
    plain, normalised = nn.Sequential(), nn.Sequential(nn.BatchNorm2d(2))
    found = [Size(8, 50, 9)]
    assert seconds(normalised, found, 8, 1.0)[1] < seconds(plain, found, 8, 1.0)[1] / 5
    assert seconds(normalised.eval(), found, 8, 1.0) == seconds(plain, found, 8, 1.0)
