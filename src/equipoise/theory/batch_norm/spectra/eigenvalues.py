r"""Eigenvalues of the dynamics of a batch's covariance and of its gradients' covariance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.setting import Method, Setting, make_setting
from equipoise.theory.batch_norm.solver.homogeneous import closed_form
from equipoise.theory.batch_norm.solver.solution import Solution, Triple
from equipoise.theory.batch_norm.solver.solve import solve


@dataclass(frozen=True, slots=True)
class Spectrum:
    r"""Eigenvalues on symmetric B × B matrices whose rows sum to 0.

    The operator commutes with permutations of the batch, so three numbers are all.

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


def backward_spectrum(
    activation: ActivationLike,
    batch_size: int,
    *,
    eps: float = 0.0,
    gamma: float = 1.0,
    beta: float = 0.0,
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
    method: Method = "auto",
) -> Spectrum:
    r"""Eigenvalues of one layer's map of the gradients' covariance, at the BSB1 fixed point.

    With J the Jacobian of batch norm and activation at a random batch of pre-activations,

    .. math:: \Pi \mapsto \sigma_w^2\,E[J^T\,\Pi\,J] .

    G is the explosion rate (:func:`explosion_rate`), always the largest of the three; L and M
    say how fast samples' gradients become equally large and equally correlated: by L/G and M/G
    per layer.

    Args:
        activation: A name, a module, or an elementwise callable on float64 tensors.
        batch_size: Samples that share batch statistics, at least 4.
        eps: Batch norm's ε, in units of the pre-activations' variance.
        gamma: Batch norm's scale.
        beta: Batch norm's shift.
        weight_variance: :math:`\sigma_w^2`, fan-in times the variance of the weights.
        bias_variance: :math:`\sigma_b^2`; without effect.
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
        1.78819 1.50273 0.723277

    References:
        [yang2019], Theorem 7 and Appendix C; L and M at ε > 0, γ and β derived here.
    """
    setting = make_setting(
        activation,
        batch_size,
        eps=eps,
        gamma=gamma,
        beta=beta,
        weight_variance=weight_variance,
        bias_variance=bias_variance,
    )
    return _spectrum(setting, method, lambda solution: solution.backward)


def forward_spectrum(
    activation: ActivationLike,
    batch_size: int,
    *,
    eps: float = 0.0,
    gamma: float = 1.0,
    beta: float = 0.0,
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
    method: Method = "auto",
) -> Spectrum:
    r"""Eigenvalues of one layer's map of small changes of the covariance, at its fixed point.

    .. math:: \Delta \mapsto G\,\frac{\partial\,\sigma_w^2 V_{B_\phi}(\Sigma)}{\partial\Sigma}
              \{\Delta\}\,G

    The fixed point is linearly stable if all are below 1 (:func:`stability`). G is 0 at ε = 0,
    where batch norm forgets the scale of its input.

    Args:
        activation: A name, a module, or an elementwise callable on float64 tensors.
        batch_size: Samples that share batch statistics, at least 4.
        eps: Batch norm's ε, in units of the pre-activations' variance.
        gamma: Batch norm's scale.
        beta: Batch norm's shift.
        weight_variance: :math:`\sigma_w^2`, fan-in times the variance of the weights.
        bias_variance: :math:`\sigma_b^2`; without effect.
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
    setting = make_setting(
        activation,
        batch_size,
        eps=eps,
        gamma=gamma,
        beta=beta,
        weight_variance=weight_variance,
        bias_variance=bias_variance,
    )
    return _spectrum(setting, method, lambda solution: solution.forward)


def solve_by(setting: Setting, method: Method) -> Solution:
    """Solve a setting by the method that was asked for.

    Raises:
        ValueError: If the method is unknown, or no closed form is known for the setting.
    """
    if method not in ("auto", "closed form", "quadrature"):
        raise ValueError(f"method must be auto, closed form or quadrature, got {method!r}.")
    closed = None if method == "quadrature" else closed_form(setting)
    if method == "closed form" and closed is None:
        raise ValueError(
            f"no closed form is known for {setting.activation.name} at eps = {setting.eps:g}, "
            f"beta = {setting.beta:g}: it needs a positive-homogeneous activation, eps = 0 and "
            'beta = 0. Use method="quadrature".'
        )
    return closed or solve(setting)


def _spectrum(setting: Setting, method: Method, part: Callable[[Solution], Triple]) -> Spectrum:
    solution = solve_by(setting, method)
    G, L, M = solution.flagged(part(solution))
    return Spectrum(G, L, M, setting.batch_size)
