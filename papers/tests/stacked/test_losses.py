import pytest
import torch
from torch import nn

from equipoise.training import mean_squared_error
from equipoise_papers.stacked.losses import summed_squared_error


def test_the_summed_squared_error_is_n_times_the_mean():
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    batch = x, torch.randn(5, 2)
    torch.testing.assert_close(
        summed_squared_error(model, batch), 10 * mean_squared_error(model, batch)
    )
    with pytest.raises(ValueError, match=r"shape \(5, 2\), the targets have \(5,\)"):
        summed_squared_error(model, (x, torch.randn(5)))
