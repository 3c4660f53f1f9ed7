r"""Eigenvalues of the dynamics of a batch's covariance and of its gradients' covariance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

from equipoise.numerics.options import named_options
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.fixed_point.solution import Solution, Triple
from equipoise.theory.batch_norm.fixed_point.solve import Method, solve
from equipoise.theory.batch_norm.setting import Setting, SettingOptions, as_setting


@dataclass(frozen=True, slots=True)
class Spectrum:
    r"""Eigenvalues on symmetric B × B matrices whose rows sum to 0.

    The operator commutes with permutations of the batch, so it has three eigenvalues.

    Args:
        G: Along :math:`G = I - \frac1B\mathbf 1\mathbf 1^T`: all samples alike.
        L: On :math:`\{GDG : D \text{ diagonal}, \mathrm{tr} D = 0\}`: samples of unequal size.
        M: On zero-diagonal matrices: samples unequally correlated.
        batch_size: B.
    """

    G: Estimate
    L: Estimate
    M: Estimate
    batch_size: int

    @property
    def multiplicities(self) -> tuple[int, int, int]:
        """Dimensions of the three eigenspaces: 1, B − 1 and B(B − 3)/2.

        Examples:
            >>> sum(backward_spectrum("relu", 6).multiplicities) == 5 * 6 // 2
            True
        """
        return 1, self.batch_size - 1, self.batch_size * (self.batch_size - 3) // 2

    @property
    def trace(self) -> float:
        """Sum of all eigenvalues."""
        return sum(
            count * part.value
            for count, part in zip(self.multiplicities, (self.G, self.L, self.M), strict=True)
        )


@named_options
def backward_spectrum(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    *,
    method: Method = "auto",
    **options: Unpack[SettingOptions],
) -> Spectrum:
    r"""Eigenvalues of one layer's map of the gradients' covariance, at the BSB1 fixed point.

    With J the Jacobian of batch norm and activation at a random batch of pre-activations,

    .. math:: \Pi \mapsto \sigma_w^2\,E[J^T\,\Pi\,J] .

    G is the explosion rate (:func:`explosion_rate`), always the largest of the three; L and M
    say how fast samples' gradients become equally large and equally correlated: by L/G and M/G
    per layer.

    Args:
        setting: A :class:`Setting`, or its activation, followed by its batch size and keywords.
        batch_size: Only beside an activation.
        method: ``"closed form"`` exists for positive-homogeneous activations at ε = β = 0;
            ``"quadrature"`` always; ``"auto"`` takes the former where it can.

    Returns:
        The eigenvalues with bounds on their numerical errors; ``stable`` tells whether networks
        stay near the fixed point that they belong to.

    Raises:
        ValueError: If ``batch_size < 4``, a number is out of range, the activation is not usable,
            or a closed form is asked for where none is known.

    Examples:
        >>> spectrum = backward_spectrum("relu", 8)
        >>> print(spectrum.G, spectrum.L, spectrum.M)
        1.7882 1.5027 0.72328

    References:
        [yang2019], Theorem 7 and Appendix C; L and M at ε > 0, γ and β derived here.
    """
    setting = as_setting(setting, batch_size, options)
    return _spectrum(setting, method, lambda solution: solution.backward)


@named_options
def forward_spectrum(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    *,
    method: Method = "auto",
    **options: Unpack[SettingOptions],
) -> Spectrum:
    r"""Eigenvalues of one layer's map of small changes of the covariance, at its fixed point.

    .. math:: \Delta \mapsto G\,\frac{\partial\,\sigma_w^2 V_{B_\phi}(\Sigma)}{\partial\Sigma}
              \{\Delta\}\,G

    The fixed point is linearly stable if all are below 1 (:func:`stability`). G is 0 at ε = 0,
    where batch norm forgets the scale of its input.

    Args:
        setting: A :class:`Setting`, or its activation, followed by its batch size and keywords.
        batch_size: Only beside an activation.
        method: As in :func:`backward_spectrum`.

    Returns:
        The eigenvalues with bounds on their numerical errors.

    Raises:
        ValueError: As :func:`backward_spectrum`.

    Examples:
        >>> spectrum = forward_spectrum("identity", 9)  # (B - 1) / (B + 1) along L and M
        >>> print(spectrum.G, spectrum.L, spectrum.M)
        0 0.8 0.8

    References:
        [yang2019], Appendix B.4; ε > 0, γ and β derived here.
    """
    setting = as_setting(setting, batch_size, options)
    return _spectrum(setting, method, lambda solution: solution.forward)


def _spectrum(setting: Setting, method: Method, part: Callable[[Solution], Triple]) -> Spectrum:
    solution = solve(setting, method)
    G, L, M = solution.flagged(part(solution))
    return Spectrum(G, L, M, setting.batch_size)
