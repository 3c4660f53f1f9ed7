"""How a model takes batches of several kinds."""

import pytest
import torch
from torch import nn

from equipoise.instrument.forward import first_tensor, run_on_batch

X, Y = torch.ones(2, 3), torch.zeros(2)


@pytest.mark.parametrize("batch", [X, (X, Y), [X, Y], (X,), {"input": X}], ids=type)
def test_the_input_of_a_batch(batch):
    assert run_on_batch(nn.Identity(), batch) is X


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [((X, Y), {}, X), ((None, Y), {}, Y), ((), {"mask": None, "x": Y}, Y), ((3,), {}, None)],
)
def test_the_first_tensor_of_a_call(args, kwargs, expected):
    assert first_tensor(args, kwargs) is expected
