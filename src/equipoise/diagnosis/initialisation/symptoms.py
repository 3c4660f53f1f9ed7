r"""Signs of mistakes that no standard deviation shows.

Rounding
    Numbers of type float32 that were drawn as bfloat16 or float16 have zeros in their last bits.
Coarse sampling
    A uniform number of type bfloat16 that a generator gave as k/256 takes few values.
Ties and copies
    One tensor under two names that mean different scales; equal values in two tensors, as
    ``copy.deepcopy`` of a block leaves them.
Training
    Independent elements have no preferred direction: in a matrix whose elements are shuffled the
    largest singular value is the same, up to the fluctuation of its edge. In trained matrices it
    is larger. A model with trained and fresh layers was loaded in part.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.weight_norm import WeightNorm

from equipoise.diagnosis.initialisation.copies import in_sequence, run_in_sequence
from equipoise.diagnosis.initialisation.judgement.found import Found
from equipoise.diagnosis.initialisation.record import FaultKind, InitialisationFault
from equipoise.instrument import modules
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.instrument.threads import one_thread
from equipoise.records import wording

# Fewer elements may agree by chance, or be few values on purpose.
_LEAST_ELEMENTS = 256
_LEAST_VALUES = 16
# A continuous law, rounded, takes more than this part of the values of a normal one.
_COARSE = 0.5
_MOST_COUNTED = 2**16
# Largest singular value over that of shuffled elements: of trained matrices, and of fresh ones,
# where it fluctuates by a few per cent in the smallest that are looked at.
_TRAINED, _FRESH = 1.4, 1.15
_LEAST_SIDE, _MOST_SIDE = 16, 256
# Cosine between weights, which is about 0 of independent ones.
_ALIKE = 0.5
# With a tied embedding, by how much logits may be too large.
TOO_LARGE = 3.0


def not_finite(parameters: Sequence[Found]) -> list[InitialisationFault]:
    """NaN and infinite elements."""
    counts = {one.name: int((~torch.isfinite(one.tensor)).sum()) for one in parameters}
    bad = {name: number for name, number in counts.items() if number}
    if not bad:
        return []
    detail = f"NaN or infinite: {wording.count(sum(bad.values()), 'element')}."
    return [InitialisationFault("not finite", tuple(bad), len(parameters), detail)]


def constant(parameters: Sequence[Found]) -> list[InitialisationFault]:
    """Matrices of one number, whose units stay alike; zeros close a branch on purpose."""
    layers = [one for one in parameters if one.is_matrix and "." not in one.kind]
    bad = [
        one
        for one in layers
        if one.layer.law.is_constant and one.layer.law.mean != 0 and one.tensor[0].numel() > 1
    ]
    if not bad:
        return []
    detail = (
        f"All elements of {bad[0].name} are {wording.number(bad[0].layer.law.mean)}: its units "
        "compute the same, and their gradients are the same."
    )
    return [InitialisationFault("constant", _names(bad), len(layers), detail)]


def not_used(model: nn.Module) -> list[InitialisationFault]:
    """Weights that were written to, and that weight norm computes anew before every pass."""
    normed, found = 0, []
    for module, name in modules.names(model).items():
        for hook in module._forward_pre_hooks.values():
            if not isinstance(hook, WeightNorm):
                continue
            normed += 1
            if any(getattr(module, f"{hook.name}_{part}")._version for part in "gv"):
                continue  # moved since, as by a step: the weight is that of the pass before
            written = getattr(module, hook.name).detach()
            used = hook.compute_weight(module).detach()
            if written.shape == used.shape and _is_another_draw(written, used):
                found.append((f"{name}.{hook.name}".lstrip("."), written, used))
    if not found:
        return []
    name, written, used = found[0]
    detail = (
        f"torch.nn.utils.weight_norm computes {name} from its length and direction before every "
        f"pass: what was written to it, of std {wording.number(_std(written))}, is lost, and the "
        f"pass takes std {wording.number(_std(used))}."
    )
    return [InitialisationFault("not used", tuple(name for name, *_ in found), normed, detail)]


def _is_another_draw(written: Tensor, used: Tensor) -> bool:
    """Whether weights point elsewhere than those that are used.

    Lengths and averages that are written to ``.data``, as by data-dependent initialisation and
    moving averages, leave the old weights near the new ones.
    """
    one, other = written.double().flatten(), used.double().flatten()
    near = float(one @ other) > _ALIKE * float(one.norm() * other.norm())
    return bool(other.any()) and not near


def _std(values: Tensor) -> float:
    return float(values.double().std(correction=0))


def low_precision(parameters: Sequence[Found]) -> list[InitialisationFault]:
    """Elements on the grid of a shorter type, or on a coarser one than their own."""
    drawn = [one for one in parameters if one.tensor.numel() >= _LEAST_ELEMENTS]
    groups: dict[str, list[str]] = defaultdict(list)
    for one in drawn:
        grid = _grid(one.tensor.reshape(-1)[:_MOST_COUNTED])
        if grid:
            groups[grid].append(one.name)
    return [
        InitialisationFault("low precision", tuple(names), len(drawn), grid)
        for grid, names in groups.items()
    ]


def _grid(values: Tensor) -> str:
    """On which grid values lie that should lie on none."""
    distinct = _distinct(values)
    if distinct < _LEAST_VALUES or not bool(torch.isfinite(values).all()):
        return ""
    if values.dtype in (torch.float32, torch.float64):
        for short in (torch.bfloat16, torch.float16):
            if bool((values == values.to(short).to(values.dtype)).all()):
                return (
                    f"Elements of type {_name(values.dtype)} are all exact in {_name(short)}: "
                    "they were drawn or stored in that type."
                )
        return ""
    generator = torch.Generator().manual_seed(0)
    spread = float(values.float().std())
    rounded = (spread * torch.randn(len(values), generator=generator)).to(values.dtype)
    if distinct > _COARSE * _distinct(rounded):
        return ""
    return (
        f"Elements of type {_name(values.dtype)} take less than half as many values as they "
        "would if drawn in float32 and rounded: their generator has too few bits."
    )


def _distinct(values: Tensor) -> int:
    return len(np.unique(values.double().cpu().numpy()))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tied(named: Sequence[Found]) -> list[InitialisationFault]:
    """Embeddings whose weights are also those of a linear layer, but far too large for it.

    Args:
        named: Parameters under all of their names.
    """
    faults = []
    for group in _groups(named, lambda one: id(one.parameter)):
        heads = [one for one in group if one.kind == "linear"]
        if not heads or all(one.kind != "embedding" for one in group):
            continue
        law, meant = heads[0].layer.law, heads[0].layer.fan_in ** -0.5
        if law.std > TOO_LARGE * meant:
            detail = (
                f"Their std is {wording.number(law.std)}: right for an embedding, but outputs of "
                f"the linear layer are {wording.number(law.std / meant)} times as large as its "
                "inputs."
            )
            faults.append(InitialisationFault("tied", _names(group), len(group), detail))
    return faults


def copied(parameters: Sequence[Found], model: nn.Module) -> list[InitialisationFault]:
    """Random values that stand in several tensors: of repeated blocks, or of two kinds of layer.

    Two whole networks of the same values, such as a target network, are meant. Blocks that run one
    after the other part at the first step, since their inputs differ; those that run side by side
    may not.
    """
    random = [one for one in parameters if one.tensor.numel() >= _LEAST_VALUES]
    random = [one for one in random if one.layer.form not in ("constant", "other")]
    random = [one for one in random if not one.layer.law.is_sparse]  # identities are no draws
    # Nor are patterns, such as positions relative to a head's centre, which repeat few numbers.
    random = [one for one in random if not _is_a_pattern(one.tensor)]
    faults = []
    blocks: list[list[Found]] = []
    for group in _groups(random, _fingerprint):
        if not all(torch.equal(group[0].tensor, one.tensor) for one in group):
            continue
        if len({one.place for one in group}) == 1:
            blocks.append(group)
        elif len({one.kind for one in group}) > 1:
            detail = "They hold the same values, but not the same memory: they will part."
            faults.append(InitialisationFault("copied", _names(group), len(random), detail))
    # Equal biases alone part with the first step, as matrices that stand in one place each do.
    if any(group[0].tensor.ndim > 1 for group in blocks):
        together = tuple(one.name for group in blocks for one in group)
        fault = InitialisationFault("copied", together, len(random), _COPIED)
        are_ordered = run_in_sequence(map(_names, blocks), model)
        faults.append(in_sequence(fault) if are_ordered else fault)
    return faults


def _is_a_pattern(values: Tensor) -> bool:
    few = values.reshape(-1)[:_MOST_COUNTED]
    is_exact = few.dtype in (torch.float32, torch.float64)
    return is_exact and _distinct(few) < _COARSE * len(few)


_COPIED = (
    "Repeated blocks start from the same random values, as if one had been copied with "
    "copy.deepcopy."
)


def _fingerprint(one: Found) -> tuple[object, ...]:
    flat = one.tensor.reshape(-1)
    return (*one.layer.shape, flat.dtype, flat.device, *flat[:: max(1, len(flat) // 8)].tolist())


def _groups(parameters: Sequence[Found], key: Callable[[Found], object]) -> list[list[Found]]:
    """Two or more parameters with one key."""
    groups: dict[object, list[Found]] = defaultdict(list)
    for one in parameters:
        groups[key(one)].append(one)
    return [group for group in groups.values() if len(group) > 1]


def _names(parameters: Sequence[Found]) -> tuple[str, ...]:
    return tuple(one.name for one in parameters)


def preferred_direction(values: Tensor) -> float:
    """Largest singular value over that of the same elements, shuffled; NaN for small matrices.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> noise = torch.randn(64, 64, generator=generator)
        >>> round(preferred_direction(noise), 1)
        1.0
        >>> u, v = torch.randn(2, 64, generator=generator)
        >>> preferred_direction(noise + 0.5 * u.outer(v)) > 1.4
        True
    """
    if values.ndim < 2:
        return math.nan
    matrix = values.flatten(1)[:_MOST_SIDE, :_MOST_SIDE].float().cpu()
    if min(matrix.shape) < _LEAST_SIDE or not bool(torch.isfinite(matrix).all()):
        return math.nan
    order = torch.randperm(matrix.numel(), generator=torch.Generator().manual_seed(0))
    shuffled = matrix.reshape(-1)[order].view_as(matrix)
    sizes = [_spectral_norm(x) for x in (matrix, shuffled)]
    return sizes[0] / sizes[1] if sizes[1] > 0 else math.nan


def _spectral_norm(matrix: Tensor) -> float:
    """Largest singular value; its square is that of the smaller Gram matrix, which is cheaper."""
    double = matrix.double()
    gram = double @ double.T if len(matrix) < matrix.shape[1] else double.T @ double
    return math.sqrt(max(0.0, float(torch.linalg.eigvalsh(gram)[-1])))


@dataclass(frozen=True, slots=True)
class Training:
    """Which parameters look trained.

    One matrix may have a preferred direction on purpose. With a second, or with factors and
    shifts that are no longer what their module's reset sets them to, the model was trained.

    Args:
        directions: Of every parameter, what :func:`preferred_direction` found.
        matrices: Names of those with a preferred direction.
        vectors: Names of vectors that start constant, and are not.
    """

    directions: Mapping[str, float]
    matrices: tuple[str, ...]
    vectors: tuple[str, ...]

    @classmethod
    def of(cls, parameters: Sequence[Found]) -> Training:
        """Look for signs of training in all parameters."""
        with one_thread():
            directions = {
                one.name: math.nan if one.layer.law.is_sparse else preferred_direction(one.tensor)
                for one in parameters
            }
        matrices = [name for name, direction in directions.items() if direction > _TRAINED]
        vectors = [
            one
            for one in parameters
            if one.layer.own is not None and one.layer.own.is_constant
            if not one.layer.law.is_constant
        ]
        return cls(directions, tuple(matrices), _names(vectors))

    @property
    def is_likely(self) -> bool:
        """Whether the model was trained, at least in parts."""
        return bool(self.matrices) and len(self.matrices) + len(self.vectors) > 1


def half_loaded(
    parameters: Sequence[Found], training: Training, intended: Collection[str]
) -> list[InitialisationFault]:
    """Fresh layers among trained ones; a fresh last layer alone is a new head.

    Parts of the model that are fresh throughout, such as a new decoder behind an encoder, are told
    apart. Layers that train beside trained ones that are all frozen, such as a student beside its
    teacher or a network behind a trunk, are fresh on purpose.

    Args:
        parameters: All of the model.
        training: Which look trained.
        intended: Names of those that follow an initialiser.
    """
    layers = [one for one in parameters if one.is_matrix]
    fresh = [
        one for one in layers if training.directions[one.name] < _FRESH and one.name in intended
    ]
    if not training.is_likely or not fresh or fresh == layers[-1:]:
        return []
    looks_trained = [one for one in layers if one.name in training.matrices]
    if not any(one.parameter.requires_grad for one in looks_trained) and all(
        one.parameter.requires_grad for one in fresh
    ):
        return []
    is_in_fresh_part = _fresh_parts(parameters, training)
    example = training.matrices[0]
    detail = (
        f"The largest singular value of {example} is "
        f"{wording.number(training.directions[example], 2)} times that of its shuffled elements, "
        "as in trained layers; {} is still as its initialiser left it."
    )
    kinds: tuple[tuple[FaultKind, bool], ...] = (("half loaded", False), ("fresh part", True))
    return [
        InitialisationFault(kind, _names(some), len(layers), detail.format(some[0].name))
        for kind, whole in kinds
        if (some := [one for one in fresh if is_in_fresh_part(one.name) == whole])
    ]


def _fresh_parts(parameters: Sequence[Found], training: Training) -> Callable[[str], bool]:
    """Tell whether a name belongs to a part of the model in which nothing looks trained.

    Parts are what the model holds by different names, as an encoder and a decoder; those whose
    names differ by a number, as the stages of a ResNet, are one.
    """
    columns = zip(*(one.name.split(".") for one in parameters), strict=False)
    shared = len([*itertools.takewhile(lambda column: len({*column}) == 1, columns)])

    def part(name: str) -> str:
        return re.sub(r"\d+", "*", ".".join(name.split(".")[: shared + 1]))

    trained = {part(name) for name in (*training.matrices, *training.vectors)}
    return lambda name: part(name) not in trained


def fresh_statistics(
    model: nn.Module, training: Training, parameters: Sequence[Found]
) -> list[InitialisationFault]:
    """Running statistics at their start, in parts of the model whose weights look trained."""
    norms = {
        name: module
        for module, name in modules.names(model).items()
        if is_batch_norm(module) and module.track_running_stats
    }
    if not training.is_likely:
        return []
    is_in_fresh_part = _fresh_parts(parameters, training)
    fresh = [
        name for name, norm in norms.items() if _never_updated(norm) and not is_in_fresh_part(name)
    ]
    if not fresh:
        return []
    detail = (
        "Their running mean is 0 and their running variance 1, but weights such as "
        f"{training.matrices[0]} look trained: in evaluation, outputs are wrong."
    )
    return [InitialisationFault("running statistics", tuple(fresh), len(norms), detail)]


def _never_updated(norm: nn.Module) -> bool:
    mean, variance = norm.running_mean, norm.running_var
    assert isinstance(mean, Tensor)
    assert isinstance(variance, Tensor)
    return bool((mean == 0).all()) and bool((variance == 1).all())
