"""Detectors are one family; one that fails is named, and ends nothing."""

from importlib import import_module
from inspect import get_annotations, isfunction
from pathlib import Path

import torch
from torch import nn

import equipoise as eq
from equipoise.diagnosis.mistakes import find
from equipoise.diagnosis.mistakes.training.reach import MOST


def test_a_later_batch_that_fails_ends_no_checkup():
    # Others are drawn, because the targets of the first are equal.
    batches = [(torch.randn(16, 6), torch.zeros(16, dtype=torch.long)) for _ in range(6)]
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    class Corrupt:
        """The fourth batch cannot be read."""

        def __iter__(self):
            for number, batch in enumerate(batches):
                if number == 3:
                    raise OSError("cannot read sample 50")
                yield batch

    report = eq.checkup(model, Corrupt(), batches=1)
    assert report.verdict.trainability is not None
    (finding,) = (f for f in report.findings if "could be looked for" in f.title)
    assert finding.severity == "note"
    assert "Targets: " in finding.detail
    assert "cannot read sample 50" in finding.detail


class Probed(nn.Module):
    """A head on features that are cut off from its backbone."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU())
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.norm(self.backbone(x).detach()))


def test_a_detached_backbone_ends_no_checkup():
    batches = [(torch.randn(16, 6), torch.arange(16) % 3) for _ in range(3)]
    report = eq.checkup(Probed, batches, batches=1, seeds=2)
    (finding,) = (f for f in report.findings if f.title == MOST)
    assert finding.severity == "warning"
    assert report.verdict.sentence == "Most of it will not train"
    assert "What is left of it will " in report.verdict.details
    assert "backbone.0.weight" in finding.detail


FOLDER = Path(find.__file__).parent
HERE = Path(__file__).parent


def test_detectors_are_one_family():
    """Each is the only public function of a module of its own, with tests of its own."""
    for detect in find.DETECTORS.values():
        assert get_annotations(detect) == {"traced": "TracedPass", "return": "list[Finding]"}
        module = import_module(detect.__module__)
        assert detect.__name__ == f"of_{module.__name__.rpartition('.')[2]}"
        assert [
            name
            for name, member in vars(module).items()
            if isfunction(member) and member.__module__ == module.__name__ and name[0] != "_"
        ] == [detect.__name__]
        room, name = module.__name__.split(".")[-2:]
        assert (HERE / room / f"test_{name}.py").exists()


def test_no_detector_is_left_out():
    written = {
        path.stem for path in FOLDER.glob("*/*.py") if "\ndef of_" in path.read_text("utf-8")
    }
    assert written == {one.__module__.rpartition(".")[2] for one in find.DETECTORS.values()}


class OfSparse(nn.Module):
    """Multiplies sparse rows, as of bags of words."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(30, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.relu(torch.sparse.mm(x, self.layer.weight.T) + self.layer.bias))


def test_all_mistakes_are_looked_for_in_sparse_batches():
    torch.manual_seed(0)
    x = (torch.rand(32, 30) < 0.2).float()
    report = eq.checkup(OfSparse, [(x.to_sparse(), x[:, :3].argmax(1))], seeds=1)
    assert not any("could be looked for" in f.title for f in report.findings)
