"""Layers are found in one pass, and the loss is differentiated with respect to them."""

import math

import torch
from torch import nn

from equipoise.instrument.layer_watch import LayerWatch


def watched(model, x):
    with LayerWatch(model) as watch:
        output = model(x)
        loss = (output[0] if isinstance(output, tuple) else output).square().sum()
        return loss, watch.differentiate(loss)


def test_a_recurrent_layer_is_watched_at_its_outputs():
    model = nn.LSTM(3, 5, batch_first=True)
    x = torch.randn(4, 7, 3, generator=torch.Generator().manual_seed(0))
    _, (found,) = watched(model, x)
    assert (found.kind, found.rows, found.features) == ("LSTM", 4 * 7, 5)
    assert abs(found.gradient - float(4 * model(x)[0].detach().double().square().sum())) < 1e-4


def test_sparse_gradients_of_a_table_are_as_long_as_dense_ones():
    x = torch.tensor([[3, 1], [3, 8]])
    lengths = []
    for sparse in (False, True):
        torch.manual_seed(0)
        _, (found,) = watched(nn.Embedding(9, 4, sparse=sparse), x)
        lengths.append(found.weight_gradient)
    assert lengths[0] == lengths[1] > 0


class Only(nn.Module):
    """Multiplies by a matrix that is no layer's."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        return x @ self.matrix


def test_a_model_of_bare_parameters_is_watched_at_its_output():
    model, x = Only(), torch.randn(4, 3)
    _, (found,) = watched(model, x)
    assert (found.kind, found.rows, found.features) == ("Only", 4, 3)
    assert abs(found.gradient - float(4 * model(x).detach().double().square().sum())) < 1e-4
    assert found.weight_gradient > 0


def test_beside_layers_bare_parameters_are_not_watched():
    _, found = watched(nn.Sequential(Only(), nn.Linear(3, 3)), torch.randn(4, 3))
    assert [layer.kind for layer in found] == ["Linear"]


class Probed(nn.Module):
    """A head on the features of a backbone, whose only normaliser may stand before a detach()."""

    def __init__(self, detach):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8))
        self.norm, self.head, self.detach = nn.LayerNorm(8), nn.Linear(8, 2), detach

    def forward(self, x):
        features = self.backbone(x)
        return self.head(self.norm(features.detach() if self.detach else features))


def test_behind_a_detach_layers_with_weights_are_watched():
    """The head's norm has an input without a gradient, and the backbone's is not depended on."""
    model, x = Probed(detach=True), torch.randn(4, 3)
    _, (found,) = watched(model, x)
    assert (found.layer, found.kind) == ("head", "Linear")
    assert abs(found.gradient - float(4 * model(x).detach().double().square().sum())) < 1e-4


def test_without_it_normalisers_are():
    _, found = watched(Probed(detach=False), torch.randn(4, 3))
    assert [layer.layer for layer in found] == ["backbone.1", "norm"]


def test_weights_that_a_functional_call_replaces_by_detached_ones():
    """As those of a critic by which an actor beside it is judged."""
    actor, critic = nn.Linear(3, 3), nn.Linear(3, 1)
    model, x = nn.ModuleList([actor, critic]), torch.randn(4, 3)
    kept = {name: p.detach() for name, p in critic.named_parameters()}
    with LayerWatch(model) as watch:
        loss = -torch.func.functional_call(critic, kept, (actor(x).tanh(),)).mean()
        found = watch.differentiate(loss)
    assert found
    assert all(layer.gradient > 0 for layer in found)


def test_nested_outputs_are_watched_by_the_rows_of_all_samples():
    layer = nn.Linear(3, 5)
    samples = [torch.randn(length, 3) for length in (2, 6)]
    with LayerWatch(layer) as watch:
        output = layer(torch.nested.nested_tensor(samples, layout=torch.jagged))
        (nested,) = watch.differentiate(sum(x.square().sum() for x in output.unbind()))
    _, (found,) = watched(layer, torch.cat(samples))
    assert (nested.rows, nested.features) == (found.rows, found.features) == (8, 5)
    assert math.isclose(nested.gradient, found.gradient, rel_tol=1e-5)
    assert math.isclose(nested.correlation, found.correlation, rel_tol=1e-5)


def test_complex_numbers_count_with_both_parts():
    layer = nn.Linear(3, 5, dtype=torch.complex64)
    with LayerWatch(layer) as watch:
        h = layer(torch.randn(4, 3, dtype=torch.complex64))
        (found,) = watch.differentiate(h.abs().square().sum())
    squares = float(h.detach().abs().double().square().sum())
    assert math.isclose(found.second_moment, squares / 20, rel_tol=1e-5)
    assert math.isclose(found.gradient, 4 * squares, rel_tol=1e-5)


def test_calls_inside_of_a_transform_are_passed_over():
    layer, x = nn.Linear(3, 5), torch.randn(4, 3)
    with LayerWatch(layer) as watch:
        loss = torch.func.vmap(layer)(x).sum() + layer(x).square().sum()
        found = watch.differentiate(loss)
    assert [(one.layer, one.rows) for one in found] == [("Linear", 4)]
