"""Whole models: growth of gradients, profiles, and what is said where theory ends."""

import itertools
import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.instrument.recording.unrolled import MOST_RUNS
from equipoise.theory import explosion_rate
from equipoise.theory.propagation import draws
from equipoise.theory.propagation.call import RULES
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import UnpredictedError
from equipoise.theory.propagation.propagate import NO_TIME, propagate
from equipoise.theory.propagation.rules import convolution, normalisers
from equipoise.theory.propagation.rules.arithmetic import products, sums
from equipoise.theory.propagation.rules.positions import resampling
from equipoise.theory.propagation.sites import of_model
from support.model_state import differences, fingerprint
from support.modules import Apply


def projected(model, batch):
    x, weights = batch
    return (model(x) * weights).sum()


def cross_entropy(model, batch):
    x, classes = batch
    return F.cross_entropy(model(x), classes)


def next_token(model, tokens):
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def linear(width, *middle, features=64):
    return nn.Sequential(nn.Linear(features, width), *middle, nn.Linear(width, width))


def perceptron(depth=6, width=256):
    """Linear, batch norm and ReLU, again and again."""
    layers = []
    for i in range(depth):
        layers.append(nn.Linear(width if i else 64, width, bias=False))
        layers += [nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, width))


class PreActivationBlock(nn.Module):
    """Batch norm, ReLU and convolution twice, beside a shortcut."""

    def __init__(self, features, out, stride=1):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(features), nn.BatchNorm2d(out)
        self.conv1 = nn.Conv2d(features, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.shortcut = None
        if stride > 1:
            self.shortcut = nn.Conv2d(features, out, 1, stride, bias=False)

    def forward(self, x):
        h = torch.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(h)
        return x + self.conv2(torch.relu(self.norm2(self.conv1(h))))


def residual_network(features=64):
    blocks = [(features, features, 1)] * 2 + [(features, 2 * features, 2)]
    return nn.Sequential(
        nn.Conv2d(3, features, 3, 1, 1, bias=False),
        *(PreActivationBlock(*block) for block in blocks),
        nn.BatchNorm2d(2 * features),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * features, 100),
    )


