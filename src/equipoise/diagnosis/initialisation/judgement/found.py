"""A parameter as it is, and what it is judged to be."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrizations import _SpectralNorm, _WeightNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from equipoise.diagnosis.initialisation.intended import Own, drawn_values
from equipoise.diagnosis.initialisation.laws import form_of, form_z, law_of, scale_z
from equipoise.diagnosis.initialisation.record import Form, Verdict
from equipoise.diagnosis.initialisation.rules import Layer, fans

_KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "transposed convolution": (_ConvTransposeNd,),
    "convolution": (_ConvNd,),
    "linear": (nn.Linear,),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a parameter was meant to be, and what it is.

    Args:
        verdict: As in the record.
        intended: Mean and standard deviation; NaN if not known.
        rule: The intention in words.
        z: Of the standard deviation.
        explanation: What it follows instead.
    """

    verdict: Verdict
    intended: tuple[float, float] = (math.nan, math.nan)
    rule: str = ""
    z: float = math.nan
    explanation: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A parameter as it is.

    Args:
        layer: Its law and shape, and the law of its module's own reset.
        kind: What it is compared with: parameters of the same kind.
        parameter: Itself.
        module: The module that owns it.
        inside: The classes that the module is inside of, the outermost first, without PyTorch's.
    """

    layer: Layer
    kind: str
    parameter: Tensor
    module: nn.Module
    inside: tuple[str, ...] = ()

    @property
    def is_rescaled(self) -> bool:
        """Whether weight norm or spectral norm divides it by its size, which then is free."""
        leaf = self.name.rpartition(".")[2]
        if isinstance(self.module, ParametrizationList):
            kinds = {type(one) for one in self.module}
            return leaf == "original1" if _WeightNorm in kinds else _SpectralNorm in kinds
        hooks = self.module._forward_pre_hooks.values()
        return any(
            isinstance(hook, kind) and leaf == f"{hook.name}_{part}"
            for hook in hooks
            for kind, part in ((WeightNorm, "v"), (SpectralNorm, "orig"))
        )

    @property
    def name(self) -> str:
        """Of the parameter."""
        return self.layer.name

    @property
    def tensor(self) -> Tensor:
        """Its values."""
        return self.parameter.detach()

    @property
    def place(self) -> tuple[str, str, tuple[int, ...]]:
        """The same for parameters at one place of repeated blocks."""
        return self.kind, re.sub(r"\d+", "*", self.name), self.layer.shape

    @property
    def is_matrix(self) -> bool:
        """Whether it has inputs and outputs, and is more than one factor for each channel."""
        return sum(size > 1 for size in self.layer.shape) >= 2


def describe(
    name: str,
    module: nn.Module,
    parameter: Tensor,
    drawn: Own | None,
    inside: tuple[str, ...] = (),
) -> Found:
    """What is to be known of a parameter before it is judged.

    Args:
        name: Of the parameter.
        module: The module that owns it.
        parameter: Itself.
        drawn: What a reset draws for it.
        inside: The classes that the module is inside of, the outermost first, without PyTorch's.
    """
    own = None if drawn is None else drawn.law
    values = drawn_values(module, parameter)
    law = law_of(values)
    fan_in, fan_out = fans(parameter) if parameter.ndim >= 2 else (1, 1)
    form: Form = form_of(values, law) if math.isfinite(law.std) else "other"
    own_z = math.inf if own is None else max(scale_z(law, own), form_z(law, own), key=abs)
    groups = int(getattr(module, "groups", 1)) if isinstance(module, _ConvNd) else 1
    by_part = drawn is not None and drawn.by_part
    shape = tuple(parameter.shape)
    layer = Layer(name, law, form, shape, fan_in, fan_out, own, own_z, groups, by_part)
    return Found(layer, _kind(name, module, parameter), parameter, module, inside)


def _kind(name: str, module: nn.Module, parameter: Tensor) -> str:
    if parameter.ndim >= 2:
        for kind, classes in _KINDS.items():
            if isinstance(module, classes):
                return kind
    return f"{type(module).__name__}.{name.rpartition('.')[2]}"


def blocks_of(parameters: Iterable[Found]) -> dict[str, int]:
    """How many parameters stand at the place of each."""
    return {one.name: len(g) for g in grouped((p.place, p) for p in parameters) for one in g}


def grouped(pairs: Iterable[tuple[object, Found]]) -> list[list[Found]]:
    """Parameters that have one key, in the order of the first of each group."""
    groups: dict[object, list[Found]] = defaultdict(list)
    for key, one in pairs:
        groups[key].append(one)
    return list(groups.values())
