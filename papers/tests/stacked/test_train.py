"""Models that train together end as if each had trained alone, to rounding in float64."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam

from equipoise.training import (
    Evaluation,
    cross_entropy,
    evaluate,
    mean_squared_error,
    train,
)
from equipoise_papers.stacked.losses import summed_squared_error
from equipoise_papers.stacked.train import train_many
from papers_support.stacked_problems import (
    CLASSES,
    CLOSE,
    FEATURES,
    RATES,
    STEPS,
    B,
    K,
    alone,
    assert_same,
    batches_of,
    both_ways,
    convolutional,
    dense,
    stack_of,
)


@pytest.mark.parametrize(
    "norm", ["none", "batch", "ghost", "layer", "group", "l1", "l2", "linf", nn.RMSNorm]
)
def test_dense_networks(norm):
    assert_same(*both_ways(lambda: dense(norm), (FEATURES,)))


@pytest.mark.parametrize("norm", ["none", "batch", "ghost", "instance", partial(nn.GroupNorm, 2)])
def test_convolutional_networks(norm):
    assert_same(*both_ways(lambda: convolutional(norm), (2, 8, 8)))


def test_another_rate_is_another_training():
    models, together, twins, _ = both_ways(dense, (FEATURES,))
    other = alone(twins, batches_of((FEATURES,)), SGD)
    assert together[0].losses != pytest.approx(other[0].losses, abs=1e-3)
    assert not torch.allclose(models[0].head.weight, models[1].head.weight)


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1),
        lambda model, batch: 0.5 * cross_entropy(model, batch),
    ],
    ids=["own", "halved"],
)
def test_losses_of_the_user(loss_fn):
    assert_same(*both_ways(dense, (FEATURES,), loss_fn=loss_fn))


@pytest.mark.parametrize("loss_fn", [mean_squared_error, summed_squared_error])
def test_squared_errors(loss_fn):
    batches = [
        (x, torch.randn(K, B, CLASSES, dtype=torch.float64)) for x, _ in batches_of((FEATURES,))
    ]
    rates = [rate / 10 for rate in RATES]
    assert_same(*both_ways(dense, (FEATURES,), rates=rates, loss_fn=loss_fn, batches=batches))


def test_ignored_targets():
    batches = batches_of((FEATURES,))
    for _, targets in batches:
        targets[0, :2] = -100
        targets[1, 3] = -100
    assert_same(*both_ways(dense, (FEATURES,), batches=batches))


def test_batches_may_shrink():
    batches = [*batches_of((FEATURES,), steps=3), *batches_of((FEATURES,), steps=1, batch=2)]
    assert_same(*both_ways(dense, (FEATURES,), batches=batches))


class Residual(nn.Module):
    """Not a chain of layers, so it is mapped over the models as a whole."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.BatchNorm1d(FEATURES)

    def forward(self, x):
        return x + torch.relu(self.norm(self.inner(x)))


@pytest.mark.parametrize("inside", [False, True], ids=["whole", "inside a chain"])
def test_models_that_are_no_chains(inside):
    build = (
        (lambda: nn.Sequential(Residual(), nn.Linear(FEATURES, CLASSES))) if inside else Residual
    )
    assert_same(*both_ways(build, (FEATURES,)))


def test_layers_on_sequences():
    def build():
        return nn.Sequential(
            nn.Linear(FEATURES, 6),
            nn.BatchNorm1d(7),
            nn.LayerNorm((7, 6), bias=False),
            nn.Linear(6, 4, bias=False),
            nn.ReLU(inplace=True),
            nn.Conv1d(7, 4, 2, groups=1),
            nn.Flatten(),
            nn.Linear(12, CLASSES),
        )

    assert_same(*both_ways(build, (7, FEATURES)))


def test_shared_and_frozen_parameters():
    def build():
        first, second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        second.weight = first.weight
        first.bias.requires_grad_(False)
        return nn.Sequential(first, nn.Tanh(), second, nn.BatchNorm1d(FEATURES, momentum=None))

    models, *others = both_ways(build, (FEATURES,))
    assert_same(models, *others)
    assert all(model[0].weight is model[2].weight for model in models)


def test_evaluation_mode_is_kept():
    def build():
        model = dense()
        model.norm1.eval()
        return model

    models, *others = both_ways(build, (FEATURES,))
    assert_same(models, *others)
    assert int(models[0].norm1.num_batches_tracked) == 0
    assert int(models[0].norm2.num_batches_tracked) == STEPS


