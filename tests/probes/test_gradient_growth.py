"""Gradient norms against a literal transcription, and rates against theorems."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.probes import gradient_growth
from equipoise.probes.gradient_growth import GrowthInterrupted
from equipoise.records import Estimate
from support.probe_models import batch, build
from support.probe_models import loss_fn as of_pairs


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss_fn(model, batch):
    return model(batch).square().mean()


def deep(width, depth, make, activation=None, seed=0):
    """``depth`` linear layers, each followed by what ``make`` returns."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = []
        for _ in range(depth):
            layers += [nn.Linear(width, width, bias=False), *make(width)]
            layers += [activation] if activation is not None else []
        return nn.Sequential(*layers).double()


def literal(layers, batch, activation):
    """Norms of one pass in the formula's own terms; layers are (W, b)."""
    h_of, x = [], batch
    for weight, bias in layers:
        h = x @ weight.T + bias
        h.retain_grad()
        h_of.append(h)
        x = activation(h)
    loss = x.square().mean()
    loss.backward()
    rows = []
    for (weight, _), h in zip(layers, h_of, strict=True):
        B, n = h.shape
        values = h.detach().numpy()
        moment = (values**2).mean()
        pairs = [values[i] @ values[j] / n for i in range(B) for j in range(B) if i != j]
        squared = sum(float(g) ** 2 for g in h.grad.reshape(-1))
        rows.append((squared, float((weight.grad**2).sum()), moment, np.mean(pairs) / moment))
        weight.grad = None
    return np.array(rows)


class TestAgainstTheLiteralTranscription:
    """Per layer and batch: ‖∂L/∂h‖², ‖∂L/∂W‖², mean h², mean correlation; then averages."""

    @pytest.fixture
    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(
            *[m for n, k in ((5, 7), (7, 6), (6, 4), (4, 3)) for m in (nn.Linear(n, k), nn.Tanh())]
        ).double()

    @pytest.fixture
    def batches(self):
        return [normal(8, 5, seed=seed) for seed in (1, 2, 3)]

    @pytest.fixture
    def expected(self, model, batches):
        """Shape [batches, layers, 4]."""
        linear = [m for m in model if isinstance(m, nn.Linear)]
        layers = [
            (m.weight.detach().clone().requires_grad_(), m.bias.detach().clone()) for m in linear
        ]
        return np.stack([literal(layers, batch, torch.tanh) for batch in batches])

    @pytest.mark.parametrize(
        ("column", "name"),
        list(enumerate(["gradient", "weight_gradient", "second_moment", "correlation"])),
    )
    def test_each_number_is_the_mean_over_batches(self, model, batches, expected, column, name):
        growth = gradient_growth(model, loss_fn, batches)
        found = [getattr(layer, name) for layer in growth.layers]
        numbers = expected[:, :, column]
        np.testing.assert_allclose([e.value for e in found], numbers.mean(0), rtol=1e-12)
        np.testing.assert_allclose(
            [e.error for e in found], numbers.std(0, ddof=1) / math.sqrt(3), rtol=1e-9
        )

    def test_shapes_and_names(self, model, batches):
        growth = gradient_growth(model, loss_fn, batches)
        assert [layer.layer for layer in growth.layers] == ["0", "2", "4", "6"]
        assert [layer.features for layer in growth.layers] == [7, 6, 4, 3]
        assert {(layer.rows, layer.kind) for layer in growth.layers} == {(8, "Linear")}
        assert (growth.replicates, growth.batches) == (1, 3)

    def test_the_rate_is_the_fitted_slope_without_the_first_layer(self, model, batches, expected):
        growth = gradient_growth(model, loss_fn, batches)
        for column, found in ((0, growth.rate), (1, growth.weight_rate)):
            logs = np.log(expected[:, 1:, column].mean(0))
            assert found.value == pytest.approx(math.exp(-np.polyfit(range(3), logs, 1)[0]))

    def test_batches_may_be_any_iterable_and_are_read_once(self, model, batches):
        listed = gradient_growth(model, loss_fn, batches)
        assert gradient_growth(model, loss_fn, iter(batches)) == listed

    def test_one_batch_has_no_error(self, model, batches):
        growth = gradient_growth(model, loss_fn, batches[:1])
        assert all(math.isnan(layer.gradient.error) for layer in growth.layers)
        assert growth.rate.method.endswith("error of the fit alone")


