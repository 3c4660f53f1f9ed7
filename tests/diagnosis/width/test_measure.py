"""Standard parametrisations depend on width as theory says, and μP does not."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import init

from equipoise.diagnosis import coordinate_check
from support.model_state import differences, fingerprint

HIDDEN = ("1", "3", "5")
check = partial(coordinate_check, data="digits", widths=(32, 64, 128, 256))


def standard(width):
    """PyTorch's default."""
    layers = [nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(width, 10))


def mu(width):
    """Maximal update parametrisation: the last layer starts from 1/width."""
    model = standard(width)
    for layer in (model[1], model[3]):
        init.kaiming_normal_(layer.weight, nonlinearity="linear")
    init.normal_(model[5].weight, std=1 / width)
    return model


def adam_for_mu(model):
    """Rates of matrices with as many inputs as the width fall as 1/width."""
    scaled = [model[3].weight, model[5].weight]
    others = [p for p in model.parameters() if all(p is not q for q in scaled)]
    rate = 1e-3 * 32 / model[3].in_features
    return torch.optim.Adam([{"params": others}, {"params": scaled, "lr": rate}], lr=1e-3)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def sgd_for_mu(model):
    """Rates grow with the width before the last layer, and fall there."""
    n = model[3].in_features / 32
    rates = {1: n, 3: 1.0, 5: 1 / n}
    groups = [{"params": [model[i].weight], "lr": 0.1 * rate} for i, rate in rates.items()]
    groups += [{"params": [model[i].bias], "lr": 0.1 * n} for i in (1, 3)]
    return torch.optim.SGD([*groups, {"params": [model[5].bias]}], lr=0.1)


def trends(found, size):
    return {layer.layer: getattr(layer, size).trend for layer in found.layers}


class TestStandardParametrisation:
    def test_adam_changes_hidden_layers_more_where_they_are_wider(self):
        found = check(standard)
        assert found.transfers is False
        assert trends(found, "own_change") == {"1": "stable", "3": "grows", "5": "grows"}
        assert [layer.rate_exponent for layer in found.layers] == [0.0, -1.0, -1.0]

    def test_sgd_changes_the_first_layer_less(self):
        found = check(standard, optimizer=sgd)
        first, hidden, _ = found.layers
        assert found.transfers is False
        assert (first.own_change.trend, first.rate_exponent) == ("vanishes", 0.5)
        assert hidden.own_change.slope.value > 0.2

    @pytest.mark.parametrize("optimizer", [None, sgd])
    def test_first_steps_are_as_predicted(self, optimizer):
        """In size, but for what three similar classes of samples do, and in their exponents."""
        options = {} if optimizer is None else {"optimizer": optimizer}
        for layer in check(standard, **options).layers:
            step = layer.first_step
            assert step.predicted_slope == pytest.approx(step.slope.value, abs=0.15)
            for found, predicted in zip(step.sizes, step.predicted_sizes, strict=True):
                assert abs(math.log(predicted / found)) < 0.6

    def test_outputs_are_as_predicted(self):
        for layer in check(standard, steps=1).layers[:2]:
            assert layer.output.predicted_sizes == pytest.approx(layer.output.sizes, rel=0.1)


class TestMaximalUpdateParametrisation:
    """The twin: only the initialisation of the head and the rates differ."""

    @pytest.mark.parametrize("optimizer", [adam_for_mu, sgd_for_mu])
    def test_nothing_depends_on_width(self, optimizer):
        found = check(mu, optimizer=optimizer, seeds=6)
        assert found.transfers is True
        for size in ("own_change", "change"):
            assert set(trends(found, size).values()) == {"stable"}

    def test_the_initialisation_alone_is_not_enough(self):
        assert check(mu).transfers is False


def test_activations_that_grow_with_width():
    def build(width):
        model = standard(width)
        init.normal_(model[3].weight, std=0.1)
        return model

    found = check(build, steps=1)
    assert trends(found, "output")["3"] == "grows"
    assert found.layers[1].output.predicted_slope == pytest.approx(0.5, abs=0.05)


