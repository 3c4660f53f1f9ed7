"""What probes report about a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from equipoise.records.estimate import Estimate


@dataclass(frozen=True, slots=True)
class LayerGradients:
    r"""What one layer sends forward and receives back.

    Args:
        layer: Name of the layer in the model.
        kind: Its class, such as ``BatchNorm2d``.
        rows: Samples that share statistics: batch size, times positions for feature maps.
        features: Neurons or channels.
        gradient: Mean of :math:`\|\partial E/\partial h\|^2` over replicates, with h the
            pre-activations: the normaliser's input, or the output of the parametrised layer.
        weight_gradient: Mean of :math:`\|\partial E/\partial W\|^2` for the weights that
            make h, where there are any.
        second_moment: Mean of :math:`h^2`; the theory's :math:`q`.
        correlation: Mean product of two different rows over the mean square of one; the
            theory's :math:`c`.
    """

    layer: str
    kind: str
    rows: int
    features: int
    gradient: Estimate
    weight_gradient: Estimate | None
    second_moment: Estimate
    correlation: Estimate


@dataclass(frozen=True, slots=True)
class GradientGrowth:
    """Gradient norms per layer, in order of execution, and the growth fitted through them.

    Args:
        layers: One entry per tracked layer, from input to output.
        rate: Factor by which the squared gradient norm with respect to pre-activations grows
            per layer on the way back (above 1: early layers receive larger gradients), with
            its standard error over replicates; ``None`` with fewer than three layers.
        weight_rate: The same for weight gradients.
        replicates: How many independent initialisations were averaged.
        batches: How many batches each of them saw.
    """

    layers: tuple[LayerGradients, ...]
    rate: Estimate | None
    weight_rate: Estimate | None
    replicates: int
    batches: int


@dataclass(frozen=True, slots=True)
class LayerPreconditioning:
    r"""What batch normalisation preconditioning would do to one layer's condition numbers.

    Condition numbers are those on the range: with fewer rows than columns they are defined, but
    say little. The Hessian is that of the loss with respect to the bias and weights of one
    output unit, :math:`\hat H^TS\hat H`.

    Args:
        layer: Name of the layer in the model.
        kind: Its class.
        rows: Rows of Ĥ: samples, times output positions for a convolution.
        columns: Columns of Ĥ: inputs of one output unit, and one for the bias where there is one.
        rank: Numerical rank of Ĥ.
        inputs: κ(Ĥ).
        inputs_after: κ(ĤP), with the preconditioner's ε.
        promised: κ(D)², the gain that the literature speaks of.
        hessian: κ of the Hessian block; nan where it cannot be measured.
        hessian_after: The same after preconditioning.
        hessian_rank: Numerical rank of the block.
        curvature: κ(S), which no preconditioner changes.
        reason: Why the Hessian was not measured, or nothing was; ``None`` if all was.
        computed_in: Type in which the model ran; float32 hides what is below 10⁻⁷ of the largest.
    """

    layer: str
    kind: str
    rows: int
    columns: int
    rank: int
    inputs: float
    inputs_after: float
    promised: float
    hessian: float
    hessian_after: float
    hessian_rank: int
    curvature: float
    reason: str | None = None
    computed_in: str = "float64"

    @property
    def gain(self) -> float:
        """Factor on the condition number: the Hessian's where measured, else κ(Ĥ)²'s."""
        if not math.isnan(self.hessian):
            return self.hessian / self.hessian_after
        return (self.inputs / self.inputs_after) ** 2


@dataclass(frozen=True, slots=True)
class LayerConditioning:
    """Condition numbers of one layer's extended input matrix Ĥ = [1, H].

    Args:
        layer: Name of the layer in the model.
        kind: Its class.
        rows: Rows of Ĥ: samples, times output positions for a convolution.
        columns: Columns of Ĥ: inputs of one output unit, plus one for the bias.
        raw: Condition number of Ĥ on its range.
        centred: After subtracting column means.
        scaled: After centring and dividing by column standard deviations, as batch
            normalisation preconditioning does.
        scale_spread: κ(D), largest over smallest column scale, the leading 1 included.
        zero_singular_values: Columns minus numerical rank of Ĥ; what the rounding of the
            activations alone explains counts as zero.
        constant_features: Columns of H without any variance; they cannot be scaled.
        method: ``svd``, or ``gram``, which cannot see condition numbers beyond about 10⁷.
        skipped: Why the layer was not measured, if it was not.
    """

    layer: str
    kind: str
    rows: int
    columns: int
    raw: float
    centred: float
    scaled: float
    scale_spread: float
    zero_singular_values: int
    constant_features: int
    method: str
    skipped: str | None = None
