"""Ask of a model whether it will train: healthy ones, broken ones, and in test suites."""

import copy
import dataclasses
import importlib
from functools import partial

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise import diagnosis
from equipoise.diagnosis.trainability import measure
from equipoise.diagnosis.trainability.calibration import calibration
from support.diagnosis_examples import fixed_batches
from support.model_state import differences, fingerprint
from support.probe_models import MODELS, batch, build, loss_fn
from support.trainability_examples import CALIBRATION

WIDTH = 64


@pytest.fixture
def by_hand(monkeypatch):
    """Judge by the calibration that was written by hand."""
    monkeypatch.setattr(measure, "calibration", lambda: CALIBRATION)


def net(depth=4, act=nn.ReLU, norm=None, gain=2**0.5, seed=0):
    """Layers of He's scale; a gain of 3^-1/2 is PyTorch's default."""
    layers = [nn.Flatten(), nn.Linear(64, WIDTH)]
    for _ in range(depth):
        linear = nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(
            linear.weight,
            std=gain * WIDTH**-0.5,
            generator=torch.Generator().manual_seed(seed + len(layers)),
        )
        nn.init.zeros_(linear.bias)
        layers += [linear, *([] if norm is None else [norm(WIDTH)]), act()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def changed(model, wanted, change):
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, wanted):
                change(module)
    return model


def hidden(model, change):
    """Change all layers but the first and the last."""
    with torch.no_grad():
        for module in [m for m in model if isinstance(m, nn.Linear)][1:-1]:
            change(module)
    return model


def with_large_head(factor=100):
    model = net()
    with torch.no_grad():
        model[-1].weight.mul_(factor)
    return model


HEALTHY = {
    "ReLU": net,
    "batch norm": lambda: net(norm=nn.BatchNorm1d),
    "tanh": lambda: net(20, nn.Tanh, gain=1.0),
}
# What is broken, and the healthy network that it is compared with.
BROKEN = {
    "weights x 10": ("ReLU", lambda: hidden(net(12), lambda m: m.weight.mul_(10))),
    "weights / 50": (
        "tanh",
        lambda: hidden(net(20, nn.Tanh, gain=1.0), lambda m: m.weight.div_(50)),
    ),
    "head x 100": ("ReLU", with_large_head),
    "60 layers of batch norm": ("batch norm", lambda: net(60, norm=nn.BatchNorm1d)),
    "40 layers without norm": ("ReLU", lambda: net(40, gain=3**-0.5)),
    "chaotic tanh": ("tanh", lambda: net(20, nn.Tanh, gain=5.0)),
    "sigmoids": ("tanh", lambda: net(20, nn.Sigmoid, gain=1.0)),
}


def probability(model):
    return diagnosis.trainability(model, fixed_batches(), depth=False).probability


@pytest.fixture(scope="module")
def healthy():
    return {name: probability(make()) for name, make in HEALTHY.items()}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_networks_probably_train(name, healthy):
    assert healthy[name] > 0.5


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_network_trains_less_probably(name, healthy):
    like, make = BROKEN[name]
    assert probability(make()) < healthy[like]


NEVER_MOVE = {
    "weights of 0": (
        lambda: hidden(net(20, nn.Tanh), lambda m: m.weight.zero_()),
        "that stay at zero for ever",
    ),
    "dead ReLU": (
        lambda: hidden(net(), lambda m: m.bias.fill_(-5)),
        "have no gradient, whatever is trained",
    ),
    "scales of 0": (
        lambda: changed(net(norm=nn.BatchNorm1d), nn.BatchNorm1d, lambda m: m.weight.zero_()),
        "have no gradient, whatever is trained",
    ),
}


@pytest.mark.parametrize(("make", "words"), NEVER_MOVE.values(), ids=NEVER_MOVE)
def test_hidden_weights_that_never_move_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        probability(make())


