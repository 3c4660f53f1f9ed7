"""Strings of the command line become what they name, and weights come from checkpoints."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from equipoise.cli.arguments import DEPTH
from equipoise.cli.targets import choose_batch_size, choose_target, with_checkpoint
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


class TestDefaultModel:
    def outputs(self, data):
        source = as_source(data, "d.py:data")
        _, make = choose_target(None, ["depth=2", "width=4"], source, 4)
        return make()(torch.zeros(2, 3)).shape[1]

    def test_its_depth_is_what_the_help_says(self):
        name, _ = choose_target(None, [], as_source([(torch.zeros(8, 3), torch.zeros(8))], "d"), 4)
        assert f"{DEPTH} × " in name

    @pytest.mark.parametrize("wrap", [tuple, lambda pair: DataLoader(TensorDataset(*pair), 4)])
    def test_the_last_class_may_be_missing_in_the_first_batch(self, wrap):
        """Sorted by class: the first batch has none but class 0."""
        classes = torch.arange(10).repeat_interleave(4)
        assert self.outputs(wrap((torch.randn(40, 3), classes))) == 10

    def test_numbers_as_targets(self):
        assert self.outputs((torch.randn(8, 3), torch.randn(8, 5))) == 5

    @pytest.mark.parametrize(
        ("data", "found"),
        [
            ([{"x": torch.zeros(8, 3), "y": torch.zeros(8)}], r"a dict of \[8, 3\] and \[8\]"),
            ([torch.zeros(8, 3)] * 3, r"a Tensor of \[8, 3\]"),
            ([(torch.zeros(8, 3).long(), torch.zeros(8))], r"inputs of torch\.int64"),
            ([(torch.zeros(8, 3), torch.zeros(8, 3).long())], r"targets of shape \[8, 3\]"),
        ],
        ids=["dictionaries", "no targets", "tokens", "a class for each position"],
    )
    def test_other_data_need_a_target(self, data, found):
        with pytest.raises(ValueError, match=rf"d\.py:data yields {found}\. Give a TARGET"):
            self.outputs(data)
