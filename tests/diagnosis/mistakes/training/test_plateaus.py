"""Weights that are too small together, so that no one of them can begin."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.training.plateaus import ENDLESS, of_plateaus
from support.model_state import left_alone
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(64, 32, generator=GENERATOR), torch.arange(64) % 4
TITLES = ["Training starts on a plateau: layers are too small together"]


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def drawn(std, depth=5, norm=None, head=None):
    """Layers of 32 units; deviations of all matrices, and of the last one."""
    torch.manual_seed(0)
    layers = []
    for _ in range(depth - 1):
        layers += [nn.Linear(32, 32), *([] if norm is None else [norm(32)]), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    matrices = [p for p in model.parameters() if p.ndim > 1]
    for p in model.parameters():
        if p.ndim > 1:
            nn.init.normal_(p, std=std)
    if head is not None:
        nn.init.normal_(matrices[-1], std=head)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return model


def found(model, loss=cross_entropy, batch=(X, Y)):
    with left_alone(model):
        findings = of_plateaus(traced_pass(model, batch, loss))
    return [one.title for one in findings]


@pytest.mark.parametrize("depth", [4, 5, 6])
def test_small_weights_in_several_layers(depth):
    assert found(drawn(0.01, depth)) == TITLES
    assert found(drawn(0.25, depth)) == []


def test_a_plateau_without_an_end():
    """Matrices have a gradient of 1e-17, which Adam divides by 1e-8."""
    model = drawn(0.01, 12)
    assert found(model) == [ENDLESS]
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(200):
        loss = cross_entropy(model, (X, X[:, :4].argmax(1)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        assert (model(X) - model(X)[:1]).abs().max() < 1e-6


def test_biases_that_move_first_end_it():
    """Matrices have a gradient of 4e-12, the biases behind them of 3e-4."""
    model = drawn(0.01, 8)
    assert found(model) == TITLES
    alone = drawn(0.01, 10)
    assert found(alone) == TITLES
    for layer in (module for module in list(alone)[:-1] if isinstance(module, nn.Linear)):
        layer.bias.requires_grad_(False)
    assert found(alone) == [ENDLESS]


def test_the_verdict_promises_nothing_then():
    found = eq.checkup(lambda: drawn(0.01, 12), (X, Y), seeds=1, batches=1)
    assert found.verdict.sentence.startswith("Not ready to train: training does not leave its")
    with pytest.raises(AssertionError, match="not ready to train"):
        eq.assert_trainable(lambda: drawn(0.01, 12), (X, Y))


def test_the_scale_of_the_loss_does_not_matter():
    for factor in (1e-2, 1e6):
        loss = lambda m, b, f=factor: f * cross_entropy(m, b)  # noqa: E731
        assert found(drawn(0.01), loss) == TITLES
        assert found(drawn(0.25), loss) == []


class Branch(nn.Module):
    """Added to its input, times a scale that starts at a number."""

    def __init__(self, scale):
        super().__init__()
        self.layer, self.scale = nn.Linear(32, 32), nn.Parameter(torch.tensor(scale))

    def forward(self, x):
        return x + self.scale * self.layer(x).relu()


class OfUnitWeights(nn.Linear):
    """Weights of variance 1, and outputs divided by the root of the width."""

    def __init__(self, width, out):
        super().__init__(width, out)
        nn.init.normal_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x):
        return F.linear(x, self.weight) / x.shape[1] ** 0.5 + self.bias


HEALTHY = {
    "a head of zeros": lambda: drawn(0.25, head=0.0),
    "a small head": lambda: drawn(0.25, head=1e-4),
    "batch norms": lambda: drawn(0.01, norm=nn.BatchNorm1d),
    "two layers": lambda: drawn(0.02, depth=2),
    "scales of zero": lambda: nn.Sequential(*(Branch(0.0) for _ in range(8)), nn.Linear(32, 4)),
    "small scales": lambda: nn.Sequential(*(Branch(1e-6) for _ in range(8)), nn.Linear(32, 4)),
    "unit weights": lambda: nn.Sequential(
        *(m for _ in range(4) for m in (OfUnitWeights(32, 32), nn.ReLU())), OfUnitWeights(32, 4)
    ),
    "PyTorch's weights": lambda: nn.Sequential(
        *(m for _ in range(4) for m in (nn.Linear(32, 32), nn.ReLU())), nn.Linear(32, 4)
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_neighbours_that_move_at_once(name):
    torch.manual_seed(0)
    assert found(HEALTHY[name]()) == []


def test_targets_far_away_are_no_plateau():
    """A large loss changes by a small part, as outputs have far to go."""
    loss = lambda m, b: F.mse_loss(m(b[0])[:, 0], 1e5 + b[1].float())  # noqa: E731
    assert found(drawn(0.25), loss) == []


@pytest.mark.parametrize(("std", "moves"), [(0.25, True), (0.01, False)])
def test_plain_steps_do_not_move_it(std, moves):
    """The very training that the finding foretells, at the best of three rates."""
    labels = X[:, :4].argmax(1)
    losses = []
    for rate in (0.01, 0.1, 0.5):
        model = drawn(std)
        optimizer = torch.optim.SGD(model.parameters(), rate)
        for _ in range(300):
            loss = cross_entropy(model, (X, labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert (min(losses) < 0.5) == moves
    assert moves or min(losses) > 1.3