class TestAssertTrainable:
    def test_passes_and_returns_what_was_found(self, by_hand):
        found = eq.assert_trainable(net, fixed_batches())
        assert found.probability >= 0.5
        assert found.depth is None

    def test_fails_with_the_reason(self, by_hand):
        with pytest.raises(AssertionError, match="trains with a probability of") as error:
            eq.assert_trainable(lambda: net(60, norm=nn.BatchNorm1d), fixed_batches())
        assert "50 % are asked for: " in str(error.value)
        assert str(error.value).endswith("gradients explode towards the input.")

    def test_what_it_returns_prints_as_a_sentence(self, by_hand):
        found = eq.assert_trainable(net, fixed_batches())
        assert str(found).startswith("trains with a probability of ")
        assert "Quantities" not in str(found)

    def test_fails_where_more_is_asked_for(self, by_hand):
        with pytest.raises(AssertionError, match="100 % are asked for"):
            eq.assert_trainable(net, fixed_batches(), at_least=1.0)
        assert eq.assert_trainable(with_large_head, fixed_batches(), at_least=0.0)

    @pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "50%"])
    def test_what_is_no_probability_is_refused(self, value):
        with pytest.raises(ValueError, match=r"at_least must be a number in \[0, 1\]"):
            eq.assert_trainable(net, fixed_batches(), at_least=value)

    def test_a_critical_mistake_fails(self):
        """It passed what the check-up calls not ready to train."""

        def turned(model, batch):
            return -nn.functional.cross_entropy(model(batch[0]), batch[1])

        model = net()
        before = fingerprint(model)
        with pytest.raises(AssertionError, match=r"not ready to train\. The loss has its sign"):
            eq.assert_trainable(model, fixed_batches(), loss_fn=turned, at_least=0)
        assert differences(before, fingerprint(model)) == []

    def test_a_learning_rate_that_is_too_large_fails(self):
        optimizer = partial(torch.optim.SGD, lr=1e3)
        with pytest.raises(AssertionError, match="learning rate 1000 of SGD is too large"):
            eq.assert_trainable(net, fixed_batches(), optimizer=optimizer)
        assert eq.assert_trainable(net, fixed_batches(), optimizer=torch.optim.Adam)

    def test_options_reach_the_question(self, by_hand):
        x = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))

        def loss(model, batch):
            return (model(batch[0]).sum(1) - batch[1]).square().mean()

        found = eq.assert_trainable(net, (x, x.mean((1, 2, 3))), loss_fn=loss, batch_size=16)
        assert found.measured.samples == 4


class TestModels:
    def test_a_module_its_copy_and_its_factory_are_alike(self):
        model = net()
        asked = (model, copy.deepcopy(model), lambda: copy.deepcopy(model))
        first, *others = (
            diagnosis.trainability(one, fixed_batches(), depth=False) for one in asked
        )
        assert others == [first, first]

    def test_a_factory_follows_the_seed(self):
        first, again, other = (
            diagnosis.trainability(
                lambda: nn.Sequential(
                    nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 10)
                ),
                fixed_batches(),
                seed=seed,
                depth=False,
            )
            for seed in (0, 0, 1)
        )
        assert first == again
        assert first.measured != other.measured

    def test_a_pair_smaller_than_a_batch_is_one_batch(self):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
        found = diagnosis.trainability(net(), (x, torch.arange(8)), batch_size=64, depth=False)
        assert found.measured.samples == 3

    def test_without_layers_it_is_refused(self):
        model = nn.Sequential(nn.Flatten(), nn.LayerNorm(64))
        with pytest.raises(ValueError, match="no linear or convolutional layer"):
            diagnosis.trainability(model, fixed_batches())

    def test_repeated_blocks_have_a_depth(self):
        found = diagnosis.trainability(net(8, norm=nn.BatchNorm1d), fixed_batches())
        assert found.depth.blocks in (8, 9)
        assert found.depth.low <= found.depth.value <= found.depth.high


class TestLeavesNoTrace:
    """The contract of every probe, whose models and fingerprint these are."""

    @pytest.mark.parametrize("name", MODELS)
    def test_model_gradients_and_random_state(self, name):
        model = build(name)
        with torch.random.fork_rng():
            loss_fn(model, batch(3)).backward()
        next(model.parameters()).grad = None
        before = fingerprint(model)
        diagnosis.trainability(model, [batch(0)], loss_fn=loss_fn, depth=False)
        assert differences(before, fingerprint(model)) == []

    def test_an_answer_that_edits_the_graph(self):
        model = net(6)
        before = fingerprint(model)
        diagnosis.trainability(model, fixed_batches())
        assert differences(before, fingerprint(model)) == []


