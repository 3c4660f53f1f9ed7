"""Traced passes, as detectors of mistakes are given them."""

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument.recording.tracer import trace


def traced_pass(model, batch, loss_fn, *, graph=None, batches=None, assumed=False, patience=3.0):
    """A pass of a model, traced here unless its graph is given."""
    return TracedPass(
        graph=trace(model, batch, loss_fn) if graph is None else graph,
        model=model,
        loss_fn=loss_fn,
        batch=batch,
        more=batches if callable(batches) else lambda: [batch] if batches is None else batches,
        patience=patience,
        loss_is_assumed=assumed,
    )
