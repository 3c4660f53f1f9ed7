"""Parameters move in place and go back, in value, memory and identity."""

import pytest
import torch
from torch import nn

from equipoise.instrument.held import held, place
from support.model_state import differences, fingerprint


def layer():
    made = nn.Linear(3, 2)
    made(torch.ones(1, 3)).sum().backward()
    made.bias.requires_grad_(False)
    return made


def replace_memory(model):
    model.weight.data = model.weight.data + 1


def replace_parameter(model):
    model.weight = nn.Parameter(torch.zeros(2, 3))


def add_parameter(model):
    model.extra = nn.Parameter(torch.zeros(2))


def write(model):
    with torch.no_grad():
        model.weight.add_(1)


def freeze(model):
    model.weight.requires_grad_(False)
    model.bias.requires_grad_(True)


def give_gradients(model):
    model.weight.grad = torch.zeros(2, 3)


@pytest.mark.parametrize(
    "change",
    [replace_memory, replace_parameter, add_parameter, write, freeze, give_gradients],
)
class TestGoesBack:
    def test_whatever_was_done(self, change):
        model = layer()
        before = fingerprint(model)
        with held(model):
            change(model)
        assert differences(before, fingerprint(model)) == []

    def test_without_it_the_change_stays(self, change):
        model = layer()
        before = fingerprint(model)
        change(model)
        assert differences(before, fingerprint(model)) != []


class TestMove:
    def test_starts_from_where_the_parameters_were(self):
        model = layer()
        start = model.weight.detach().clone()
        along = torch.full((2, 3), 2.0)
        with held(model) as kept:
            for _ in range(2):
                kept.move([model.weight], [along], 0.25)
            assert torch.equal(model.weight.detach(), start - 0.5)
            assert torch.equal(kept.values([model.weight])[0], start)

    def test_a_step_of_zero_along_an_infinite_direction_stays(self):
        model = layer()
        before = model.weight.detach().clone()
        with held(model) as kept:
            kept.move([model.weight], [torch.full((2, 3), torch.inf)], 0.0)
            assert torch.equal(model.weight.detach(), before)

    def test_parameters_that_share_memory_add_their_steps(self):
        """As an optimiser's in-place steps do."""
        model = nn.ParameterList([torch.ones(2), torch.ones(2)])
        model[1].data = model[0].data
        with held(model) as kept:
            kept.move(list(model), [torch.ones(2), torch.ones(2)], 0.25)
            assert model[0].tolist() == model[1].tolist() == [0.5, 0.5]

    def test_a_waiting_backward_pass_stays_valid(self):
        model = nn.Linear(3, 2)
        loss = (model(torch.ones(1, 3)) ** 2 * model.weight.sum()).sum()
        with held(model) as kept:
            kept.move([model.weight], [torch.ones(2, 3)], 1.0)
            place([model.bias], [torch.zeros(2)])
        loss.backward()


def test_parameters_outside_of_the_model_go_back_too():
    scale = torch.ones(1, requires_grad=True)
    scale.grad = torch.ones(1)
    gradient = scale.grad
    with held(layer(), [scale]):
        assert scale.grad is None
        scale.data.add_(1)
    assert scale.tolist() == [1.0]
    assert scale.grad is gradient
