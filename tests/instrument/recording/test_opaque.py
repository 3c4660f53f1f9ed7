"""Calls of chosen classes are one operation each."""

import pytest
import torch
from torch import nn

from equipoise.instrument.recording import opaque
from equipoise.instrument.recording.graph import Made
from equipoise.instrument.recording.tracer import trace
from support.model_state import left_alone


def summed(model, x):
    return model(x).square().sum()


class Inner(nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.layer, self.fails = nn.Linear(4, 4), fails

    def forward(self, x, *, scale=1.0):
        if self.fails:
            raise RuntimeError("inside")
        return self.layer(x).tanh() * scale, x + 1


class Outer(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), Inner(**options)

    def forward(self, x):
        first, second = self.inner(self.first(x), scale=2.0)
        return first + second


class Around(Outer):
    """Holds an opaque module inside an opaque one."""


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Applied(nn.Module):
    def forward(self, x):
        return Doubled.apply(x.tanh())


@pytest.fixture
def chosen(monkeypatch):
    found = set()
    monkeypatch.setattr(opaque, "OPAQUE", found)
    return found


def names(graph):
    return [node.name for node in graph.nodes]


X = torch.ones(3, 4)


class TestModules:
    def test_are_recorded_from_outside(self, chosen):
        chosen.add(Inner)
        model = Outer()
        graph = trace(model, X, summed)
        assert names(graph) == ["t", "addmm", "Inner", "add", "pow", "sum"]
        node = graph.nodes[2]
        assert (node.called, node.module) == (model.inner, "inner")
        assert (node.inputs, node.keywords) == ((Made(1, 0),), {"scale": 2.0})
        assert [g.shape for g in node.gradients] == [X.shape, X.shape]
        assert set(graph.nodes[3].inputs) == {Made(2, 0), Made(2, 1)}

    def test_nested_ones_belong_to_the_outermost(self, chosen):
        chosen.update({Inner, Around})
        assert names(trace(nn.Sequential(Around()), X, summed)) == ["Around", "pow", "sum"]

    def test_others_are_looked_into(self, chosen):
        assert "tanh" in names(trace(Outer(), X, summed))

    def test_nothing_of_it_stays(self, chosen):
        chosen.add(Inner)
        model = Outer()
        with left_alone(model):
            trace(model, X, summed)
        assert "forward" not in vars(model.inner)

    def test_nor_after_an_error(self, chosen):
        chosen.add(Inner)
        model = Outer(fails=True)
        with pytest.raises(RuntimeError, match="inside"):
            trace(model, X, summed)
        assert "forward" not in vars(model.inner)

    def test_a_forward_pass_of_the_instance_is_put_back(self, chosen):
        chosen.add(Inner)
        model = Outer()
        model.inner.forward = own = lambda x, scale: (x * scale, x)
        assert "Inner" in names(trace(model, X, summed))
        assert model.inner.forward is own


class TestFunctions:
    def test_are_recorded_from_outside(self, chosen):
        chosen.add(Doubled)
        before = vars(Doubled)["forward"]
        graph = trace(Applied(), X.clone().requires_grad_(), summed)
        assert "add" not in names(graph)
        node = next(node for node in graph.nodes if node.name == "Doubled")
        assert graph.nodes[node.inputs[0].node].name == "tanh"
        assert node.records_gradients
        assert not node.function
        assert vars(Doubled)["forward"] is before

    def test_others_are_named_where_they_end(self, chosen):
        graph = trace(Applied(), X.clone().requires_grad_(), summed)
        (node,) = (node for node in graph.nodes if node.function)
        assert (node.name, node.function) == ("add", "Doubled")


def test_operations_without_autograd_are_told(chosen):
    def loss(model, x):
        with torch.no_grad():
            y = x.tanh()
        return (model(x) * y).sum()

    found = {node.name: node.records_gradients for node in trace(nn.Linear(4, 4), X, loss).nodes}
    assert found == {"tanh": False, "t": True, "addmm": True, "mul": True, "sum": True}
