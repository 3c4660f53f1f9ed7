"""What stops a training at its first steps, and does not show in a single pass."""

from __future__ import annotations

import dis
import math
from collections.abc import Iterator, Set
from types import FunctionType

import torch
from torch import Tensor, nn

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument import untouched
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.random_states import seeded
from equipoise.instrument.recording.graph import Graph
from equipoise.instrument.trees import leaves
from equipoise.records import wording
from equipoise.records.exceptions import text_of
from equipoise.records.finding import Finding

# Adam divides by the root mean square of gradients plus 1e-8: of less than a hundredth of that, a
# step is less than a hundredth of the rate.
_EPS, _TINY = 1e-8, 1e-10
_NAMES = 3


def of_steps(traced: TracedPass) -> list[Finding]:
    """Gradients that Adam takes for none, weights in float16, and states that keep their graph."""
    return [
        *_tiny(traced.graph),
        *_short(traced.model),
        *traced.afterwards(_kept),
    ]


def _tiny(graph: Graph) -> list[Finding]:
    squares = [square for square in graph.weights.values() if math.isfinite(square)]
    most = math.sqrt(max(squares, default=0.0))
    if not 0 < most < _TINY:
        return []
    return [
        Finding(
            "critical",
            "Gradients are too small for Adam",
            f"Their largest root mean square is {wording.number(most)}, and Adam adds "
            f"{wording.number(_EPS)} before it divides by that: its steps are nearly zero.",
            "Scale the loss up, or take the mean where it is divided twice; if the loss hardly "
            "depends on the outputs, look for terms that cancel, as a softmax of one number. "
            "Otherwise pass a smaller eps to Adam.",
        )
    ]


def _short(model: nn.Module) -> list[Finding]:
    names = [
        n for n, p in model.named_parameters() if p.requires_grad and p.dtype == torch.float16
    ]
    if not names:
        return []
    return [
        Finding(
            "warning",
            "Weights in float16 are trained",
            f"{wording.listed(names, _NAMES)}: squares of small gradients and Adam's eps of 1e-8 "
            "are zero in float16, and it divides by them: weights become nan. Steps below a "
            "two-thousandth of a weight are lost.",
            "Keep weights in float32 and compute in torch.autocast, or take bfloat16.",
        )
    ]


def _kept(traced: TracedPass) -> list[Finding]:
    """A state that leads from one batch to the graph of the last one, whose memory is freed."""
    model, loss_fn, batch = traced.model, traced.loss_fn, traced.batch
    kinds = {type(module) for module in model.modules()}
    written = {kind: some for kind in kinds if (some := _written(kind))}

    def held() -> Iterator[tuple[str, list[Tensor]]]:
        for prefix, module in model.named_modules():
            for name, tensors in _attributes(module, written.get(type(module), frozenset())):
                yield f"{prefix}.{name}" if prefix else name, tensors

    if not any(True for _ in held()):
        return []
    with untouched(model), seeded(0), recording_gradients():
        trained = [p for p in model.parameters() if p.requires_grad]
        loss = loss_fn(model, batch)
        names = [name for name, xs in held() if any(x.grad_fn is not None for x in xs)]
        if not names:
            return []
        torch.autograd.grad(loss, trained, allow_unused=True)
        try:
            torch.autograd.grad(loss_fn(model, batch), trained, allow_unused=True)
        except RuntimeError as error:
            if "second time" not in text_of(error):
                raise
        else:
            return []
    return [
        Finding(
            "critical",
            "The second step fails: a state keeps its graph",
            f"The model keeps {wording.listed(names, _NAMES)} from one batch to the next, and "
            "gradients of the next loss would go back through the last one's pass, which "
            "backward() has freed.",
            "Detach what is kept: self.state = state.detach(), and of a tuple each part. Or set "
            "it back before every batch, in the loss that is given here too.",
        )
    ]


def _attributes(module: nn.Module, written: Set[str]) -> Iterator[tuple[str, list[Tensor]]]:
    """Plain attributes that hold tensors, or nothing as yet, of those that a pass may write."""
    for name, value in vars(module).items() if written else ():
        if name in written and (value is None or isinstance(value, Tensor | tuple | list | dict)):
            tensors = [x for x in leaves(value) if isinstance(x, Tensor)]
            if tensors or value is None or len(value) == 0:
                yield name, tensors


def _written(kind: type[nn.Module]) -> frozenset[str]:
    """Names of attributes that methods of a user's class assign, beside those that only begin."""
    return frozenset(
        instruction.argval
        for owner in kind.__mro__
        if issubclass(owner, nn.Module) and not owner.__module__.startswith("torch.")
        for name, method in vars(owner).items()
        if isinstance(method, FunctionType) and name != "__init__"
        for instruction in dis.get_instructions(method)
        if instruction.opname == "STORE_ATTR"
    )
