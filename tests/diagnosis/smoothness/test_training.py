"""Measurements leave a training unchanged."""

from __future__ import annotations

import copy

import pytest
import torch

from equipoise.diagnosis.smoothness import training as smoothness_training
from equipoise.diagnosis.smoothness.measure import SmoothnessOptions, smoothness
from support.diagnosis_examples import DIGITS, noisy


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_measurements_do_not_change_it(optimizer, monkeypatch):
    """Weights, statistics and dropout masks: the same to the last bit, measurements or not."""
    options = SmoothnessOptions(optimizer, rate=0.1, steps=8, measurements=3, points=4, seeds=2)
    trained = []
    train = smoothness_training.train

    def recording(model, *rest, **options):
        history = train(model, *rest, **options)
        trained.append((history.losses, copy.deepcopy(model.state_dict())))
        return history

    monkeypatch.setattr(smoothness_training, "train", recording)
    smoothness(noisy, DIGITS, options, batch_size=16)
    monkeypatch.setattr(smoothness_training, "measure_along_step", lambda *given, **options: None)
    smoothness(noisy, DIGITS, options, batch_size=16)
    half = len(trained) // 2
    for measured, blind in zip(trained[:half], trained[half:], strict=True):
        assert measured[0] == blind[0]
        assert all(torch.equal(measured[1][key], blind[1][key]) for key in blind[1])
