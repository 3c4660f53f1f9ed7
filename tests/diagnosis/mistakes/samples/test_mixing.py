"""Outputs that depend on other samples are found, with the layer where it happens."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.samples.mixing import of_mixing
from equipoise.instrument.recording.tracer import trace
from support.model_state import left_alone
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(32, 10, 16, generator=GENERATOR)
BATCH = X, torch.arange(32) % 5


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


class Net(nn.Module):
    """A layer for sequences, or any operation, and a head."""

    def __init__(self, layer=None, operation=lambda x: x):
        super().__init__()
        self.layer, self.operation, self.head = layer, operation, nn.Linear(16, 5)

    def forward(self, x):
        if self.layer is not None:
            x = self.layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.head(self.operation(x).mean(1))


def encoder(batch_first):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def recurrent(kind, *, batch_first, two_ways=False):
    return kind(16, 8 if two_ways else 16, batch_first=batch_first, bidirectional=two_ways)


def rearranged(x):
    """Numbers of one sample for those of another."""
    return x.transpose(0, 1).reshape(x.shape)


LEGITIMATE = {
    "attention": Net(encoder(batch_first=True)),
    "lstm": Net(recurrent(nn.LSTM, batch_first=True)),
    "two ways": Net(recurrent(nn.GRU, batch_first=True, two_ways=True)),
    "dropout": Net(nn.Dropout(0.5)),
    "noise": Net(operation=lambda x: x + torch.randn_like(x)),
    "batch norm": nn.Sequential(nn.Flatten(), nn.Linear(160, 5), nn.BatchNorm1d(5)),
    "statistics of the batch": nn.Sequential(
        nn.Flatten(), nn.Linear(160, 5), nn.BatchNorm1d(5, track_running_stats=False)
    ),
}
MIXING = {
    "attention": (Net(encoder(batch_first=False)), "'layer.layers.0.self_attn' (Multi"),
    "lstm": (Net(recurrent(nn.LSTM, batch_first=False)), "'layer' (LSTM), which takes axis 0"),
    "gru": (Net(recurrent(nn.GRU, batch_first=False, two_ways=True)), "in 'layer' (GRU)"),
    "mean": (Net(operation=lambda x: x - x.mean(0)), "before 'head' (Linear)"),
    "softmax": (Net(operation=lambda x: x.softmax(0)), "before 'head' (Linear)"),
    "reshape": (Net(operation=rearranged), "before 'head' (Linear)"),
    "at the end": (
        nn.Sequential(nn.Flatten(), nn.Linear(160, 5), nn.Softmax(0)),
        "in '2' (Softmax)",
    ),
}


@pytest.mark.parametrize("name", LEGITIMATE)
def test_samples_that_are_apart(name):
    assert of_mixing(traced_pass(LEGITIMATE[name], BATCH, cross_entropy)) == []


@pytest.mark.parametrize("name", MIXING)
def test_samples_that_see_each_other(name):
    model, place = MIXING[name]
    with left_alone(model):
        (finding,) = of_mixing(traced_pass(model, BATCH, cross_entropy))
    assert finding.severity == "warning"
    assert place in finding.detail
    assert ("batch_first=True" in finding.remedy) == ("axis 0 for time" in finding.detail)


def test_gradients_show_the_same():
    """The output for one sample has derivatives by the inputs of others, exactly there."""
    for models, expected in ((LEGITIMATE, False), (dict(MIXING), True)):
        for name, entry in models.items():
            if "statistics" in name:
                continue
            model = (entry[0] if isinstance(entry, tuple) else entry).eval()
            x = X.clone().requires_grad_()
            with torch.random.fork_rng():
                model(x)[16].square().sum().backward()
            others = x.grad[torch.arange(32) != 16]
            assert bool(others.any()) == expected, name


class Pairs(nn.Module):
    """Similarities of all pairs of samples, as contrastive losses compare them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(160, 5)

    def forward(self, x):
        features = self.layer(x.flatten(1))
        return features @ features.T


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("adjacency", (torch.rand(32, 32, generator=GENERATOR) < 0.2).float())
        self.layer = nn.Linear(160, 5)

    def forward(self, x):
        return self.adjacency @ self.layer(x.flatten(1))


class Edges(Graph):
    """The same graph as a list of the pairs that are neighbours."""

    def __init__(self):
        super().__init__()
        self.edges = self.adjacency.nonzero().T
        del self.adjacency

    def forward(self, x):
        start, end = self.edges
        x = self.layer(x.flatten(1))
        return torch.zeros_like(x).index_add(0, start, x[end])


