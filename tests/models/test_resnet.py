import pytest
import torch
from torch import nn

from equipoise.models.resnet import BasicBlock, ResNet, resnet18


@pytest.fixture(scope="module")
def original():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return resnet18(classes=1000, small_images=False)


class TestLikeTheOriginal:
    """torchvision's ResNet-18, whose state dictionaries must fit."""

    def test_parameter_count(self, original):
        assert sum(p.numel() for p in original.parameters()) == 11_689_512

    def test_names_and_shapes(self, original):
        state = {name: tuple(value.shape) for name, value in original.state_dict().items()}
        # 20 convolutions, 20 normalisers of five entries, one linear layer of two.
        assert len(state) == 20 + 20 * 5 + 2
        for name, shape in {
            "conv1.weight": (64, 3, 7, 7),
            "bn1.running_mean": (64,),
            "layer1.0.conv1.weight": (64, 64, 3, 3),
            "layer2.0.downsample.0.weight": (128, 64, 1, 1),
            "layer2.0.downsample.1.num_batches_tracked": (),
            "layer4.1.bn2.weight": (512,),
            "fc.weight": (1000, 512),
            "fc.bias": (1000,),
        }.items():
            assert state[name] == shape
        assert not any(name.startswith("layer1.0.downsample") for name in state)

    def test_resolution_falls_by_32(self, original):
        seen = []
        handle = original.layer4.register_forward_hook(lambda *a: seen.append(a[2].shape))
        with torch.no_grad():
            original.eval()(torch.randn(1, 3, 64, 64))
        handle.remove()
        assert seen == [(1, 512, 2, 2)]

    def test_convolutions_start_with_fan_out_variance(self, original):
        for module in original.modules():
            if isinstance(module, nn.Conv2d):
                weight = module.weight.detach().double()
                expected = 2 / (weight.shape[0] * weight.shape[2] * weight.shape[3])
                # A sample variance of n normals has the relative standard error √(2/n);
                # one of 20 layers exceeds five of them once in 10⁵ runs.
                tolerance = 5 * (2 / weight.numel()) ** 0.5
                assert abs(weight.var() / expected - 1) < tolerance


class TestSmallImages:
    def test_stem_keeps_the_resolution(self):
        model = resnet18(width=8)
        assert model.conv1.weight.shape == (8, 3, 3, 3)
        assert model.maxpool(model.conv1(torch.zeros(1, 3, 32, 32))).shape == (1, 8, 32, 32)

    @pytest.mark.parametrize("norm", ["batch", "group"])
    def test_logits(self, norm):
        model = resnet18(classes=7, in_channels=1, width=8, norm=norm)
        assert model(torch.randn(2, 1, 28, 28)).shape == (2, 7)

    def test_gradients_reach_every_parameter(self):
        model = resnet18(width=4)
        model(torch.randn(4, 3, 16, 16)).square().sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_each_activation_is_used_once_and_not_in_place():
    model, uses = resnet18(width=4), {}
    activations = [m for m in model.modules() if isinstance(m, nn.ReLU)]
    for module in activations:
        module.register_forward_hook(lambda m, *_: uses.update({m: uses.get(m, 0) + 1}))
    model(torch.randn(2, 3, 16, 16))
    assert len(activations) == 17
    assert list(uses.values()) == [1] * 17
    assert not any(module.inplace for module in activations)


def test_group_norm_has_32_groups_or_as_many_as_divide():
    groups = {m.num_groups for m in resnet18(norm="group").modules() if hasattr(m, "num_groups")}
    assert groups == {32}
    narrow = ResNet((1, 1, 1, 1), width=12, norm="group")
    assert (narrow.bn1.num_groups, narrow.layer4[0].bn1.num_groups) == (4, 32)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in narrow.modules())


def test_biases_only_where_no_normaliser_shifts():
    for norm, biased in {"batch": False, "layer": False, "none": True}.items():
        model = resnet18(width=4, norm=norm)
        convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
        assert {m.bias is not None for m in convolutions} == {biased}


def test_block_takes_another_shortcut_where_the_shape_changes():
    shortcut = nn.AvgPool2d(2)
    assert BasicBlock(3, 3, stride=2, downsample=shortcut).downsample is shortcut
    assert BasicBlock(3, 3, downsample=shortcut).downsample is None


def test_block_adds_the_shortcut():
    block = BasicBlock(3, 3).eval()
    nn.init.zeros_(block.bn2.weight)
    x = torch.rand(2, 3, 4, 4)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 0}, "classes must be"),
        ({"in_channels": -1}, "in_channels must be"),
        ({"width": 0}, "width must be"),
        ({"norm": "bn"}, "norm must be one of none, batch, layer, .*, got 'bn'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        resnet18(**arguments)


@pytest.mark.parametrize(
    ("blocks", "message"), [((2, 2, 2), "four stages"), ((2, 0, 2, 2), r"blocks\[1\] must be")]
)
def test_wrong_blocks(blocks, message):
    with pytest.raises(ValueError, match=message):
        ResNet(blocks)
