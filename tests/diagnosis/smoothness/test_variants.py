"""The variants that are compared: the unchanged model, and with a verified remedy."""

import torch
from torch import nn

from equipoise.diagnosis.smoothness.variants import fixes
from support.diagnosis_examples import normalised, shift_remedy


def test_the_first_verified_remedy_is_tried():
    found = fixes([shift_remedy(2.0, verified=False), shift_remedy(0.5), shift_remedy(1.0)])
    ((name, change),) = found.items()
    assert name == "batch norm's shift β at 0.5"
    model = normalised()
    changed = change(model)
    for old, new in zip(model.modules(), changed.modules(), strict=True):
        if isinstance(new, nn.BatchNorm1d):
            assert torch.equal(new.bias, torch.full((16,), 0.5))
            assert torch.equal(new.weight, old.weight)
            assert not old.bias.any()
        elif isinstance(new, nn.Linear):
            assert torch.equal(new.bias, old.bias) if new.bias is not None else True


def test_without_one_there_is_none():
    assert fixes([shift_remedy(2.0, verified=False)]) == {}
    assert fixes([]) == {}