class TransformerBlock(nn.Module):
    """Packed queries, keys and values."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.packed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        parts = self.packed(self.norm1(x)).split(x.shape[2], 2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width=128, depth=2, vocabulary=100, length=16):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0, 0.05)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens):
        places = self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(self.words(tokens) + places)))


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def integers(high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(0))


def smooth_images(samples, side=8):
    coarse, fine = drawn(samples, 3, 3, 3), drawn(samples, 3, side, side, seed=1)
    return F.interpolate(coarse, size=side, mode="bilinear") + 0.3 * fine


def vectors(samples=32, width=256):
    """Inputs, and the gradient of every output."""
    return drawn(samples, 64), drawn(samples, width, seed=1)


MODELS = {
    "perceptron": (perceptron, vectors(128), projected),
    "residual network": (
        residual_network,
        (smooth_images(16), integers(100, 16)),
        cross_entropy,
    ),
    "GPT": (GPT, integers(100, 16, 17), next_token),
}
NETWORKS = 6
ACTIVATIONS = {"identity": nn.Identity, "relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


@pytest.fixture(scope="class", params=MODELS)
def profiles(request):
    """Sites, and predicted and measured gradients of weights, of several initialisations."""
    build, batch, loss_fn = MODELS[request.param]
    found = []
    with torch.random.fork_rng(devices=[]):
        for seed in range(NETWORKS):
            torch.manual_seed(seed)
            model = build()
            result = propagate(trace(model, batch, loss_fn))
            weights = [model.get_parameter(weight.name) for weight in result.weights]
            gradients = torch.autograd.grad(loss_fn(model, batch), weights)
            sizes = [float(gradient.square().mean()) for gradient in gradients]
            found.append((result.sites, [w.gradient for w in result.weights], sizes))
    return found


def log_errors(profiles, quantity):
    """Mean ln(predicted/measured) of every site that has both."""
    found = []
    for sites in zip(*(sites for sites, _, _ in profiles), strict=True):
        pairs = [(getattr(s, quantity), getattr(s, f"measured_{quantity}")) for s in sites]
        if all(predicted and actual for predicted, actual in pairs):
            found.append(np.mean([np.log(p / m) for p, m in pairs]))
    return abs(np.array(found))


class TestProfiles:
    """Six initialisations of networks of 64 to 256 features."""

    def test_second_moments(self, profiles):
        errors = log_errors(profiles, "second_moment")
        assert len(errors) >= 20
        assert np.median(errors) < 0.02
        assert errors.max() < 0.1

    def test_gradients(self, profiles):
        errors = log_errors(profiles, "gradient")
        assert len(errors) >= 20
        assert np.median(errors) < 0.1
        assert errors.max() < 0.35

    def test_they_differ_much_more_from_site_to_site(self, profiles):
        (sites, _, _), *_ = profiles
        assert np.ptp([np.log(site.gradient) for site in sites if site.gradient]) > 1

    def test_gradients_of_weights(self, profiles):
        predicted, actual = (np.array(part) for part in list(zip(*profiles, strict=True))[1:])
        ratios = predicted.mean(0) / actual.mean(0)
        assert len(ratios) >= 7
        assert abs(np.log(ratios)).max() < 0.15


@pytest.mark.filterwarnings("ignore::equipoise.theory.UnstableFixedPointWarning")
class TestGrowth:
    """Deep in a chain with batch norm, gradients grow by the theorem's rate."""

    @staticmethod
    def factors(activation, samples, *, eps=1e-12, depth=5, rate_of=None):
        """Growth per layer, over the theorem's rate."""
        torch.manual_seed(0)
        width, layers = 16, []
        for _ in range(depth):
            layer = nn.Linear(width, width, bias=False)
            nn.init.orthogonal_(layer.weight)  # a mean square of exactly 1 / width
            layers += [layer, nn.BatchNorm1d(width, eps=eps), ACTIVATIONS[activation]()]
        model = nn.Sequential(*layers, nn.Linear(width, width)).double()
        batch = drawn(samples, width).double(), drawn(samples, width, seed=1).double()
        sites = propagate(trace(model, batch, projected)).sites
        norms = [site.gradient for site in sites if site.operation == "native_batch_norm"]
        rate = explosion_rate(activation, rate_of or samples, eps=eps).value
        return np.array(norms[1:-2]) / norms[2:-1] / rate  # the last is not centred yet

    @pytest.mark.parametrize("samples", [5, 8, 16, 64, 1024])
    @pytest.mark.parametrize("activation", ["identity", "relu", "tanh", "gelu"])
    def test_is_the_explosion_rate(self, activation, samples):
        np.testing.assert_allclose(self.factors(activation, samples), 1, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("samples", [16, 64])
    def test_is_that_of_a_large_eps(self, samples):
        """Once variances have come to their fixed point."""
        found = self.factors("relu", samples, eps=0.1, depth=20)[-2:]
        np.testing.assert_allclose(found, 1, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("activation", ["identity", "relu", "tanh", "gelu"])
    def test_of_four_rows_needs_more_degrees_and_less_eps(self, activation):
        """E[1/S] changes by the root of ε, as S has three degrees of freedom."""
        np.testing.assert_allclose(self.factors(activation, 4), 1, rtol=0, atol=2e-5)

    def test_of_another_batch_size_is_not(self):
        assert abs(self.factors("relu", 128, rate_of=64) - 1).min() > 5e-3

    def test_gaussian_outputs_of_batch_norm_have_another(self, monkeypatch):
        """Off by 1/B: rows of length √B are no Gaussian numbers."""
        monkeypatch.setattr(normalisers, "_SPHERICAL", 0)
        assert abs(self.factors("tanh", 16) - 1).min() > 0.01


class TestLimits:
    """Operations without a rule are named, and the profile goes on from measurement."""

    @pytest.fixture
    def sites(self):
        model = linear(256, nn.Linear(256, 256), Summed(), nn.Linear(256, 256), nn.Tanh())
        return propagate(trace(model, vectors(), projected)).sites

    def test_they_are_named(self, sites):
        (cut,) = (site for site in sites if site.operation == "cumsum")
        assert cut.reason == "cumsum of samples, of features or with a constant"
        assert cut.second_moment is None
        assert cut.measured_second_moment > 0

    def test_forward_goes_on_from_measured_moments(self, sites):
        at = [site.operation for site in sites].index("cumsum")
        after = sites[at + 1]
        assert after.second_moment == pytest.approx(after.measured_second_moment, rel=1e-4)
        later = [s for s in sites[at + 2 :] if s.operation == "tanh"]
        assert later[0].second_moment == pytest.approx(later[0].measured_second_moment, rel=0.4)

    def test_backward_goes_on_from_the_measured_gradient(self, sites):
        before = [site for site in sites if site.operation == "addmm"][1]
        assert before.gradient == pytest.approx(before.measured_gradient, rel=1e-4)
        first = next(site for site in sites if site.operation == "addmm")
        assert first.gradient == pytest.approx(first.measured_gradient, rel=0.1)

    def test_where_all_is_known_no_reason_is_given(self):
        found = propagate(trace(linear(256, nn.ReLU()), vectors(), projected)).sites
        assert [s.operation for s in found if s.reason] == ["sum"]  # of the loss


class Steps(nn.Module):
    """A recurrent layer, of many steps one operation, and a layer for every step."""

    def __init__(self, embedded, **options):
        super().__init__()
        self.enter = nn.Embedding(11, 8) if embedded else nn.Identity()
        self.steps = nn.LSTM(8, 32, **options)
        self.last = nn.Linear(64 if options.get("bidirectional") else 32, 5)

    def forward(self, x):
        return self.last(self.steps(self.enter(x))[0])


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"batch_first": True}, {"num_layers": 2}, {"batch_first": True, "bidirectional": True}],
)
def test_steps_of_a_recurrent_layer_have_axes(embedded, options):
    steps = MOST_RUNS + 1
    x = integers(11, 32, steps) if embedded else drawn(32, steps, 8)
    if not options.get("batch_first"):
        x = x.transpose(0, 1)
    torch.manual_seed(0)
    model = Steps(embedded, **options)
    sites = propagate(trace(model, x, lambda model, x: model(x).square().mean())).sites
    (last,) = (site for site in sites if site.operation in ("addmm", "mm", "bmm"))
    assert last.is_predicted
    assert 0.5 < last.second_moment / last.measured_second_moment < 2


class TestUnrolledSteps:
    """Gradients of an LSTM's first step are predicted as those of a chain of cells are."""

    def sites(self, steps):
        torch.manual_seed(0)
        model = Steps(embedded=False, batch_first=True)
        last = lambda model, x: model(x)[:, -1].square().mean()  # noqa: E731
        return propagate(trace(model, drawn(64, steps, 8), last)).sites

    def test_of_few(self):
        first = next(site for site in self.sites(8) if site.operation == "mm")
        assert abs(math.log(first.gradient / first.measured_gradient)) < 0.5
        assert first.module == "steps"

    def test_of_more_than_are_unrolled_nothing_is_known(self):
        assert not any(site.module == "steps" for site in self.sites(MOST_RUNS + 1))


