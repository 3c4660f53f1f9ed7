"""Losses that compare what a model gives for one sample with the targets of others."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.samples.pairing import of_pairing
from support.traced_passes import found_by, traced_pass

GENERATOR = torch.Generator().manual_seed(0)
SAMPLES, STEPS = 8, 6
X = torch.randn(SAMPLES, STEPS, 5, generator=GENERATOR)
Y = torch.randint(1, 4, (SAMPLES, STEPS), generator=GENERATOR)
MIXED = ("critical", "Outputs meet the targets of other samples")


class Tagger(nn.Module):
    """Logits of four classes for every step, of [steps, samples, 4] if time comes first."""

    def __init__(self, *, time_first=False):
        super().__init__()
        torch.manual_seed(0)
        self.steps = nn.GRU(5, 8, batch_first=not time_first)
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.time_first = time_first

    def forward(self, x):
        h, _ = self.steps(x.transpose(0, 1) if self.time_first else x)
        return self.head(self.norm(h.flatten(0, 1))).view(*h.shape[:2], 4)


def found(model, loss, batch=(X, Y)):
    return found_by(of_pairing, model, batch, loss)


def flattened(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def flattened_alike(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].t().flatten())


def squared(model, batch):
    wanted = F.one_hot(batch[1], 4).float()
    return F.mse_loss(model(batch[0]).reshape(wanted.shape), wanted)


def of_ctc(model, batch):
    scores = model(batch[0]).log_softmax(-1)
    steps, samples, _ = scores.shape
    lengths = torch.full((samples,), steps), torch.full((samples,), 3)
    return F.ctc_loss(scores, batch[1], *lengths)


def shuffled(model, batch):
    order = torch.arange(SAMPLES).roll(3)
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1][order].flatten())


@pytest.mark.parametrize("time_first", [False, True])
@pytest.mark.parametrize("loss", [flattened, squared])
def test_steps_first_where_targets_have_samples_first(loss, time_first):
    assert found(Tagger(time_first=time_first), loss) == [MIXED] * time_first


@pytest.mark.parametrize("time_first", [False, True])
def test_samples_first_where_ctc_takes_steps_first(time_first):
    """As many steps as samples raise no error."""
    batch = torch.randn(8, 8, 5, generator=GENERATOR), Y[:, :3]
    assert found(Tagger(time_first=time_first), of_ctc, batch) == [MIXED] * (not time_first)


def test_targets_that_were_transposed_too():
    assert found(Tagger(time_first=True), flattened_alike) == []


def test_targets_that_alone_were_shuffled():
    assert found(Tagger(), shuffled) == [MIXED]


def mixed_up(model, batch):
    order = torch.arange(SAMPLES).roll(3)
    logits = model(0.7 * batch[0] + 0.3 * batch[0][order]).flatten(0, 1)
    ours, others = (F.cross_entropy(logits, y.flatten()) for y in (batch[1], batch[1][order]))
    return 0.7 * ours + 0.3 * others


def shuffled_together(model, batch):
    order = torch.arange(SAMPLES).roll(3)
    return flattened(model, [x[order] for x in batch])


def sorted_numbers(model, batch):
    outputs = model(batch[0])[..., 0].flatten().sort()[0]
    return F.mse_loss(outputs, batch[1].float().t().flatten().sort()[0])


@pytest.mark.parametrize("loss", [mixed_up, shuffled_together, sorted_numbers])
def test_neighbours_that_are_meant_so(loss):
    assert found(Tagger(), loss) == []


class Coded(nn.Linear):
    """All numbers but a few large ones become the same code."""

    def forward(self, x):
        h = super().forward(x)
        codes = torch.tensor([0.0, 100.0])
        rounded = codes[(h.detach()[..., None] - codes).abs().argmin(-1)]
        return (h + (rounded - h).detach()).transpose(0, 1).transpose(0, 1)


def test_codes_that_samples_share_are_theirs():
    x = X.clone()
    x[1, 0] *= 1e4
    torch.manual_seed(0)

    def reconstruction(model, batch):
        return F.mse_loss(model(batch[0]), batch[0])

    def turned(model, batch):
        return F.mse_loss(model(batch[0]), batch[0].roll(3, 0))

    assert found(Coded(5, 5), reconstruction, (x,)) == []
    assert found(Coded(5, 5), turned, (x,)) == [MIXED]


def test_nothing_is_run_again_where_nothing_was_moved():
    calls = []

    class Counted(nn.Linear):
        def forward(self, x):
            calls.append(1)
            return super().forward(x)

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    traced = traced_pass(Counted(5, 4), (X, Y), loss)
    before = len(calls)
    assert of_pairing(traced) == []
    assert len(calls) == before


class TwoHeads(Tagger):
    def forward(self, x):
        return super().forward(x), self.norm.weight.sum() * self.second(x)

    def __init__(self):
        super().__init__(time_first=True)
        self.second = nn.Linear(5, 4)


def test_one_of_two_heads():
    def loss(model, batch):
        first, second = model(batch[0])
        other = F.cross_entropy(second.flatten(0, 1), batch[1].flatten())
        return F.cross_entropy(first.flatten(0, 1), batch[1].flatten()) + other

    assert found(TwoHeads(), loss) == [MIXED]


def test_of_many_samples_some_are_enough():
    """Two traces of all take several times the memory of a training step."""
    sizes = []

    def many(model, batch):
        sizes.append(len(batch[0]))
        return flattened(model, batch)

    targets = torch.randint(1, 4, (80, STEPS), generator=GENERATOR)
    batch = torch.randn(80, STEPS, 5, generator=GENERATOR), targets
    assert found(Tagger(time_first=True), many, batch) == [MIXED]
    assert sizes[0] == 80
    assert set(sizes[1:]) == {16}


class Stateful(nn.Module):
    """A recurrent model that is given its first state, for as many samples as a batch has."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.steps, self.head = nn.GRU(5, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x, state):
        return self.head(self.steps(x, state)[0].flatten(0, 1))


@pytest.mark.parametrize(("turn", "expected"), [(torch.t, [MIXED]), (torch.Tensor.clone, [])])
def test_a_state_that_a_loss_holds_for_a_whole_batch(turn, expected):
    """Fewer samples than that fail, and all are looked at."""
    x, y = X.repeat(4, 1, 1) + torch.randn(32, 1, 1), torch.randint(4, (32, STEPS))
    state = torch.zeros(1, 32, 8)

    def loss(model, batch):
        return F.cross_entropy(model(batch[0], state), turn(batch[1]).flatten())

    assert found(Stateful(), loss, (x, y)) == expected
