"""Operations that move elements and change none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from equipoise.theory.propagation.call import Call, Pulled, Result, rule
from equipoise.theory.propagation.layout import Atom, Layout, LayoutError, UnpredictedError
from equipoise.theory.propagation.rules.positions.matrices import repeated
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments

Parts = dict[Atom, tuple[Atom, ...]]


def view(call: Call, layout: Layout) -> tuple[Layout, Parts]:
    """``view`` and ``reshape``."""
    return layout.viewed(tuple(call.output.shape))


def same(call: Call, layout: Layout) -> tuple[Layout, Parts]:
    """Copies."""
    return layout, {}


def permute(call: Call, layout: Layout) -> tuple[Layout, Parts]:
    """Axes in another order."""
    count = len(layout.axes)
    return layout.permuted([i % count for i in call.argument("dims")]), {}


def transpose(call: Call, layout: Layout) -> tuple[Layout, Parts]:
    """Two axes exchanged."""
    order = list(range(len(layout.axes)))
    first, second = call.argument("dim0", 0), call.argument("dim1", len(order) - 1)
    order[first], order[second] = order[second], order[first]
    return layout.permuted(order), {}


def unsqueeze(call: Call, layout: Layout) -> tuple[Layout, Parts]:
    """A new axis of length 1."""
    at = call.argument("dim") % (len(layout.axes) + 1)
    return Layout((*layout.axes[:at], (), *layout.axes[at:])), {}


def squeeze(call: Call, layout: Layout) -> tuple[Layout, Parts]:
    """Axes of length 1 left out."""
    axes = call.argument("dim", range(len(layout.axes)))
    chosen = {a % len(layout.axes) for a in ([axes] if isinstance(axes, int) else axes)}
    kept = [
        axis
        for i, (axis, size) in enumerate(zip(layout.axes, layout.shape, strict=True))
        if not (i in chosen and size == 1)
    ]
    return Layout(tuple(kept)), {}


Follow = Callable[[Call, Layout], tuple[Layout, Parts]]


def expand(call: Call, layout: Layout) -> tuple[Layout, Parts]:
    """Nothing but a copy, as matrix products expand what fits already."""
    if layout.shape != tuple(call.output.shape):
        raise LayoutError("an axis that is repeated")
    return layout, {}


FOLLOWED: dict[str, Follow] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), view),
    **dict.fromkeys(("clone", "detach", "alias", "contiguous", "_to_copy", "lift_fresh"), same),
    "permute": permute,
    **dict.fromkeys(("transpose", "t"), transpose),
    "expand": expand,
    "unsqueeze": unsqueeze,
    "squeeze": squeeze,
    "as_strided": expand,
}


@rule("copy")
def copy(call: Call) -> Result:
    """What is written over a whole tensor takes its place."""
    x = call.argument("src")
    if not isinstance(x, Moments) or x.layout.shape != tuple(call.output.shape):
        raise UnpredictedError("a tensor that is written over another of another shape or kind")
    return Result(x.with_layout(x.layout, {}), lambda gradient: Pulled([(x, gradient)]))


@rule(*FOLLOWED)
def moved(call: Call) -> Result:
    """Follow the axes."""
    x = call.arguments[0]
    if isinstance(x, Known):
        layout = None
        if x.layout is not None:
            layout, _ = FOLLOWED[call.node.name](call, x.layout)
        return Result(replace(x, value=call.output, layout=layout))
    if not isinstance(x, Moments):
        raise UnpredictedError("no tensor")
    if call.node.name == "expand" and x.layout.shape != tuple(call.output.shape):
        return repeated(x, call.output.shape)
    layout, parts = FOLLOWED[call.node.name](call, x.layout)
    output = x.with_layout(layout, parts)

    def pullback(gradient: Gradient) -> Pulled:
        return Pulled([(x, gradient)] if call.node.name != "detach" else [])

    return Result(output, pullback)
