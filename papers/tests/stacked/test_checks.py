"""What cannot be stacked is refused with its name; with method "auto" it trains one by one."""

import copy
from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from equipoise.models import mlp
from equipoise.training import cross_entropy, train
from equipoise_papers.stacked.train import train_many

K, B, FEATURES, CLASSES = 3, 4, 5, 3


def dense():
    return mlp(FEATURES, CLASSES, depth=1, width=8)


def models_of(build=dense, members=K):
    return [build() for _ in range(members)]


def batches_of(steps=2):
    return [(torch.randn(K, B, FEATURES), torch.randint(CLASSES, (K, B))) for _ in range(steps)]


def run(models=None, batches=None, loss_fn=cross_entropy, rates=(0.1,) * K, method="stacked"):
    models = models_of() if models is None else models
    batches = batches_of() if batches is None else batches
    return train_many(models, batches, loss_fn, SGD, rates, method=method)


class TestInputs:
    def test_no_models(self):
        with pytest.raises(ValueError, match="at least one model, got none"):
            run(models=[], rates=())

    def test_rates(self):
        with pytest.raises(ValueError, match="one rate per model; got 2 for 3"):
            run(rates=(0.1, 0.2))

    def test_method(self):
        with pytest.raises(ValueError, match="one of auto, stacked, one by one; got 'fast'"):
            run(method="fast")

    def test_nothing_to_train(self):
        with pytest.raises(ValueError, match="parameters to train; these have none"):
            run(models=[nn.ReLU() for _ in range(K)])

    @pytest.mark.parametrize("method", ["auto", "stacked", "one by one"])
    def test_architectures(self, method):
        models = [*models_of(members=2), mlp(FEATURES, CLASSES, depth=1, width=9)]
        with pytest.raises(ValueError, match=r"'linear1.weight' is \(8, 5\) .* and \(9, 5\)"):
            run(models, method=method)

    def test_types(self):
        with pytest.raises(ValueError, match=r"float32 on cpu in model 0 and .* torch.float64"):
            run([*models_of(members=2), dense().double()])

    def test_shared_weights(self):
        first, second, third = models_of()
        third.head = first.head
        with pytest.raises(ValueError, match=r"models 0 and 2 share 'head.weight'"):
            run([first, second, third])

    @pytest.mark.parametrize(
        ("inputs", "targets"),
        [((2, B, FEATURES), (2, B)), ((K, B, FEATURES), (K, 3)), ((K,), (K,))],
    )
    def test_batches(self, inputs, targets):
        with pytest.raises(ValueError, match=r"for 3 models must have inputs \[3, B, ...\]"):
            run(batches=[(torch.zeros(inputs), torch.zeros(targets, dtype=torch.long))])

    def test_batches_of_something_else(self):
        with pytest.raises(ValueError, match=r"two tensors, \(inputs, targets\).*got Tensor"):
            run(batches=[torch.zeros(K, B, FEATURES)])

    def test_wrong_classes_have_the_same_message_as_alone(self):
        batches = [(torch.zeros(K, B, FEATURES), torch.full((K, B), CLASSES))]
        with pytest.raises(ValueError, match="have class 3, but the model returned only 3 logits"):
            run(batches=batches)


def renormed():
    return mlp(FEATURES, CLASSES, depth=1, width=8, norm="batch_renorm")


def four_things():
    return mlp(FEATURES, CLASSES, depth=1, width=8, norm="four_things")


class Replacing(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CLASSES, FEATURES))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen = self.seen + 1
        return x @ self.weight.T


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return self.linear(x) + torch.randn(CLASSES, generator=self.generator)


class Branching(nn.Linear):
    def __init__(self):
        super().__init__(FEATURES, CLASSES)

    def forward(self, x):
        return super().forward(x) if float(x.sum()) > 0 else -super().forward(x)


class Listing(nn.Linear):
    def __init__(self):
        super().__init__(FEATURES, CLASSES)
        self.scales = [torch.ones(2), torch.ones(3)]


class Ordered(nn.Module):
    def __init__(self, names):
        super().__init__()
        for name in names:
            setattr(self, name, nn.Linear(FEATURES, FEATURES))

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def chain_of(turned):
    parts = [("linear", nn.Linear(FEATURES, CLASSES)), ("tanh", nn.Tanh())]
    return nn.Sequential(OrderedDict(parts[::-1] if turned else parts))


def tied(*order):
    layers = [nn.Linear(FEATURES, FEATURES) for _ in range(2)]
    return nn.Sequential(*(layers[k] for k in order))


def hooked(members=K):
    models = models_of(members=members)
    models[1].norm1.register_forward_hook(lambda *_: None)
    return models


def averaging(members=K):
    models = [
        nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.BatchNorm1d(CLASSES, momentum=None))
        for _ in range(members)
    ]
    models[2][1].num_batches_tracked += 5
    return models


def ending_in(*activations):
    return [nn.Sequential(nn.Linear(FEATURES, CLASSES), *of_one) for of_one in activations]