@pytest.mark.parametrize(
    "optimizer", [SGD, partial(SGD, momentum=0.5), Adam, partial(SGD, weight_decay=0.01)]
)
def test_models_that_diverge_leave_the_others_alone(optimizer):
    batches = batches_of((FEATURES,))
    batches[7][0][0].fill_(torch.inf)
    batches[12][0][2].fill_(torch.nan)
    models, together, *others = both_ways(dense, (FEATURES,), optimizer, batches=batches)
    assert_same(models, together, *others)
    assert [history.diverged_at for history in together] == [7, None, 12, None]
    assert [len(history.losses) for history in together] == [8, 20, 13, 20]
    assert all(parameter.isfinite().all() for parameter in models[0].parameters())


@pytest.mark.parametrize("method", ["stacked", "one by one"])
def test_training_ends_when_all_have_diverged(method):
    batches = iter(batches_of((FEATURES,), steps=9))
    rates = [1e200] * K
    build = partial(dense, "none", activation=nn.Identity)
    histories = train_many(stack_of(build), batches, cross_entropy, SGD, rates, method=method)
    assert all(history.diverged_at == len(history.losses) - 1 < 8 for history in histories)
    assert next(batches, None) is not None


@pytest.mark.parametrize("method", ["stacked", "one by one"])
class TestBothMethods:
    def test_evaluations_see_the_present_weights(self, method):
        models, batches = stack_of(dense), batches_of((FEATURES,), steps=4)
        inputs, targets = batches[0]

        def look(model, step):
            member = next(k for k, other in enumerate(models) if other is model)
            x, y = inputs[member], targets[member]
            return evaluate(model.train(), x, y, cross_entropy, step=step)

        twins = copy.deepcopy(models)
        histories = train_many(
            models, batches, cross_entropy, SGD, RATES, evaluate_at=(0, 2, 4), evaluate=look,
            method=method,
        )  # fmt: skip
        for member, (history, twin) in enumerate(zip(histories, twins, strict=True)):
            x, y = inputs[member], targets[member]
            own = train(
                twin,
                [(a[member], b[member]) for a, b in batches],
                cross_entropy,
                SGD(twin.parameters(), RATES[member]),
                evaluate=lambda step, x=x, y=y, twin=twin: evaluate(
                    twin, x, y, cross_entropy, step=step
                ),
                evaluate_at=(0, 2, 4),
            )
            assert [e.step for e in history.evaluations] == [0, 2, 4]
            for found, expected in zip(history.evaluations, own.evaluations, strict=True):
                assert found.loss == pytest.approx(expected.loss, abs=CLOSE)
                assert found.accuracy == expected.accuracy

    def test_diverged_models_are_not_evaluated(self, method):
        batches = batches_of((FEATURES,), steps=4)
        batches[1][0][2].fill_(torch.nan)
        histories = train_many(
            stack_of(dense), batches, cross_entropy, SGD, RATES, method=method,
            evaluate_at=(1, 2), evaluate=lambda model, step: Evaluation(step, 0.0, None),
        )  # fmt: skip
        assert [len(history.evaluations) for history in histories] == [2, 2, 1, 2]

    def test_random_state_memory_and_gradients_are_as_before(self, method):
        models = stack_of(dense)
        batches = batches_of((FEATURES,), steps=2)
        state = torch.get_rng_state()
        storages = [p.data_ptr() for model in models for p in model.parameters()]
        train_many(models, batches, cross_entropy, SGD, RATES, method=method)
        assert torch.equal(torch.get_rng_state(), state)
        assert [p.data_ptr() for model in models for p in model.parameters()] == storages
        assert all(p.grad is None for model in models for p in model.parameters())

    def test_an_interrupted_training_leaves_the_weights_of_the_last_step(self, method):
        models, batches = stack_of(dense), batches_of((FEATURES,), steps=3)
        twins = copy.deepcopy(models)

        def broken():
            yield from batches
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_many(models, broken(), cross_entropy, SGD, RATES, method=method)
        alone(twins, batches, SGD)
        for model, twin in zip(models, twins, strict=True):
            torch.testing.assert_close(model.state_dict(), twin.state_dict())
            assert model.head.weight.untyped_storage().nbytes() == 8 * model.head.weight.numel()

    def test_without_batches_there_are_no_steps(self, method):
        histories = train_many(stack_of(dense), [], cross_entropy, SGD, RATES, method=method)
        assert [history.losses for history in histories] == [()] * K


def test_noise_is_drawn_for_every_model():
    models = stack_of(lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Dropout()))
    for model in models:
        model.load_state_dict(models[0].state_dict())
    x, y = batches_of((FEATURES,), steps=1, members=1)[0]
    batch = (x.expand(K, -1, -1), y.expand(K, -1))
    histories = train_many(models, [batch], cross_entropy, SGD, RATES, method="stacked")
    assert len({history.losses for history in histories}) == K
