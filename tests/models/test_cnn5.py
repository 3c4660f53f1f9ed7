from functools import partial

import pytest
import torch
from torch import nn

from equipoise.models.cnn5 import cnn5
from equipoise.models.norms import make_norm


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_parameters_of_the_tutorial_with_the_papers_filters():
    convolutions = 32 * (27 + 1) + 64 * (288 + 1) + 32 * (576 + 1)
    assert parameters(cnn5(norm="none")) == convolutions + 64 * (512 + 1) + 10 * (64 + 1)


def test_layers_in_order_as_in_the_paper():
    assert [name for name, _ in cnn5().named_children()] == [
        *("conv1", "act1", "norm1", "pool1"),
        *("conv2", "act2", "norm2", "pool2"),
        *("conv3", "act3", "norm3"),
        *("flatten", "linear4", "act4", "norm4", "head"),
    ]


def test_normalisers_before_the_activations():
    model = cnn5(after_activation=False)
    names = [name for name, _ in model.named_children()]
    assert names[:4] == ["conv1", "norm1", "act1", "pool1"]
    assert model.conv1.bias is None
    assert cnn5().conv1.bias is not None


def test_names_in_checkpoints():
    weights = [f"{name}.{p}" for name in ("conv1", "conv2", "conv3") for p in ("weight", "bias")]
    dense = ["linear4.weight", "linear4.bias", "head.weight", "head.bias"]
    assert list(cnn5(norm="none").state_dict()) == weights + dense


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("size", [(18, 23), (28, 28), (33, 40)])
def test_any_size_of_images(size, padding):
    model = cnn5(7, 1, image_size=size, padding=padding, norm="none")
    assert model(torch.zeros(2, 1, *size)).shape == (2, 7)


def test_maps_with_padding():
    """28 → 14 → 7."""
    assert cnn5(10, 1, image_size=28, padding="same").linear4.in_features == 32 * 7 * 7


def test_weights_are_glorots_and_biases_zero():
    model = cnn5()
    assert model.linear4.weight.abs().max() <= (6 / (512 + 64)) ** 0.5
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))


class TestNorms:
    def test_groups_of_four(self):
        model = cnn5(norm="group")
        groups = [getattr(model, f"norm{i}").num_groups for i in range(1, 5)]
        assert groups == [8, 16, 8, 16]

    def test_instance_norm_leaves_the_dense_layer(self):
        assert not hasattr(cnn5(norm="instance"), "norm4")

    def test_the_dense_layer_may_have_its_own(self):
        slow = partial(make_norm, "batch", eps=1e-3, momentum=0.01)
        model = cnn5(norm=slow, dense_norm=partial(slow, dims=0))
        assert (type(model.norm1), type(model.norm4)) == (nn.BatchNorm2d, nn.BatchNorm1d)
        assert model.norm4.momentum == 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 0}, "classes must be"),
        ({"in_channels": 0}, "in_channels must be"),
        ({"image_size": 0}, "image_size must be"),
        ({"image_size": (32, 17)}, "at least 18 with padding='valid', got 17. padding='same'"),
        ({"image_size": 3, "padding": "same"}, "at least 4 with padding='same', got 3"),
        ({"image_size": (8, 8, 8)}, "image_size must be a height and a width"),
        ({"image_size": 28.0}, "image_size must be a height and a width"),
        ({"padding": 1}, "padding must be one of valid, same"),
        ({"norm": "bn"}, "norm must be one of none, batch"),
        ({"dense_norm": "instance"}, "instance norm needs positions"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        cnn5(**arguments)


@pytest.mark.parametrize(("padding", "least"), [("valid", 18), ("same", 4)])
def test_the_least_size_leaves_one_pixel(padding, least):
    assert cnn5(image_size=least, padding=padding).linear4.in_features == 32
