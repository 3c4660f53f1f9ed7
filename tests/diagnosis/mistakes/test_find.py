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
