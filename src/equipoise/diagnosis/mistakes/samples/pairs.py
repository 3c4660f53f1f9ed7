"""Similarities of samples in which each competes with itself."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.sources import LIKELIHOODS
from equipoise.instrument.recording.graph import Made
from equipoise.records.finding import Finding

# Of fewer samples, the diagonal may hold the largest numbers by chance.
_SAMPLES = 6
# Part of the largest number by which rounding parts equal ones.
_ROUNDING = 1e-3


def of_pairs(traced: TracedPass) -> list[Finding]:
    """Cross-entropy of similarities of samples, one of which is that of each with itself.

    As in the loss of SimCLR without a mask on the diagonal, where z·z/τ is the largest logit of
    every row and its sample never the target.
    """
    for node in traced.after_layers:
        if node.name not in LIKELIHOODS or not isinstance(source := node.inputs[0], Made):
            continue
        softmax = traced.nodes[source.node]
        if softmax.name == "_log_softmax" and _hold_themselves(
            traced.tensor(softmax.inputs[0]), traced.tensor(node.inputs[1])
        ):
            return [_finding(len(softmax.outputs[0]))]
    return []


def _hold_themselves(logits: Tensor, targets: Tensor) -> bool:
    """Whether the diagonal has the largest number of every row, the same in all, and no target."""
    if not logits.requires_grad:
        return False
    logits, samples = logits.detach(), len(logits)
    if logits.ndim != 2 or samples < _SAMPLES or logits.shape != (samples, samples):
        return False
    if bool((targets == torch.arange(samples, device=targets.device)).any()):
        return False
    own, largest = logits.diagonal(), logits.amax(1)
    tolerance = _ROUNDING * float(own.abs().max())
    return bool(
        logits.isfinite().all()
        and float(own.max() - own.min()) <= tolerance
        and float((largest - own).max()) <= tolerance
        and float((logits - logits.T).abs().max()) <= tolerance
        and float(logits.max() - logits.min()) > 10 * tolerance
    )


def _finding(samples: int) -> Finding:
    return Finding(
        "warning",
        "Samples compete with themselves",
        f"Logits are similarities of {samples} rows with each other, and the largest of every row "
        "is that of the row with itself, which is never the target: this keeps the loss from "
        "falling, and takes most of its gradient.",
        "Leave the diagonal out: similarities.fill_diagonal_(-torch.inf) before the "
        "cross-entropy.",
    )
