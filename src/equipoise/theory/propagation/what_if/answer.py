"""All changes at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from equipoise.instrument.recording.graph import Graph
from equipoise.numerics.checks import check_whole, check_within
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.propagation.what_if.activations import with_activation
from equipoise.theory.propagation.what_if.batch import with_batch_size
from equipoise.theory.propagation.what_if.blocks import with_depth
from equipoise.theory.propagation.what_if.norms import with_affine, with_norm
from equipoise.theory.propagation.what_if.residuals import with_residual_scale
from equipoise.theory.propagation.what_if.weights import with_gain, with_width

# Well within what float32 holds, so that squares of squares are numbers in float64.
_NUMBERS = "[-1e30, 1e30]"
_MOST = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is to be different; None leaves it as it is.

    Args:
        batch_size: Samples in the batch.
        activation: Instead of every activation.
        norm: Instead of every norm.
        groups: Of ``norm="group"``.
        gamma: Scale of every norm.
        beta: Shift of every norm.
        eps: Added to the variance by every norm.
        residual_scale: Factor of every residual branch.
        depth: Factor of the number of blocks.
        block: Module that the blocks are in.
        width: Factor of all features but the batch's and the loss's.
        gain: Factor of weights, or of those that names match.
    """

    batch_size: int | None = None
    activation: ActivationLike | None = None
    norm: str | None = None
    groups: int | None = None
    gamma: float | None = None
    beta: float | None = None
    eps: float | None = None
    residual_scale: float | None = None
    depth: float | None = None
    block: str | None = None
    width: float | None = None
    gain: float | Mapping[str, float] | None = None

    def made_to(self, graph: Graph) -> Graph:
        """The graph with all changes.

        Raises:
            ValueError: If one of them does not fit, or if there are none.
        """
        if self == Changes():
            raise ValueError("name at least one change, such as batch_size=2.")
        self._check_numbers()
        for option, value, of, given in (
            ("groups", self.groups, "norm", self.norm),
            ("block", self.block, "depth", self.depth),
        ):
            if value is not None and given is None:
                raise ValueError(f"{option} belongs to {of}, which is not changed.")
        if self.norm is not None:
            graph = with_norm(graph, self.norm, self.groups)
        if (self.gamma, self.beta, self.eps) != (None, None, None):
            graph = with_affine(graph, gamma=self.gamma, beta=self.beta, eps=self.eps)
        if self.activation is not None:
            graph = with_activation(graph, self.activation)
        if self.residual_scale is not None:
            graph = with_residual_scale(graph, self.residual_scale)
        if self.gain is not None:
            graph = with_gain(graph, self.gain)
        if self.depth is not None:
            graph = with_depth(graph, self.depth, self.block)
        if self.width is not None:
            graph = with_width(graph, self.width)
        if self.batch_size is not None:
            graph = with_batch_size(graph, self.batch_size)
        return graph

    def _check_numbers(self) -> None:
        """Refuse what is no number, or beyond the numbers that weights may have."""
        for name in ("gamma", "beta", "eps", "residual_scale", "depth", "width"):
            value = getattr(self, name)
            if value is not None:
                check_within(name, value, _NUMBERS)
        if self.gain is not None:
            factors = self.gain if isinstance(self.gain, Mapping) else {"gain": self.gain}
            for name, factor in factors.items():
                check_within(str(name), factor, _NUMBERS)
        if self.batch_size is not None and check_whole("batch_size", self.batch_size, 1) > _MOST:
            raise ValueError(f"batch_size must be at most {_MOST:,}; got {self.batch_size:,}.")