class TestWhereGradientsAreTaken:
    def test_normalisers_are_watched_at_their_input(self):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3), nn.LayerNorm(3)
        ).double()
        x = normal(9, 4)
        h = F.linear(x, model[0].weight, model[0].bias).requires_grad_()
        h.retain_grad()
        loss_fn(model[1:], h).backward()
        weight_gradient = h.grad.T @ x
        first, second = gradient_growth(model, loss_fn, [x]).layers
        assert (first.layer, first.kind) == ("1", "BatchNorm1d")
        assert (second.layer, second.kind) == ("4", "LayerNorm")
        assert first.gradient.value == pytest.approx(h.grad.square().sum().item(), rel=1e-12)
        assert first.weight_gradient.value == pytest.approx(
            float(weight_gradient.square().sum()), rel=1e-12
        )
        assert first.second_moment.value == pytest.approx(h.square().mean().item(), rel=1e-12)

    def test_in_place_activations_change_nothing(self):
        """The gradient is the pre-activation's, before ReLU overwrites it."""

        def build(inplace):
            torch.manual_seed(1)
            return nn.Sequential(
                nn.Conv1d(2, 4, 3), nn.ReLU(inplace), nn.Conv1d(4, 4, 3), nn.ReLU(inplace),
                nn.Flatten(), nn.Linear(16, 5), nn.ReLU(inplace),
            ).double()  # fmt: skip

        batches = [normal(6, 2, 8, seed=seed) for seed in (0, 1)]
        in_place = gradient_growth(build(True), loss_fn, batches)
        assert in_place == gradient_growth(build(False), loss_fn, batches)

    def test_in_place_activation_before_a_normaliser(self):
        def build(inplace):
            torch.manual_seed(1)
            return nn.Sequential(
                nn.Linear(4, 6), nn.ReLU(inplace), nn.BatchNorm1d(6), nn.ReLU(inplace),
                nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(inplace),
            ).double()  # fmt: skip

        batches = [normal(6, 4, seed=seed) for seed in (0, 1)]
        in_place = gradient_growth(build(True), loss_fn, batches)
        assert in_place == gradient_growth(build(False), loss_fn, batches)

    def test_a_module_called_twice_is_measured_twice(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x):
                return self.layer(torch.tanh(self.layer(x)))

        layers = gradient_growth(Twice().double(), loss_fn, [normal(5, 4)]).layers
        assert [layer.layer for layer in layers] == ["layer", "layer (call 2)"]
        assert layers[0].gradient.value != layers[1].gradient.value
        assert (
            layers[0].weight_gradient.value == layers[1].weight_gradient.value
        )  # one weight, one gradient

    def test_rows_are_samples_times_positions(self):
        model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten()).double()
        (layer,) = gradient_growth(model, loss_fn, [normal(4, 1, 6, 5)]).layers
        assert (layer.rows, layer.features) == (4 * 4 * 3, 3)

    def test_layer_norm_has_its_features_last(self):
        model = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6)).double()
        (layer,) = gradient_growth(model, loss_fn, [normal(4, 5, 3)]).layers
        assert (layer.rows, layer.features) == (4 * 5, 6)

    def test_a_language_models_own_norm_has_its_features_last(self):
        class LlamaRMSNorm(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(6))

            def forward(self, x):
                return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

        model = nn.Sequential(nn.Linear(3, 6), LlamaRMSNorm()).double()
        (layer,) = gradient_growth(model, loss_fn, [normal(4, 5, 3)]).layers
        assert (layer.rows, layer.features) == (4 * 5, 6)

    def test_one_final_norm_does_not_hide_the_other_layers(self):
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)], nn.LayerNorm(4)).double()
        assert gradient_growth(model, loss_fn, [normal(4, 4)]).rate is not None

    def test_layers_that_the_loss_does_not_use_are_left_out(self):
        class Detour(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

            def forward(self, x):
                self.b(x)
                return self.c(self.a(x))

        layers = gradient_growth(Detour().double(), loss_fn, [normal(5, 4)]).layers
        assert [layer.layer for layer in layers] == ["a", "c"]

    def test_frozen_layers_are_measured_too(self):
        model = deep(4, 4, lambda n: [], nn.Tanh())
        batches = [normal(6, 4, seed=seed) for seed in (0, 1)]
        free = gradient_growth(model, loss_fn, batches)
        model.requires_grad_(False)
        assert gradient_growth(model, loss_fn, batches) == free


class TestRates:
    @pytest.mark.parametrize("gain", [0.8, 1.0, 1.3])
    def test_orthogonal_linear_layers_multiply_by_their_gain_squared(self, gain):
        """Exactly, at every layer."""
        model = deep(16, 6, lambda n: [])
        for layer in model:
            nn.init.orthogonal_(layer.weight, gain)
        growth = gradient_growth(model, loss_fn, [normal(8, 16)])
        assert growth.rate.value == pytest.approx(gain**2, rel=1e-12)
        assert growth.rate.error < 1e-12

    def test_batch_normalised_linear_networks_grow_as_predicted(self):
        """(B − 2)/(B − 3) in the limit of wide layers, here within standard errors."""
        B = 8
        model = deep(200, 12, lambda n: [nn.BatchNorm1d(n, eps=1e-12)])
        batches = [normal(B, 200, seed=seed) for seed in range(2)]
        growth = gradient_growth(model, noisy_loss, batches, replicates=8)
        z = (growth.rate.value - (B - 2) / (B - 3)) / growth.rate.error
        assert abs(z) < 4
        assert growth.replicates == 8
        assert "fit through 11 layers" in growth.rate.method

    def test_networks_without_batch_norm_do_not(self):
        """The twin: the same measurement is many standard errors away."""
        model = deep(200, 12, lambda n: [])
        growth = gradient_growth(model, noisy_loss, [normal(8, 200)], replicates=8)
        assert abs(growth.rate.value - 6 / 5) > 10 * growth.rate.error

    def test_small_tanh_layers_vanish(self):
        """Default initialisation has fan-in times variance 1/3."""
        model = deep(64, 8, lambda n: [], nn.Tanh())
        growth = gradient_growth(model, noisy_loss, [normal(16, 64)], replicates=4)
        assert growth.rate.value == pytest.approx(1 / 3, rel=0.1)
        assert growth.weight_rate is not None

    def test_errors_over_initialisations(self):
        """Each replicate's mean over batches counts once."""
        model = deep(6, 4, lambda n: [], nn.Tanh())
        batches = [normal(5, 6, seed=seed) for seed in range(2)]
        together = gradient_growth(model, loss_fn, batches, replicates=3, seed=10)
        alone = [
            gradient_growth(model, loss_fn, batches, initialize=seeded(seed))
            for seed in (10, 11, 12)
        ]
        for index, layer in enumerate(together.layers):
            means = [growth.layers[index].gradient.value for growth in alone]
            expected = Estimate.of_mean(means, "mean over 3 initialisations")
            assert layer.gradient.method == expected.method
            assert layer.gradient.value == pytest.approx(expected.value, rel=1e-12)
            assert layer.gradient.error == pytest.approx(expected.error, rel=1e-9)

    @pytest.mark.parametrize(("layers", "fitted"), [(2, None), (3, 3), (4, 3), (5, 4)])
    def test_the_first_layer_is_left_out_where_three_others_remain(self, layers, fitted):
        growth = gradient_growth(deep(4, layers, lambda n: []), loss_fn, [normal(6, 4)])
        if fitted is None:
            assert growth.rate is None
        else:
            assert f"fit through {fitted} layers" in growth.rate.method

    def test_a_layer_without_gradient_leaves_no_rate(self):
        model = deep(4, 5, lambda n: [], nn.ReLU())
        nn.init.constant_(model[4].weight, 0.0)
        growth = gradient_growth(model, loss_fn, [normal(6, 4).abs()])
        assert growth.layers[0].gradient.value == 0
        assert growth.rate is None


def noisy_loss(model, batch):
    """A random linear readout: white gradients enter at the top, as in the theory."""
    return (model(batch) * torch.randn_like(batch)).sum()


def seeded(seed):
    def initialize(model, replicate):
        torch.manual_seed(seed)
        for module in model:
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()

    return initialize


class TestInitialisation:
    def test_replicates_are_seeded(self):
        model = deep(4, 3, lambda n: [])
        first = gradient_growth(model, loss_fn, [normal(5, 4)], replicates=2, seed=3)
        torch.rand(5)
        assert gradient_growth(model, loss_fn, [normal(5, 4)], replicates=2, seed=3) == first
        assert gradient_growth(model, loss_fn, [normal(5, 4)], replicates=2, seed=4) != first

    def test_initialize_is_given_the_model_and_the_number(self):
        model, seen = deep(4, 3, lambda n: []), []
        gradient_growth(
            model,
            loss_fn,
            [normal(5, 4)],
            replicates=3,
            initialize=lambda m, r: seen.append((m is model, r)),
        )
        assert seen == [(True, 0), (True, 1), (True, 2)]

    def test_modules_that_cannot_be_reset_are_named(self):
        class Token(nn.Module):
            def __init__(self):
                super().__init__()
                self.token = nn.Parameter(torch.zeros(4, dtype=torch.float64))

            def forward(self, x):
                return x + self.token

        model = nn.Sequential(nn.Linear(4, 4).double(), Token())
        with pytest.raises(ValueError, match=r"cannot draw new weights: 1 has parameters but no"):
            gradient_growth(model, loss_fn, [normal(5, 4)], replicates=2)
        gradient_growth(model, loss_fn, [normal(5, 4)])  # weights as they are

    def test_attention_is_reset_as_when_it_was_built(self):
        """MultiheadAttention sets its output bias to zero after the layer's own reset."""
        model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).double()
        biases = []

        def loss(model, batch):
            biases.append(model.self_attn.out_proj.bias.detach().clone())
            return loss_fn(model, batch)

        gradient_growth(model, loss, [normal(3, 4, 8)], replicates=2)
        assert all((bias == 0).all() for bias in biases)


