r"""Which rule the weights of like layers follow: a standard deviation for every shape.

Initialisers set the standard deviation to a gain times a power of the number of inputs, of
outputs, or of both; or to a constant. The gain is that of the layer which most others agree with.

Sources: fan-in, LeCun et al. 1998 ("Efficient BackProp") and He et al. 2015 (arXiv:1502.01852);
both, [glorot2010]; orthogonal, Saxe et al. 2013 (arXiv:1312.6120).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from equipoise.diagnosis.initialisation.laws import LEAST_ELEMENTS, Law, scale_z
from equipoise.diagnosis.initialisation.record import Form
from equipoise.records import wording

# A rule must explain this part of the layers, and at least so many.
MAJORITY = 0.6
LEAST_LAYERS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """What rules need to know of a matrix of weights.

    Args:
        name: Of the parameter.
        law: Of its elements, as found.
        form: What they look like.
        shape: Of the parameter.
        fan_in: Inputs of one output.
        fan_out: Outputs of one input.
        own: What the module's ``reset_parameters`` draws, if it has one.
        own_z: How far the elements are from that, in standard errors of scale or form.
        groups: Groups of a convolution, which some initialisers divide the outputs by.
        by_part: Whether a class that is not PyTorch's draws it, for a layer inside of it.
    """

    name: str
    law: Law
    form: Form
    shape: tuple[int, ...]
    fan_in: int
    fan_out: int
    own: Law | None
    own_z: float
    groups: int = 1
    by_part: bool = False


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a standard deviation depends on the shape.

    Args:
        name: Of the scaling.
        size: The standard deviation at gain 1.
    """

    name: str
    size: Callable[[Layer], float]


def _orthogonal(layer: Layer) -> float:
    rows = layer.shape[0]
    return 1 / math.sqrt(max(rows, math.prod(layer.shape[1:])))


FAN_IN = Scaling("fan_in", lambda layer: layer.fan_in**-0.5)
FAN_OUT = Scaling("fan_out", lambda layer: layer.fan_out**-0.5)
FAN_AVERAGE = Scaling("xavier", lambda layer: (2 / (layer.fan_in + layer.fan_out)) ** 0.5)
CONSTANT = Scaling("constant", lambda _: 1.0)
ORTHOGONAL = Scaling("orthogonal", _orthogonal)
DEFAULT = Scaling("default", lambda layer: layer.own.std if layer.own else math.nan)

# If two explain as many layers, the simpler is named, or the first.
SCALINGS = (DEFAULT, ORTHOGONAL, FAN_IN, FAN_AVERAGE, FAN_OUT, CONSTANT)
# Gains that are tried, each on all layers.
_MOST_CANDIDATES = 16
# Gains with a name: that of a linear layer, ReLU and tanh.
GAINS = (1.0, math.sqrt(2), 5 / 3)


