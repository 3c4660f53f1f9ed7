"""Rules for users' operators, autograd functions and modules, and calls without one."""

import time
from threading import Event, Thread

import pytest
import torch
from torch import nn

from equipoise.instrument.recording import opaque
from equipoise.instrument.recording.tracer import trace
from equipoise.theory import propagation
from equipoise.theory.propagation import call as registry
from equipoise.theory.propagation.layout import UnpredictedError
from equipoise.theory.propagation.propagate import propagate
from support.modules import Apply

WIDTH = 256


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Rules of a test are forgotten after it."""
    monkeypatch.setattr(registry, "RULES", dict(registry.RULES))
    monkeypatch.setattr(opaque, "OPAQUE", found := set(opaque.OPAQUE))
    monkeypatch.setattr(registry, "OPAQUE", found)


def projected(model, batch):
    x, weights = batch
    return (model(x) * weights).sum()


def between_linear_layers(module):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, WIDTH), nn.Linear(WIDTH, WIDTH), module, nn.Linear(WIDTH, WIDTH), nn.Tanh()
    )


def sites(module):
    generator = torch.Generator().manual_seed(0)
    batch = [torch.randn(64, width, generator=generator) for width in (64, WIDTH)]
    found = propagate(trace(between_linear_layers(module), batch, projected)).sites
    assert all(s.is_start or s.reason == "" for s in found[:2])
    return found


def named(found, name):
    (site,) = (s for s in found if s.operation == name)
    return site


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Reversed(torch.autograd.Function):
    """Its input, and three times the gradient with the other sign."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -3 * gradient


class WithContext(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos()


class Steep(nn.Module):
    """Several operations that a rule takes as one."""

    def __init__(self, slope=2.0):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        return torch.cumsum(x, 1).diff(prepend=torch.zeros(len(x), 1), dim=1) * self.slope


class Steeper(Steep):
    """A subclass computes something else."""

    def forward(self, x):
        return super().forward(x) ** 2


def agrees(site, gradient=0.15):
    assert site.second_moment == pytest.approx(site.measured_second_moment, rel=0.05)
    assert site.gradient == pytest.approx(site.measured_gradient, rel=gradient)


class TestRules:
    def test_of_an_autograd_function(self):
        @propagation.rule(StraightThrough)
        def straight_through(call):
            return propagation.elementwise(
                call.arguments[0], torch.sign, derivative=torch.ones_like
            )

        found = sites(Apply(StraightThrough.apply))
        assert [s.operation for s in found][2:4] == ["StraightThrough", "addmm"]
        for site in found[:4]:
            assert site.reason == ""
            agrees(site)

    def test_of_one_with_a_context_of_its_own(self):
        @propagation.rule(WithContext)
        def sine(call):
            return propagation.elementwise(call.arguments[0], torch.sin)

        agrees(named(sites(Apply(WithContext.apply)), "WithContext"))

    def test_of_a_module(self):
        @propagation.rule(Steep)
        def steep(call):
            return propagation.elementwise(call.arguments[0], lambda x: call.module.slope * x)

        found = sites(Steep(3.0))
        assert "cumsum" not in [s.operation for s in found]
        site = named(found, "Steep")
        assert site.module == "2"
        agrees(site)
        assert site.second_moment == pytest.approx(9 * found[1].second_moment)
        agrees(found[1])

    def test_of_an_operator(self):
        @torch.library.custom_op("equipoise_tests::relu", mutates_args=())
        def wave(x: torch.Tensor) -> torch.Tensor:
            return x.sin()

        wave.register_autograd(
            lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        )
        unknown = named(sites(Apply(wave)), "equipoise_tests::relu")
        assert unknown.reason == "no rule for equipoise_tests::relu"
        assert unknown.second_moment is None

        @propagation.rule(wave)
        def sine(call):
            return propagation.elementwise(call.arguments[0], torch.sin)

        agrees(named(sites(Apply(wave)), "equipoise_tests::relu"))
        assert propagation.rule(torch.ops.equipoise_tests.relu)(sine) is sine
        assert propagation.rule(torch.ops.equipoise_tests.relu.default)(sine) is sine

    def test_replaces_that_of_an_operator_of_pytorch(self):
        @propagation.rule("relu")
        def refuses(call):
            raise UnpredictedError("not today")

        assert named(sites(nn.ReLU()), "relu").reason == "not today"

    def test_is_not_inherited(self):
        @propagation.rule(Steep)
        def steep(call):
            return propagation.elementwise(call.arguments[0], lambda x: call.module.slope * x)

        assert "cumsum" in [s.operation for s in sites(Steeper())]

    @pytest.mark.parametrize(
        "target", [3, int, nn.ReLU(), torch.relu], ids=["number", "class", "module", "function"]
    )
    def test_is_for_nothing_else(self, target):
        with pytest.raises(TypeError, match="a rule is for an operator, a class of modules"):
            propagation.rule(target)

    def test_errors_of_a_rule_are_named(self):
        @propagation.rule(Steep)
        def wrong(call):
            return call.arguments[7]

        site = named(sites(Steep()), "Steep")
        assert site.reason.startswith("the rule for Steep failed: IndexError")


@pytest.mark.parametrize("function", [StraightThrough, Reversed, WithContext])
class TestFunctionsWithoutARule:
    """What they do forward is seen; the way back begins anew before them."""

    def test_are_named_and_predicted_forward(self, function):
        found = sites(Apply(function.apply))
        (last,) = (s for s in found if s.reason.startswith("custom backward"))
        assert last.reason == f"custom backward of {function.__name__}"
        assert last.second_moment == pytest.approx(last.measured_second_moment, rel=0.05)

    def test_gradients_before_them_are_measured(self, function):
        found = sites(Apply(function.apply))
        assert found[1].is_start
        assert found[1].gradient == pytest.approx(found[1].measured_gradient, rel=1e-5)
        agrees(found[0])


def test_a_reversal_would_otherwise_be_wrong_by_a_factor_of_nine(monkeypatch):
    from equipoise.instrument.recording import tracer

    monkeypatch.setattr(tracer, "_function", lambda _: "")
    site = sites(Apply(Reversed.apply))[1]
    assert site.measured_gradient / site.gradient == pytest.approx(9, rel=0.2)


def without_gradients(x):
    with torch.no_grad():
        return 3 * x


@pytest.mark.parametrize("stopped", [without_gradients, lambda x: 3 * x.detach()])
def test_what_is_computed_without_gradients_sends_none_back(stopped):
    """Slopes of 1 and 3 would add to 4."""
    agrees(sites(Apply(lambda x: x + stopped(x)))[1])


def test_threads_take_turns():
    """A trace that ends while another one starts leaves no function replaced."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    propagation.rule(Doubled)(lambda call: propagation.elementwise(call.arguments[0], torch.mul))
    original, started, found = vars(Doubled)["forward"], Event(), []

    def first(model, x):
        started.set()
        time.sleep(0.05)
        return model(x).sum()

    def traced(loss):
        found.append(trace(Apply(Doubled.apply), torch.ones(4, 16), loss))

    threads = [Thread(target=traced, args=(first,))]
    threads[0].start()
    started.wait()
    threads.append(Thread(target=traced, args=(lambda model, x: model(x).sum(),)))
    threads[1].start()
    for thread in threads:
        thread.join()
    assert vars(Doubled)["forward"] is original
    assert [[node.name for node in graph.nodes].count("Doubled") for graph in found] == [1, 1]
