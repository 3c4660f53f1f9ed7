"""A look that fails is named, and ends nothing."""

import torch
from torch import nn

import equipoise as eq


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
    (finding,) = (f for f in report.findings if "without a gradient" in f.title)
    assert finding.severity == "warning"
    assert "backbone.0.weight" in finding.detail