class Summed(nn.Module):
    """A sum that no rule knows."""

    def __init__(self, *, both=False):
        super().__init__()
        self.both = both

    def forward(self, x):
        total = torch.cumsum(x, 1) / 8
        return x + total if self.both else total


class TestBackwardReasons:
    """Where the way back ends it says so, and begins anew with the measured gradient."""

    @pytest.mark.parametrize("error", [UnpredictedError("too hard"), KeyError("x")])
    def test_all_errors_are_treated_alike(self, monkeypatch, error):
        def failing(call):
            def pullback(gradient):
                raise error

            return replace(linear_rule(call), pullback=pullback)

        linear_rule = RULES["addmm"]
        monkeypatch.setitem(RULES, "addmm", failing)
        sites = propagate(trace(linear(256, nn.Tanh()), vectors(), projected)).sites
        last = [site for site in sites if site.operation == "addmm"][-1]
        assert str(error) in last.reason
        tanh = next(site for site in sites if site.operation == "tanh")
        assert tanh.is_start
        assert tanh.gradient == pytest.approx(tanh.measured_gradient, rel=1e-5)

    def test_a_part_of_a_gradient_is_none(self):
        """One of two ways does not lead back."""
        model = linear(256, Summed(both=True), nn.Linear(256, 256))
        sites = propagate(trace(model, vectors(), projected)).sites
        first = next(site for site in sites if site.operation == "addmm")
        assert first.gradient == pytest.approx(first.measured_gradient)


def zeroed(x):
    x[:, ::2] = 0
    return x


def rectified(x):
    x[:, 64:192].relu_()
    return x


def stored(x):
    memory = torch.zeros(2, *x.shape)
    memory[0] = x
    memory[1] = x.tanh()
    return memory.sum(0)


class TestWrites:
    """A tensor that was written in part is none of which the theory knows the law."""

    @pytest.mark.parametrize("function", [zeroed, rectified, stored])
    def test_are_named_and_moments_measured(self, function):
        model = linear(256, Apply(function), nn.Linear(256, 256), nn.Tanh())
        nn.init.normal_(model[0].bias, 1, 0.5)
        sites = propagate(trace(model, vectors(), projected)).sites
        cut = [site for site in sites if "written in part" in site.reason]
        assert {site.module for site in cut} == {"1"}
        following = [s for s in sites if s.operation == "addmm"][1]
        assert following.second_moment == pytest.approx(following.measured_second_moment, rel=0.1)

    @pytest.mark.parametrize("function", [zeroed, rectified])
    def test_gradients_begin_anew_before_them(self, function):
        model = linear(256, Apply(function), nn.Linear(256, 256), nn.Tanh())
        sites = propagate(trace(model, vectors(), projected)).sites
        first = next(site for site in sites if site.operation == "addmm")
        assert first.is_start
        assert first.gradient == pytest.approx(first.measured_gradient, rel=1e-5)

    @pytest.mark.parametrize(
        "function",
        [lambda x: torch.empty_like(x).copy_(x).tanh(), lambda x: (1 * x).mul_(2).relu_()],
    )
    def test_of_whole_tensors_are_followed(self, function):
        sites = propagate(trace(linear(256, Apply(function)), vectors(), projected)).sites
        assert not any(site.reason for site in sites[:-1])
        gradients = [(s.gradient, s.measured_gradient) for s in sites[:-1] if s.gradient]
        assert len(gradients) >= 5
        for predicted, actual in gradients:
            assert predicted == pytest.approx(actual, rel=0.2)


class TestFewestRows:
    """Three rows lie on a circle after batch norm, two are opposite."""

    @pytest.mark.parametrize("samples", [3, 4])
    def test_all_numbers_are_finite(self, samples):
        sites = propagate(trace(perceptron(2), vectors(samples), projected)).sites
        assert not any(site.reason for site in sites[:-1])
        numbers = [n for s in sites[:-2] for n in (s.second_moment, s.correlation, s.gradient)]
        assert np.isfinite([n for n in numbers if n is not None]).all()

    def test_three_rows_are_on_a_circle(self):
        """E[tanh(√2 cos θ)²], where Gaussian rows would give 0.39."""
        model = linear(1024, nn.BatchNorm1d(1024), nn.Tanh())
        found = propagate(trace(model, vectors(3, 1024), projected)).sites
        (site,) = (s for s in found if s.operation == "tanh")
        angles = np.linspace(0, 2 * np.pi, 1000, endpoint=False)
        exact = np.mean(np.tanh(np.sqrt(2) * np.cos(angles)) ** 2)
        assert site.second_moment == pytest.approx(exact, rel=1e-3)
        assert site.measured_second_moment == pytest.approx(exact, rel=0.02)

    def test_two_rows_are_refused(self):
        sites = propagate(trace(perceptron(2), vectors(2), projected)).sites
        norms = [site for site in sites if site.operation == "native_batch_norm"]
        assert all("fewer than two directions" in site.reason for site in norms)


class Highway(nn.Module):
    """Moves from x to a function of it, as far as a gate says."""

    def __init__(self, *, expanded, activation=None):
        super().__init__()
        self.gate, self.layer = nn.Linear(256, 256), nn.Linear(256, 256)
        self.expanded, self.activation = expanded, activation or nn.Identity()

    def forward(self, x):
        gate, h = torch.sigmoid(self.gate(x)), self.activation(self.layer(x))
        return gate * h + (1 - gate) * x if self.expanded else x + gate * (h - x)


class BesideItsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(256)

    def forward(self, x):
        return x + self.norm(x)