def test_frozen_layers_and_heads_of_zero_have_sizes_of_zero():
    def build(width):
        model = standard(width)
        model[1].requires_grad_(False)
        init.zeros_(model[5].weight), init.zeros_(model[5].bias)
        return model

    first, hidden, head = check(build).layers
    assert (first.own_change.trend, first.change.trend) == ("zero", "zero")
    assert hidden.first_step.trend == "zero"  # no gradient passes the head before it moves
    assert hidden.own_change.trend == "grows"
    assert (head.output.trend, head.is_last) == ("zero", True)


def test_a_training_that_diverges():
    def build(width):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    found = check(build, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e30))
    assert found.transfers is False
    assert "not finite" in trends(found, "change").values()


def test_optimisers_without_a_prediction_are_measured():
    found = check(standard, optimizer=lambda m: torch.optim.RMSprop(m.parameters()), steps=1)
    assert "not those of RMSprop" in found.unpredicted
    assert all(math.isnan(layer.first_step.predicted_slope) for layer in found.layers)
    assert trends(found, "own_change")["3"] == "grows"


def test_a_model_that_build_keeps_is_left_alone():
    kept = {width: standard(width) for width in (16, 32)}
    before, state = {w: fingerprint(m) for w, m in kept.items()}, torch.get_rng_state()
    coordinate_check(kept.__getitem__, "digits", widths=(16, 32), steps=1)
    assert all(differences(before[w], fingerprint(m)) == [] for w, m in kept.items())
    assert torch.equal(state, torch.get_rng_state())


def test_the_seed_chooses_batch_and_weights():
    def sizes(seed):
        found = coordinate_check(standard, "digits", widths=(16, 32), steps=1, seeds=2, seed=seed)
        return [layer.output.sizes for layer in found.layers]

    assert sizes(3) == sizes(3)
    assert sizes(3) != sizes(0)


def test_progress_counts_the_trainings():
    told = []
    coordinate_check(
        standard,
        "digits",
        widths=(16, 32),
        steps=1,
        seeds=2,
        progress=lambda stage, done, total: told.append((done, total)),
    )
    assert told == [(done, 4) for done in range(5)]


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (standard, {"widths": (64,)}, "two or more positive widths, got .64,."),
        (standard, {"widths": (64, 64)}, "two or more positive widths"),
        (standard, {"steps": 0}, "steps must be a whole number of at least 1"),
        (standard, {"seeds": 0}, "seeds must be a whole number of at least 1"),
        (standard, {"optimizer": torch.optim.SGD}, "optimizer.model. raised TypeError"),
        (standard, {"optimizer": lambda model: None}, "returned NoneType"),
        (lambda width: standard(16), {}, "should differ in size, but have 1482, 1482"),
        (lambda width: 1 / 0, {}, "raised ZeroDivisionError"),
        (lambda width: standard(width).requires_grad_(False), {}, "no trainable parameter"),
        (lambda width: None, {}, "not a torch.nn.Module"),
        (
            lambda n: nn.Sequential(nn.Flatten(), *[nn.Identity()] * n, nn.Linear(64, n)),
            {},
            "no layer has the same name at widths 16 and 32",
        ),
        (
            standard,
            {"loss_fn": lambda model, batch: model(batch[0]).mean() * math.nan},
            "the loss is nan",
        ),
    ],
)
def test_wrong_input(build, options, message):
    with pytest.raises(ValueError, match=message):
        coordinate_check(build, "digits", **{"widths": (16, 32), **options})


class Gaussian(nn.Module):
    """Returns a distribution, in which no tensor is found."""

    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh())
        self.mean, self.log_scale = nn.Linear(width, 10), nn.Parameter(torch.zeros(10))

    def forward(self, x):
        return torch.distributions.Normal(self.mean(self.body(x)), self.log_scale.exp())


def test_modules_that_return_no_tensor_are_left_out():
    def loss(model, batch):
        return -model(batch[0]).log_prob(nn.functional.one_hot(batch[1], 10).float()).mean()

    found = coordinate_check(Gaussian, "digits", widths=(8, 16, 32), loss_fn=loss)
    assert [layer.layer for layer in found.layers] == ["body.1", "mean"]