def untraceable(*args, **keywords):
    raise RuntimeError("no trace of this")


class TestModelsThatCannotBeTraced:
    def test_the_check_up_falls_back_to_growth(self, monkeypatch):
        monkeypatch.setattr("equipoise.diagnosis.examination.traced", untraceable)
        found = eq.checkup(net, fixed_batches(16), seeds=1, batches=1)
        assert found.verdict.trainability is None
        assert found.verdict.sentence == "Whether it will train is unknown"
        assert found.verdict.details.startswith("Gradients ")
        assert "no trace of this" in found.verdict.details
        assert not [one for one in found.findings if one.title.startswith("Will")]

    def test_otherwise_the_probability_leads(self):
        found = eq.checkup(net, fixed_batches(16), seeds=1, batches=1)
        assert found.verdict.sentence.startswith("Will ")
        assert found.verdict.trainability.probability > 0


def test_the_shipped_calibration_is_used():
    assert measure.calibration is calibration
    assert dataclasses.is_dataclass(calibration())


class TestAnOutputBiasThatWasSet:
    """To the targets' mean, or the logarithm of a prior: no input is forgotten."""

    X = torch.randn(256, 16, generator=torch.Generator().manual_seed(0))

    def network(self, bias, head):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), head)
        nn.init.constant_(head.bias, bias)
        return model

    @pytest.mark.parametrize("bias", [3.0, 10.0, 50.0])
    def test_of_a_regression(self, bias):
        y = torch.tanh(self.X[:, :1])
        found = diagnosis.trainability(
            lambda: self.network(bias, nn.Linear(64, 1)), (self.X, y + bias), depth=False
        )
        assert found.probability > 0.85
        assert (found.predicted.collapse, found.measured.collapse) == (0, 0)
        assert (found.predicted.size, found.measured.size) == (0, 0)

    def test_of_bits_in_a_map(self):
        x = torch.randn(32, 3, 8, 8)
        y = (x.mean(1, keepdim=True) > 0.5).float()

        def build():
            torch.manual_seed(0)
            head = nn.Conv2d(16, 1, 1)
            nn.init.constant_(head.bias, -4.6)
            return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), head)

        found = diagnosis.trainability(build, (x, y), loss_fn=nn.BCEWithLogitsLoss(), depth=False)
        assert found.probability > 0.85
        assert found.measured.collapse == 0

    def test_outputs_without_it_may_still_be_alike(self):
        """The twin: behind a deep network the bias is not all that outputs have in common."""

        def build():
            layers = [m for _ in range(40) for m in (nn.Linear(16, 16), nn.ReLU())]
            head = nn.Linear(16, 1)
            nn.init.constant_(head.bias, 10.0)
            return nn.Sequential(*layers, head)

        found = diagnosis.trainability(build, (self.X, self.X[:, :1] + 10), depth=False)
        assert found.probability < 0.05
        assert found.measured.collapse > 1


def test_a_generator_that_draws_its_noise_itself_is_followed():
    """As many rows of noise as there are samples are samples."""
    x = torch.randn(64, 16)

    def build():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)
        )

    def drawn(model, batch):
        return model(torch.randn(len(batch[0]), 16)).square().mean()

    def given(model, batch):
        return model(batch[0]).square().mean()

    found, like = (
        diagnosis.trainability(build, (x, x), loss_fn=loss, depth=False) for loss in (drawn, given)
    )
    assert found.source == like.source == "both"
    assert found.predicted.vanishing == pytest.approx(like.predicted.vanishing, abs=0.3)


class TwoHeads(nn.Module):
    """A deep main path, and a head on its first layer."""

    def __init__(self, depth):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.side = nn.Linear(20, 64), nn.Linear(64, 5)
        blocks = (layer for _ in range(depth) for layer in (nn.Linear(64, 64), nn.ReLU()))
        self.blocks, self.main = nn.Sequential(*blocks), nn.Linear(64, 5)

    def forward(self, x):
        h = self.first(x).relu()
        return self.main(self.blocks(h)), self.side(h)