def gated(*, expanded):
    torch.manual_seed(0)
    model = linear(256, nn.Linear(256, 256), Highway(expanded=expanded))
    return propagate(trace(model, vectors(), projected)).sites


class TestDependence:
    """What is made of the same elements is not taken for independent."""

    @pytest.mark.parametrize("expanded", [False, True])
    def test_gates_between_two_tensors_are_drawn(self, expanded):
        sites = gated(expanded=expanded)
        assert {s.reason for s in sites if s.module} == {""}
        found = next(s for s in sites if (s.operation, s.module) == ("add", "2"))
        assert found.second_moment == pytest.approx(found.measured_second_moment, rel=0.06)
        before = next(s for s in sites if s.module == "1")
        assert before.gradient == pytest.approx(before.measured_gradient, rel=0.15)

    @pytest.mark.parametrize("expanded", [False, True])
    def test_both_forms_are_one_function(self, expanded):
        """Of the same weights, and of other draws."""
        one, other = (
            {s.module: s.gradient for s in gated(expanded=form) if s.operation == "addmm"}
            for form in (expanded, not expanded)
        )
        for module, gradient in one.items():
            assert gradient == pytest.approx(other[module], rel=0.05)

    def test_weights_of_its_own_give_one_term_both_signs(self, monkeypatch):
        """Then products of both average to zero, whatever the gate, and nothing is drawn."""
        monkeypatch.setattr(draws, "is_drawable", lambda *tensors: False)
        found = []
        for seed in range(8):
            torch.manual_seed(seed)
            model = linear(256, *(Highway(expanded=True) for _ in range(3)))
            sites = [s for s in propagate(trace(model, vectors(), projected)).sites if s.module]
            assert {s.reason for s in sites} == {""}
            sums = [s for s in sites if s.operation == "add"]
            found.append([np.log(s.second_moment / s.measured_second_moment) for s in sums])
            gates = [s for s in sites if s.operation == "sigmoid"]
            assert not any(s.is_start for s in gates)
            found[-1] += [np.log(s.gradient / s.measured_gradient) for s in gates]
        error = np.std(found, 0, ddof=1) / np.sqrt(len(found))
        assert (np.abs(np.mean(found, 0)) < 4 * error + 0.02).all()

    def test_taken_for_independent_they_would_be_wrong(self, monkeypatch):
        for rules in (products, sums):
            monkeypatch.setattr(rules, "of_dependent", lambda a, b, function: None)
        sites = gated(expanded=False)
        found = next(s for s in sites if (s.operation, s.module) == ("add", "2"))
        assert abs(np.log(found.second_moment / found.measured_second_moment)) > 0.3

    def test_what_is_not_followed_is_refused(self):
        """A batch norm depends on what it normalises, and draws do not follow it."""
        sites = propagate(trace(linear(256, BesideItsNorm()), vectors(), projected)).sites
        assert [s.operation for s in sites if "depend on a third" in s.reason] == ["add"]

    def test_queries_and_keys_of_refused_scores_start_anew(self):
        """Without a softmax, keys times values come first."""

        class Linearised(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

            def forward(self, x):
                q, k, v = (layer(x) for layer in self.layers)
                return torch.relu(q) @ (torch.relu(k).transpose(1, 2) @ v)

        model = nn.Sequential(nn.Linear(64, 64), Linearised())
        batch = drawn(8, 12, 64), drawn(8, 12, 64, seed=1)
        first, *_ = propagate(trace(model, batch, projected)).sites
        assert first.gradient == pytest.approx(first.measured_gradient, rel=0.3)


def evidence(model, batch):
    """The loss of a variational autoencoder."""
    x, target = batch
    output, mean, log_variance = model(x)
    information = 1 + log_variance - mean.square() - log_variance.exp()
    return (output - target).square().mean() - information.mean()


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(256, 256), nn.Linear(256, 256)
        self.decoder = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))

    def forward(self, x):
        h = self.encoder(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(z), mean, log_variance


class TestSeveralBeginnings:
    """Measured gradients that come together add up or cancel, which their sizes do not tell."""

    def test_gradients_that_cancel(self):
        """Of a logarithm of a variance near 0: 1 - exp(0)."""
        torch.manual_seed(0)
        sites = propagate(trace(Autoencoder(), vectors(), evidence)).sites
        (site,) = (s for s in sites if s.module == "log_variance")
        assert site.gradient == pytest.approx(site.measured_gradient, rel=1e-5)

    def test_gates(self, monkeypatch):
        """If they are not drawn, and what they open has one sign."""
        monkeypatch.setattr(draws, "is_drawable", lambda *tensors: False)
        torch.manual_seed(0)
        model = linear(256, *(Highway(expanded=True, activation=nn.ReLU()) for _ in range(3)))
        sites = propagate(trace(model, vectors(), projected)).sites
        (gate,) = (s for s in sites if s.operation == "sigmoid" and s.module == "3")
        assert gate.gradient == pytest.approx(gate.measured_gradient, rel=1e-5)


class TestSites:
    def test_start_with_the_first_product_with_weights(self):
        """What comes before are values, not moments."""
        model = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(64, 256), nn.ReLU())
        batch = drawn(32, 8, 8), drawn(32, 256)
        found = propagate(trace(model, batch, projected)).sites
        assert [site.operation for site in found][:2] == ["addmm", "relu"]

    def test_name_the_module_and_keep_measurements(self):
        model, batch = linear(256, nn.ReLU()), vectors()
        found = {s.module: s for s in propagate(trace(model, batch, projected)).sites}
        values = model[0](batch[0])
        exact = values.double().square().mean().item()
        assert found["0"].measured_second_moment == pytest.approx(exact, rel=1e-6)

    def test_correlation_of_samples_is_that_of_the_arc_cosine_kernel(self):
        """Independent inputs: E[relu(g₁) relu(g₂)] is 1/π of E[relu(g)²]."""
        model, batch = linear(256, nn.ReLU()), vectors(64)
        nn.init.zeros_(model[0].bias)
        found = propagate(trace(model, batch, projected)).sites
        (site,) = (s for s in found if s.operation == "relu")
        assert site.correlation == pytest.approx(1 / np.pi, abs=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_left_untouched(name):
    build, batch, loss_fn = MODELS[name]
    model = nn.Sequential(build(), nn.Dropout(0.5))
    loss_fn(model, batch).backward()
    before = fingerprint(model)
    propagate(trace(model, batch, loss_fn))
    assert differences(before, fingerprint(model)) == []


def test_a_single_sample_is_predicted_too():
    """Batch norm then averages over positions; there is nothing to correlate samples with."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    batch = torch.randn(1, 3, 12, 12), torch.tensor([3])
    found = propagate(trace(model, batch, cross_entropy))
    norms = [site for site in found.sites if site.operation == "native_batch_norm"]
    assert len(norms) == 5
    for site in norms:
        assert site.measured_correlation == 0.0
        assert abs(np.log(site.gradient / site.measured_gradient)) < 0.5


def test_the_same_pass_is_predicted_alike_twice():
    build, batch, loss_fn = MODELS["residual network"]
    model = build()
    first, second = (propagate(trace(model, batch, loss_fn)) for _ in range(2))
    assert repr(first) == repr(second)


class Standardised(nn.Conv2d):
    """Filters less their mean."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return torch.nn.functional.conv2d(x, weight, padding=self.padding, groups=self.groups)


@pytest.mark.parametrize("groups", [1, 3])
class TestFiltersThatSumToZero:
    """They do not see what the pixels of a patch have in common, which on photographs is most."""

    def smooth(self):
        levels = 1 + drawn(16, 1, 1, 1)
        return levels + 0.1 * drawn(16, 3, 8, 8, seed=1)

    def first(self, groups):
        torch.manual_seed(0)
        model = nn.Sequential(Standardised(3, 384, 3, groups=groups), nn.ReLU())
        batch = self.smooth(), drawn(16, 384, 6, 6, seed=2)
        return propagate(trace(model, batch, projected)).sites[0]

    def test_of_data_are_predicted(self, groups):
        site = self.first(groups)
        assert site.second_moment == pytest.approx(site.measured_second_moment, rel=0.1)

    def test_otherwise_they_would_be_far_off(self, groups, monkeypatch):
        monkeypatch.setattr(convolution, "is_centred", lambda filters, size: False)
        site = self.first(groups)
        assert site.second_moment > 3 * site.measured_second_moment


class AfterACut(nn.Module):
    """Combines a tensor with what an unknown operation makes of it."""

    def __init__(self, combine):
        super().__init__()
        self.layer, self.combine = nn.Linear(256, 256), combine

    def forward(self, x):
        return self.combine(x, x.sort(1).values)


@pytest.mark.parametrize("combine", [torch.add, torch.sub, torch.mul])
def test_what_is_measured_depends_on_what_it_was_made_of(combine):
    model = linear(256, AfterACut(combine))
    sites = propagate(trace(model, vectors(), projected)).sites
    (site,) = (s for s in sites if s.module == "1" and s.operation == combine.__name__)
    assert "depend on a third" in site.reason


def test_so_does_what_has_other_axes():
    """Such as a median over positions, which an unknown operation took."""

    class Scaled(nn.Module):
        def forward(self, x):
            return x * x.flatten(2).median(2).values[:, :, None, None]

    layers = nn.Conv2d(3, 32, 3), nn.GELU(), Scaled(), nn.Flatten(), nn.Linear(32 * 36, 10)
    batch = drawn(8, 3, 8, 8), integers(10, 8)
    sites = propagate(trace(nn.Sequential(*layers), batch, cross_entropy)).sites
    (site,) = (s for s in sites if s.module == "2" and s.operation == "mul")
    assert "depend on a third" in site.reason


def test_data_that_are_constants_do_not_stand_for_the_batch():
    """Such as the means of channels that a model subtracts."""

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 256)

        def forward(self, x):
            return self.layer(x - torch.tensor([0.5] * 16))

    batch = drawn(64, 16), drawn(64, 256, seed=1)
    sites = propagate(trace(nn.Sequential(Shifted(), nn.ReLU()), batch, projected)).sites
    assert all(s.is_predicted for s in sites if s.module)


