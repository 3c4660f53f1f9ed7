"""Batches of several models are stacked, if they have one shape and one number."""

import pytest
import torch

from equipoise_papers.stacked.batches import stacked_batches


def test_batches_of_models_are_stacked():
    sources = [[(torch.full((2, 3), float(k)), torch.tensor([k, k]))] * 2 for k in range(3)]
    batches = list(stacked_batches(sources))
    assert [(tuple(x.shape), tuple(y.shape)) for x, y in batches] == [((3, 2, 3), (3, 2))] * 2
    assert batches[0][1].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_batches_of_unequal_size():
    sizes = ((4, 4), (4, 2))
    sources = [[(torch.zeros(n, 2), torch.zeros(n)) for n in of_one] for of_one in sizes]
    with pytest.raises(ValueError, match=r"inputs of step 1 have shapes \[\(2, 2\), \(4, 2\)\]"):
        list(stacked_batches(sources))


def test_batches_of_unequal_number():
    batch = (torch.zeros(4, 2), torch.zeros(4))
    with pytest.raises(ValueError, match="batches of model 1 end after 1 steps"):
        list(stacked_batches([[batch, batch], [batch]]))
