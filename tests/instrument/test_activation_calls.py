"""What forward() calls as a function is another function while the hooks are there."""

import copy
import io
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from equipoise.instrument.activation_calls import AMBIGUOUS, ActivationCalls


class Net(nn.Module):
    """Two layers with a function between, and another one behind."""

    def __init__(self, hidden, output=None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.hidden, self.output = hidden, output or nn.Identity()

    def forward(self, x):
        return self.output(self.last(self.hidden(self.first(x))))


def rows():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def passed(model):
    """Output and gradients of one pass."""
    model.zero_grad()
    output = model(rows())
    output.square().sum().backward()
    return [output.detach(), *(p.grad.clone() for p in model.parameters())]


def are_equal(one, other):
    return all(map(torch.equal, passed(one), passed(other)))


SPELLINGS = {
    "F.relu": F.relu,
    "torch.relu": torch.relu,
    "x.relu()": torch.Tensor.relu,
    "keyword": lambda x: F.relu(input=x),
    "in place": lambda x: F.relu(x, inplace=True),
    "torch.relu_": torch.relu_,
    "leaky": lambda x: F.leaky_relu(x, 0.3),
    "F.selu": F.selu,
    "F.relu6": F.relu6,
    "F.silu": F.silu,
    "x.tanh()": torch.Tensor.tanh,
    "expit": torch.special.expit,
    "softplus": F.softplus,
    "hardswish": F.hardswish,
}


@pytest.mark.parametrize("function", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_is_exchanged_and_given_back(function):
    model, twin = Net(function), Net(F.gelu)
    hooks = ActivationCalls("gelu").attach(model, also=[f"Net:{call}" for call in AMBIGUOUS])
    assert are_equal(model, twin)
    for hook in hooks:
        hook.remove()
    assert are_equal(model, Net(function))
    assert not are_equal(model, twin)


def test_what_was_written_to_is_read_afterwards():
    def shares(x):
        F.relu_(x)
        return x

    model = Net(shares)
    ActivationCalls("gelu").attach(model)
    assert are_equal(model, Net(F.gelu))


def test_what_is_kept_stays():
    model = Net(F.silu, F.relu)
    ActivationCalls("gelu").attach(model, ["Net:relu"])
    assert are_equal(model, Net(F.gelu, F.relu))
    whole = Net(F.relu, torch.tanh)
    ActivationCalls("gelu").attach(whole, ["Net"], certain=True)
    assert are_equal(whole, Net(F.relu, torch.tanh))


@pytest.mark.parametrize("function", [torch.tanh, torch.sigmoid, F.softplus, F.relu6])
def test_what_may_be_a_gate_or_an_output_stays_unless_asked_for(function):
    model = Net(F.relu, function)
    ActivationCalls("gelu").attach(model)
    assert are_equal(model, Net(F.gelu, function))


def test_a_kept_module_keeps_what_it_calls():
    """An nn.Tanh calls torch.tanh, while its parent's calls of the same are exchanged."""
    model = Net(torch.tanh, nn.Tanh())
    ActivationCalls("gelu").attach(model, ["output"], ["Net:tanh"])
    assert are_equal(model, Net(F.gelu, torch.tanh))


def test_a_transformers_layer_calls_a_function():
    def layer(activation):
        torch.manual_seed(0)
        return nn.TransformerEncoderLayer(4, 2, 8, 0.0, activation)

    model = layer(F.relu)
    ActivationCalls("gelu").attach(model)
    assert are_equal(model, layer(F.gelu))


def test_copies_and_files_exchange_too():
    model, twin = Net(F.relu), Net(F.gelu)
    hooks = ActivationCalls("gelu").attach(model)
    copied, file = copy.deepcopy(model), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for hook in hooks:
        hook.remove()
    assert are_equal(copied, twin)
    assert are_equal(loaded, twin)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # hidden by dynamo, which looks at it
def test_compiled_models_exchange_too():
    model = Net(F.relu)
    ActivationCalls("gelu").attach(model)
    for whole in (model, nn.Sequential(model)):
        compiled = torch.compile(whole, backend="eager", fullgraph=True)
        assert torch.equal(compiled(rows()), Net(F.gelu)(rows()))
        assert torch.equal(F.relu(-torch.ones(1)), torch.zeros(1))  # nothing stays switched on


def test_a_pass_that_raises_leaves_functions_as_they_are():
    def fails(x):
        raise RuntimeError("a bad row")

    model = Net(fails)
    ActivationCalls("gelu").attach(model)
    with pytest.raises(RuntimeError, match="bad row"):
        model(rows())
    assert torch.equal(F.relu(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 1.0]))


def test_checkpointed_modules_are_repeated_alike():
    class Checkpointed(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.inner = Net(function)

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    model = Checkpointed(F.relu)
    ActivationCalls("gelu").attach(model)
    assert are_equal(model, Net(F.gelu))


@pytest.mark.parametrize("size", [0, 3])
def test_a_result_goes_where_the_call_wants_it(size):
    class Writing(nn.Module):
        def forward(self, x):
            y = torch.zeros(size)
            torch.tanh(x, out=y)
            return y

    model, x = Writing(), torch.tensor([-1.0, 0.5, 2.0])
    ActivationCalls("gelu").attach(model, also=["Writing:tanh"])
    assert torch.equal(model(x), F.gelu(x))


def test_a_pass_without_any_exchange_warns_once():
    model = Net(torch.sin)
    ActivationCalls("gelu").attach(model)
    with pytest.warns(UserWarning, match="activation=gelu changed nothing") as caught:
        model(rows())
    assert caught[0].filename == __file__  # not in a hook that PyTorch calls
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(rows())
        Net(F.relu)(rows())