class TestRefusals:
    model = deep(4, 3, lambda n: [])

    @pytest.mark.parametrize(
        "batch", [torch.ones(8, 4), {"x": torch.ones(8, 4)}, (torch.ones(8, 4), torch.ones(8))]
    )
    def test_one_batch_in_the_place_of_a_list(self, batch):
        with pytest.raises(ValueError, match=r"takes a list of batches, and was given one"):
            gradient_growth(nn.Linear(4, 1), lambda m, x: m(x).mean(), batch)

    def test_no_batches(self):
        with pytest.raises(ValueError, match="needs at least one batch, got none"):
            gradient_growth(self.model, loss_fn, [])

    def test_no_replicates(self):
        with pytest.raises(
            ValueError, match="replicates must be a whole number of at least 1; got 0"
        ):
            gradient_growth(self.model, loss_fn, [normal(5, 4)], replicates=0)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_losses_that_are_not_finite(self, value):
        with pytest.raises(ValueError, match=f"the loss is {value} on a batch"):
            gradient_growth(self.model, lambda m, x: loss_fn(m, x) * value, [normal(5, 4)])

    @pytest.mark.parametrize(
        ("loss", "got"),
        [
            (lambda m, x: m(x), r"shape \(5, 4\)"),
            (lambda m, x: loss_fn(m, x) + 0j, "one that is complex"),
            (lambda m, x: loss_fn(m, x).to("meta"), "one that is on the meta device"),
            (lambda m, x: loss_fn(m, x).to_sparse(), "one that is sparse"),
            (lambda m, x: loss_fn(m, x).to(torch.float8_e5m2), "one of torch.float8_e5m2"),
            (lambda m, x: loss_fn(m, x).item(), "float"),
            (lambda m, x: None, "NoneType"),
        ],
    )
    def test_losses_that_are_no_scalar_tensor(self, loss, got):
        with pytest.raises(ValueError, match=f"with one number, got {got}"):
            gradient_growth(self.model, loss, [normal(5, 4)])

    def test_models_without_layers(self):
        with pytest.raises(ValueError, match="ran no normalising or parametrised layer"):
            gradient_growth(nn.Tanh(), loss_fn, [normal(5, 4)])

    def test_outputs_that_are_detached(self):
        with pytest.raises(ValueError, match="Does the model detach its output"):
            gradient_growth(self.model, lambda m, x: m(x).detach().sum(), [normal(5, 4)])

    def test_layers_that_some_batches_miss_are_left_out(self):
        class Dropping(nn.Module):
            """Stochastic depth: the middle layer only runs on large batches."""

            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = (nn.Linear(4, 4).double() for _ in range(3))

            def forward(self, x):
                x = self.a(x)
                return self.c(self.b(x) if len(x) > 5 else x)

        for batches in ([normal(5, 4), normal(6, 4)], [normal(6, 4), normal(5, 4)]):
            found = gradient_growth(Dropping(), loss_fn, batches)
            assert [layer.layer for layer in found.layers] == ["a", "c"]
            assert found.left_out == ("b",)

    def test_norms_that_each_batch_has_of_its_own(self):
        class Clients(nn.Module):
            """Statistics of each client, as in FedBN; the rest is shared."""

            def __init__(self):
                super().__init__()
                self.a, self.c = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
                self.norms = nn.ModuleList(nn.BatchNorm1d(4).double() for _ in range(2))

            def forward(self, x):
                return self.c(self.norms[len(x) % 2](self.a(x)))

        found = gradient_growth(Clients(), loss_fn, [normal(5, 4), normal(6, 4)])
        assert [layer.layer for layer in found.layers] == ["a", "c"]

    def test_calls_of_one_layer_are_told_apart(self):
        class Repeating(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 4).double()

            def forward(self, x):
                for _ in range(len(x)):
                    x = self.a(x)
                return x

        found = gradient_growth(Repeating(), loss_fn, [normal(3, 4), normal(5, 4)])
        assert [layer.layer for layer in found.layers] == ["a", "a (call 2)", "a (call 3)"]
        assert found.left_out == ("a (call 4)", "a (call 5)")

    def test_paths_that_have_no_layer_in_common(self):
        class Choosy(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()

            def forward(self, x):
                return self.a(x) if len(x) > 5 else self.b(x)

        with pytest.raises(ValueError, match="none of its 2 layers on every batch: b, a"):
            gradient_growth(Choosy(), loss_fn, [normal(5, 4), normal(6, 4)])

    def test_progress_counts_passes(self):
        seen = []
        gradient_growth(
            self.model,
            loss_fn,
            [normal(5, 4)] * 2,
            replicates=2,
            progress=lambda *step: seen.append(step),
        )
        assert seen == [("measuring gradients", done, 4) for done in (1, 2, 3, 4)]


def interrupt_at(step):
    def progress(stage, done, total):
        if done == step:
            raise KeyboardInterrupt

    return progress


class TestInterruption:
    batches = (torch.ones(5, 4), torch.zeros(5, 4) + 0.5)

    def measure(self, progress=None, replicates=3):
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 1))
        return gradient_growth(
            model, loss_fn, self.batches, replicates=replicates, progress=progress
        )

    @pytest.mark.parametrize(("step", "finished"), [(3, 1), (4, 1), (5, 2)])
    def test_finished_replicates_are_kept(self, step, finished):
        """Two batches each: a replicate counts once both are reported."""
        with pytest.raises(GrowthInterrupted) as interruption:
            self.measure(interrupt_at(step))
        kept = interruption.value.finished
        assert (kept.replicates, kept.batches) == (finished, 2)

    def test_they_equal_those_without_interruption(self):
        with pytest.raises(GrowthInterrupted) as interruption:
            self.measure(interrupt_at(5))
        assert interruption.value.finished == self.measure(replicates=2)

    def test_before_the_first_is_finished_there_is_nothing_to_keep(self):
        with pytest.raises(KeyboardInterrupt) as interruption:
            self.measure(interrupt_at(1))
        assert not isinstance(interruption.value, GrowthInterrupted)


