"""Models and their parameters are restored in value, memory and identity."""

from collections import Counter

import pytest
import torch
from torch import nn

from equipoise.instrument.snapshot import parameters_restored, untouched, write_values
from support.cases import each
from support.model_state import differences, fingerprint, left_alone


def layer():
    made = nn.Linear(3, 2)
    made(torch.ones(1, 3)).sum().backward()
    made.bias.requires_grad_(False)
    return made


def normaliser():
    made = nn.BatchNorm1d(3)
    made(torch.arange(6.0).reshape(2, 3)).sum().backward()
    return made


def replace_memory(model):
    model.weight.data = model.weight.data + 1


def replace_parameter(model):
    model.weight = nn.Parameter(torch.zeros_like(model.weight))


def add_parameter(model):
    model.extra = nn.Parameter(torch.zeros(2))


def write_parameter(model):
    with torch.no_grad():
        model.weight.add_(1)


def convert_parameters(model):
    model.double()


def freeze(model):
    model.weight.requires_grad_(False)
    model.bias.requires_grad_(True)


def replace_gradient(model):
    model.weight.grad = torch.zeros_like(model.weight)


PARAMETER_CHANGES = [
    replace_memory,
    replace_parameter,
    add_parameter,
    write_parameter,
    convert_parameters,
    freeze,
    replace_gradient,
]


def write_gradient(model):
    model.bias.grad.add_(1)


def write_buffer(model):
    model.running_mean.add_(1)


def replace_buffer(model):
    model.running_mean = model.running_mean + 1


def remove_buffer(model):
    del model.running_mean


def add_buffer(model):
    model.register_buffer("extra", torch.zeros(2))


def change_mode(model):
    model.eval()


def draw(model):
    torch.rand(1)


OTHER_CHANGES = [
    write_gradient,
    write_buffer,
    replace_buffer,
    remove_buffer,
    add_buffer,
    change_mode,
    draw,
]
CASES = [
    *[(parameters_restored, layer, change) for change in PARAMETER_CHANGES],
    *[(untouched, normaliser, change) for change in [*PARAMETER_CHANGES, *OTHER_CHANGES]],
]


def name(value):
    return value.__name__


@each(("restored", "make", "change"), CASES, ids=name)
class TestEveryChange:
    def test_is_undone(self, restored, make, change):
        model = make()
        with left_alone(model), restored(model):
            change(model)

    def test_without_it_the_change_stays(self, restored, make, change):
        model = make()
        before = fingerprint(model)
        change(model)
        assert differences(before, fingerprint(model)) != []


def test_a_buffer_assigned_in_inference_mode_is_restored():
    """PyTorch forbids writing to it outside that mode."""
    model = normaliser()
    with torch.inference_mode():
        model.running_mean = model.running_mean + 1
    with left_alone(model), untouched(model), torch.inference_mode():
        model.running_mean.add_(1)


def test_gradients_are_none_only_where_they_are_not_copied():
    model = layer()
    with parameters_restored(model):
        assert model.weight.grad is None
    with untouched(model):
        assert model.weight.grad is not None


class TestMove:
    def test_starts_from_the_saved_values(self):
        model = layer()
        start = model.weight.detach().clone()
        along = torch.full((2, 3), 2.0)
        with parameters_restored(model) as saved:
            for _ in range(2):
                saved.move([model.weight], [along], 0.25)
            assert torch.equal(model.weight.detach(), start - 0.5)
            assert torch.equal(saved.values([model.weight])[0], start)

    def test_a_step_of_zero_along_an_infinite_direction_stays(self):
        model = layer()
        before = model.weight.detach().clone()
        with parameters_restored(model) as saved:
            saved.move([model.weight], [torch.full((2, 3), torch.inf)], 0.0)
            assert torch.equal(model.weight.detach(), before)

    def test_parameters_that_share_memory_add_their_steps(self):
        """As an optimiser's in-place steps do."""
        model = nn.ParameterList([torch.ones(2), torch.ones(2)])
        model[1].data = model[0].data
        with parameters_restored(model) as saved:
            saved.move(list(model), [torch.ones(2), torch.ones(2)], 0.25)
            assert model[0].tolist() == model[1].tolist() == [0.5, 0.5]

    def test_a_pending_backward_pass_stays_valid(self):
        model = nn.Linear(3, 2)

        def loss():
            return (model(torch.ones(1, 3)) ** 2 * model.weight.sum()).sum()

        expected = torch.autograd.grad(loss(), [*model.parameters()])
        pending = loss()
        with parameters_restored(model) as saved:
            saved.move([model.weight], [torch.ones(2, 3)], 1.0)
            write_values([model.bias], [torch.zeros(2)])
            moved = torch.autograd.grad(loss(), [*model.parameters()])
        pending.backward()
        for parameter, gradient, other in zip(model.parameters(), expected, moved, strict=True):
            assert torch.equal(parameter.grad, gradient)
            assert not torch.equal(gradient, other)


def test_parameters_outside_of_the_model_are_restored_too():
    scale = torch.ones(1, requires_grad=True)
    scale.grad = torch.ones(1)
    gradient = scale.grad
    with parameters_restored(layer(), [scale]):
        assert scale.grad is None
        scale.data.add_(1)
    assert scale.tolist() == [1.0]
    assert scale.grad is gradient


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("block", [untouched, parameters_restored])
def test_scripted_modules_are_refused_before_anything_changes(block):
    net = nn.Sequential(torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)), nn.ReLU())
    net[0].weight.grad = torch.ones(2, 2)
    with pytest.raises(ValueError, match=r"0 is a \w+ of torch.jit"), block(net):
        pass
    assert torch.equal(net[0].weight.grad, torch.ones(2, 2))


def test_a_counter_is_not_added_to():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = Counter(before=1)

        def forward(self, x):
            self.calls["now"] += 1
            self.calls["before"] += 2
            return x

    net = Counting()
    with untouched(net):
        net(torch.zeros(1))
    assert net.calls == Counter(before=1)


@pytest.mark.parametrize("lazy", [nn.LazyLinear(2), nn.LazyBatchNorm1d(affine=False)])
def test_lazy_modules_are_refused(lazy):
    message = f"{type(lazy).__name__} has lazy parameters without a shape. Run one batch through"
    with pytest.raises(ValueError, match=message), untouched(lazy):
        pass
