import pytest
import torch
from torch import nn

from equipoise.models import mlp


def test_layers_in_order():
    model = mlp(12, 3, depth=2, width=8, activation=nn.Tanh)
    assert [(name, type(layer)) for name, layer in model.named_children()] == [
        ("flatten", nn.Flatten),
        ("linear1", nn.Linear),
        ("norm1", nn.BatchNorm1d),
        ("act1", nn.Tanh),
        ("linear2", nn.Linear),
        ("norm2", nn.BatchNorm1d),
        ("act2", nn.Tanh),
        ("head", nn.Linear),
    ]


@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
def test_any_input_shape_gives_logits(norm):
    model = mlp(12, 3, depth=3, width=8, norm=norm)
    assert model(torch.randn(5, 3, 2, 2)).shape == (5, 3)


@pytest.mark.parametrize(
    ("norm", "kind", "bias"),
    [("batch", nn.BatchNorm1d, False), ("layer", nn.LayerNorm, True), ("none", None, True)],
)
def test_bias_only_where_it_is_not_subtracted(norm, kind, bias):
    model = mlp(12, 3, depth=2, width=8, norm=norm)
    assert (model.linear1.bias is not None) == (model.linear2.bias is not None) == bias
    assert model.head.bias is not None
    assert hasattr(model, "norm1") == (kind is not None)
    assert kind is None or isinstance(model.norm2, kind)


def test_it_computes_its_formula():
    model = mlp(6, 2, depth=1, width=4).double()
    x = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    h = x @ model.linear1.weight.T
    h = (h - h.mean(0)) / (h.var(0, correction=0) + model.norm1.eps).sqrt()
    expected = h.clamp(min=0) @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["in_features", "classes", "depth", "width"])
@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_sizes_must_be_positive(name, size):
    sizes = {"in_features": 4, "classes": 2, "depth": 1, "width": 4, name: size}
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1"):
        mlp(**sizes)


def test_unknown_norm():
    with pytest.raises(ValueError, match=r"norm must be one of batch, layer, none, got 'group'"):
        mlp(4, 2, depth=1, width=4, norm="group")


@pytest.mark.parametrize("activation", [nn.ReLU(), "relu", lambda: 3])
def test_activation_must_make_modules(activation):
    with pytest.raises(ValueError, match=r"activation must make a module"):
        mlp(4, 2, depth=1, width=4, activation=activation)
