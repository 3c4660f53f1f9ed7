"""Traced passes, as detectors of mistakes are given them."""

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument.recording.tracer import trace
from support.model_state import left_alone


def traced_pass(
    model,
    batch,
    loss_fn,
    *,
    graph=None,
    batches=None,
    assumed=False,
    patience=3.0,
    left_out=(),
):
    """A pass of a model, traced here unless its graph is given."""
    return TracedPass(
        graph=trace(model, batch, loss_fn) if graph is None else graph,
        model=model,
        loss_fn=loss_fn,
        batch=batch,
        more=batches if callable(batches) else lambda: [batch] if batches is None else batches,
        patience=patience,
        loss_is_assumed=assumed,
        left_out=left_out,
    )


def found_by(detect, model, batch, loss_fn, **options):
    """What a detector finds, by severity and title; the model is to stay as it is."""
    with left_alone(model):
        findings = detect(traced_pass(model, batch, loss_fn, **options))
    return [(one.severity, one.title) for one in findings]
