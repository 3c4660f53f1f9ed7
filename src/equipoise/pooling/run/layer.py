"""RUN as a layer that keeps its start vector."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from equipoise.numerics.checks import check_choice, check_size
from equipoise.pooling.generators import own_generator, placed
from equipoise.pooling.run.bilinear import run_bilinear
from equipoise.pooling.run.factor import run_factor
from equipoise.pooling.run.inputs import (
    DEFAULT_ETA,
    Start,
    check_eta,
    check_steps,
    gaussian_start,
)
from equipoise.pooling.run.matrix import eta_from_epsilon

RunStart = Literal["gaussian", "mean", "ones"] | Tensor


class RUN(nn.Module):
    r"""Rank-1 update normalisation: shrinks the dominant direction of each sample's features.

    .. math:: F_K = F\,(I - \eta\,\hat v\hat v^\top), \qquad
              \hat v = \frac{(F^\top F)^K v_0}{\lVert (F^\top F)^K v_0\rVert}

    The start :math:`v_0` is drawn once and kept in the buffer ``start_vector``, so evaluation is
    a function of the input alone. All samples share it, so none depends on its neighbours.

    Args:
        num_features: Channels D.
        eta: η in [0, 1]: the direction becomes 1 - η times as long. 0.5 if neither is given.
        epsilon: ε in [0, 1], what the matrix form subtracts; :math:`\eta = 1 - \sqrt{1 - ε}`.
        num_steps: K, at least 1; 0 is allowed with ``start="mean"``.
        start: ``"gaussian"``, the paper's; ``"mean"``, the sum of a sample's features, which for
            features after a ReLU is close to the dominant direction before the first step and
            does not depend on a draw: the robust choice, in particular at K = 1. Samples whose
            mean vanishes start from the Gaussian vector. ``"ones"``; or a vector ``[D]``.
        resample: ``"train"`` draws a new Gaussian start in every pass in training mode, as in
            Theorem 1. Evaluation uses the buffer.
        differentiate_direction: False takes :math:`\hat v` for a constant in the backward pass.
            Gradients are then wrong by 8 to 80 % in examples.
        generator: Source of the start; by default one of the layer's own with the seed.
        seed: Of the layer's own generator, 0 by default.

    Shape:
        - Input: ``[..., N, D]``, and a mask ``[..., N]``.
        - Output: the same.

    Raises:
        TypeError: If the start holds integers, or the generator is no generator.
        ValueError: If an argument is out of range, both strengths or both sources are given, or
            ``resample="train"`` is combined with a start that is not Gaussian; in a pass, if the
            features have another number of channels. :class:`RUNPool` takes maps.

    Note:
        With ``resample="train"`` the generator is copied and pickled with the layer but is not
        part of its ``state_dict``, and it splits the graph of ``torch.compile``.

    Examples:
        >>> layer = RUN(2, start=torch.tensor([1.0, 0.0]))
        >>> layer(torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
        tensor([[2., 0.],
                [0., 1.]])

    References:
        [yu2020]
    """

    start_vector: Tensor | None

    def __init__(
        self,
        num_features: int,
        *,
        eta: float | None = None,
        epsilon: float | None = None,
        num_steps: int = 2,
        start: RunStart = "gaussian",
        resample: Literal["never", "train"] = "never",
        differentiate_direction: bool = True,
        generator: torch.Generator | None = None,
        seed: int | None = None,
    ):
        super().__init__()
        check_size(num_features=num_features)
        check_choice("resample", resample, ("never", "train"))
        self.num_features = num_features
        self.eta = _strength(eta, epsilon)
        self.num_steps = num_steps
        self.start = "given" if isinstance(start, Tensor) else start
        self.resample = resample
        self.differentiate_direction = differentiate_direction
        self.generator = own_generator(generator, seed)
        check_steps(num_steps, "mean" if self.start == "mean" else "ones")
        if resample == "train" and self.start != "gaussian":
            raise ValueError(
                f"resample='train' draws Gaussian starts; got start={self.start!r}. Use "
                "start='gaussian' or resample='never'."
            )
        self.register_buffer("start_vector", self._start_buffer(start))

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """The factor form F_K."""
        return self._by(run_factor, features, mask)

    def bilinear(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        r"""Second moments :math:`\tfrac1N F_K^\top F_K`, without F_K.

        Args:
            features: F, ``[B, N, D]``.
            mask: Boolean ``[B, N]``.

        Returns:
            ``[B, D, D]``, float32 or better.
        """
        return self._by(run_bilinear, features, mask)

    def _by(self, form: Callable[..., Tensor], features: Tensor, mask: Tensor | None) -> Tensor:
        """One of the two forms, with this layer's start and options."""
        self._check_channels(features)
        start, fallback = self._start_and_fallback()
        return form(
            features,
            start,
            eta=self.eta,
            num_steps=self.num_steps,
            mask=mask,
            fallback=fallback,
            differentiate_direction=self.differentiate_direction,
        )

    def extra_repr(self) -> str:
        """Every option."""
        names = ("eta", "num_steps", "start", "resample", "differentiate_direction")
        options = (f"{name}={getattr(self, name)!r}" for name in names)
        return ", ".join([str(self.num_features), *options])

    def _check_channels(self, features: Tensor) -> None:
        D = self.num_features
        if features.shape[-1] != D:
            raise ValueError(
                f"RUN({D}) takes features [..., N, {D}], rows of {D} channels; got "
                f"{list(features.shape)}. For maps [B, {D}, H, W] use RUNPool({D})."
            )

    def _start_and_fallback(self) -> tuple[Start, Tensor | None]:
        """Those of one pass."""
        if self.start == "mean":
            # Without a step a fallback would be a direction that ignores the features.
            return "mean", self.start_vector if self.num_steps else None
        if self.start_vector is None:
            return "ones", None
        if self.training and self.resample == "train":
            return gaussian_start(self.num_features, self.generator).to(self.start_vector), None
        return self.start_vector, None

    def _start_buffer(self, start: RunStart) -> Tensor | None:
        """The start, or with the mean start its fallback."""
        if isinstance(start, Tensor):
            return _checked_start(start, self.num_features)
        check_choice("start", start, ("gaussian", "mean", "ones"))
        if start == "ones":
            return None
        return placed(gaussian_start(self.num_features, self.generator))


def _strength(eta: float | None, epsilon: float | None) -> float:
    if eta is not None and epsilon is not None:
        raise ValueError(f"give eta or epsilon, not both; got eta={eta} and epsilon={epsilon}.")
    if epsilon is not None:
        return eta_from_epsilon(epsilon)
    strength = DEFAULT_ETA if eta is None else float(eta)
    check_eta(strength)
    return strength


def _checked_start(start: Tensor, num_features: int) -> Tensor:
    """A copy of a user's start, scaled to largest entry 1, so that float16 can hold it."""
    if not start.is_floating_point():
        raise TypeError(f"start must be floating point; got {start.dtype}. Use .float().")
    if start.shape != (num_features,):
        raise ValueError(f"start must have shape [{num_features}]; got {tuple(start.shape)}.")
    largest = start.detach().abs().max()
    if not 0 < largest < math.inf:
        raise ValueError("start must be finite and not zero: it is a direction.")
    return start.detach() / largest
