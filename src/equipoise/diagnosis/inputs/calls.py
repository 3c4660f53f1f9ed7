"""The ways in which a model may take a batch, the most plausible first."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor, nn

from equipoise.instrument.batches import fields, tensors
from equipoise.instrument.forward import with_gradients_inside

Path: TypeAlias = tuple[int | str, ...]
"""Where a part of a batch is: indices and names, from outside; empty for the whole batch."""

# What datasets and signatures call targets, the most telling first.
TARGETS = (
    "labels", "label", "targets", "target", "y", "y_true", "class", "classes", "cls",
    "ground_truth", "gt", "masks", "mask", "segmentation", "seg", "answer", "score", "value",
)  # fmt: skip
_INPUTS = (
    "pixel_values", "image", "images", "img", "imgs", "input_ids", "input", "inputs", "x", "data",
    "features", "feature", "waveform", "audio", "speech", "video", "text", "tokens", "sequence",
)  # fmt: skip
_TIMES = ("t", "timestep", "timesteps", "time", "time_step", "noise_level", "sigma", "sigmas")
# What a batch may tell a model beside tensors, such as return_loss=True.
_SWITCHES = (bool, int, float, str)
_PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Call:
    """Which parts of a batch are arguments of a model, and which one is the target.

    Args:
        positions: The positional arguments.
        keywords: The keyword arguments.
        target: What the output is compared with; None if the model itself makes the loss.
    """

    positions: tuple[Path, ...] = ()
    keywords: Mapping[str, Path] = field(default_factory=dict)
    target: Path | None = None

    def run(self, model: nn.Module, batch: Any) -> Any:
        """Call the model."""
        positions = [part_of(batch, path) for path in self.positions]
        keywords = {name: part_of(batch, path) for name, path in self.keywords.items()}
        return with_gradients_inside(lambda: model(*positions, **keywords))

    def target_of(self, batch: Any) -> Any:
        """The target, if there is one."""
        return None if self.target is None else part_of(batch, self.target)

    def inputs_of(self, batch: Any) -> list[Any]:
        """The arguments, positional ones first."""
        return [part_of(batch, path) for path in (*self.positions, *self.keywords.values())]

    @property
    def words(self) -> str:
        """The call as code, with the batch called ``batch``.

        Examples:
            >>> Call(((0,),), {"mask": ("mask",)}).words
            "model(batch[0], mask=batch['mask'])"
        """
        named = [f"{name}={_code(path)}" for name, path in self.keywords.items()]
        if len(named) > 3:
            named = [*named[:2], f"… {len(named) - 2} more"]
        return f"model({', '.join([*map(_code, self.positions), *named])})"

    @property
    def target_words(self) -> str:
        """The target as code."""
        return "" if self.target is None else _code(self.target)


def part_of(batch: Any, path: Path) -> Any:
    """Follow a path into a batch."""
    for step in path:
        if isinstance(step, str) and not isinstance(batch, Mapping):
            batch = getattr(batch, step)
        else:
            batch = batch[step]
    return batch


def _code(path: Path) -> str:
    return "batch" + "".join(f"[{step!r}]" for step in path)


@dataclass(frozen=True, slots=True)
class _Signature:
    """Names of a forward method's arguments.

    Args:
        positional: By position or by name.
        required: How many of these have no default.
        keywords: By name alone.
        many: Whether there is ``*args``.
        any_name: Whether there is ``**kwargs``.
    """

    positional: tuple[str, ...]
    required: int
    keywords: tuple[str, ...]
    many: bool
    any_name: bool

    def takes(self, name: str) -> bool:
        return self.any_name or name in self.positional or name in self.keywords


def calls(model: nn.Module, batch: Any) -> list[Call]:
    """Every way to call a model with a batch that its signature allows.

    Args:
        model: Its ``forward`` names what it takes.
        batch: What the loader yields.
    """
    signature = _signature(model)
    named = fields(batch)
    # A named tuple is a tuple too.
    listed = batch if isinstance(batch, tuple | list) else None
    found: list[Call] = []
    if named is not None:
        found += _by_name(signature, named, model_of_text=_is_of_text(model))
        target = next((name for name in TARGETS if name in named), None)
        if target is not None:  # a model that looks up its inputs itself
            found.append(Call(positions=((),), target=(target,)))
    if listed is not None and len(listed) > 1:
        found += _by_position(signature, listed)
    elif listed:  # what a loader of one tensor yields
        found.append(Call(positions=((0,),)))
    found.append(Call(positions=((),)))
    unique: list[Call] = []
    for call in found:
        if call not in unique:
            unique.append(call)
    return unique


def _by_name(
    signature: _Signature, named: Mapping[str, Any], *, model_of_text: bool = False
) -> Iterator[Call]:
    """A dictionary: names that ``forward`` has, or inputs and targets by what they are called."""
    asked = signature.positional + signature.keywords
    usable = {
        name: value
        for name, value in named.items()
        if tensors(value) or name == "loss" or (name in asked and isinstance(value, _SWITCHES))
    }
    target = next((name for name in TARGETS if name in usable), None)
    known = [name for name in usable if name in asked]
    if signature.takes("labels") and "labels" not in usable and known:
        # Hugging Face's own collator renames `label`; language models are their own targets.
        source = target or ("input_ids" if "input_ids" in usable and model_of_text else None)
        if source is not None:
            kept = {name: (name,) for name in known if name != source or source == "input_ids"}
            yield Call(keywords={**kept, "labels": (source,)}, target=(source,))
    yield from _by_keywords(signature, list(usable), known, target)
    yield from _by_rank(signature, [name for name in usable if name != target], target)


def _by_keywords(
    signature: _Signature, usable: Sequence[str], known: Sequence[str], target: str | None
) -> Iterator[Call]:
    """Names of a batch as ``forward`` has them, with the target and without it."""
    path: Path | None = None if target is None else (target,)
    required = signature.positional[: signature.required]
    if known and all(name in usable for name in required):
        accepted = [name for name in usable if signature.takes(name)] if target else known
        chosen = accepted if signature.any_name and _are_all_inputs(accepted) else known
        yield Call(keywords={name: (name,) for name in chosen}, target=path)
        if target in chosen:
            rest = {name: (name,) for name in chosen if name != target}
            yield Call(keywords=rest, target=path)
    if not signature.positional and signature.any_name:
        yield Call(keywords={name: (name,) for name in usable}, target=path)


def _by_rank(signature: _Signature, inputs: Sequence[str], target: str | None) -> Iterator[Call]:
    """By position, what is called as inputs mostly are first; or in the order of the batch."""
    ranked = sorted(inputs, key=lambda n: _INPUTS.index(n) if n in _INPUTS else len(_INPUTS))
    if target is not None and ranked:
        count = max(1, signature.required)
        chosen = inputs if count == len(inputs) else ranked[:count]
        yield Call(positions=tuple((name,) for name in chosen), target=(target,))
        if count == 1 and len(ranked) > 1:
            yield Call(positions=((inputs[0],),), target=(target,))
    elif len(inputs) == 2 and signature.required <= 1:
        yield Call(positions=((inputs[0],),), target=(inputs[1],))
    elif ranked:
        yield Call(positions=((ranked[0],),))


def _are_all_inputs(names: Sequence[str]) -> bool:
    """Whether all names of a batch may go to a model that takes any name."""
    return all(name not in ("id", "idx", "index", "path") for name in names)


def _by_position(signature: _Signature, listed: Sequence[Any]) -> Iterator[Call]:
    """A tuple: inputs first, and the target last, or given to a model that asks for it."""
    count, last = len(listed), len(listed) - 1
    wanted = [i for i, name in enumerate(signature.positional) if i and name.strip("_") in TARGETS]
    if wanted and wanted[0] == last:
        paths: tuple[Path, ...] = tuple((i,) for i in range(count))
        yield Call(positions=paths, target=(last,))
    elif signature.required == count > 1 + bool(wanted) and not signature.many:
        yield Call(positions=tuple((i,) for i in range(count)))
    first = listed[0]
    if isinstance(first, Mapping):
        for call in _by_name(signature, first):
            inner = {name: (0, *path) for name, path in call.keywords.items()}
            positions = tuple((0, *path) for path in call.positions)
            yield Call(positions, inner, (last,))
    if isinstance(first, tuple | list) and (
        signature.many or signature.required == len(first) > 1
    ):
        yield Call(tuple((0, i) for i in range(len(first))), target=(last,))
    inputs = min(last, len(signature.positional)) if not signature.many else last
    # What is required is no target, whatever its name: x and y are coordinates, too.
    is_plain = not wanted or wanted[0] < signature.required == inputs
    if count > 2 and inputs >= max(2, signature.required) and is_plain:
        yield Call(tuple((i,) for i in range(inputs)), target=(last,))
    target = 1 if signature.required <= 1 else last
    yield Call(((0,),), target=(target,))


def _signature(model: nn.Module) -> _Signature:
    inner: Any = model
    for name in ("_orig_mod", "module"):  # a compiled model, and a parallel one
        wrapped = getattr(inner, name, None)
        if isinstance(wrapped, nn.Module) and type(inner).__module__.startswith("torch."):
            inner = wrapped
    if isinstance(inner, nn.Sequential):
        return _Signature(("input",), 1, (), many=False, any_name=False)
    try:
        parameters = list(inspect.signature(inner.forward).parameters.values())
    except (TypeError, ValueError):
        return _Signature((), 0, (), many=True, any_name=True)
    positional = [p for p in parameters if p.kind in _PLAIN]
    return _Signature(
        tuple(p.name for p in positional),
        sum(p.default is p.empty for p in positional),
        tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY),
        many=any(p.kind is p.VAR_POSITIONAL for p in parameters),
        any_name=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def takes_time(model: nn.Module) -> bool:
    """Whether a model's second argument is the time of a diffusion."""
    positional = _signature(model).positional
    return len(positional) > 1 and positional[1] in _TIMES


def _is_of_text(model: nn.Module) -> bool:
    """Whether a Hugging Face model predicts the tokens that it reads."""
    name = type(model).__name__
    return name.endswith(("LMHeadModel", "CausalLM", "MaskedLM", "ForPreTraining"))


def is_input(value: Any) -> bool:
    """Whether an argument may be compared with an output, as autoencoders are trained."""
    return isinstance(value, Tensor) and value.is_floating_point()
