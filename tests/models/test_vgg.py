import pytest
import torch
from torch import nn

from equipoise.models.vgg import vgg


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # The totals of torchvision's documentation.
        ("vgg11", 132_863_336),
        ("vgg13", 133_047_848),
        ("vgg16", 138_357_544),
        ("vgg19", 143_667_240),
    ],
)
def test_convolutions_of_the_originals(name, published):
    dense = 4096 * (512 * 49 + 1) + 4096 * (4096 + 1) + 1000 * (4096 + 1)
    with torch.device("meta"):
        model = vgg(name, 10, norm="none")
    head = 10 * (512 + 1)
    assert sum(p.numel() for p in model.parameters()) - head == published - dense
    layers = sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules())
    assert layers == int(name[3:]) - 2  # one dense layer instead of three


def test_layers_in_order():
    names = [name for name, _ in vgg("vgg11", width=2).named_children()]
    assert names[:8] == [
        *("conv1_1", "norm1_1", "act1_1", "pool1"),
        *("conv2_1", "norm2_1", "act2_1", "pool2"),
    ]
    assert names[-4:] == ["pool5", "avgpool", "flatten", "head"]


def test_names_in_checkpoints():
    names = list(vgg("vgg13", width=2, norm="layer").state_dict())
    convolutions = [f"{block}_{number}" for block in range(1, 6) for number in (1, 2)]
    assert names == [
        *(
            f"{k}{n}.{p}"
            for n in convolutions
            for k in ("conv", "norm")
            for p in ("weight", "bias")
        ),
        "head.weight",
        "head.bias",
    ]


def test_layers_have_a_bias_unless_the_norm_subtracts_it():
    for norm, biased in {"batch": False, "instance": False, "group": True, "none": True}.items():
        assert (vgg("vgg11", width=8, norm=norm).conv1_1.bias is not None) == biased


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (5, 40)])
def test_any_size_of_images(size):
    model = vgg("vgg11", 7, 1, width=2)
    assert model(torch.randn(2, 1, *size)).shape == (2, 7)


class TestPlan:
    """Any blocks of convolutions, and dense layers before the head."""

    SMALL = ((12, 12), (24, 24), (48, 48))

    def test_a_named_network_can_be_given_by_its_channels(self):
        named = vgg("vgg11", width=2)
        planned = vgg([[2], [4], [8, 8], [16, 16], [16, 16]])
        assert str(planned) == str(named)

    def test_six_convolutions_three_pools_and_a_dense_layer(self):
        """Santurkar et al.'s network at a size for two cores."""
        model = vgg(self.SMALL, 10, 1, dense=(64,), head_size=4)
        names = [name for name, _ in model.named_children()]
        assert names[-8:] == [
            *("act3_2", "pool3", "avgpool", "flatten"),
            *("linear4", "norm4", "act4", "head"),
        ]
        shapes = [tuple(m.weight.shape) for m in model if isinstance(m, nn.Conv2d | nn.Linear)]
        assert [shape[0] for shape in shapes] == [12, 12, 24, 24, 48, 48, 64, 10]
        assert shapes[-2:] == [(64, 48 * 4 * 4), (10, 64)]
        assert model.linear4.bias is None
        assert type(model.norm4) is nn.BatchNorm1d

    @pytest.mark.parametrize("size", [28, 32])
    def test_maps_of_small_images_are_flattened_unchanged(self, size):
        model = vgg(self.SMALL, 10, 1, dense=(64,), head_size=4)
        maps = model[: list(dict(model.named_children())).index("avgpool")]
        x = maps(torch.randn(2, 1, size, size))
        assert x.shape[2:] == (4, 4)
        assert torch.equal(model.avgpool(x), x)

    def test_several_dense_layers_with_a_norm_of_their_own(self):
        model = vgg([[4]], norm=nn.BatchNorm2d, dense=(8, 6), dense_norm="layer")
        assert (model.linear2.in_features, model.linear3.in_features) == (4, 8)
        assert type(model.norm3) is nn.LayerNorm
        assert model(torch.randn(2, 3, 5, 5)).shape == (2, 10)

    def test_instance_norm_has_no_dense_counterpart(self):
        assert not hasattr(vgg([[4]], norm="instance", dense=(8,)), "norm2")

    def test_named_networks_are_64_wide(self):
        with torch.device("meta"):
            assert str(vgg("vgg13")) == str(vgg("vgg13", width=64))


def test_groups_are_32():
    with torch.device("meta"):
        model = vgg("vgg11", norm="group")
    assert {m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)} == {32}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "vgg12"}, "name must be one of vgg11, vgg13, vgg16, vgg19; got 'vgg12'"),
        ({"classes": 0}, "classes must be"),
        ({"width": -1}, "width must be"),
        ({"norm": "bn"}, "norm must be one of none, batch"),
        ({"name": ((8,),), "width": 64}, "width=64 is for named networks"),
        ({"name": ()}, "or a plan, whose blocks have at least one convolution"),
        ({"name": ((8,), ())}, "or a plan, whose blocks have at least one convolution"),
        ({"name": 11}, "name must be one of vgg11.*; got 11"),
        ({"name": (8, 8)}, "a block must be a sequence of numbers, as .*; got 8"),
        ({"name": ((8, 0),)}, "a block must be a whole number of at least 1; got 0"),
        ({"dense": 64}, "dense must be a sequence of numbers, as .*; got 64"),
        ({"dense": (64, 0)}, "dense must be a whole number of at least 1; got 0"),
        ({"head_size": 0}, "head_size must be"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        vgg(**arguments)
