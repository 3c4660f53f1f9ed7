"""Eigenvalues of the Hessian of a loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from equipoise.instrument.kept_batches import on_copies
from equipoise.instrument.progress import StageCounter
from equipoise.instrument.replay import Replay
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import LossFunction, Progress
from equipoise.numerics.checks import check_size, check_within
from equipoise.numerics.lanczos.spectrum import SymmetricSpectrum, extremal_spectrum, full_spectrum
from equipoise.numerics.options import named_options
from equipoise.probes.hessian import blocks as parameter_blocks
from equipoise.probes.hessian.blocks import ParameterBlock
from equipoise.probes.hessian.product import HessianProduct
from equipoise.probes.hessian.record import Hessian, HessianSpectrum, SpectralDensity
from equipoise.probes.hessian.rounding import DRAWS, rounding_errors
from equipoise.records.estimate import Estimate

Groups = Mapping[str, nn.Parameter | Iterable[nn.Parameter]]


@named_options
def hessian(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    *,
    more_batches: Iterable[Any] = (),
    blocks: Literal["whole", "layers", "both"] | Groups = "whole",
    density: bool = False,
    steps: int = 100,
    tolerance: float = 1e-3,
    probes: int = 4,
    recompute: bool | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Hessian:
    r"""Extremal eigenvalues of the Hessian and, on demand, the distribution of all.

    .. math:: H = \nabla_\theta^2\,\mathcal L(\theta), \qquad
              \lambda_{\min} = \min_{\|v\|=1} v^THv, \quad \lambda_{\max} = \max_{\|v\|=1} v^THv

    of the loss on one batch, or of its mean over several, by Lanczos' method on products Hv. The
    model runs in the mode it is in: in training mode, batch statistics are part of the function
    that is differentiated, which changes eigenvalues by orders of magnitude. Dropout and other
    noise are the same in every product. Parameters, gradients, buffers, modes and random states
    are left bit-identical.

    Args:
        model: Any module with trainable parameters; frozen ones are constants.
        loss_fn: ``loss_fn(model, batch)`` returns a scalar.
        batch: What the user's loader yields.
        more_batches: Further batches, run as if they followed in training, each with its own
            batch statistics and noise.
        blocks: ``"whole"``; ``"layers"``, the diagonal block of each module that owns parameters;
            ``"both"``; or parameters of the model by name.
        density: Whether to compute the distribution too. This takes all ``steps`` from each of
            ``probes`` random vectors, or every eigenvalue if there are no more than that.
        steps: Most products per random vector. One more vector than that is stored, each of the
            block's size and allocated at the start.
        tolerance: Wanted error of the extremal eigenvalues, relative to the larger one's
            magnitude.
        probes: Number of random vectors for the density.
        recompute: Whether to evaluate the gradient anew for every product instead of keeping its
            graph; by default if there are several batches, whose graphs may not fit in memory.
        generator: For random vectors, by default one seeded with 0.
        progress: Called with the stage, products done and an upper limit of their number.

    Returns:
        Eigenvalues with errors. An error is the distance within which the eigenvalue lies with
        probability 0.999 over the random vectors, also without convergence, plus the error of
        rounding in the parameters' precision, estimated from the asymmetry of products and from
        moved weights.

    Raises:
        ValueError: If ``loss_fn`` returns anything but a tensor with one finite real number and a
            graph, an option is out of range, a block is not one of trainable parameters, the model
            has lazy, complex or no trainable parameters, or uses operations without second
            derivatives.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
        >>> found = hessian(model, lambda m, x: m(x).square().sum(), x)
        >>> print(round(found.largest.value, 3), round(found.smallest.value, 3))
        18.0 2.0

    References:
        [santurkar2018], section 3.1, on smoothness; B. Ghorbani, S. Krishnan and Y. Xiao (2019),
        An investigation into neural net optimization via Hessian eigenvalue density.
    """
    _check(model, steps=steps, probes=probes, tolerance=tolerance)
    generator = generator or torch.Generator().manual_seed(0)
    search = _Search(steps, tolerance, probes if density else 0, generator)
    device = next((p.device.type for p in model.parameters()), "cpu")
    loss_fn = _under_present_autocast(loss_fn, device)
    with (
        untouched(model),
        torch.inference_mode(False),
        torch.autocast(device, enabled=False),
        torch.no_grad(),
    ):
        replays = _replays(model, loss_fn, [batch, *more_batches])
        chosen = _choose(replays[0], blocks)
        if recompute is None:
            recompute = len(replays) > 1
        sizes = [sum(replays[0].parameters[i].numel() for i in b.indices) for b in chosen]
        most = sum(search.most(size) + 2 * DRAWS for size in sizes)
        counter = StageCounter(progress, "measuring curvature", most)
        product = HessianProduct(replays, recompute=recompute, on_product=counter.begin)
        try:
            found = [search(product, block) for block in chosen]
            rounding = _rounding(product, model, chosen, found, generator)
        finally:
            product.clear_graphs()  # a traceback may keep the product alive
    counter.finish()
    cases = zip(chosen, found, rounding, strict=True)
    records = tuple(_record(block, spectrum, steps, error) for block, spectrum, error in cases)
    if blocks in ("whole", "both"):
        return Hessian(records[0], records[1:], len(replays))
    return Hessian(None, records, len(replays))


@dataclass(frozen=True, slots=True)
class _Search:
    """How to search for eigenvalues; without probes, only for the extremal ones."""

    steps: int
    tolerance: float
    probes: int
    generator: torch.Generator

    def most(self, size: int) -> int:
        """Upper limit of the products for a block of this size."""
        return min(size, self.steps * max(1, self.probes))

    def __call__(self, product: HessianProduct, block: ParameterBlock) -> SymmetricSpectrum:
        spectrum = partial(full_spectrum, starts=self.probes) if self.probes else extremal_spectrum
        return spectrum(
            partial(product, block),
            product.like(block),
            steps=self.steps,
            tolerance=self.tolerance,
            generator=self.generator,
        )


def _check(model: nn.Module, *, steps: int, probes: int, tolerance: float) -> None:
    check_size(steps=steps, probes=probes)
    check_within("tolerance", tolerance, "(0, 1)")
    for name, parameter in model.named_parameters():
        if parameter.is_complex() and parameter.requires_grad:
            raise ValueError(
                f"parameter {name!r} is complex, and hessian takes real ones. Freeze it, or keep "
                "its real and imaginary parts as two parameters."
            )


def _under_present_autocast(loss_fn: LossFunction, device: str) -> LossFunction:
    """The loss under the caller's autocast, which must not reach the iteration's own vectors."""
    dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast(device, dtype, enabled):
            return loss_fn(model, batch)

    return loss if enabled else loss_fn


def _replays(model: nn.Module, loss_fn: LossFunction, batches: list[Any]) -> list[Replay]:
    """One replay per batch, each with the noise and buffers that the batch before leaves."""
    loss_fn = on_copies(loss_fn)
    replays = [Replay(model, loss_fn, batches[0])]
    for before, batch in pairwise(batches):
        loss_fn(model, before)
        replays.append(Replay(model, loss_fn, batch))
        added = [name for name in replays[-1].names if name not in replays[0].names]
        if added:
            raise ValueError(
                f"a forward pass adds parameters to the model: {', '.join(added)}. Run one batch "
                "through the model first."
            )
    return replays


def _choose(replay: Replay, blocks: str | Groups) -> tuple[ParameterBlock, ...]:
    if isinstance(blocks, Mapping):
        if not blocks:
            raise ValueError("blocks must name at least one group of parameters, got none.")
        return parameter_blocks.named(replay, blocks)
    match blocks:
        case "whole":
            return (parameter_blocks.whole(replay),)
        case "layers":
            return parameter_blocks.layers(replay)
        case "both":
            return (parameter_blocks.whole(replay), *parameter_blocks.layers(replay))
    got = repr(blocks) if isinstance(blocks, str) else type(blocks).__name__
    raise ValueError(f"blocks must be 'whole', 'layers', 'both' or parameters by name, got {got}.")


def _rounding(
    product: HessianProduct,
    model: nn.Module,
    blocks: tuple[ParameterBlock, ...],
    found: list[SymmetricSpectrum],
    generator: torch.Generator,
) -> list[tuple[float, float]]:
    """Errors of the smallest and the largest eigenvalue of every block."""
    pairs = zip(blocks, found, strict=True)
    ends = [(block, end) for block, s in pairs for end in (s.smallest, s.largest)]
    errors = rounding_errors(product, model, ends, generator)
    return list(zip(errors[::2], errors[1::2], strict=True))


def _record(
    block: ParameterBlock, spectrum: SymmetricSpectrum, steps: int, rounding: tuple[float, float]
) -> HessianSpectrum:
    exact = spectrum.nodes is not None and not spectrum.starts
    method = f"{'all eigenvalues' if exact else 'Lanczos'}, {spectrum.products} products"
    smallest, largest = (
        Estimate(end.value, end.distance + spectrum.asymmetry + error, method)
        for end, error in zip((spectrum.smallest, spectrum.largest), rounding, strict=True)
    )
    return HessianSpectrum(
        block=block.name,
        parameters=len(spectrum.largest.vector),
        largest=largest,
        smallest=smallest,
        converged=spectrum.converged,
        products=spectrum.products,
        density=_density(spectrum, steps),
    )


def _density(spectrum: SymmetricSpectrum, steps: int) -> SpectralDensity | None:
    if spectrum.nodes is None or spectrum.weights is None:
        return None
    return SpectralDensity(
        nodes=tuple(spectrum.nodes.tolist()),
        weights=tuple(spectrum.weights.tolist()),
        parameters=len(spectrum.largest.vector),
        probes=spectrum.starts,
        width=float(spectrum.nodes[-1] - spectrum.nodes[0]) / steps,
    )
