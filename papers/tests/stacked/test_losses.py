import pytest
import torch
from torch import nn

from equipoise.training import mean_squared_error
from equipoise_papers.stacked.losses import stacked_losses, summed_squared_error


def test_the_summed_squared_error_is_n_times_the_mean():
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    batch = x, torch.randn(5, 2)
    torch.testing.assert_close(
        summed_squared_error(model, batch), 10 * mean_squared_error(model, batch)
    )
    with pytest.raises(ValueError, match=r"shape \(5, 2\), the targets have \(5,\)"):
        summed_squared_error(model, (x, torch.randn(5)))


@pytest.mark.parametrize("loss_fn", [mean_squared_error, summed_squared_error])
def test_a_stack_refuses_targets_in_another_layout_as_one_model_does(loss_fn):
    """Reshaped, every number met a wrong one."""
    inputs, outputs = torch.randn(4, 5, 3), torch.randn(4, 5, 2)
    targets = torch.randn(4, 5, 2)
    losses = stacked_losses(loss_fn, outputs, inputs, targets)
    pairs = zip(outputs, targets, strict=True)
    by_hand = [loss_fn(lambda _, out=out: out, (inputs[0], y)) for out, y in pairs]
    torch.testing.assert_close(losses, torch.stack(by_hand))
    with pytest.raises(ValueError, match="to be the same"):
        stacked_losses(loss_fn, outputs, inputs, targets.transpose(1, 2))


def test_a_stack_takes_a_column_for_its_numbers_as_one_model_does():
    inputs, outputs, targets = torch.randn(4, 5, 3), torch.randn(4, 5, 1), torch.randn(4, 5)
    losses = stacked_losses(mean_squared_error, outputs, inputs, targets)
    torch.testing.assert_close(losses, (outputs[..., 0] - targets).square().mean(1))
