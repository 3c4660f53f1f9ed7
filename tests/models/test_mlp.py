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
def test_layers_have_a_bias_unless_the_norm_subtracts_it(norm, kind, bias):
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


class TestPlacement:
    """[lange2022] normalises after the activation."""

    def test_layers_in_order(self):
        model = mlp(12, 3, depth=1, width=8, after_activation=True, norm_input=True)
        names = [name for name, _ in model.named_children()]
        assert names == ["flatten", "norm_input", "linear1", "act1", "norm1", "head"]
        assert model.norm_input.num_features == 12

    @pytest.mark.parametrize("norm", ["batch", "ghost", "batch_renorm"])
    def test_after_the_activation_layers_keep_their_bias(self, norm):
        assert (
            mlp(12, 3, depth=1, width=8, norm=norm, after_activation=True).linear1.bias is not None
        )
        assert mlp(12, 3, depth=1, width=8, norm=norm).linear1.bias is None

    def test_it_computes_its_formula(self):
        model = mlp(6, 2, depth=1, width=4, after_activation=True).double()
        x = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        h = (x @ model.linear1.weight.T + model.linear1.bias).clamp(min=0)
        h = (h - h.mean(0)) / (h.var(0, correction=0) + model.norm1.eps).sqrt()
        expected = h @ model.head.weight.T + model.head.bias
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-12)

    def test_an_input_cannot_be_normalised_by_nothing(self):
        with pytest.raises(ValueError, match="norm_input=True needs a norm other than 'none'"):
            mlp(4, 2, depth=1, width=4, norm="none", norm_input=True)


def test_groups_of_four_neurons():
    """The default of 32 groups would have one neuron each, and normalise it to 0."""
    assert mlp(4, 2, depth=1, width=100, norm="group").norm1.num_groups == 25


def test_instance_norm_needs_positions():
    with pytest.raises(ValueError, match=r"instance norm needs positions.*choose 'layer'"):
        mlp(4, 2, depth=1, width=4, norm="instance")


def test_unknown_norm():
    with pytest.raises(ValueError, match=r"norm must be one of none, batch, .*, got 'bn'"):
        mlp(4, 2, depth=1, width=4, norm="bn")


@pytest.mark.parametrize("activation", [nn.ReLU(), "relu", lambda: 3])
def test_activation_must_make_modules(activation):
    with pytest.raises(ValueError, match=r"activation must make a module"):
        mlp(4, 2, depth=1, width=4, activation=activation)
