"""Outputs that do not depend on the input, whatever the weights are."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.forgotten import Forgotten, conclude_forgotten, forgotten
from equipoise.instrument.recording.tracer import trace

X = torch.randn(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(32) % 10


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


class Attention(nn.Module):
    """A class token over patches, which takes axis 0 for samples or for positions."""

    def __init__(self, batch_first, dropout=0.1):
        super().__init__()
        self.patches = nn.Conv2d(1, 16, 2, 2)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=batch_first)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.head(self.layer(x)[:, 0])


class Pooled(nn.Module):
    """A global mean of what is normalised over positions, or after a nonlinearity as well."""

    def __init__(self, activation):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3), nn.InstanceNorm2d(16), activation)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Noise(nn.Module):
    """Gives the same for all samples but for noise: of that nothing is said."""

    def forward(self, x):
        return 0 * x.flatten(1)[:, :10] + torch.randn(len(x), 10)


class Spikes(torch.autograd.Function):
    """A threshold, with the derivative of a smooth one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / (1 + ctx.saved_tensors[0].abs()) ** 2


class Spiking(nn.Module):
    """Neurons that do not spike as yet."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        return self.last(Spikes.apply(self.first(x.flatten(1)) - 5))


def shrinking(gain):
    """Differences fade from layer to layer: other weights would keep them."""
    layers = [nn.Linear(64, 64, bias=False) for _ in range(60)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=gain / 8)
    return flat(*(part for one in layers for part in (one, nn.Tanh())), nn.Linear(64, 10))


def counts(seed):
    """Outputs of a last ReLU, which a drawn bias may silence."""
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 16), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(16, 16), nn.ReLU()]
    model = flat(*layers, nn.Linear(16, 1), nn.ReLU())
    nn.init.constant_(model[-2].bias, 0.5)
    return model


def small_head(factor, dtype=torch.float32):
    model = flat(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    with torch.no_grad():
        model[-1].weight.mul_(factor)
    return model.to(dtype)


def flat(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


def zero_head():
    model = flat(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    nn.init.zeros_(model[-1].weight)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: Attention(batch_first=False),
        lambda: Attention(batch_first=False, dropout=0.0),
        lambda: Pooled(nn.Identity()),
        lambda: flat(nn.Linear(64, 1), nn.Softmax(1), nn.Linear(1, 10)),
    ],
)
def test_the_same_for_all_samples(make):
    torch.manual_seed(0)
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    found = forgotten(model, cross_entropy, (X, Y))
    assert found.samples == 32
    (finding,) = conclude_forgotten(found)
    assert finding.severity == "critical"
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Attention(batch_first=True),
        lambda: Pooled(nn.ReLU()),
        zero_head,
        Noise,
        lambda: flat(
            *(part for _ in range(24) for part in (nn.Linear(64, 64), nn.BatchNorm1d(64)))
        ),
        lambda: flat(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.95), nn.Linear(32, 10)),
        lambda: eq.models.mlp(64, 10, depth=30, width=64, norm="none"),
        lambda: shrinking(0.4),
        lambda: shrinking(0.9),
    ],
)
def test_what_differs_or_will(make):
    torch.manual_seed(0)
    assert not forgotten(make(), cross_entropy, (X, Y))


def test_outputs_that_cannot_be_negative():
    for seed in range(24):
        assert not forgotten(counts(seed), lambda m, b: m(b[0]).square().mean(), (X, Y))


@pytest.mark.parametrize("factor", [1.0, 1e-4, 1e-8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_last_layer_that_starts_small(factor, dtype):
    """Beside drawn biases its outputs are rounding, and more so in bfloat16."""
    torch.manual_seed(0)
    assert not forgotten(small_head(factor, dtype), cross_entropy, (X.to(dtype), Y))


def test_autocast_rounds_too():
    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, batch)

    torch.manual_seed(0)
    assert not forgotten(small_head(1e-4), loss, (X, Y))


def test_a_large_mean_of_the_targets_does_not_hide_what_differs():
    model = flat(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    nn.init.constant_(model[-1].bias, 1e7)
    assert not forgotten(model, lambda m, b: m(b[0]).square().mean(), (X, Y))


def test_samples_that_do_not_differ_tell_nothing():
    model = flat(nn.Linear(64, 10))
    assert not forgotten(model, cross_entropy, (torch.ones_like(X), Y))
    assert not forgotten(model, cross_entropy, (X[:3], Y[:3]))


def test_spikes_that_surrogates_will_make():
    """Their gradients pass thresholds: trained, the loss falls from 2.30 to 0.01."""
    torch.manual_seed(0)
    model = Spiking()
    graph = trace(model, (X, Y), cross_entropy)
    assert forgotten(model, cross_entropy, (X, Y))
    assert not forgotten(model, cross_entropy, (X, Y), has_functions=graph.has_functions)
    assert eq.assert_trainable(model, (X, Y)).probability > 0.5
    assert eq.checkup(model, (X, Y)).verdict.sentence.startswith("Will probably train")


def test_it_says_where():
    torch.manual_seed(0)
    found = forgotten(Attention(batch_first=False), cross_entropy, (X, Y))
    assert found.last == "'layer' (TransformerEncoderLayer)"
    assert found.first == "'head' (Linear)"
    (finding,) = conclude_forgotten(found)
    assert finding.remedy.startswith("Pass batch_first=True")
    assert not conclude_forgotten(Forgotten())


def test_the_check_up_and_assert_trainable_say_so():
    """Trained, its loss stays at that of guessing."""

    def make():
        return Attention(batch_first=False)

    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = cross_entropy(model, (X, Y))
        loss.backward()
        optimizer.step()
    model.eval()
    assert cross_entropy(model, (X, Y)).item() > 2.25  # log 10 is 2.30
    report = eq.checkup(make, (X, Y), loss_fn=cross_entropy)
    assert report.verdict.sentence == "Will not train: its output does not depend on the input"
    assert report.verdict.trainability is None
    with pytest.raises(ValueError, match="does not depend on the input"):
        eq.assert_trainable(make, (X, Y), loss_fn=cross_entropy)
