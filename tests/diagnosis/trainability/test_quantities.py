"""Each quantity is 0 where nothing is wrong, grows with its cause, and is cut off."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise import diagnosis, models
from equipoise.diagnosis.trainability.calibration import calibration
from equipoise.diagnosis.trainability.judge import judge
from equipoise.diagnosis.trainability.quantities import quantities
from equipoise.diagnosis.trainability.record import NAMES
from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import propagate
from equipoise.training import cross_entropy
from support.diagnosis_examples import fixed_batches
from support.trainability_examples import layer, network, norm, weight

SOURCES = ["predicted", "measured"]


def of(found, name, source="predicted"):
    return getattr(quantities(found, 64, source), name)


def driven_apart(growth):
    return network(layer(math.exp(growth)), layer())


def imbalanced(logarithm):
    return network(weights=(weight(), weight(math.exp(2 * logarithm))))


# What makes a quantity grow, from nothing wrong to beyond where it is cut off, and the ends.
CAUSES = {
    "explosion": (driven_apart, (0.0, 1.0, 20.0, 300.0), 100.0),
    "vanishing": (lambda x: driven_apart(-x), (0.0, 1.0, 20.0, 300.0), 100.0),
    "collapse": (
        lambda x: network(layer(), layer(correlation=1 - 10**-x)),
        (1.0, 2.0, 5.0, 12.0),
        8.0,
    ),
    "size": (lambda x: network(layer(), layer(second_moment=math.exp(x))), (1, 2, 6, 50), 12.0),
    "imbalance": (imbalanced, (2.0, 3.0, 10.0, 60.0), 20.0),
    "fluctuation": (
        lambda x: network(layer(error=x), layer(error=0.0)),
        (0.3, 0.4, 3.0, 90.0),
        5.0,
    ),
    "faintness": (
        lambda x: network(weights=(weight(100**-x), weight(100**-x))),
        (6.0, 7.0, 20.0, 50.0),
        24.0,
    ),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", CAUSES)
class TestCauses:
    def test_a_quantity_is_zero_grows_and_is_cut_off(self, name, source):
        make, causes, end = CAUSES[name]
        values = [of(make(cause), name, source) for cause in causes]
        assert values[0] == pytest.approx(0, abs=1e-9)
        assert values == sorted(set(values))
        assert values[-1] == pytest.approx(end)
        assert of(make(2 * causes[-1]), name, source) == values[-1]

    def test_and_no_other_quantity_does(self, name, source):
        make, causes, _ = CAUSES[name]
        fine, wrong = (quantities(make(cause), 64, source) for cause in (causes[0], causes[2]))
        other = [a for a in NAMES if a != name and getattr(fine, a) != getattr(wrong, a)]
        # Larger outputs have a larger scale-free gradient behind them.
        assert other == (["vanishing"] if name == "size" else [])


@pytest.mark.parametrize("source", SOURCES)
def test_where_nothing_is_wrong_all_are_zero(source):
    assert quantities(network(), 64, source).values == (0.0,) * 7 + (6.0, 0.0)


def test_logarithms_are_natural_and_between_first_and_last():
    assert of(network(layer(math.e**3), layer(7.0), layer()), "explosion") == pytest.approx(3)


def test_what_comes_behind_the_last_layer_does_not_count():
    """Its output is the model's; a softmax or a mean is the loss's affair."""
    assert of(network(layer(), layer(), norm(math.e**5)), "vanishing") == 0


def test_silence_is_the_share_of_matrices_without_gradient():
    silent = network(weights=(weight(), weight(0.0), weight(0.0), weight()))
    assert of(silent, "silence") == of(silent, "silence", "measured") == 0.5
    assert of(silent, "imbalance") == 0


def test_one_matrix_that_moves_is_not_faint():
    assert of(network(weights=(weight(1e-30), weight(1e-30))), "faintness") == pytest.approx(9)
    assert of(network(weights=(weight(1e-30), weight(1e-4))), "faintness") == 0


@pytest.mark.parametrize("source", SOURCES)
def test_tiny_weights_without_norms_are_faint(source):
    """``normal_(std=0.02)`` at a width of 16 leaves a twelfth of the signal in each layer."""

    def chain(std, norm=nn.Identity):
        torch.manual_seed(0)
        layers = [m for _ in range(10) for m in (nn.Linear(16, 16), norm(16), nn.Tanh())]
        model = nn.Sequential(*layers, nn.Linear(16, 3))
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)
                nn.init.zeros_(module.bias)
        return model

    batch = torch.randn(32, 16), torch.randint(3, (32,))
    faint, usual, normalised = (
        getattr(diagnosis.trainability(model, [batch], depth=False), source)
        for model in (chain(0.02), chain(0.25), chain(0.02, nn.LayerNorm))
    )
    assert faint.faintness > 4
    assert (usual.faintness, normalised.faintness) == (0, 0)


def test_samples_are_a_logarithm():
    assert quantities(network(), 256, "predicted").samples == 8


def test_sides_are_told_apart():
    found = network(layer(measured_gradient=math.e**4), layer())
    assert of(found, "explosion") == 0
    assert of(found, "explosion", "measured") == pytest.approx(4)


class TestWhatIsNotFinite:
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_large_outputs_are_as_bad_as_can_be(self, value):
        assert of(network(layer(), layer(second_moment=value)), "size") == 12

    @pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
    def test_without_a_finite_gradient_at_the_end_it_has_vanished(self, value):
        assert of(network(layer(), layer(gradient=value)), "vanishing") == 100

    @pytest.mark.parametrize("value", [math.nan, None])
    def test_an_unknown_correlation_is_no_collapse(self, value):
        assert of(network(layer(), layer(correlation=value)), "collapse") == 0

    @pytest.mark.parametrize("value", [1.0, 1.0 + 1e-12])
    def test_equal_samples_have_collapsed(self, value):
        assert of(network(layer(), layer(correlation=value)), "collapse") == 8

    def test_all_numbers_are_finite_whatever_happens(self):
        broken = dataclasses.replace(layer(math.nan, math.nan, math.nan), error=math.nan)
        found = quantities(network(broken, weights=()), 64, "predicted")
        assert all(map(math.isfinite, found.values))


class TestWhereTheoryPredictsNothing:
    """Weights of mean 1/n are none that theory knows."""

    @staticmethod
    def measured(width, depth=4):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
        for linear in model:
            nn.init.constant_(linear.weight, 1 / width)
        x = torch.randn(16, width)
        found = propagate(trace(model, (x, x), lambda m, b: F.mse_loss(m(b[0]), b[1])))
        assert not any(site.is_predicted for site in found.sites)
        return quantities(found, 16, "measured")

    def test_fluctuations_are_those_of_depth_over_width(self):
        assert self.measured(20).fluctuation == pytest.approx(math.sqrt(5 * 4 / 20) - 0.3)
        assert self.measured(500).fluctuation == 0

    def test_without_a_trace_they_are_as_bad_as_can_be(self):
        known = layer(1.0, 1.0, 0.5)
        unknown = dataclasses.replace(known, second_moment=None, gradient=None, error=math.nan)
        assert of(network(unknown), "fluctuation", "measured") == 5


class Products(nn.Module):
    """Rows of two tables, multiplied."""

    def __init__(self, deviation):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = (nn.Embedding(9, 4) for _ in range(2))
        for table in (self.one, self.other):
            nn.init.normal_(table.weight, std=deviation)

    def forward(self, rows):
        return (self.one(rows) * self.other(rows)).sum(1)


def test_products_of_tables_have_no_depth():
    batch = torch.arange(9).repeat(2), torch.randn(18)

    def of_products(deviation):
        model = Products(deviation)
        found = propagate(trace(model, batch, lambda m, b: F.mse_loss(m(b[0]), b[1])))
        return quantities(found, 16, "measured")

    small, large = of_products(0.1), of_products(20.0)
    assert dataclasses.replace(large, size=0.0, imbalance=small.imbalance) == small
    assert (small.explosion, small.size, small.samples) == (0, 0, 4)
    assert large.size > 5


def test_without_a_layer_nothing_is_known():
    with pytest.raises(ValueError, match="no linear or convolutional layer"):
        quantities(network(norm()), 64, "predicted")


def chain(depth=6, width=128, scale=1.0, act=nn.Tanh, normalised=False):
    layers = [nn.Flatten(), nn.Linear(64, width)]
    for _ in range(depth):
        linear = nn.Linear(width, width)
        with torch.no_grad():
            linear.weight.normal_(0, scale * width**-0.5)
        norms = [nn.BatchNorm1d(width)] if normalised else []
        layers += [linear, *norms, act()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def found_for(model, *, depth=False):
    return diagnosis.trainability(model, fixed_batches(), depth=depth)


class TestRealModels:
    @pytest.mark.parametrize(
        "build",
        [
            chain,
            lambda: chain(scale=0.3),
            lambda: chain(scale=2.0, act=nn.ReLU),
            lambda: models.mlp(64, 10, depth=6, width=128),
        ],
        ids=["tanh", "vanishing", "growing", "batch norm"],
    )
    def test_what_is_predicted_is_measured(self, build):
        """Within 1 in the logarithm, of which one draw of width 128 may explain most."""
        found = found_for(build)
        for name in NAMES:
            predicted, measured = (getattr(q, name) for q in (found.predicted, found.measured))
            assert predicted == pytest.approx(measured, abs=1.0), name

    def test_the_scale_of_a_layer_before_a_norm_changes_no_growth(self):
        model = chain(normalised=True)
        before = found_for(model)
        with torch.no_grad():
            model[2].weight.mul_(1000)
        after = found_for(model)
        for one in ("predicted", "measured"):
            explosion = (getattr(side, one).explosion for side in (before, after))
            assert len({round(value, 2) for value in explosion}) == 1

    def test_without_the_norm_it_does(self):
        model = chain(act=nn.ReLU)
        before = found_for(model)
        with torch.no_grad():
            model[2].weight.mul_(1000)
        assert found_for(model).measured.size > before.measured.size + 5


def test_a_network_behind_a_zero_matrix_is_judged_as_if_it_had_moved():
    """Such as the last layer of a diffusion model: at first nothing else has a gradient."""
    torch.manual_seed(0)
    model = chain(depth=40, width=32)
    torch.nn.init.zeros_(model[-1].bias)
    usual = found_for(model)
    torch.nn.init.zeros_(model[-1].weight)
    found = found_for(model)
    assert found.measured.silence > 0.97
    assert found.predicted.silence == 0
    for name in ("explosion", "vanishing", "collapse"):
        value, expected = getattr(found.predicted, name), getattr(usual.predicted, name)
        assert value == pytest.approx(expected, abs=0.3)


def test_the_depth_that_trains_is_that_behind_a_zero_matrix_which_has_moved():
    """Without that no number of blocks would have a gradient, however well they train."""
    torch.manual_seed(0)
    model = chain(depth=6, width=32)
    torch.nn.init.zeros_(model[-1].weight)
    found = found_for(model, depth=True)
    assert found.probability > 0.5
    assert found.depth.value >= found.depth.blocks


class Turned(nn.Module):
    """As PointNet without the identity: the data is multiplied by a matrix that starts at zero."""

    def __init__(self, zero=True):
        super().__init__()
        self.turn = nn.Linear(64, 64)
        if zero:
            nn.init.zeros_(self.turn.weight)
            nn.init.zeros_(self.turn.bias)
        self.body = nn.Sequential(
            *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()),
            *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()),
            nn.Linear(64, 10),
        )

    def forward(self, x):
        x = x.flatten(1)
        return self.body(self.turn(x) * x)


def test_norms_of_equal_rows_behind_a_zero_matrix_are_judged_as_after_the_first_step():
    """Their gradients are divided by the root of ε, until the first step ends that."""
    torch.manual_seed(0)
    assert found_for(Turned(zero=False)).probability > 0.5
    assert found_for(Turned()).probability > 0.5
    with pytest.raises(ValueError, match="rows that are all equal until weights that start at"):
        judge(propagate(trace(Turned(), fixed_batches()[0], cross_entropy)), 64, calibration())

    model, (batch, *_) = Turned(), fixed_batches()  # the claim itself
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_equal_rows_of_matrices_that_do_not_learn_are_judged():
    torch.manual_seed(0)
    model = Turned()
    model.turn.requires_grad_(False)
    assert found_for(model).probability < 0.5


def test_of_heads_that_theory_does_not_reach_it_says_nothing():
    """As of rare words of a softmax in parts, which had vanished, and were infinitely large."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh())
            self.head = nn.AdaptiveLogSoftmaxWithLoss(64, 10, [2, 4], div_value=2)

        def forward(self, x, y):
            return self.head(self.body(x), y).loss

    torch.manual_seed(0)
    found = diagnosis.trainability(
        Words(), fixed_batches(), loss_fn=lambda model, batch: model(*batch), depth=False
    )
    assert found.predicted is not None
    assert (found.predicted.vanishing, found.predicted.size) == (0, 0)
    assert found.measured.vanishing > 0