def of_both(weight):
    def loss(model, batch):
        main, side = model(batch[0])
        wanted = nn.functional.cross_entropy(main, batch[1])
        return wanted + weight * nn.functional.cross_entropy(side, batch[1])

    return loss


@pytest.mark.parametrize("weight", [0.1, 0.9, 1.0, 5.0])
def test_a_head_that_forgets_its_input_is_seen_beside_one_that_does_not(weight):
    batch = torch.randn(64, 20), torch.arange(64) % 5
    shallow, deep = (
        measure.trainability(TwoHeads(depth), batch, loss_fn=of_both(weight), depth=False)
        for depth in (2, 60)
    )
    assert shallow.probability > 0.9
    assert deep.probability < 0.5
    assert deep.reason
    assert deep.measured.collapse > 5


@pytest.mark.parametrize(
    "loss",
    [
        lambda m, b: (
            nn.functional.cross_entropy(m(b[0]), b[1])
            + (m(b[0]).softmax(1) - m(b[0] + 0.1).softmax(1).detach()).square().mean()
        ),
        lambda m, b: (
            nn.functional.cross_entropy(m(b[0]), b[1])
            - 0.01 * torch.distributions.Categorical(logits=m(b[0])).entropy().mean()
        ),
    ],
    ids=["consistency", "entropy"],
)
def test_a_loss_that_calls_the_model_twice_is_compared_within_one_call(loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model.append(nn.Linear(64, 5))
    batch = torch.randn(64, 20), torch.arange(64) % 5
    found = measure.trainability(model, batch, loss_fn=loss, depth=False)
    assert found.probability > 0.9


class Hypernetwork(nn.Module):
    """Weights that matrices make, which start at zero."""

    def __init__(self):
        super().__init__()
        self.tasks = nn.Embedding(3, 8)
        self.first, self.second = nn.Linear(8, 64 * 32), nn.Linear(8, 32 * 10)
        for layer in (self.first, self.second):
            nn.init.zeros_(layer.weight)

    def forward(self, x):
        task = self.tasks(torch.arange(len(x)) % 3)
        hidden = torch.relu(x.flatten(1)[:, None] @ self.first(task).view(-1, 64, 32))
        return (hidden @ self.second(task).view(-1, 32, 10))[:, 0]


def test_beyond_theory_another_pass_tells_what_follows_the_first_steps():
    model = Hypernetwork()
    before = fingerprint(model)
    found = diagnosis.trainability(model, fixed_batches(), depth=False)
    assert found.probability > 0.9
    assert differences(before, fingerprint(model)) == []


def test_a_checkup_limits_what_is_predicted_after_the_first_steps(monkeypatch):
    judge = importlib.import_module("equipoise.diagnosis.trainability.judge")
    limits = []

    def noted(graph, *, allowance=None):
        limits.append(allowance)
        return judge_propagate(graph, allowance=allowance)

    judge_propagate = judge.propagate
    monkeypatch.setattr(judge, "propagate", noted)
    eq.checkup(Hypernetwork(), fixed_batches())
    assert limits
    assert all(limit is not None for limit in limits)


class ComplexNet(nn.Module):
    """Multiplies complex numbers, whose sizes are the logits."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = (
            nn.Linear(fan_in, fan_out, dtype=torch.complex64)
            for fan_in, fan_out in ((8, 32), (32, 32), (32, 4))
        )

    def forward(self, z):
        for layer in (self.first, self.second):
            h = layer(z)
            z = torch.complex(h.real.relu(), h.imag.relu())
        return self.head(z).abs()


@pytest.mark.filterwarnings("error")
def test_complex_networks_are_judged_by_what_is_measured():
    z = torch.randn(32, 8, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    batches = [(z, z.real[:, :4].argmax(1))]
    found = diagnosis.trainability(ComplexNet, batches)
    assert found.low > 0.9
    assert found.measured.size == 0
    assert found.measured.vanishing < 1
