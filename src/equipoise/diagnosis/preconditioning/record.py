"""Record of what preconditioning would do to each layer."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerPreconditioning:
    r"""What batch normalisation preconditioning would do to one layer's condition numbers.

    Condition numbers ignore zero eigenvalues: with fewer rows than columns they are defined, but
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
        promised: κ(D)², the gain that the literature gives.
        hessian: κ of the Hessian block; nan where it cannot be measured.
        hessian_after: The same after preconditioning.
        hessian_rank: Numerical rank of the block.
        curvature: κ(S), which no preconditioner changes.
        reason: Why the Hessian, or anything, was not measured; ``None`` if all was.
        computed_in: Type in which the model ran; float32 hides values below 10⁻⁷ of the largest.
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