def squared_error(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


class Flow(nn.Module):
    """Steps of a differential equation, small beside the state that they change."""

    def __init__(self, steps=12, *, keeps_all=False):
        super().__init__()
        self.slope = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
        self.steps, self.keeps_all = steps, keeps_all

    def forward(self, x):
        states = [x]
        for _ in range(self.steps):
            states.append(states[-1] + 0.01 * self.slope(states[-1]))
        return torch.stack(states[1:], 1) if self.keeps_all else states[-1]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("keeps_all", [False, True])
def test_the_last_step_of_a_stream_is_no_output(keeps_all, source):
    """Its own gradient is a hundredth of the state's, by which nothing has exploded."""
    torch.manual_seed(0)
    x = torch.randn(32, 2)
    target = torch.randn(32, 2)
    if keeps_all:  # one for all steps, so that their gradients are equal
        target = target[:, None].expand(-1, 12, -1)
    found = propagate(trace(Flow(keeps_all=keeps_all), (x, target), squared_error))
    # Squared, a sum of twelve equal gradients is twelve times their sum of squares.
    most = math.log(12) if keeps_all else 0.0
    assert of(found, "explosion", source) == pytest.approx(most, abs=0.6)
    assert of(found, "vanishing", source) == pytest.approx(0.0, abs=0.6)


@pytest.mark.parametrize("source", SOURCES)
def test_a_chain_beside_a_skip_from_the_input_is_no_stream(source):
    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            wide = [nn.Linear(32, 32) for _ in range(6)]
            for one in wide:
                nn.init.normal_(one.weight, 0.0, 2 / math.sqrt(32))
            self.chain = nn.Sequential(nn.Linear(2, 32), *wide, nn.Linear(32, 2))

        def forward(self, x):
            return x + self.chain(x)

    torch.manual_seed(0)
    batch = torch.randn(32, 2), torch.randn(32, 2)
    beside = propagate(trace(Beside(), batch, squared_error))
    torch.manual_seed(0)
    alone = propagate(trace(Beside().chain, batch, squared_error))
    explosions = [of(found, "explosion", source) for found in (beside, alone)]
    assert explosions[0] == pytest.approx(explosions[1], abs=0.3)