def test_sparse_gradients_of_weights_are_measured():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(50, 16, sparse=True), nn.Linear(16, 4)

        def forward(self, x):
            return self.head(self.words(x).mean(1))

    torch.manual_seed(0)
    model, x = Bag(), torch.randint(50, (8, 5))
    loss = lambda m, b: m(b).square().sum()  # noqa: E731
    graph = trace(model, x, loss)
    loss(model, x).backward()
    dense = model.words.weight.grad.to_dense()
    assert graph.weights["words.weight"] == pytest.approx(float(dense.square().mean()))


def test_inputs_that_require_gradients_are_no_operations():
    """As a gradient penalty has them."""

    def penalty(model, batch):
        x = batch.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return slope.square().mean()

    graph = trace(linear(16, nn.Tanh()), vectors(8, 16)[0], penalty)
    assert graph.loss > 0


def test_a_weight_made_of_two_parameters_has_the_size_that_the_layer_uses():
    """Weight norm: g and v are parameters, W = g v / |v| is what multiplies."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(3)
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(6, 2))
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    graph = trace(model, (x, torch.arange(8) % 2), cross_entropy)
    found = {weight.name: weight.second_moment for weight in propagate(graph).weights}
    made = layer.weight.double().square().mean().item()
    both = "0.parametrizations.weight.original0 and 0.parametrizations.weight.original1"
    assert found[both] == pytest.approx(made, rel=1e-5)
    assert found["2.weight"] == pytest.approx(model[2].weight.square().mean().item())


class Packed(nn.Module):
    """Projections whose weights, or inputs, are parts of one tensor."""

    def __init__(self, *, inputs):
        super().__init__()
        self.weight, self.inputs = nn.Parameter(torch.randn(512, 256) / 16), inputs
        self.layer, self.other = nn.Linear(32, 256), nn.Linear(32, 256)

    def forward(self, x):
        if self.inputs:
            first, second = x.chunk(2, 1)
            return torch.relu(self.layer(first)) + torch.relu(self.other(second))
        first, second = self.weight.chunk(2)
        return torch.relu(F.linear(x, first)) + torch.tanh(F.linear(x, second))


class Embedded(nn.Module):
    """A language model whose head is its table of words."""

    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.Embedding(50, 64), nn.Linear(64, 64)

    def forward(self, tokens):
        return torch.tanh(self.layer(self.words(tokens))) @ self.words.weight.T


class TestWeights:
    """A number is given of a matrix whose uses are all predicted, and it is that of the matrix."""

    @pytest.mark.parametrize("inputs", [False, True])
    def test_all_parts_of_a_tensor_count(self, inputs):
        torch.manual_seed(0)
        first = nn.Identity() if inputs else nn.Linear(64, 256)
        model = nn.Sequential(first, Packed(inputs=inputs), nn.Linear(256, 256))
        found = propagate(trace(model, vectors(128), projected))
        assert not any(site.reason for site in found.sites[:-2])
        names = {weight.name for weight in found.weights}
        assert names >= ({"1.layer.weight", "1.other.weight"} if inputs else {"1.weight"})
        for weight in found.weights:
            assert weight.gradient == pytest.approx(weight.measured_gradient, rel=0.3)

    def test_of_what_is_computed_of_a_parameter(self):
        torch.manual_seed(0)
        layer = nn.utils.parametrizations.spectral_norm(nn.Linear(256, 256))
        graph = trace(linear(256, nn.ReLU(), layer), vectors(), projected)
        (weight,) = (w for w in propagate(graph).weights if "2.param" in w.name)
        assert weight.gradient == pytest.approx(weight.measured_gradient, rel=0.2)
        assert weight.second_moment == pytest.approx(layer.weight.square().mean().item(), rel=1e-3)
        assert weight.gradient > 1.2 * graph.weights[weight.name]  # which the norm divides

    def test_a_table_of_words_that_is_also_the_head_has_none(self):
        torch.manual_seed(0)
        found = propagate(trace(Embedded(), integers(50, 8, 9), next_token))
        assert {weight.name for weight in found.weights} == {"layer.weight"}

    def test_weights_that_are_used_again_have_one(self):
        torch.manual_seed(0)
        layer = nn.Linear(256, 256)
        model = linear(256, layer, nn.Tanh(), layer, nn.Tanh())
        found = propagate(trace(model, vectors(), projected))
        assert "1.weight" in {weight.name for weight in found.weights}


class Twice(nn.Module):
    """Takes one layer for both halves of its input."""

    def __init__(self, combine):
        super().__init__()
        self.layer, self.combine = nn.Linear(64, 256), combine

    def forward(self, x):
        return self.combine(*(torch.tanh(self.layer(half)) for half in x.chunk(2, 1)))


class Turned(nn.Module):
    """W and then its transpose, as in an autoencoder with tied weights."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 256, bias=False)

    def forward(self, x):
        return self.layer(x) @ self.layer.weight