class Candidates(Pairs):
    """Similarities with candidates that are right, and with such as are hard to tell from them."""

    def forward(self, x):
        features = self.layer(x.flatten(1))
        return features @ torch.cat([features, self.layer(x.flip(1).flatten(1))]).T


class Verified(Pairs):
    """Features of all pairs."""

    def forward(self, x):
        features = self.layer(x.flatten(1))
        return (features[:, None] - features).square()


def verified_loss(model, batch):
    same = (batch[1][:, None] == batch[1]).long()
    return F.cross_entropy(model(batch[0]).flatten(0, 1), same.flatten())


def quantised():
    """Whose rounding is measured on each batch, as it is to be trained with it."""
    observer = torch.ao.quantization.MovingAverageMinMaxObserver
    rounding = torch.ao.quantization.FakeQuantize(observer, quant_min=0, quant_max=255)
    return nn.Sequential(nn.Flatten(), rounding, nn.Linear(160, 5))


def fails_in_evaluation(model, batch):
    if not model.training:
        raise RuntimeError("targets are not taken in evaluation")
    return cross_entropy(model, batch)


@pytest.mark.parametrize(
    ("model", "loss", "batch"),
    [
        (Graph(), cross_entropy, BATCH),
        (Edges(), cross_entropy, BATCH),
        (Pairs(), cross_entropy, BATCH),
        (Candidates(), lambda m, b: F.cross_entropy(m(b[0]), torch.arange(len(b[0]))), BATCH),
        (Verified(), verified_loss, BATCH),
        (quantised(), cross_entropy, (torch.cat([X[:1], 9 * X[1:2], X[2:]]), BATCH[1])),
        (Net(operation=rearranged), fails_in_evaluation, BATCH),
        (Net(operation=rearranged), cross_entropy, (X[:2], BATCH[1][:2])),
        (
            Net(operation=rearranged),
            lambda model, batch: model(batch[0]).mean() + batch[2].sum(),
            (*BATCH, torch.zeros(2, 40)),
        ),
    ],
    ids=[
        "a graph",
        "its edges",
        "pairs",
        "candidates",
        "features of pairs",
        "rounding",
        "not in evaluation",
        "two samples",
        "tensors of two lengths",
    ],
)
def test_where_it_cannot_be_said_there_is_no_finding(model, loss, batch):
    assert of_mixing(traced_pass(model, batch, loss)) == []


def test_experts_that_get_other_rows_differ_by_rounding_alone():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.one, self.other = (nn.Linear(160, 5) for _ in range(3))

        def forward(self, x):
            x = x.flatten(1)
            chosen = self.gate(x)[:, 0] > 0
            out = torch.empty(len(x), 5)
            out[chosen], out[~chosen] = self.one(x[chosen]), self.other(x[~chosen])
            return out

    assert of_mixing(traced_pass(Experts(), BATCH, cross_entropy)) == []


class Routed(nn.Module):
    """The better of two experts by scores that rounding changes with the batch."""

    def __init__(self, apart, operation, rounding=1e-5):
        super().__init__()
        self.gate, self.one, self.other = nn.Linear(160, 2), nn.Linear(160, 5), nn.Linear(160, 5)
        self.operation, self.rounding = operation, rounding
        with torch.no_grad():
            self.gate.weight[1] = self.gate.weight[0] + apart * self.gate.weight[1]
            self.gate.bias.zero_()

    def forward(self, x):
        x = self.operation(x.flatten(1))
        rounding = self.rounding * x[1].sum() * torch.tensor([1.0, -1.0]).to(x.dtype)
        first = (self.gate(x) + rounding).topk(1).indices == 0
        return torch.where(first, self.one(x), self.other(x))


def test_experts_that_rounding_chooses_are_chosen_by_no_other_samples():
    nearly_tied, apart = Routed(1e-6, lambda x: x), Routed(1.0, lambda x: x - x.mean(0))
    with left_alone(nearly_tied):
        assert of_mixing(traced_pass(nearly_tied, BATCH, cross_entropy)) == []
    assert len(of_mixing(traced_pass(apart, BATCH, cross_entropy))) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_experts_that_rounding_chooses_in_half_precision(dtype):
    rounding = torch.finfo(dtype).eps / 16
    model, (x, y) = Routed(1e-6, lambda x: x, rounding).to(dtype), BATCH
    assert of_mixing(traced_pass(model, (x.to(dtype), y), cross_entropy)) == []


