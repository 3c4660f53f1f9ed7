"""Zero weights that no training can move, and those that move in the first steps."""

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.diagnosis.initialisation.stuck import Stuck, stuck
from equipoise.instrument.recording.tracer import trace
from support.model_state import differences, fingerprint

BATCH = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 10


def net(*zeros):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    model.append(nn.Linear(32, 10))
    for at in zeros:
        nn.init.zeros_(model[at].weight)
        nn.init.zeros_(model[at].bias)
    return model


class LowRank(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.base = nn.Linear(64, 10).requires_grad_(False)
        self.a, self.b = nn.Parameter(a * torch.randn(64, 4)), nn.Parameter(torch.zeros(4, 10))

    def forward(self, x):
        return self.base(x) + x @ self.a @ self.b


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def train(model, steps=200):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-2, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model, BATCH).backward()
        optimizer.step()


def biased(*biases):
    """A network whose hidden layers have these biases everywhere."""
    model = net()
    for layer, bias in zip((model[0], model[2]), biases, strict=True):
        nn.init.constant_(layer.bias, bias)
    return model


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (net(), ()),
        (net(4), ()),
        (net(2), ("2.weight",)),
        (net(2, 4), ("2.weight", "4.weight")),
        (net(0, 2, 4), ("0.weight", "2.weight", "4.weight")),
        (LowRank(0.1), ()),
        (LowRank(0.0), ("a", "b")),
    ],
)
def test_weights_are_stuck_where_training_leaves_them_at_zero(model, expected):
    zeros = [n for n, p in model.named_parameters() if p.ndim > 1 and not p.any()]
    before = fingerprint(model)
    assert stuck(model, cross_entropy, [BATCH]) == Stuck(zero=expected)
    assert not differences(before, fingerprint(model))
    train(model)
    parameters = dict(model.named_parameters())
    assert tuple(name for name in zeros if not parameters[name].any()) == expected


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (biased(0.0, 0.0), ()),
        (biased(-100.0, -100.0), ("0.weight", "2.weight", "4.weight")),
        (biased(0.0, -100.0), ("0.weight", "2.weight", "4.weight")),
        # What the second layer makes of its biases is an input that the last is trained on.
        (biased(-100.0, 0.5), ("0.weight", "2.weight")),
        (net(4), ()),
    ],
)
def test_weights_are_stuck_where_units_are_silent(model, expected):
    """Some are without a gradient at first only, as those behind a zero layer."""
    graph = trace(model, BATCH, cross_entropy)
    before = fingerprint(model)
    found = stuck(model, cross_entropy, [BATCH], graph.without_gradient)
    assert found == Stuck(silent=expected)
    assert not differences(before, fingerprint(model))
    weights = {name: p.detach().clone() for name, p in model.named_parameters() if p.ndim > 1}
    train(model)
    parameters = dict(model.named_parameters())
    assert tuple(n for n, w in weights.items() if torch.equal(w, parameters[n])) == expected


class Skipping(nn.Module):
    """A dead layer in the middle, behind which the input comes in again."""

    def __init__(self, bias=-100.0):
        super().__init__()
        self.first, self.dead, self.last = nn.Linear(64, 24), nn.Linear(24, 24), nn.Linear(88, 48)
        self.head = nn.Linear(48, 10)
        nn.init.constant_(self.dead.bias, bias)

    def forward(self, x):
        inside = self.dead(self.first(x).relu()).relu()
        return self.head(self.last(torch.cat([x, inside], 1)).relu())


def test_silent_weights_that_are_less_than_half_are_a_warning():
    """Of the first layers of a NeRF that nothing reached, a note said that it is intended."""
    model = Skipping()
    graph = trace(model, BATCH, cross_entropy)
    found = stuck(model, cross_entropy, [BATCH], graph.without_gradient)
    assert found == Stuck(part=("first.weight", "dead.weight"))
    report = eq.checkup(Skipping, BATCH, loss_fn="cross-entropy")
    assert report.verdict.trainability is not None
    (finding,) = (f for f in report.findings if "no gradient, whatever" in f.title)
    assert finding.severity == "warning"
    assert not any("intended" in f.detail for f in report.findings)
    sound = Skipping(0.0)
    graph = trace(sound, BATCH, cross_entropy)
    assert stuck(sound, cross_entropy, [BATCH], graph.without_gradient) == Stuck()


class Masked(nn.Module):
    """All experts are run, and all but the best multiplied by zero; the first is never it."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.gate, self.head = nn.Linear(64, 3), nn.Linear(64, 10)
        nn.init.constant_(self.gate.bias[:1], -100.0)

    def forward(self, x):
        best = self.gate(x).softmax(1)
        best = best * (best == best.amax(1, keepdim=True))
        return self.head(sum(best[:, i, None] * one(x) for i, one in enumerate(self.experts)))


def test_an_expert_that_no_sample_has_chosen():
    model = Masked()
    graph = trace(model, BATCH, cross_entropy)
    assert "experts.0.weight" in graph.without_gradient
    assert stuck(model, cross_entropy, [BATCH], graph.without_gradient) == Stuck()


class Nested(nn.Module):
    """Residual branches within one another, whose scales start at zero and wake in turn."""

    def __init__(self):
        super().__init__()
        self.outer, self.inner = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.a, self.b, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        branch = x + self.inner * self.b(self.a(x).tanh())
        return self.head(x + self.outer * branch)


class Experts(nn.Module):
    """One of many experts for each sample, so that a batch uses few of them."""

    def __init__(self, count=64):
        super().__init__()
        self.gate = nn.Linear(64, count)
        self.experts = nn.Parameter(torch.randn(count, 64, 10) / 8)

    def forward(self, x):
        scores = self.gate(x).softmax(1)
        chosen = scores.argmax(1)
        found = [
            scores[i, e] * row @ expert
            for i, (row, e, expert) in enumerate(
                (x[i], chosen[i], self.experts[chosen[i]]) for i in range(len(x))
            )
        ]
        return torch.stack(found)


class Dropped(nn.Module):
    """A network of one residual block that half of all passes leave out."""

    def __init__(self):
        super().__init__()
        self.block, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(x + (torch.rand(()) < 0.5) * self.block(x).relu())


class Cancelling(nn.Module):
    """A head that starts at zero, on samples whose gradients cancel."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 8, bias=False), nn.Linear(8, 10, bias=False))
        nn.init.zeros_(self.net[1].weight)

    def forward(self, x):
        return self.net(x)