class TestWeightsThatComeAgain:
    """They are not taken for independent of themselves."""

    def halves(self, likeness):
        """Two inputs that have so much in common, without a mean."""
        first, other = drawn(32, 64), drawn(32, 64, seed=1)
        second = likeness * first + (1 - likeness**2) ** 0.5 * other
        return torch.cat([first, second], 1), drawn(32, 256, seed=2)

    def joined(self, likeness, combine):
        torch.manual_seed(0)
        model = nn.Sequential(Twice(combine), nn.Linear(256, 256))
        sites = propagate(trace(model, self.halves(likeness), projected)).sites
        return next(s for s in sites if s.operation == combine.__name__)

    @pytest.mark.parametrize("combine", [torch.sub, torch.add, torch.mul])
    def test_what_they_make_of_inputs_that_are_alike_is_measured(self, combine):
        site = self.joined(0.9, combine)
        assert site.reason == "a sum or product of two tensors that the same weights made"
        assert not site.is_predicted

    def test_of_others_the_sum_is_predicted(self):
        """As those of steps in time."""
        site = self.joined(0.0, torch.sub)
        assert site.second_moment == pytest.approx(site.measured_second_moment, rel=0.15)

    def test_before_their_transpose_they_are_refused_both_ways(self):
        torch.manual_seed(0)
        model = linear(256, nn.ReLU(), Turned())
        sites = propagate(trace(model, vectors(), projected)).sites
        after, before = (
            next(s for s in sites if text in s.reason)
            for text in ("weights that made its input, transposed", "whose transpose comes after")
        )
        assert (after.module, before.module) == ("2", "2.layer")
        for site in (s for s in sites if s.module in ("0", "1") and s.measured_gradient):
            assert site.gradient == pytest.approx(site.measured_gradient, rel=0.2)

    def test_a_gradient_along_the_output_is_measured_before_them(self):
        """That of a squared output: W'W x is longer than W' times another vector."""
        torch.manual_seed(0)
        model = linear(256, nn.ReLU())
        loss = lambda model, batch: model(batch[0]).square().mean()  # noqa: E731
        found = propagate(trace(model, vectors(), loss))
        last = next(s for s in found.sites if s.module == "2")
        assert last.reason == "a gradient along the output, which these weights made"
        for site in (s for s in found.sites if s.module in ("0", "1") and s.measured_gradient):
            assert site.gradient == pytest.approx(site.measured_gradient, rel=1e-5)
        assert {weight.name for weight in found.weights} == {"0.weight", "2.weight"}


