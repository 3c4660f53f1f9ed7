import pytest
import torch
from torch import nn

from equipoise.models import transformer_classifier


def small(**changes):
    arguments = {"tokens": 6, "width": 16, "heads": 4, "depth": 2, **changes}
    return transformer_classifier(10, 3, **arguments)


@pytest.mark.parametrize("norm_first", [True, False])
def test_logits_in_training_and_evaluation(norm_first):
    model = small(norm_first=norm_first)
    x = torch.randn(4, 2, 6, 5)
    trained = model(x)
    with torch.no_grad():
        evaluated = model.eval()(x)
    assert trained.shape == (4, 3)
    # Two kernels for one formula; float32 rounding, worst of 80 models 2.4·10⁻⁷.
    torch.testing.assert_close(trained.detach(), evaluated, rtol=0, atol=1e-5)


def test_tokens_are_rows_over_all_channels():
    """One changed row changes one token, and it holds the row of every channel."""
    model, seen = small(), []
    model.embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.randn(1, 2, 6, 5)
    model(x)
    assert torch.equal(seen[0][0, 4], torch.cat([x[0, 0, 4], x[0, 1, 4]]))


def test_positions_matter():
    model = small()
    x = torch.randn(2, 2, 6, 5)
    assert not torch.allclose(model(x), model(x.flip(2)))


def test_twin_without_positions_the_order_is_lost():
    model = small().double()
    nn.init.zeros_(model.positions)
    x = torch.randn(2, 2, 6, 5, dtype=torch.float64)
    torch.testing.assert_close(model(x), model(x.flip(2)), rtol=0, atol=1e-12)


def test_layers_start_independent():
    first, second = small().encoder.layers
    assert not torch.equal(first.linear1.weight, second.linear1.weight)


def test_depth_and_final_norm():
    assert len(small(depth=3).encoder.layers) == 3
    assert isinstance(small().encoder.norm, nn.LayerNorm)
    assert small(norm_first=False).encoder.norm is None


def test_dropout_acts_in_training_only():
    model = small(dropout=0.5)
    x = torch.randn(2, 2, 6, 5)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("shape", [(2, 2, 5, 6), (2, 1, 6, 5), (2, 6, 10), (2, 60)])
def test_other_images_are_refused(shape):
    with pytest.raises(ValueError, match=r"H = 6 rows of C·W = 10 numbers, got \[2"):
        small()(torch.zeros(shape))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens must be"),
        ({"depth": 0}, "depth must be"),
        ({"heads": 3}, "heads must divide width, got 3 heads for a width of 16"),
        ({"dropout": 1.0}, r"dropout must be a number in \[0, 1\); got 1.0"),
        ({"dropout": -0.1}, "dropout must be a number in"),
    ],
)
def test_wrong_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)
