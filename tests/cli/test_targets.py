"""Strings of the command line become what they name, and weights come from checkpoints."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from equipoise.cli.targets import choose_batch_size, with_checkpoint
from equipoise.data.user import as_source


def build():
    return nn.Linear(3, 2)


WRAPPED = {
    "weights": lambda weights: weights,
    "a whole checkpoint": lambda weights: {"epoch": 3, "model_state_dict": weights},
    "Lightning's": lambda w: {"state_dict": {f"model.{k}": v for k, v in w.items()}},
    "a compiled and parallel model": lambda w: {f"module._orig_mod.{k}": v for k, v in w.items()},
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_weights_are_found(wrap, tmp_path):
    trained = build()
    torch.save(wrap(trained.state_dict()), tmp_path / "weights.pt")
    assert torch.equal(with_checkpoint(build, tmp_path / "weights.pt")().weight, trained.weight)


def test_weights_of_another_model_are_refused(tmp_path):
    torch.save(nn.Linear(3, 2, bias=False).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"of another model: it lacks \['bias'\] and has \[\]"):
        with_checkpoint(build, tmp_path / "weights.pt")()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "cannot read the checkpoint"),
        ({"epoch": 3}, r"holds no weights, but \['epoch'\]"),
        (None, "there is no checkpoint"),
    ],
)
def test_files_without_weights_are_refused(content, message, tmp_path):
    path = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ValueError, match=message):
        with_checkpoint(build, path)


@pytest.mark.parametrize(
    ("data", "given", "size"),
    [
        ({"x": torch.zeros(5, 3)}, None, 5),
        (TensorDataset(torch.zeros(9, 3)), None, 9),
        ({"x": torch.zeros(100, 3)}, None, 64),
        ({"x": torch.zeros(5, 3)}, 7, 7),  # and is refused where batches are drawn
        ([{"x": torch.zeros(5, 3)}] * 2, None, 64),  # a loader has its own
    ],
)
def test_one_small_batch_needs_no_batch_size(data, given, size):
    assert choose_batch_size(given, as_source(data, "data")) == size