def dirac(layer):
    nn.init.dirac_(layer.weight)
    return layer


def identity(layer):
    nn.init.eye_(layer.weight)
    return layer


def positive(layer):
    nn.init.uniform_(layer.weight, 0, 0.1)
    return layer


def of_a_mean(layer):
    """A fifth of what outputs are is the sum of their inputs."""
    nn.init.normal_(layer.weight, 0.0018, 1.0 / 16)
    return layer


class Looped(nn.Module):
    """One residual block, four times."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.again = (
            nn.Linear(64, 128),
            nn.LayerNorm(128),
            nn.Linear(128, 128),
        )
        self.last = nn.Linear(128, 256)

    def forward(self, x):
        x = self.first(x)
        for _ in range(4):
            x = x + self.again(self.norm(x).relu())
        return self.last(x)


def test_a_gradient_that_knows_the_slopes_is_measured_before_them():
    """Weights that come again bring back what slopes of a norm and a rectifier were made of."""
    torch.manual_seed(0)
    found = propagate(trace(Looped(), vectors(), projected))
    weight = next(w for w in found.weights if w.name == "first.weight")
    assert weight.gradient == pytest.approx(weight.measured_gradient, rel=0.1)
    for site in (s for s in found.sites if s.module and s.gradient and s.measured_gradient):
        assert abs(np.log(site.gradient / site.measured_gradient)) < 0.25


class TestWeightsThatAreNotRandom:
    """Sums of few inputs are not Gaussian, and weights of one sign make features alike."""

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (identity, "copy single features"),
            (positive, "whose mean is not 0"),
            (of_a_mean, "whose mean is not 0"),
        ],
    )
    def test_matrices_are_named_and_measured(self, change, reason):
        model = linear(256, nn.ReLU(), change(nn.Linear(256, 256)))
        sites = propagate(trace(model, vectors(), projected)).sites
        (site,) = (s for s in sites if reason in s.reason)
        assert site.module == "2"
        (last,) = (s for s in sites if s.module == "3" and s.operation == "addmm")
        assert last.second_moment == pytest.approx(last.measured_second_moment, rel=0.2)

    @pytest.mark.parametrize(
        ("change", "reason"), [(dirac, "copy single features"), (positive, "whose mean is not 0")]
    )
    def test_kernels_are_named(self, change, reason):
        layers = change(nn.Conv2d(32, 32, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10)
        model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), *layers)
        sites = propagate(trace(model, (drawn(8, 3, 8, 8), integers(10, 8)), cross_entropy)).sites
        assert [s.module for s in sites if reason in s.reason] == ["2"]

    def test_before_copies_of_a_rectifier_gradients_are_where_it_is_open(self):
        """They were predicted too small, as if slopes were independent of them."""
        torch.manual_seed(0)
        layers = dirac(nn.Conv2d(64, 64, 3, padding=1)), nn.ReLU(), nn.Conv2d(64, 16, 3)
        model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), *layers)
        batch = drawn(8, 3, 8, 8), drawn(8, 16, 6, 6, seed=1)
        site = propagate(trace(model, batch, projected)).sites[0]
        assert site.gradient == pytest.approx(site.measured_gradient, rel=0.05)

    @pytest.mark.parametrize(
        "draw", [lambda w: nn.init.sparse_(w, 0.9), nn.init.orthogonal_, nn.init.trunc_normal_]
    )
    def test_others_are_predicted(self, draw):
        layer = nn.Linear(256, 256)
        draw(layer.weight)
        sites = propagate(trace(linear(256, nn.ReLU(), layer), vectors(), projected)).sites
        assert not any(site.reason for site in sites[:-2])


class TestGradientsAlongFilters:
    r"""A rectifier's slope tells of its input, and so does what gradients add up to.

    With :math:`x = k y/|k|^2 + x_\perp`, a filter's gradient :math:`\sum_r g(r)x(r)` has
    :math:`\sum_r g(r)y(r)` along k, which positions of a sample share behind an average.
    """

    def ratio(self, *middle):
        found = []
        with torch.random.fork_rng(devices=[]):
            for seed in range(6):
                torch.manual_seed(seed)
                model = nn.Sequential(
                    nn.Conv2d(3, 128, 3, padding=1),
                    *(make() for make in middle),
                    nn.ReLU(),
                    nn.AdaptiveAvgPool2d(1),
                    nn.Flatten(),
                    nn.Linear(128, 10),
                )
                batch = torch.randn(16, 3, 12, 12), torch.randint(10, (16,))
                weights = propagate(trace(model, batch, cross_entropy)).weights
                (first,) = (w for w in weights if w.name == "0.weight")
                found.append(np.log(first.gradient / first.measured_gradient))
        return np.mean(found)

    @pytest.mark.parametrize("middle", [(), (lambda: nn.GroupNorm(1, 128),)])
    def test_count(self, middle):
        assert abs(self.ratio(*middle)) < 0.25

    def test_otherwise_half_of_it_is_missing(self, monkeypatch):
        monkeypatch.setattr(Exchangeable, "total", lambda pairs: 0.0)
        assert self.ratio() < -0.5


class TestAllowance:
    """Pairs of positions cost memory and time: maps are followed as far as they are paid for."""

    @pytest.fixture
    def graph(self):
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Conv2d(8, 8, 3)]
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, 5))
        batch = torch.randn(8, 3, 32, 32), torch.randn(8, 5)
        return trace(model, batch, projected)

    def test_by_default_all_is_followed(self, graph):
        assert all(site.is_predicted for site in of_model(propagate(graph).sites))

    def test_what_is_too_large_is_measured_and_the_rest_predicted(self, graph):
        found = propagate(graph, allowance=0.4)
        left = [site for site in found.sites if not site.is_predicted]
        assert left[0].reason == "1024 positions; pairs are followed exactly up to 64 in this time"
        last = of_model(found.sites)[-1]
        assert last.second_moment == pytest.approx(last.measured_second_moment, rel=0.6)

    @pytest.mark.parametrize(("factor", "made"), [(2, [256]), (8, [])])
    def test_maps_that_grow_too_large_are_not_worked_out(self, factor, made, monkeypatch):
        """As where flow is predicted for every eighth pixel, and asked for at all."""
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3), nn.Upsample(scale_factor=factor, mode="bilinear")]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        graph = trace(model, (torch.randn(8, 3, 10, 10), torch.randn(8, 8)), projected)
        rows, mapped = [], resampling.mapped

        def noted(x, order, matrix, layout, places):
            rows.append(len(matrix))
            return mapped(x, order, matrix, layout, places)

        monkeypatch.setattr(resampling, "mapped", noted)
        propagate(replace(graph, positions=256))
        assert [count for count in rows if count > 1] == made

    def test_what_if_follows_no_more(self, graph):
        found = propagate(graph, allowance=0.4)
        first = found.what_if(gain=2.0).sites[0]
        assert first.reason.startswith("1024 positions; pairs are followed exactly up to 64")

    def test_tokens_are_as_many_everywhere_and_are_followed_while_there_is_time(self, monkeypatch):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))
        graph = trace(model, torch.randn(8, 100, 16), lambda m, x: m(x).square().mean())
        clock = itertools.count(step=0.1)
        monkeypatch.setattr(time, "process_time", lambda: next(clock))
        sites = of_model(propagate(graph, allowance=1.0).sites)
        assert {site.reason for site in sites} == {"", NO_TIME}
        assert sites[0].is_predicted

    def test_beyond_all_allowance_it_goes_on_with_what_was_measured(self, monkeypatch):
        model = nn.RNN(8, 16, batch_first=True)
        batch = torch.randn(32, 20, 8, generator=torch.Generator().manual_seed(0))
        graph = trace(model, batch, lambda model, x: model(x)[0][:, -1].square().mean())
        clock = itertools.count(step=0.1)
        monkeypatch.setattr(time, "process_time", lambda: next(clock))
        found = propagate(graph, allowance=2.0)
        stopped = [site for site in found.sites if site.reason == NO_TIME]
        assert len(stopped) > len(found.sites) / 2
        assert not any(site.is_predicted for site in stopped)
        assert sum(site.is_predicted for site in found.sites) > 5
        assert all(site.measured_second_moment is not None for site in stopped)


def test_a_batch_of_one_is_predicted():
    """As an image's coordinates, all of which are given at once, [1, coordinates, 2]."""
    model = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
    model.append(nn.Linear(128, 1))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 256, 2, generator=generator) * 6 - 3
    graph = trace(model, (x, x[..., :1].sin()), lambda m, b: F.mse_loss(m(b[0]), b[1]))
    assert {site.reason for site in of_model(propagate(graph).sites)} == {""}


