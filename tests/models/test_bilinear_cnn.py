from functools import partial

import pytest
import torch
from torch import nn

from equipoise import pooling
from equipoise.models import bilinear_cnn
from equipoise.pooling.heads.bilinear import BilinearPool
from equipoise.pooling.heads.compact import CompactBilinearPool
from equipoise.pooling.heads.isqrt import ISQRTPool
from equipoise.pooling.heads.run import RUNPool

HEADS = {
    "bilinear": BilinearPool,
    "RUN": RUNPool,
    "RUN mean": partial(RUNPool, start="mean", num_steps=1),
    "iSQRT": ISQRTPool,
    "power": pooling.MatrixPowerPool,
    "log": pooling.LogEuclideanPool,
    "sketch": partial(CompactBilinearPool, size=64),
    "reduction": partial(RUNPool, reduction=4),
}
every = pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
SMALL = {"filters": (8, 8, 8), "classes": 3}


def batch(samples=8):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 1, 12, 12, generator=generator)
    return x, torch.randint(3, (samples,), generator=generator)


@every
class TestEveryHead:
    def test_every_parameter_has_a_gradient_and_a_few_steps_reduce_the_loss(self, head):
        model, (x, y) = bilinear_cnn(pooling=head, **SMALL), batch()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for step in range(6):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                parameters = model.named_parameters()
                assert [n for n, p in parameters if p.grad is None or not p.grad.any()] == []
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]

    def test_a_checkpoint_is_the_model(self, head):
        model, (x, _) = bilinear_cnn(pooling=head, **SMALL), batch()
        twin = bilinear_cnn(pooling=partial(head, seed=5), **SMALL)
        twin.load_state_dict(model.state_dict())
        with torch.no_grad():
            assert torch.equal(twin.eval()(x), model.eval()(x))


def test_layers_in_order():
    assert [name for name, _ in bilinear_cnn().named_children()] == [
        *("conv1", "norm1", "act1", "pool1"),
        *("conv2", "norm2", "act2"),
        *("conv3", "norm3", "act3"),
        *("pooling", "head"),
    ]


def test_parameters_by_hand():
    """9 · (1 · 32 + 32 · 64 + 64 · 64) weights, two numbers a norm's channel, 2080 inputs."""
    expected = 9 * (32 + 32 * 64 + 64 * 64) + 2 * (32 + 64 + 64) + 10 * (2080 + 1)
    assert sum(p.numel() for p in bilinear_cnn().parameters()) == expected


def test_maps_of_28_by_28_images():
    model = bilinear_cnn()
    x = torch.zeros(1, 1, 28, 28)
    for name, layer in model.named_children():
        if name == "pooling":
            break
        x = layer(x)
    assert x.shape == (1, 64, 14, 14)


def test_weights_come_from_the_generator_and_the_heads_from_its_seed():
    def made(seed):
        generator = torch.Generator().manual_seed(seed)
        return bilinear_cnn(pooling=partial(RUNPool, reduction=4), generator=generator)

    one, twin, other = made(1), made(1), made(2)
    assert torch.equal(one.conv1.weight, twin.conv1.weight)
    assert not torch.equal(one.conv1.weight, other.conv1.weight)
    reductions = [model.pooling.reduction.conv.weight for model in (one, other)]
    assert torch.equal(*reductions)


@pytest.mark.parametrize("norm", ["none", "group", nn.BatchNorm2d])
def test_norms(norm):
    model = bilinear_cnn(norm=norm, **SMALL)
    assert (model.conv1.bias is None) == (norm is nn.BatchNorm2d)
    assert model(batch()[0]).shape == (8, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 0}, "classes must be"),
        ({"in_channels": 0}, "in_channels must be"),
        ({"filters": ()}, "filters must name at least one"),
        ({"filters": (8, 0)}, r"filters\[1\] must be"),
        ({"norm": "batches"}, "norm must be one of"),
        ({"pooling": nn.BatchNorm2d}, "pooling must make a module with output_dim"),
    ],
    ids=["classes", "channels", "no filters", "filters", "norm", "pooling"],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        bilinear_cnn(**arguments)
