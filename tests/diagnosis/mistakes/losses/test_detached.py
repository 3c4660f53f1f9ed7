"""Terms of a loss that hand no gradient back, though weights have made them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.losses.detached import of_detached
from equipoise.records import wording
from support.traced_passes import found_by, traced_pass

GENERATOR = torch.Generator().manual_seed(0)
BATCH = (torch.randn(16, 6, generator=GENERATOR), torch.arange(16) % 4)
LOST = [("warning", "A part of the loss has no gradient")]


def found(loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    return found_by(of_detached, model, BATCH, loss)


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def slope(model, batch, create_graph):
    """Squared length of the derivative by the input, as in WGAN-GP."""
    x = batch[0].clone().requires_grad_()
    options = {"create_graph": create_graph, "retain_graph": True}
    (gradient,) = torch.autograd.grad(model(x).sum(), x, **options)
    return (gradient.norm(dim=1) - 1).square().mean()


def consistency(model, batch):
    return F.mse_loss(model(batch[0] + 0.1), model(batch[0]))


def overlap(scores, target):
    hot, wanted = F.one_hot(scores.argmax(1), 4).float(), F.one_hot(target, 4).float()
    return 1 - 2 * (hot * wanted).sum() / (hot.sum() + wanted.sum())


def without_gradients(model, batch):
    with torch.no_grad():
        return consistency(model, batch)


def decay(model, *, data):
    return sum((p.data if data else p).square().sum() for p in model.parameters())


TERMS = {
    "a derivative": (lambda m, b: slope(m, b, True), lambda m, b: slope(m, b, False)),
    "detached": (consistency, lambda m, b: consistency(m, b).detach()),
    "no_grad": (consistency, without_gradients),
    "weights": (lambda m, b: decay(m, data=False), lambda m, b: decay(m, data=True)),
    "argmax": (
        lambda m, b: 1 - m(b[0]).softmax(1).gather(1, b[1][:, None]).mean(),
        lambda m, b: overlap(m(b[0]), b[1]),
    ),
}
SUMS = [
    lambda loss, term: loss + 0.1 * term,
    lambda loss, term: torch.stack([loss, term]).sum(),
    lambda loss, term: (loss + term / 2) / 3,
]


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("joined", SUMS)
def test_a_term_without_a_gradient_is_told_and_with_one_is_not(name, joined):
    whole, lost = TERMS[name]
    assert found(lambda m, b: joined(cross_entropy(m, b), whole(m, b))) == []
    assert found(lambda m, b: joined(cross_entropy(m, b), lost(m, b))) == LOST


def test_the_part_is_told_as_it_counts():
    """With its weight, as a part of the loss."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4)

    def loss(model, batch):
        return cross_entropy(model, batch) + 0.1 * model.weight.detach().square().sum()

    (finding,) = of_detached(traced_pass(model, BATCH, loss))
    part = 0.1 * float(model.weight.detach().square().sum())
    assert f"does not lower {wording.number(part)} of the loss" in finding.detail
    assert "ends at detach" in finding.detail


def weighted(model, batch):
    first, second = cross_entropy(model, batch), consistency(model, batch)
    return first + (first / second).detach() * second


def value_of_another(model, batch):
    first, second = cross_entropy(model, batch), consistency(model, batch)
    return first + (second - first).detach()


def safe_logarithm(model, batch):
    scores = model(batch[0]).flatten()
    most = scores.max().detach()
    return most + (scores - most).exp().sum().log() - scores.mean()


def own_teacher(model, batch):
    target = model(batch[0]).softmax(1).detach()
    entropy = -(target * target.log()).sum(1).mean()
    scores = model(batch[0] + 0.1).log_softmax(1)
    return cross_entropy(model, batch) - entropy - (target * scores).sum(1).mean()


def shifted_target(model, batch):
    return (model(batch[0]) - model(batch[0] + 0.1).detach()).square().mean()


def with_numbers(model, batch):
    return cross_entropy(model, batch) + batch[0].square().mean() + 0.5


@pytest.mark.parametrize(
    "loss",
    [weighted, value_of_another, safe_logarithm, own_teacher, shifted_target, with_numbers],
)
def test_what_is_detached_on_purpose(loss):
    """Weights and targets, values of another term, what another term takes too, and constants."""
    assert found(loss) == []
