"""Which layers are preconditioned, and what the report says of the others."""

import pytest
import torch
from torch import nn

from equipoise.preconditioners import BNP
from support.bnp_problems import attached, batches, mlp


class Zoo(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.conv = nn.Conv2d(2, 2, 3, bias=False)
        self.transposed = nn.ConvTranspose2d(2, 2, 3)
        self.embedding = nn.Embedding(7, 4)
        self.recurrent = nn.LSTM(4, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.norm = nn.BatchNorm1d(4)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.bilinear = nn.Bilinear(4, 4, 2)
        self.free = nn.ParameterList([torch.zeros(2)])
        self.tied = nn.Linear(4, 7)
        self.tied.weight = self.embedding.weight
        self.own_bias = nn.Linear(4, 4)
        self.other_bias = nn.Linear(4, 4)
        self.other_bias.weight = self.own_bias.weight
        self.shared = nn.Linear(4, 4)
        self.shared_too = nn.Linear(4, 4)
        self.shared_too.weight, self.shared_too.bias = self.shared.weight, self.shared.bias


def test_everything_with_parameters_is_used_or_skipped_for_a_reason():
    report = BNP(Zoo()).report()
    reasons = {layer.name: layer.reason for layer in report.layers if not layer.used}
    assert report.used == ("linear", "conv", "shared")
    assert report["conv"].reason == "no trained bias: scaled by second moments"
    for name, words in {
        "transposed": "transposed",
        "embedding": "embedding",
        "recurrent": "recurrent",
        "attention": "attention",
        "attention.out_proj": "attention",
        "norm": "normaliser",
        "normed": "computed from other parameters",
        "bilinear": "not a linear layer",
        "free": "not a linear layer",
        "tied": "shares its weight with embedding",
        "own_bias": "not its bias",
        "other_bias": "not its bias",
    }.items():
        assert words in reasons[name]
    text = str(report)
    assert "transposed" in text
    assert "κ(D)" in text


def test_no_layer_at_all_is_an_error_that_says_why():
    with pytest.raises(ValueError, match="normaliser"):
        BNP(nn.LayerNorm(3))


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ({"include": ["0", "4"]}, ("0", "4")),
        ({"exclude": ["0"]}, ("2", "4")),
        ({"include": lambda name, m: m.in_features == 7}, ("2",)),
        ({"include": ["?"], "exclude": ["2"]}, ("0", "4")),
    ],
)
def test_include_and_exclude(options, used):
    assert BNP(mlp(), **options).report().used == used


def test_a_model_is_a_module():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got str"):
        BNP("resnet")


def test_a_single_name_is_a_mistake():
    with pytest.raises(TypeError, match="Use a list"):
        BNP(mlp(), include="0")


def test_wrapped_models_keep_their_names():
    with pytest.raises(ValueError, match="DistributedDataParallel"):
        BNP(nn.DataParallel(mlp()))
    compiled = torch.compile(mlp(), backend="eager")
    assert BNP(compiled).report().used == ("0", "2", "4")


class Recurrent(nn.Module):
    """One weight, used twice in a forward pass."""

    def __init__(self):
        super().__init__()
        self.inner = mlp((4, 4))

    def forward(self, h):
        return self.inner(torch.tanh(self.inner(h)) + 3)


def test_a_weight_used_twice_has_the_statistics_of_both_uses():
    model = Recurrent()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        second = torch.tanh(model.inner(x)) + 3
    pre = BNP(model)
    model(x).sum().backward()
    pre.step()
    found = pre.state_dict()["layers"]["inner.0"]
    union = torch.cat([x, second])
    torch.testing.assert_close(found["mean"], union.mean(0))
    torch.testing.assert_close(found["variance"], union.var(0, correction=0))
    assert float(found["samples"]) == 16


def test_a_shared_weight_is_transformed_once():
    a, b = nn.Linear(4, 4, dtype=torch.float64), nn.Linear(4, 4, dtype=torch.float64)
    b.weight, b.bias = a.weight, a.bias
    model = nn.Sequential(a, nn.Tanh(), b)
    x = batches(1, n=4)[0][0]
    assert BNP(model).report().used == ("0",)
    trained, losses, pre = attached(model, "adam", 10 * batches(1, n=4, outputs=4))
    assert losses[-1] < losses[0]
    assert pre.report()["0"].updates == 10
    assert trained(x).isfinite().all()


def test_keyword_and_lazy_inputs():
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match="run one batch first"):
        BNP(lazy)
    lazy(torch.zeros(2, 4))
    pre = BNP(lazy)
    lazy[0](input=torch.randn(5, 4)).sum().backward()
    pre.step()
    assert pre.report()["0"].updates == 1


def test_moving_a_model_moves_the_statistics():
    model = mlp(dtype=torch.float32)
    pre = BNP(model)
    model(batches(1, dtype=torch.float32)[0][0]).sum().backward()
    pre.step()
    model.double()
    model.zero_grad()
    model(batches(1)[0][0]).sum().backward()
    pre.step()
    found = pre.state_dict()["layers"]["0"]
    assert found["mean"].dtype == torch.float64
    assert found["updates"].tolist() == [2.0] * 5


def test_a_layer_that_the_report_lacks_is_answered_with_those_that_it_has():
    report = BNP(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))).report()
    with pytest.raises(KeyError, match="'fc'; layers are 0, 2"):
        report["fc"]