class Attending(nn.Module):
    """Asks for attention's weights, as PyTorch does by default, and leaves them."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def test_what_the_loss_does_not_depend_on_is_no_end_of_theory():
    graph = trace(Attending(), torch.randn(8, 4, 16), lambda m, x: m(x).square().mean())
    (average,) = (node for node in graph.nodes if node.name == "mean" and node.module)
    sites = propagate(graph).sites
    assert average.number not in {site.node for site in sites}


class TurnedInPart(nn.Module):
    """Turns a part of each head's features by the position, as latent attention does."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 32)

    def forward(self, x):
        own, turned = self.layer(x).view(8, 6, 4, 8).transpose(1, 2).split([4, 4], -1)
        angles = torch.arange(6.0)[:, None] * torch.tensor([1.0, 0.1])
        one, other = turned[..., ::2], turned[..., 1::2]
        first = one * angles.cos() - other * angles.sin()
        second = one * angles.sin() + other * angles.cos()
        return torch.cat([own, torch.stack([first, second], -1).flatten(-2)], -1)


def test_what_no_rule_knows_is_no_failure_of_a_rule():
    graph = trace(TurnedInPart(), torch.randn(8, 6, 16), lambda m, x: m(x).square().mean())
    reasons = [site.reason for site in propagate(graph).sites if site.operation == "cat"]
    assert reasons == ["the positions of two tensors differ"]


@pytest.mark.parametrize("groups", [1, 8])
def test_what_is_printed_names_where_theory_is_cut_first(groups):
    model = linear(8, nn.GroupNorm(groups, 8))
    x = torch.randn(16, 64)
    printed = str(propagate(trace(model, (x, torch.randn(16, 8)), projected)))
    cut = (
        "; first cut at native_group_norm in '1': a norm over 1 feature, where 4 are the fewest\n"
    )
    assert (cut in f"{printed}\n") == (groups == 8)
    assert ("cut" in printed) == (groups == 8)
