"""Exchange the normalisation layers of an existing model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrize

from equipoise.instrument.copies import copied
from equipoise.instrument.modules import places, put, without_shortcuts
from equipoise.instrument.normalisers import NormaliserKind, is_batch_norm
from equipoise.layers.batch_renorm import RenormSchedule
from equipoise.layers.four_things import check_example_weight
from equipoise.layers.kinds import (
    PARAMETERS,
    SOURCES,
    STATISTICS,
    TARGETS,
    CannotConvertError,
    Normaliser,
    Options,
    build,
    exchangeable_kind,
    read,
    tensor_of,
)
from equipoise.numerics.checks import check_size
from equipoise.numerics.options import named_options


@dataclass(frozen=True, slots=True)
class Changed:
    """A layer that was exchanged.

    Attributes:
        names: Every path under which the model holds it.
        before: The old layer, as printed.
        after: The new layer, as printed.
        kept: Parameters and statistics that the new layer took over.
        lost: Parameters and statistics that the new layer does not have.
        note: What to do before the model is used; may be empty.
    """

    names: tuple[str, ...]
    before: str
    after: str
    kept: tuple[str, ...]
    lost: tuple[str, ...]
    note: str = ""

    def __str__(self) -> str:
        lost = f"; lost {', '.join(self.lost)}" if self.lost else ""
        note = f" ({self.note})" if self.note else ""
        return f"{', '.join(map(repr, self.names))}: {self.before} -> {self.after}{lost}{note}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A layer that stayed.

    Attributes:
        names: Every path under which the model holds it.
        layer: Its class.
        reason: Why, and what to do.
    """

    names: tuple[str, ...]
    layer: str
    reason: str

    def __str__(self) -> str:
        return f"{', '.join(map(repr, self.names))}: {self.layer} stays: {self.reason}"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A model with other normalisation layers, and what happened to each.

    Attributes:
        model: The converted model.
        changed: Layers exchanged, in the order of the model.
        skipped: Layers of the wanted kind that stayed.
    """

    model: nn.Module
    changed: tuple[Changed, ...]
    skipped: tuple[Skipped, ...]

    def __str__(self) -> str:
        lines = [*map(str, self.changed), *map(str, self.skipped)]
        return "\n".join(lines) or "no layer of that kind"


@named_options
def convert(
    model: nn.Module,
    from_: str | Iterable[str],
    to: str | Callable[[Normaliser], nn.Module],
    *,
    inplace: bool = False,
    dims: int | None = None,
    groups: int | None = None,
    virtual_batch_size: int | None = None,
    example_weight: float = 0.0,
    schedule: RenormSchedule | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> Conversion:
    r"""Exchange normalisation layers, keeping weights where that is meaningful.

    Kinds are ``"batch"``, ``"batch_renorm"``, ``"ghost"``, ``"four_things"``, ``"noisy"``,
    ``"synchronised"``, ``"frozen"``, ``"instance"``, ``"group"``, ``"layer"``, ``"rms"`` and, as
    target, ``"none"`` (``nn.Identity``).

    * γ and β are the same parameters as before, so that optimizers, shared parameters and
      ``requires_grad`` remain valid; no parameter is added. RMS norm has no β, "none" has
      neither.
    * Batch norms hand their running statistics to each other. Where the new layer needs them
      and the old one had none, they start at 0 and 1, and the model must be trained, or its
      statistics estimated, before evaluation.
    * ε, momentum, device, dtype and training mode are kept.
    * ``"layer"`` for channels first is ``nn.GroupNorm(1, C)``, with γ and β per channel.

    Layers are exchanged if their class is exactly one of PyTorch's, or of this library's, of
    these kinds. Subclasses, lazy layers, ``nn.SyncBatchNorm``, and layers with hooks or
    parametrisations stay and are listed. ``LpNorm`` is of none of these kinds, as its statistics
    are no variances, and stays. With ``"synchronised"`` a batch norm that would stay is an error,
    because processes would silently train with different statistics; only
    ``nn.SyncBatchNorm`` may stay.

    Args:
        model: Any module. Layers held twice are exchanged once, everywhere.
        from_: Kind or kinds to exchange.
        to: Kind of the new layers, or a function that makes one from a :class:`Normaliser`.
        inplace: Change ``model`` itself, so that an existing optimizer keeps working. By
            default a deep copy is changed. A model that *is* a normalisation layer is
            replaced, never changed: use ``model`` of the result.
        dims: Dimensions of positions behind ``[N, C]`` in the inputs, where the layer's class
            leaves it open: 0 for features, 1 for sequences, 2 for images, 3 for volumes.
        groups: Of channels, for "group" (None: 32) and "four_things" (None: one channel per
            group); where it does not divide the channels, its greatest common divisor with
            them.
        virtual_batch_size: For "ghost" (None: 32) and "four_things" (None: the whole batch).
        example_weight: For "four_things".
        schedule: For "batch_renorm"; None for the paper's. It is read at
            ``num_batches_tracked``, which a trained batch norm passes on.
        process_group: For "synchronised": the processes that share the batch; None for all.
            Convert before ``DistributedDataParallel`` or ``fully_shard``.

    Returns:
        The model, with every change and every layer that was skipped and why.

    Raises:
        ValueError: If a kind is unknown, an option is out of its range or one that ``to`` does
            not take, or a layer cannot be synchronised; the model is then as it was.
        TypeError: If the function ``to`` makes something else than a module.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48), nn.ReLU())
        >>> result = convert(model, "batch", "group")
        >>> result.model[1]
        GroupNorm(16, 48, eps=1e-05, affine=True...)
        >>> result.changed[0].kept, result.changed[0].lost
        (('weight', 'bias'), ('running_mean', 'running_var', 'num_batches_tracked'))
    """
    for name, given in (("from_", from_), ("to", to)):
        if isinstance(given, type) and given.__module__.startswith("torch.nn."):
            raise ValueError(
                f"{name} is the class {given.__name__}; give a kind, such as 'batch' or 'group'."
            )
    kinds = _known_kinds(from_)
    if isinstance(to, str) and to not in TARGETS:
        raise ValueError(f"to must be one of {', '.join(TARGETS)}, or a function; got {to!r}.")
    _check_options(dims, groups, virtual_batch_size, example_weight)
    options = Options(groups, virtual_batch_size, example_weight, schedule, process_group)
    _check_taken(to, options)

    def make(source: Normaliser) -> nn.Module:
        return build(to, source, options) if isinstance(to, str) else to(source)

    model = model if inplace else copied(model)
    # Plan everything before changing anything, so that errors leave the model as it was.
    plans: list[_Plan] = []
    skipped: list[Skipped] = []
    for module, names in _places(model):
        match _plan(module, names, kinds, make, dims):
            case _Plan() as plan:
                plans.append(plan)
            case Skipped() as reason:
                if to == "synchronised":
                    _check_synchronised(module, reason)
                skipped.append(reason)
    changed = []
    for plan in plans:
        changed.append(_hand_over(plan))
        model = _replace(model, plan)
    if changed:
        without_shortcuts(model)
    return Conversion(model, tuple(changed), tuple(skipped))


@dataclass(frozen=True, slots=True)
class _Plan:
    """A layer, its successor, and where the model holds it."""

    source: Normaliser
    new: nn.Module
    names: tuple[str, ...]


def _plan(
    module: nn.Module,
    names: tuple[str, ...],
    kinds: tuple[str, ...],
    make: Callable[[Normaliser], nn.Module],
    dims: int | None,
) -> _Plan | Skipped | None:
    try:
        kind = _kind_to_exchange(module, kinds)
        if kind is None:
            return None
        source = read(module, kind, dims)
        new = make(source)
    except CannotConvertError as reason:
        return Skipped(names, type(module).__name__, str(reason))
    if not isinstance(new, nn.Module):
        raise TypeError(f"to must return a module; got {new!r} for {names[0]!r}.")
    return _Plan(source, new, names)


def _check_options(
    dims: int | None, groups: int | None, virtual_batch_size: int | None, example_weight: float
) -> None:
    given = {"groups": groups, "virtual_batch_size": virtual_batch_size}
    check_size(**{name: size for name, size in given.items() if size is not None})
    check_example_weight(example_weight)
    if dims is not None and dims not in (0, 1, 2, 3):
        raise ValueError(f"dims must be 0, 1, 2 or 3; got {dims}. Images [N, C, H, W] have 2.")


# Which targets take an option.
_TAKEN_BY = {
    "groups": ("group", "four_things"),
    "virtual_batch_size": ("ghost", "four_things"),
    "example_weight": ("four_things",),
    "schedule": ("batch_renorm",),
    "process_group": ("synchronised",),
}


def _check_taken(to: str | Callable[[Normaliser], nn.Module], options: Options) -> None:
    """Refuse options that would be without effect."""
    for name, targets in _TAKEN_BY.items():
        if to not in targets and getattr(options, name) != getattr(Options(), name):
            named = repr(to) if isinstance(to, str) else "a function"
            raise ValueError(
                f"{name} is an option of {' and '.join(map(repr, targets))}, and to is {named}. "
                "Leave it out."
            )


def _known_kinds(from_: str | Iterable[str]) -> tuple[str, ...]:
    kinds = (from_,) if isinstance(from_, str) else tuple(from_)
    for kind in kinds:
        if kind not in SOURCES:
            raise ValueError(f"from_ must be among {', '.join(SOURCES)}; got {kind!r}.")
    return kinds


def _check_synchronised(module: nn.Module, skipped: Skipped) -> None:
    if is_batch_norm(module) and not isinstance(module, nn.SyncBatchNorm):
        raise ValueError(f"cannot synchronise {skipped}.")


def _places(model: nn.Module) -> list[tuple[nn.Module, tuple[str, ...]]]:
    """Every module once, with all names under which the model holds it."""
    found: dict[nn.Module, list[str]] = {}
    for name, module in places(model).items():
        found.setdefault(module, []).append(name)
    return [(module, tuple(names)) for module, names in found.items()]


def _kind_to_exchange(module: nn.Module, wanted: tuple[str, ...]) -> NormaliserKind | None:
    """The kind of a layer, None if it is not wanted.

    Raises:
        CannotConvertError: If it is wanted but must stay.
    """
    kind = exchangeable_kind(module)
    if kind is None and isinstance(module, _classes_of(wanted)):
        raise CannotConvertError(_why_not_exactly(module))
    if kind is None or kind.name not in wanted:
        return None
    if any(_hooks(module)):
        raise CannotConvertError("it has hooks, which would be lost: remove them first")
    return kind


def _classes_of(kinds: tuple[str, ...]) -> tuple[type[nn.Module], ...]:
    return tuple(c for name in kinds for c in (*SOURCES[name].classes, *SOURCES[name].bases))


def _why_not_exactly(module: nn.Module) -> str:
    if parametrize.is_parametrized(module):
        return "it has parametrisations: remove them first"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        return "its size is not known yet: run one batch through the model first"
    if isinstance(module, nn.SyncBatchNorm):
        return "it averages over processes: convert before SyncBatchNorm does"
    return "it is a subclass, which may do more than normalise"


def _hooks(module: nn.Module) -> Iterator[bool]:
    # PyTorch has no public function for this.
    yield bool(module._forward_hooks)
    yield bool(module._forward_pre_hooks)
    yield bool(module._backward_hooks)
    yield bool(module._backward_pre_hooks)


def _hand_over(plan: _Plan) -> Changed:
    """Move parameters and statistics that both layers have to the new one."""
    old, new, before = plan.source.module, plan.new, str(plan.source.module)
    had = [name for name in (*PARAMETERS, *STATISTICS) if tensor_of(old, name) is not None]
    kept = [name for name in had if _fits(plan, name)]
    for name in kept:
        setattr(new, name, getattr(old, name))
    if plan.source.affine and "bias" not in had and tensor_of(new, "bias") is not None:
        new.register_parameter("bias", None)
    new.train(old.training)
    fresh = tensor_of(new, "running_mean") is not None and "running_mean" not in kept
    note = "running statistics start at 0 and 1: train before evaluation" if fresh else ""
    lost = tuple(name for name in had if name not in kept)
    return Changed(plan.names, before, str(new), tuple(kept), lost, note)


def _fits(plan: _Plan, name: str) -> bool:
    value, own = tensor_of(plan.source.module, name), tensor_of(plan.new, name)
    if value is None or own is None or own.shape != value.shape:
        return False
    return name in PARAMETERS or _averages_the_same(plan)


def _averages_the_same(plan: _Plan) -> bool:
    # LpNorm has a running mean but no variance; the mean alone would not fit its running size.
    averages_variances = tensor_of(plan.new, "running_var") is not None
    return SOURCES[plan.source.kind].shares_batch_statistics and averages_variances


def _replace(model: nn.Module, plan: _Plan) -> nn.Module:
    if "" in plan.names:
        return plan.new
    for name in plan.names:
        put(model, name, plan.new)
    return model