def test_what_fades_on_its_way_to_the_output():
    """As of attention over samples in the middle of a network whose branches go around it."""

    class Branched(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.inner, self.outer = Net(operation=lambda x: x - x.mean(0)), Net()
            self.factor = factor

        def forward(self, x):
            return self.outer(x) + self.factor * self.inner(x)

    (finding,) = of_mixing(traced_pass(Branched(1e-3), BATCH, cross_entropy))
    assert "before 'inner.head'" in finding.detail
    assert of_mixing(traced_pass(Branched(1e-7), BATCH, cross_entropy)) == []


class Steps(nn.Module):
    """A target for each step of sequences whose first axis is time."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(20, 16), nn.GRU(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.layer(self.table(x))[0]).transpose(1, 2)


def test_steps_with_targets_of_their_own_may_well_be_the_first_axis():
    steps = torch.randint(0, 20, (12, 6), generator=GENERATOR), torch.randint(0, 5, (12, 6))
    (finding,) = of_mixing(traced_pass(Steps(), steps, cross_entropy))
    assert finding.severity == "note"
    assert "If it is time, the model is right" in finding.remedy


class Unbatched(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(16, 16), nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.layer(x)[0])


class OneByOne(nn.Module):
    """Samples that are left apart by the loader."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 5)

    def forward(self, samples):
        return torch.stack([self.layer(x.cumsum(0)) for x in samples])


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (Unbatched(), (X[0], torch.arange(10) % 5)),
        (OneByOne(), ([*X[:16, 0]], torch.arange(16) % 5)),
        (
            Net(operation=rearranged),
            (X, torch.arange(32) % 5, torch.rand(32, 32)),
        ),
    ],
    ids=["one sequence", "a list of samples", "an adjacency matrix"],
)
def test_what_has_no_axis_of_samples_is_left_alone(model, batch):
    assert of_mixing(traced_pass(model, batch, cross_entropy)) == []


def with_own_generator(generator):
    def loss(model, batch):
        x = batch[0] + 0.3 * torch.randn(batch[0].shape, generator=generator)
        return F.cross_entropy(model(x), batch[1])

    return loss


def standardised_by_the_batch(model, batch):
    return F.cross_entropy(model(batch[0] - batch[0].mean(0)), batch[1])


class DrawsByData(nn.Module):
    """How many numbers are drawn depends on the data, and so do those that follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(160, 5)

    def forward(self, x):
        h = self.layer(x.flatten(1))
        torch.randn(1 + int(1000 * h.abs().sum()))
        return h + torch.randn_like(h)


class Decoding(nn.Module):
    """Does far more in evaluation than in training."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(160, 160)

    def forward(self, x):
        x = x.flatten(1)
        for _ in range(1 if self.training else 10**6):
            x = x - 1e-3 * self.layer(x)
        return x[:, :5]


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (Net(), with_own_generator(GENERATOR)),
        (Net(), standardised_by_the_batch),
        (DrawsByData(), cross_entropy),
    ],
    ids=["its own generator", "in the loss", "draws by data"],
)
def test_what_is_not_the_model_s_doing_is_no_finding(model, loss):
    assert of_mixing(traced_pass(model, BATCH, loss)) == []


def test_wrong_items_may_be_those_of_other_samples():
    """As in Bayesian personalised ranking, whose loss gives the model the items of neighbours."""

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Embedding(32, 8), nn.Embedding(50, 8)

        def forward(self, user, item):
            return (self.user(user) * self.item(item)).sum(1)

    def ranking(model, batch):
        user, item = batch
        return -F.logsigmoid(model(user, item) - model(user, item.roll(1))).mean()

    batch = torch.arange(32), torch.randint(50, (32,), generator=torch.Generator().manual_seed(0))
    assert of_mixing(traced_pass(Scores(), batch, ranking)) == []


def test_a_decoder_is_left_alone_after_its_time():
    assert of_mixing(traced_pass(Decoding(), BATCH, cross_entropy, patience=0.05)) == []


def test_neighbours_may_be_held_by_the_code():
    neighbours = (torch.rand(32, 32, generator=torch.Generator().manual_seed(0)) < 0.2).float()
    model = Net(operation=lambda x: torch.tensordot(neighbours, x, 1))
    other = trace(Net(), BATCH, cross_entropy)
    assert of_mixing(traced_pass(model, BATCH, cross_entropy, graph=other)) != []
    assert of_mixing(traced_pass(model, BATCH, cross_entropy)) == []


def test_layers_as_wide_as_the_batch_hide_nothing():
    mixing = Net(operation=lambda x: x - 3 * x.mean(0))
    wide = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), mixing)
    (finding,) = of_mixing(traced_pass(wide, BATCH, cross_entropy))
    assert "before '3.head' (Linear)" in finding.detail
