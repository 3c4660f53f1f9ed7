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


def test_bias_only_where_it_is_not_subtracted():
    for norm, biased in {"batch": False, "instance": False, "group": True, "none": True}.items():
        assert (vgg("vgg11", width=8, norm=norm).conv1_1.bias is not None) == biased


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (5, 40)])
def test_any_size_of_images(size):
    model = vgg("vgg11", 7, 1, width=2)
    assert model(torch.randn(2, 1, *size)).shape == (2, 7)


def test_groups_are_32():
    with torch.device("meta"):
        model = vgg("vgg11", norm="group")
    assert {m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)} == {32}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "vgg12"}, "name must be one of vgg11, vgg13, vgg16, vgg19, got 'vgg12'"),
        ({"classes": 0}, "classes must be"),
        ({"width": -1}, "width must be"),
        ({"norm": "bn"}, "norm must be one of none, batch"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        vgg(**arguments)