@dataclass(frozen=True, slots=True)
class Rule:
    """A standard deviation for every layer.

    Args:
        scaling: How it depends on the shape.
        gain: What that is multiplied with.
        form: The law of the elements, as far as it is known.
        count: Elements that the gain was estimated from.
    """

    scaling: Scaling
    gain: float
    form: Form = "unclear"
    count: float = math.inf

    def std(self, layer: Layer) -> float:
        """The intended standard deviation of a layer."""
        return self.gain * self.unit(layer)

    def unit(self, layer: Layer) -> float:
        """The standard deviation of a layer at gain 1."""
        return self.scaling.size(self._counted(layer))

    def z(self, layer: Layer) -> float:
        """How far a layer is from the rule, in standard errors."""
        if self.scaling is DEFAULT:
            return layer.own_z
        if self.scaling is ORTHOGONAL and layer.form != "orthogonal":
            return math.inf
        return self._scale_z(self._counted(layer))

    def _counted(self, layer: Layer) -> Layer:
        """With outputs counted as PyTorch does, or of one group as timm does: what fits better."""
        if layer.groups == 1 or self.scaling not in (FAN_OUT, FAN_AVERAGE):
            return layer
        alone = replace(layer, fan_out=max(1, layer.fan_out // layer.groups))
        return min(layer, alone, key=lambda one: abs(self._scale_z(one)))

    def _scale_z(self, layer: Layer) -> float:
        size = self.gain * self.scaling.size(layer)
        return scale_z(layer.law, layer.law.of_size(size, self.count))

    @property
    def is_simple(self) -> bool:
        """Whether somebody would write it so: a gain with a name, or a constant of two digits."""
        if self.scaling is CONSTANT:
            return self.gain == float(f"{self.gain:.1e}")
        return self.scaling is DEFAULT or self.gain in GAINS

    @property
    def words(self) -> str:
        """The rule as one would write it in code, as far as that is possible."""
        form = self.form if self.form in ("normal", "uniform") else "normal"
        gain = f"gain {wording.number(self.gain, 3)}"
        match self.scaling.name:
            case "default":
                return "PyTorch's default"
            case "orthogonal":
                return f"orthogonal_({gain})"
            case "xavier":
                return f"xavier_{form}_" + ("" if self.gain == 1 else f" with {gain}")
            case "constant":
                if form == "uniform":
                    bound = wording.number(math.sqrt(3) * self.gain, 3)
                    return f"uniform_(-{bound}, {bound})"
                return f"normal_(std={wording.plain(self.gain)})"
        named = {1.0: "linear", math.sqrt(2): "relu", 5 / 3: "tanh"}.get(self.gain)
        how = f"nonlinearity='{named}'" if named else gain
        return f"kaiming_{form}_(mode='{self.scaling.name}', {how})"


def fans(parameter: Tensor) -> tuple[int, int]:
    """Inputs of an output and outputs of an input, as PyTorch's initialisers count them."""
    found = nn.init._calculate_fan_in_and_fan_out(parameter)
    return max(found[0], 1), max(found[1], 1)


def consensus(
    layers: Sequence[Layer], limit: float, scalings: Sequence[Scaling] = SCALINGS
) -> Rule | None:
    """The rule that most layers follow, if they are a clear majority.

    Args:
        layers: Layers of one kind.
        limit: Standard errors within which a layer follows a rule.
        scalings: What rules may depend on.
    """
    judged = [x for x in layers if x.law.std > 0 and x.law.count >= LEAST_ELEMENTS]
    if len(judged) < LEAST_LAYERS:
        return None
    best, rank = None, (0, 0)
    for scaling in scalings:
        rule, followers = _most_followed(scaling, judged, limit)
        if followers:
            refined = _refined(rule, followers, limit)
            found = len(followers), int(refined.is_simple)
            if found > rank:
                best, rank = refined, found
    return best if rank[0] >= MAJORITY * len(judged) else None


def _most_followed(
    scaling: Scaling, layers: Sequence[Layer], limit: float
) -> tuple[Rule, list[Layer]]:
    """The gain of the layer that most others agree with, and who they are."""
    found = [
        (rule, [layer for layer in layers if abs(rule.z(layer)) < limit])
        for rule in _candidates(scaling, layers)
    ]
    return max(found, key=lambda pair: len(pair[1]))


def _candidates(scaling: Scaling, layers: Sequence[Layer]) -> list[Rule]:
    if scaling is DEFAULT:
        return [Rule(scaling, 1.0)]
    rules = sorted(
        (
            Rule(scaling, layer.law.std / scaling.size(layer), count=layer.law.count)
            for layer in layers
        ),
        key=lambda rule: rule.gain,
    )
    named = () if scaling is CONSTANT else GAINS
    # A majority is a long stretch of all layers in order, so that some of these stand in it.
    return [
        *(Rule(scaling, gain) for gain in named),
        *rules[:: -(-len(rules) // _MOST_CANDIDATES)],
    ]


def _refined(rule: Rule, followers: Sequence[Layer], limit: float) -> Rule:
    """The gain of all followers, or one with a name or few digits that explains them as well."""
    form, _ = Counter(layer.form for layer in followers).most_common(1)[0]
    if rule.scaling is DEFAULT:
        return replace(rule, form=form)
    total = sum(layer.law.freedom for layer in followers)
    squares = sum(
        layer.law.freedom * (layer.law.std / rule.unit(layer)) ** 2 for layer in followers
    )
    gain = math.sqrt(squares / total)
    pooled = replace(rule, gain=gain, form=form, count=total)
    named = GAINS if rule.scaling is not CONSTANT else ()
    for candidate in (*named, float(f"{gain:.1e}"), float(f"{gain:.2e}")):
        simple = replace(pooled, gain=candidate, count=math.inf)
        if all(abs(simple.z(layer)) < limit for layer in followers):
            return simple
    return pooled