def test_a_model_built_under_the_probes_own_seed_is_drawn_anew():
    """Seed 0 is the default of the probe, and of many users."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 1))
    growth = gradient_growth(model, loss_fn, [torch.ones(5, 4)], replicates=2, seed=0)
    assert growth.replicates == 2


def test_autocast_in_the_loss():
    model = build("batch norm and dropout").train(False)

    def loss(model, data):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return of_pairs(model, data)

    found, exact = (gradient_growth(model, f, [batch()]) for f in (loss, of_pairs))
    for mixed, full in zip(found.layers, exact.layers, strict=True):
        assert mixed.gradient.value == pytest.approx(full.gradient.value, rel=0.1)
        assert mixed.gradient.value != full.gradient.value


def test_the_memory_format_changes_no_number():
    model = build("convolutions")
    expected = gradient_growth(model, of_pairs, [batch()])
    found = gradient_growth(model.to(memory_format=torch.channels_last), of_pairs, [batch()])
    for a, b in zip(found.layers, expected.layers, strict=True):
        assert (a.layer, a.rows, a.features) == (b.layer, b.rows, b.features)
        assert a.gradient.value == pytest.approx(b.gradient.value, rel=1e-4)


class Quantised(nn.Module):
    """Multiplies by the weights of layers that never run, as quantisation by hand does."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return {"logits": F.linear(F.linear(x, self.first.weight).relu(), self.head.weight)}


def test_where_functions_use_the_weights_the_model_itself_is_watched():
    torch.manual_seed(0)
    model, x = Quantised(), torch.randn(16, 6)
    found = gradient_growth(model, lambda m, x: m(x)["logits"].square().mean(), [x])
    (layer,) = found.layers
    logits = model(x)["logits"].detach().double()
    assert layer.kind == "Quantised"
    assert layer.gradient.value == pytest.approx(float((2 * logits / 48).square().sum()), rel=1e-5)


def test_a_model_without_any_gradient_is_refused():
    with pytest.raises(ValueError, match="Does the model detach its output"):
        gradient_growth(
            Quantised(),
            lambda m, x: m(x)["logits"].detach().mean() + torch.ones((), requires_grad=True),
            [torch.randn(16, 6)],
        )