UNSTACKABLE = {
    "mode": (lambda: [*models_of(members=2), dense().eval()], "has another training"),
    "setting": (lambda: ending_in(*[[nn.Dropout(k / 4)] for k in range(K)]), "another p in"),
    "class": (
        lambda: ending_in([nn.ReLU()], [nn.ReLU()], [nn.Tanh()]),
        r"'1' \(ReLU\) of model 0 is a Tanh in model 2",
    ),
    "modules": (
        lambda: ending_in([], [], [nn.ReLU()]),
        "module '1' is in only one of model 0 and model 2",
    ),
    "order": (
        lambda: [Ordered("ab"), Ordered("ba"), Ordered("ab")],
        "'b' of model 1 stands in the place of 'a' of model 0",
    ),
    "order in a chain": (
        lambda: [chain_of(k == 1) for k in range(K)],
        "'tanh' of model 1 stands in the place of 'linear' of model 0",
    ),
    "sharing": (
        lambda: [tied(0, 1, 0), tied(0, 1, 1), tied(0, 1, 0)],
        "'2' is the same as '0' in model 0, and as '1' in model 1",
    ),
    "tensors in a list": (lambda: models_of(Listing), "Listing has another scales in model 1"),
    "hooks": (hooked, r"'norm1' \(BatchNorm1d\) of model 1 has hooks"),
    "counts": (averaging, "seen different numbers of batches"),
    "in place": (lambda: models_of(renormed), r"'norm1' \(BatchRenorm1d\) cannot be mapped"),
    "four things": (
        lambda: models_of(four_things),
        r"'norm1' \(FourThingsBatchNorm1d\) cannot be mapped",
    ),
    "replaced": (lambda: models_of(Replacing), "replaces its 'seen'"),
    "generator": (lambda: models_of(Drawing), "Drawing of model 0 draws from a generator"),
    "branch": (lambda: models_of(Branching), "Branching cannot be"),
}


@pytest.mark.parametrize("case", UNSTACKABLE)
def test_unstackable_models_are_refused(case):
    build, message = UNSTACKABLE[case]
    models = build()
    before = copy.deepcopy([model.state_dict() for model in models])
    with pytest.raises(ValueError, match=message):
        run(models)
    assert_equal_states([model.state_dict() for model in models], before)


@pytest.mark.parametrize("case", [case for case in UNSTACKABLE if case != "generator"])
def test_unstackable_models_train_one_by_one(case):
    models, batches = UNSTACKABLE[case][0](), batches_of(steps=3)
    twins = copy.deepcopy(models)
    torch.manual_seed(1)
    histories = run(models, batches, method="auto")
    torch.manual_seed(1)
    again = run(twins, batches, method="one by one")
    assert [history.losses for history in histories] == [history.losses for history in again]
    assert_equal_states(*([m.state_dict() for m in many] for many in (models, twins)))


def assert_equal_states(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def with_own_targets(model, batch):
    with torch.no_grad():
        targets = model(batch[0]).argmax(1)
    return F.cross_entropy(model(batch[0]), targets)


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (
            lambda m, b: cross_entropy(m, b) + m.head.weight.square().sum(),
            "uses the model's 'head'",
        ),
        (
            lambda m, b: cross_entropy(m, (b[0] + 1, b[1])),
            "something other than the batch's inputs",
        ),
        (
            lambda m, b: cross_entropy(m, b) + m(b[0]).square().mean(),
            "calls the model more than once",
        ),
        (with_own_targets, "calls the model without gradients"),
        (
            lambda m, b: F.cross_entropy(m(b[0]).clamp_(-1, 1), b[1]),
            "the first step of the stack fails: .*inplace",
        ),
    ],
    ids=["penalty", "other inputs", "twice", "no gradients", "in place"],
)
def test_losses_that_do_more_with_the_model(loss_fn, message):
    with pytest.raises(ValueError, match=message):
        run(loss_fn=loss_fn)
    models, batches = models_of(), batches_of()
    twin = copy.deepcopy(models[2])
    histories = run(models, batches, loss_fn, method="auto")
    own = train(twin, [(x[2], y[2]) for x, y in batches], loss_fn, SGD(twin.parameters(), 0.1))
    assert histories[2].losses == own.losses
    assert_equal_states([models[2].state_dict()], [twin.state_dict()])


@dataclass
class Smoothed:
    """A loss that has no hash."""

    smoothing: float

    def __call__(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=self.smoothing)


def test_losses_need_no_hash():
    models, batches = models_of(), batches_of()
    twins = copy.deepcopy(models)
    histories = run(models, batches, Smoothed(0.1))
    again = run(twins, batches, Smoothed(0.1), method="one by one")
    for history, own in zip(histories, again, strict=True):
        assert history.losses == pytest.approx(own.losses, abs=1e-5)


def test_outputs_that_are_no_tensors_are_trained_one_by_one():
    def build():
        pool = nn.MaxPool1d(2, return_indices=True)
        return nn.Sequential(nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, CLASSES, 2), pool)

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0])[0].mean(2), batch[1])

    with pytest.raises(ValueError, match=r"'2' \(MaxPool1d\) cannot be .* it returns tuple"):
        run(models_of(build), loss_fn=loss_fn)
    histories = run(models_of(build), loss_fn=loss_fn, method="auto")
    assert all(len(history.losses) == 2 for history in histories)


def test_autocast_in_the_loss_is_refused():
    def loss_fn(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cross_entropy(model, batch)

    with pytest.raises(ValueError, match="under autocast"):
        run(loss_fn=loss_fn)


def test_a_loss_per_sample_is_refused():
    with pytest.raises(ValueError, match=r"must return a scalar, got shape \(4,\)"):
        run(loss_fn=lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none"))
