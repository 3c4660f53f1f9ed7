"""Names of modules, and modules whose weights no probe reads."""

import pytest
import torch
from torch import nn

from equipoise import apply
from equipoise.instrument.modules import names, unwatched
from equipoise.layers import convert


class TestNames:
    def test_a_compiled_model_keeps_its_names(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
        compiled = nn.Sequential(torch.compile(model, backend="eager"))
        assert set(names(compiled).values()) == {"Sequential", "0", "0.0", "0.1", "0.1.0"}

    def test_parametrisations_have_none(self):
        model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
        assert list(names(model).values()) == ["Sequential", "0"]


class TestUnwatched:
    def test_packed_attention_is_named_and_recurrent_layers_are_watched(self):
        model = nn.ModuleDict(
            {
                "attention": nn.MultiheadAttention(8, 2),
                "cell": nn.LSTM(3, 5),
                "head": nn.Linear(5, 2),
            }
        )
        assert unwatched(model) == {"attention (MultiheadAttention)": 3 * 8 * 8}

    def test_linear_convolutional_normalising_and_embedding_layers_are_not(self):
        layers = (nn.Linear(2, 2), nn.Conv2d(1, 2, 3), nn.BatchNorm1d(2), nn.Embedding(4, 2))
        assert unwatched(nn.ModuleList(layers)) == {}

    def test_parameters_that_a_class_lists_itself(self):
        """As a learner that is trained on lists of weights, which take no names."""

        class Learner(nn.Module):
            def __init__(self):
                super().__init__()
                self.vars = nn.ParameterList([nn.Parameter(torch.ones(2, 3))])

            def parameters(self):
                return self.vars

        assert unwatched(Learner()) == {"vars (ParameterList)": 6}

    def test_spectral_norm_is_not_changed(self):
        """Reading a parametrised weight in training mode takes a step of the power iteration."""
        model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        assert unwatched(model) == {}
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("change", ["norm=rms", "norm=none", "activation=tanh"])
def test_transformer_layers_run_what_they_hold_after_a_change(change):
    """PyTorch's fused kernel, in evaluation without gradients, knows neither."""
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        before = model(x)
    applied = apply(model, change)
    with torch.no_grad():
        fused = model(x)
    torch.testing.assert_close(fused, model(x))
    applied.undo()
    with torch.no_grad():
        assert torch.equal(model(x), before)
    assert model.activation_relu_or_gelu == 1


def test_converted_transformer_layers_too():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    changed = convert(model, "layer", "rms").model
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        fused = changed(x)
    torch.testing.assert_close(fused, changed(x))
