import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equipoise.layers import FourThingsBatchNorm2d
from equipoise.models.resnet import BasicBlock
from equipoise.models.resnet_cifar import PadShortcut, PreactivationBlock, resnet_cifar


def parameters(model):
    return sum(p.numel() for p in model.parameters())


class TestParameterCounts:
    @pytest.mark.parametrize(
        ("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)]
    )
    @pytest.mark.parametrize("preactivation", [False, True])
    def test_as_in_table_6(self, depth, millions, preactivation):
        with torch.device("meta"):
            count = parameters(resnet_cifar(depth, preactivation=preactivation))
        assert round(count / 1e6, 1 if depth == 110 else 2) == millions

    @pytest.mark.parametrize(("depth", "count"), [(20, 269_722), (110, 1_727_962)])
    def test_exactly(self, depth, count):
        assert parameters(resnet_cifar(depth)) == count
        assert parameters(resnet_cifar(depth, preactivation=True)) == count

    def test_projections_add_to_it(self):
        """Two 1×1 convolutions, in the original form with normalisers."""
        projections = 16 * 32 + 32 * 64
        assert parameters(resnet_cifar(20, shortcut="B")) == 269_722 + projections + 2 * (32 + 64)
        pre = resnet_cifar(20, shortcut="B", preactivation=True)
        assert parameters(pre) == 269_722 + projections


@pytest.mark.parametrize("preactivation", [False, True])
@pytest.mark.parametrize("depth", [8, 20, 110])
def test_depth_counts_layers_with_weights(depth, preactivation):
    with torch.device("meta"):
        model = resnet_cifar(depth, preactivation=preactivation)
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules()) == depth


class TestNames:
    def test_original(self):
        names = list(resnet_cifar(8, norm="group").state_dict())
        blocks = [
            f"layer{stage}.0.{layer}"
            for stage in (1, 2, 3)
            for n in (1, 2)
            for layer in (f"conv{n}.weight", f"bn{n}.weight", f"bn{n}.bias")
        ]
        stem = ["conv1.weight", "bn1.weight", "bn1.bias"]
        assert names == [*stem, *blocks, "fc.weight", "fc.bias"]

    def test_preactivation(self):
        names = list(resnet_cifar(8, norm="group", preactivation=True).state_dict())
        assert names[:4] == ["conv1.weight"] + [
            f"layer1.0.{name}" for name in ("bn1.weight", "bn1.bias", "conv1.weight")
        ]
        assert names[-4:] == ["bn_last.weight", "bn_last.bias", "fc.weight", "fc.bias"]


class TestPadShortcut:
    def test_subsamples_and_appends_zeros(self):
        x = torch.arange(18.0).view(1, 2, 3, 3)
        y = PadShortcut(3, 2)(x)
        assert torch.equal(y[:, :2], x[:, :, [0, 2]][..., [0, 2]])
        assert y.shape == (1, 5, 2, 2)
        assert not y[:, 2:].any()

    @pytest.mark.parametrize("size", [7, 8])
    def test_fits_a_strided_convolution(self, size):
        x = torch.zeros(1, 4, size, size)
        assert PadShortcut(4, 2)(x).shape == nn.Conv2d(4, 8, 3, 2, padding=1)(x).shape


class TestPreactivationBlock:
    def test_it_computes_its_formula(self):
        block = PreactivationBlock(3, 6, stride=2, first=True, downsample=PadShortcut(3, 2))
        block = block.double()
        x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
        h = F.batch_norm(x, None, None, training=True).relu()
        residual = F.conv2d(h, block.conv1.weight, stride=2, padding=1)
        residual = F.batch_norm(residual, None, None, training=True).relu()
        residual = F.conv2d(residual, block.conv2.weight, padding=1)
        shortcut = torch.cat([h[:, :, ::2, ::2], torch.zeros(4, 3, 4, 4)], 1)
        torch.testing.assert_close(block(x), shortcut + residual, rtol=0, atol=1e-12)

    def test_the_identity_shortcut_is_unchanged(self):
        block = PreactivationBlock(3, 3)
        nn.init.zeros_(block.conv2.weight)
        x = torch.randn(2, 3, 4, 4)
        assert torch.equal(block(x), x)

    def test_twin_the_original_block_rectifies_it(self):
        block = BasicBlock(3, 3)
        nn.init.zeros_(block.conv2.weight)
        x = torch.randn(2, 3, 4, 4)
        assert torch.equal(block(x), x.relu())

    def test_the_first_of_a_stage_shares_its_activation(self):
        model = resnet_cifar(20, preactivation=True, width=2)
        for stage in (model.layer1, model.layer2, model.layer3):
            assert [block.first for block in stage] == [True, False, False]


class TestTheTwoFormsWithoutNormalisers:
    """With one block a stage the two forms apply the same layers in the same order."""

    def outputs(self, depth):
        original, x = resnet_cifar(depth, norm="none", width=4), torch.randn(2, 3, 8, 8)
        twin = resnet_cifar(depth, norm="none", width=4, preactivation=True)
        twin.load_state_dict(original.state_dict())
        return original.double()(x.double()), twin.double()(x.double())

    def test_are_one_function_with_one_block_a_stage(self):
        torch.testing.assert_close(*self.outputs(8), rtol=0, atol=1e-12)

    def test_twin_with_two_it_is_not(self):
        original, twin = self.outputs(14)
        assert (original - twin).abs().max() > 1e-3


def test_resolution_is_halved_twice():
    model, seen = resnet_cifar(8, width=4), []
    model.layer3.register_forward_hook(lambda *a: seen.append(tuple(a[2].shape)))
    model(torch.randn(2, 3, 30, 32))
    assert seen == [(2, 16, 8, 8)]


@pytest.mark.parametrize("preactivation", [False, True])
def test_each_activation_is_used_once(preactivation):
    model, uses = resnet_cifar(14, width=4, preactivation=preactivation), {}
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(lambda m, *_: uses.update({m: uses.get(m, 0) + 1}))
    model(torch.randn(2, 3, 8, 8))
    assert list(uses.values()) == [1] * 13


def test_groups_of_four_channels():
    grouped = resnet_cifar(8, norm="group").modules()
    assert {m.num_groups for m in grouped if isinstance(m, nn.GroupNorm)} == {4, 8, 16}
    mixed = resnet_cifar(8, norm="four_things").modules()
    assert {m.groups for m in mixed if isinstance(m, FourThingsBatchNorm2d)} == {4, 8, 16}


def test_initial_scale():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one = resnet_cifar(8).layer3[0].conv1.weight
        torch.manual_seed(0)
        small = resnet_cifar(8, init_scale=0.1).layer3[0].conv1.weight
    torch.testing.assert_close(small, 0.1 * one)


def test_without_normalisers_convolutions_have_biases():
    model = resnet_cifar(8, norm="none")
    assert all(m.bias is not None for m in model.modules() if isinstance(m, nn.Conv2d))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 18}, r"depth must be 6n \+ 2, as 20, 32, 44, 56 or 110 are, got 18"),
        ({"depth": 2}, r"depth must be 6n \+ 2"),
        ({"depth": 20.0}, "depth must be a whole number"),
        ({"classes": 0}, "classes must be"),
        ({"width": 0}, "width must be"),
        ({"shortcut": "C"}, "shortcut must be one of A, B; got 'C'"),
        ({"norm": "bn"}, "norm must be one of none, batch"),
        ({"init_scale": 0}, "init_scale must be a finite number above 0"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        resnet_cifar(**arguments)