def opposite():
    """Two batches whose gradients add up to nothing."""
    x, y = BATCH
    return [(x, y), (-x, y)]


@pytest.mark.parametrize("make", [Nested, Experts, Dropped, Cancelling])
@pytest.mark.parametrize("seed", range(4))
def test_what_training_moves_is_no_finding(make, seed):
    torch.manual_seed(seed)
    model = make()
    batches = opposite() if make is Cancelling else [BATCH, *more_batches(6)]
    graph = trace(model, BATCH, cross_entropy)
    assert not stuck(model, cross_entropy, batches, graph.without_gradient)


def more_batches(count):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 64, generator=generator), torch.arange(16) % 10) for _ in range(count)
    ]


def test_parameters_without_elements_are_passed_over():
    model = net()
    model.empty = nn.Parameter(torch.empty(0, 64))
    loss = lambda model, batch: cross_entropy(model, batch) + model.empty.sum()  # noqa: E731
    graph = trace(model, BATCH, loss)
    assert not stuck(model, loss, [BATCH], graph.without_gradient)


def test_other_batches_are_looked_at_only_where_a_step_wakes_nothing():
    """A head that starts at zero is one step away from a network all of which is trained."""
    calls = 0

    def counting(model, batch):
        nonlocal calls
        calls += 1
        return cross_entropy(model, batch)

    model = net(4)
    silent = [name for name, p in model.named_parameters() if not name.startswith("4")]
    assert stuck(model, counting, [BATCH] * 8, silent) == Stuck()
    assert calls == 2


def test_the_check_up_does_not_promise_that_they_train():
    report = eq.checkup(lambda: net(2, 4), BATCH, loss_fn="cross-entropy")
    assert report.verdict.trainability is None
    assert report.verdict.severity == "critical"
    assert "2.weight" in report.verdict.details
    with pytest.raises(ValueError, match=r"Zero at the start, .*: 2.weight, 4.weight"):
        eq.assert_trainable(lambda: net(2, 4), BATCH, loss_fn="cross-entropy")
    assert eq.checkup(lambda: net(4), BATCH, loss_fn="cross-entropy").verdict.trainability


def test_nor_that_dead_units_do():
    report = eq.checkup(lambda: biased(-100.0, -100.0), BATCH, loss_fn="cross-entropy")
    assert report.verdict.trainability is None
    assert report.verdict.severity == "critical"
    with pytest.raises(ValueError, match=r"the gradient is zero at 0.weight, 2.weight,"):
        eq.assert_trainable(lambda: biased(0.0, -100.0), BATCH, loss_fn="cross-entropy")


class Density(nn.Module):
    """It is zero for all samples, or for none, by the bias that was drawn."""

    def __init__(self, bias=None):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 1)
        nn.init.constant_(self.last.bias, bias or 4 * (torch.rand(()) > 0.5) - 2)

    def forward(self, x):
        return self.last(self.first(x).tanh() / 8).relu()


@pytest.mark.parametrize(("bias", "expected"), [(None, "4 of 5 initialisations"), (-2.0, "")])
def test_units_that_are_dead_in_some_initialisations(bias, expected):
    """And not in others, which is told apart from those that are dead in all."""
    found = eq.checkup(lambda: Density(bias), (BATCH[0], torch.ones(16, 1)), seeds=5, batches=1)
    words = f" in {expected}" if expected else ""
    never = "never trains" if expected else "will never train"
    assert found.verdict.sentence == f"Most of it {never}{words}"
    title = next(one.title for one in found.findings if one.severity == "critical")
    assert title.endswith(f"whatever is trained,{words}" if expected else "whatever is trained")


def test_what_cancels_waits_for_no_other_weight():
    """The bias of a user, in a difference of two of its scores."""

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Embedding(16, 8), nn.Embedding(9, 8)
            self.bias = nn.Embedding(16, 1)
            nn.init.zeros_(self.bias.weight)

        def forward(self, user, item):
            return (self.user(user) * self.item(item)).sum(1) + self.bias(user)[:, 0]

    def ranking(model, batch):
        user, better, worse = batch
        return -nn.functional.logsigmoid(model(user, better) - model(user, worse)).mean()

    batch = torch.arange(16), torch.arange(16) % 9, (torch.arange(16) + 1) % 9
    model = Scores()
    before = fingerprint(model)
    assert not stuck(model, ranking, [batch])
    assert not differences(before, fingerprint(model))
