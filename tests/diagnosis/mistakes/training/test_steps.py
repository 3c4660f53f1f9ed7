"""What stops a training at its first steps."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.training.steps import of_steps
from equipoise.instrument.recording.tracer import trace
from support.traced_passes import found_by, traced_pass

X, Y = torch.randn(16, 5, 6), torch.arange(16) % 3


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0])[:, -1], batch[1])


def found(model, loss=cross_entropy, x=X):
    return found_by(of_steps, model, (x, Y), loss)


class Stateful(nn.Module):
    """Goes on from the state that the last batch left."""

    def __init__(self, keep):
        super().__init__()
        self.layer, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)
        self.keep, self.state = keep, None

    def forward(self, x):
        y, state = self.layer(x, self.state)
        self.state = self.keep(state)
        return self.head(y)


class Watched(nn.Sequential):
    """Keeps what it gave, and does not use it."""

    seen = None

    def __init__(self, *layers):
        super().__init__(*layers)
        self.seen = None

    def forward(self, x):
        self.seen = super().forward(x)
        return self.seen


@pytest.mark.parametrize(
    ("keep", "fails"),
    [
        (lambda state: state, True),
        (lambda state: (state[0].detach(), state[1]), True),
        (lambda state: tuple(x.detach() for x in state), False),
        (lambda state: None, False),
    ],
)
def test_a_state_that_keeps_its_graph(keep, fails):
    expected = [("critical", "The second step fails: a state keeps its graph")] if fails else []
    assert found(Stateful(keep)) == expected
    model = Stateful(keep)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        optimizer.zero_grad()
        cross_entropy(model, (X, Y)).backward()
        optimizer.step()

    step()
    if fails:
        with pytest.raises(RuntimeError):
            step()
    else:
        step()


def test_what_is_kept_and_not_used_is_none():
    assert found(Watched(nn.Linear(6, 3))) == []
    assert found(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)))) == []


def test_models_that_keep_nothing_are_not_run():
    def refused(model, batch):
        raise AssertionError("it was run")

    model = nn.Sequential(Stateful(tuple), nn.Identity())[1:].append(nn.Linear(6, 3))
    model.shortcut = None
    graph = trace(model, (X, Y), cross_entropy)
    assert of_steps(traced_pass(model, (X, Y), refused, graph=graph)) == []


def test_gradients_that_adam_takes_for_none():
    def trained(factor):
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        target = X[..., :3].argmax(-1)[:, -1]
        for _ in range(100):
            loss = factor * F.cross_entropy(model(X)[:, -1], target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item() / factor

    for factor, expected in (
        (1e-6, []),
        (1e-12, [("critical", "Gradients are too small for Adam")]),
    ):
        loss = lambda m, b, f=factor: f * cross_entropy(m, b)  # noqa: E731
        assert found(nn.Linear(6, 3), loss) == expected
        assert (trained(factor) > 0.5) == bool(expected)


def test_weights_in_float16():
    half = nn.Linear(6, 3).half()
    assert found(half, x=X.half()) == [("warning", "Weights in float16 are trained")]
    assert found(nn.Linear(6, 3).bfloat16(), x=X.bfloat16()) == []
    optimizer = torch.optim.Adam(half.parameters(), 1e-3)
    for _ in range(3):
        (1e-4 * cross_entropy(half, (X.half(), Y))).backward()
        optimizer.step()
    assert not bool(half.weight.isfinite().all())
    frozen = nn.Sequential(nn.Linear(6, 6).half().requires_grad_(False), nn.Linear(6, 3))
    loss = lambda m, b: cross_entropy(lambda x: m[1](m[0](x).float()), b)  # noqa: E731
    assert found(frozen, loss, X.half()) == []
