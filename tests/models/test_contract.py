"""The contract of every network; a newcomer joins by one line in ``MODELS``.

Networks meet a normaliser in few ways: none at all, one that makes biases superfluous, one that
needs positions, one with groups. Every network is tested with one of each, and every normaliser in
one network that has convolutions and a dense layer.
"""

import copy
import inspect
import itertools
from functools import partial

import pytest
import torch
from torch import nn

from equipoise.models import mlp, resnet18
from equipoise.models.bilinear_cnn import bilinear_cnn
from equipoise.models.cnn5 import cnn5
from equipoise.models.norms import NORMS
from equipoise.models.resnet_cifar import resnet_cifar
from equipoise.models.vgg import vgg

SIZE, CLASSES = 16, 3

# Small, with channels enough for groups.
MODELS = {
    "mlp": partial(mlp, SIZE * SIZE, CLASSES, depth=2, width=16),
    "mlp, paper": partial(mlp, SIZE * SIZE, CLASSES, depth=2, width=16, after_activation=True),
    "cnn5": partial(cnn5, CLASSES, 1, image_size=SIZE, padding="same"),
    "cnn5, before": partial(
        cnn5, CLASSES, 1, image_size=SIZE, padding="same", after_activation=False
    ),
    "resnet_cifar": partial(resnet_cifar, 8, CLASSES, 1, width=8),
    "resnet_cifar, B": partial(resnet_cifar, 8, CLASSES, 1, width=8, shortcut="B"),
    "preactivation": partial(resnet_cifar, 8, CLASSES, 1, width=8, preactivation=True),
    "preactivation, B": partial(
        resnet_cifar, 8, CLASSES, 1, width=8, preactivation=True, shortcut="B"
    ),
    "resnet18": partial(resnet18, CLASSES, 1, width=4),
    "vgg": partial(vgg, "vgg11", CLASSES, 1, width=4),
}
CASES = [
    (name, norm)
    for name, norm in itertools.product(MODELS, NORMS)
    if name == "cnn5" or norm in ("none", "batch", "instance", "group")
    # Dense layers have no positions.
    if not (name.startswith("mlp") and norm == "instance")
]
# Statistics within one sample, or over groups of its channels.
ONE_SAMPLE = ["none", "layer", "group", "four_things"]


def build(name, norm):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[name](norm=norm)


def batch(samples=8):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 1, SIZE, SIZE, generator=generator)
    return x, torch.randint(CLASSES, (samples,), generator=generator)


def inputs(name, samples=8):
    x, y = batch(samples)
    # After four halvings VGG's instance norms need more than one pixel.
    return (x.repeat(1, 1, 2, 2) if name == "vgg" else x), y


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


@pytest.mark.parametrize(("name", "norm"), CASES)
class TestEveryNormaliser:
    def test_every_parameter_has_a_gradient_and_a_few_steps_reduce_the_loss(self, name, norm):
        model, (x, y) = build(name, norm), inputs(name)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        losses = []
        for step in range(6):
            loss = loss_of(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                parameters = model.named_parameters()
                assert [n for n, p in parameters if p.grad is None or not p.grad.any()] == []
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]

    def test_evaluation_of_a_copy_with_loaded_state(self, name, norm):
        model, (x, y) = build(name, norm), inputs(name)
        loss_of(model, x, y)  # moves running statistics
        twin = MODELS[name](norm=norm)
        twin.load_state_dict(copy.deepcopy(model.state_dict()))
        with torch.no_grad():
            expected = model.eval()(x)
            assert expected.shape == (8, CLASSES)
            assert torch.equal(twin.eval()(x), expected)
            assert torch.equal(copy.deepcopy(model)(x), expected)


@pytest.mark.parametrize("norm", ONE_SAMPLE)
@pytest.mark.parametrize("name", MODELS)
def test_one_sample_is_enough(name, norm):
    model = build(name, norm)
    loss_of(model, *inputs(name, samples=1)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("norm", ["batch", "batch_renorm", "ghost"])
def test_twin_batch_statistics_need_more(norm):
    with pytest.raises(ValueError, match=r"more than 1 value per channel|one value"):
        build("mlp", norm)(inputs("mlp", samples=1)[0])


@pytest.mark.parametrize("name", ["mlp, paper", "cnn5", "preactivation", "vgg"])
def test_compiles(name):
    model, (x, _) = build(name, "group"), inputs(name)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("name", MODELS)
def test_normalisers_from_a_function(name):
    model = build(name, lambda channels: nn.GroupNorm(2, channels))
    assert sum(isinstance(m, nn.GroupNorm) for m in model.modules()) > 1
    assert {m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)} == {2}
    assert model(inputs(name)[0]).shape == (8, CLASSES)


@pytest.mark.parametrize("name", MODELS)
def test_half_precision_stays(name):
    model, (x, _) = build(name, "layer").bfloat16(), inputs(name)
    assert model(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("make", [mlp, cnn5, resnet_cifar, resnet18, vgg, bilinear_cnn])
def test_choices_are_named(make):
    """Sizes may stand in order; a call with further bare arguments would not say what they are."""
    in_order = [p for p in inspect.signature(make).parameters.values() if p.kind != p.KEYWORD_ONLY]
    assert {p.name for p in in_order} <= {"name", "depth", "in_features", "classes", "in_channels"}
