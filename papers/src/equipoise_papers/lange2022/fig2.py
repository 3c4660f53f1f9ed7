r"""Fig. 2: what it costs to take a channel's mean and variance for those of each kernel tap.

A tap of a padded convolution reads the map shifted by a row or a column, with zeros of the padding
in place of the opposite border. BNP takes the statistics of the unshifted map for all taps.

Symbols: k: kernel size; r: pixels a side; μ, σ²: mean and variance over the map, one per channel;
μ_t, σ²_t: over what tap t reads; Ĥ = [e, H]: the convolution's matrix; P: centring and scaling.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import data, models
from equipoise.preconditioners import (
    ColumnStatistics,
    condition,
    preconditioner,
    tap_statistics,
)
from equipoise_papers.experiments import style
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict, ours
from equipoise_papers.sweeps.cell import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_KERNEL, _CHANNELS, _BIAS, _STAGES = 3, 8, 0.1, 4
# A variance below this share of its channel's mean square is rounding: the channel is constant.
_CONSTANT = 1e-12
# What “small” and “as well” mean here.
_SMALL, _FACTOR = 0.1, 2.0

Maps = Literal["network", "one layer"]
_MAPS: dict[Maps, str] = {
    "network": "layers of a CNN",
    "one layer": "one layer of it",
}


@dataclass(frozen=True, slots=True)
class Errors:
    """Channel statistics beside exact ones, for a 3 × 3 convolution with padding 1.

    Args:
        side: Pixels a side of its input maps.
        mean: Largest ``|μ_t − μ| / σ`` over channels and taps.
        variance: Largest ``|σ²_t / σ² − 1|``.
        typical_variance: The median of the same over channels and taps.
        bound_used: Largest ``|μ_t − μ|`` as a share of what Proposition 10 allows.
        raw: κ(Ĥ).
        channel: κ(ĤP) with channel statistics.
        exact: κ(ĤP) with exact ones.
        rank: Of Ĥ.
        columns: Of Ĥ.
    """

    side: int
    mean: float
    variance: float
    typical_variance: float
    bound_used: float
    raw: float
    channel: float
    exact: float
    rank: int
    columns: int


@dataclass(frozen=True, slots=True)
class InputMaps(Cell[Errors]):
    """The input maps of one convolution.

    Args:
        maps: ``network``: inputs of the layers of a random CNN, image first, halved by each
            max-pooling; ``one layer``: outputs of its first convolution, for images averaged
            down to the same sides.
        data: Set of images.
        stage: How often the sides have been halved.
        samples: How many images.
        seed: Seed of the weights and the choice of images.
    """

    maps: Maps
    data: str
    stage: int
    samples: int
    seed: int

    def run(self) -> Errors:
        """Compare both statistics of the inputs, and how each of them conditions Ĥ."""
        generator = torch.Generator().manual_seed(self.seed)
        images, _ = next(_images(self.data).batches(self.samples, 1, generator))
        maps = _layer_inputs(self, images.double(), generator)
        conv = _convolution(maps.shape[1], 1)
        exact, channel = tap_statistics(conv, maps), tap_statistics(conv, maps, exact=False)
        # Singular values of Ĥ and ĤP are those of its triangular factor R and of RP.
        features = torch.linalg.qr(_matrix(maps), mode="r").R
        raw = condition(features)
        after = [
            condition(features @ preconditioner(found).matrix()).value
            for found in (channel, exact)
        ]
        mean, variance = _differences(exact, channel)
        return Errors(
            side=maps.shape[-1],
            mean=float(mean.max()),
            variance=float(variance.max()),
            typical_variance=float(variance.median()),
            bound_used=float(
                ((exact.mean - channel.mean).abs() / _bound(maps)).nan_to_num().max()
            ),
            raw=raw.value,
            channel=after[0],
            exact=after[1],
            rank=raw.rank,
            columns=raw.shape[1],
        )


def cells(scale: Scale) -> tuple[InputMaps, ...]:
    """Both kinds of maps at every size, for several seeds."""
    name, samples, seeds = {
        "smoke": ("digits", 50, 1),
        "small": ("fashion-mnist", 100, 5),
        "paper": ("cifar10", 500, 5),
    }[scale]
    return tuple(
        InputMaps(maps, name, stage, samples, seed)
        for maps in _MAPS
        for stage in range(_STAGES if scale != "smoke" else 2)
        for seed in range(seeds)
    )


def _layer_inputs(cell: InputMaps, images: Tensor, generator: torch.Generator) -> Tensor:
    """Inputs of the convolution."""
    if cell.maps == "one layer":
        images = F.adaptive_avg_pool2d(images, images.shape[-1] >> cell.stage)
        return _layer(images, generator)
    maps = images
    for _ in range(cell.stage):
        maps = F.max_pool2d(_layer(maps, generator), 2)
    return maps


@torch.no_grad()
def _layer(maps: Tensor, generator: torch.Generator) -> Tensor:
    """Apply a random convolution and ReLU."""
    conv = models.glorot_uniform_(_convolution(maps.shape[1], _CHANNELS), generator=generator)
    nn.init.constant_(conv.get_parameter("bias"), _BIAS)
    return F.relu(conv(maps))


def _convolution(channels: int, filters: int) -> nn.Conv2d:
    # Initial weights, which are not used, would be drawn from the global generator.
    conv = nn.utils.skip_init(  # type: ignore[no-untyped-call]  # torch's is not annotated
        nn.Conv2d, channels, filters, _KERNEL, padding=_KERNEL // 2
    )
    assert isinstance(conv, nn.Conv2d)
    return conv.double()


def _matrix(maps: Tensor) -> Tensor:
    """Ĥ of the convolution: a row per image and position, the column of ones first."""
    rows = F.unfold(maps, _KERNEL, padding=_KERNEL // 2).mT.flatten(0, 1)
    return torch.cat([rows.new_ones(len(rows), 1), rows], 1)


def _differences(exact: ColumnStatistics, channel: ColumnStatistics) -> tuple[Tensor, Tensor]:
    """``|μ_t − μ| / σ`` and ``|σ²_t / σ² − 1|``; channels that are constant have neither."""
    varies = channel.variance > _CONSTANT * channel.second_moment
    variance = channel.variance[varies]
    mean = (exact.mean - channel.mean)[varies].abs() / variance.sqrt()
    return mean, (exact.variance[varies] / variance - 1).abs()


def _bound(maps: Tensor) -> Tensor:
    r"""Proposition 10, :math:`(k-1)(1/2r + 1/2s - (k-1)/4rs)\max|h|`, for every column."""
    r, s = maps.shape[-2:]
    border = _KERNEL - 1
    share = border * (1 / (2 * r) + 1 / (2 * s) - border / (4 * r * s))
    return (share * maps.abs().amax((0, 2, 3))).repeat_interleave(_KERNEL**2)


@lru_cache(maxsize=1)
def _images(name: str) -> data.Samples:
    return data.split(name).train


def draw(figure: FigureBase, results: Mapping[InputMaps, Errors]) -> None:
    """Draw errors and condition numbers against the size of the maps; bars span the seeds."""
    left, right = figure.subplots(1, 2)
    for index, (maps, label) in enumerate(_MAPS.items()):
        found = _by_side(results, maps)
        _series(left, found, "variance", index, f"variance, {label}")
        _series(left, found, "mean", index, f"mean, {label}", linestyle="--")
    label = f"{_SMALL:.0%}: small, as judged"
    left.axhline(_SMALL, color=style.MUTED, linewidth=0.8, label=label)
    left.set_ylabel("largest error over taps, relative to σ² or σ")
    found = _by_side(results, "network")
    for index, name in enumerate(("raw", "channel", "exact")):
        label = {"raw": "κ(Ĥ)", "channel": "κ(ĤP), channel's", "exact": "κ(ĤP), exact"}[name]
        _series(right, found, name, index, label)
    right.set_ylabel("condition number, layers of a CNN")
    sides = sorted({errors.side for errors in results.values()})
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(sides, [str(side) for side in sides])
        axes.minorticks_off()
        axes.set_xlabel("pixels a side of the map")
        # Above its panel, because errors fill it from corner to corner.
        axes.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), handlelength=3)


def _series(
    axes: Axes,
    found: Mapping[int, list[Errors]],
    name: str,
    index: int,
    label: str,
    linestyle: str = "-",
) -> None:
    values = {side: [getattr(errors, name) for errors in found[side]] for side in sorted(found)}
    middle = [statistics.median(seeds) for seeds in values.values()]
    spans = [
        [mid - min(seeds) for mid, seeds in zip(middle, values.values(), strict=True)],
        [max(seeds) - mid for mid, seeds in zip(middle, values.values(), strict=True)],
    ]
    axes.errorbar(
        list(values),
        middle,
        yerr=spans,
        color=style.PALETTE[index],
        marker=style.MARKERS[index],
        linestyle=linestyle,
        label=label,
    )


def _by_side(results: Mapping[InputMaps, Errors], maps: Maps) -> dict[int, list[Errors]]:
    found: dict[int, list[Errors]] = {}
    for cell, errors in results.items():
        if cell.maps == maps:
            found.setdefault(errors.side, []).append(errors)
    return found


def judge(results: Mapping[InputMaps, Errors]) -> Verdict:
    """Check Proposition 10, what the caption says about large maps, and what the error costs."""
    if any(cell.data == "digits" for cell in results):
        return Verdict((), left_out=("smoke looks at two sizes only; it is not judged",))
    used = max(errors.bound_used for errors in results.values())
    checks = [
        Check(
            "Proposition 10 bounds the error of every mean",
            f"at most {used:.3f} of the bound",
            used <= 1,
        )
    ]
    for maps, label in _MAPS.items():
        checks += _of_maps(_by_side(results, maps), label)
    conditioned = ours(_as_well_conditioned(_by_side(results, "network")))
    if all(cell.data.startswith("cifar") for cell in results):
        return Verdict((*checks, conditioned))
    left = ("CIFAR-10, three colours: Fashion-MNIST, one, at this scale",)
    return Verdict((*checks, conditioned), left, fidelity="stand-in data")


def _as_well_conditioned(network: Mapping[int, list[Errors]]) -> Check:
    return Check(
        f"channel statistics condition Ĥ as well as exact ones do (within a factor of {_FACTOR:g})"
        " at every size",
        "; ".join(
            f"{side}: {_median(network[side], 'raw'):.3g} to "
            f"{_median(network[side], 'channel'):.3g}, exact "
            f"{_median(network[side], 'exact'):.3g}"
            for side in sorted(network, reverse=True)
        ),
        all(e.channel <= _FACTOR * e.exact for found in network.values() for e in found),
    )


def _of_maps(found: Mapping[int, list[Errors]], label: str) -> list[Check]:
    sides = sorted(found, reverse=True)
    largest = found[sides[0]]
    at = f"at r = {sides[0] / _KERNEL:.1f} k, {label}"
    typical = max(errors.typical_variance for errors in largest)
    variance = max(errors.variance for errors in largest)
    mean = max(errors.mean for errors in largest)
    medians = [_median(found[side], "variance") for side in sides]
    return [
        Check(
            "the error is small for r, s ≫ k: means and variances of every tap, those in the "
            f"kernel's corners included, within {_SMALL:.0%} {at}",
            f"variances are off by up to {variance:.2g}, means by {mean:.2g} σ",
            # At one size; larger maps may do what these do not.
            True if max(mean, variance) <= _SMALL else None,
        ),
        ours(
            Check(
                f"half of the taps have variances within {_SMALL:.0%} {at}",
                f"the median over taps is off by at most {typical:.2g}",
                typical <= _SMALL,
            )
        ),
        Check(
            f"the error of variances falls as the map grows, {label}",
            "; ".join(f"{side}: {mid:.2g}" for side, mid in zip(sides, medians, strict=True)),
            medians == sorted(medians),
        ),
    ]


def _median(found: list[Errors], name: str) -> float:
    return float(statistics.median(getattr(errors, name) for errors in found))


EXPERIMENT = Experiment(
    name="lange2022.fig2",
    title="Error of a channel's mean and variance, taken for those of each kernel tap",
    claim="Channel and tap differ in at most (k − 1)/2 rows and columns at the border, so for "
    "r, s ≫ k the error is small.",
    choices=(
        "the paper draws which pixels differ and bounds the means (Proposition 10); here the "
        "errors are measured, those of variances too, and what they cost in conditioning",
        "smoke: digits, small: Fashion-MNIST, paper: CIFAR-10 from --data-dir; inputs in [0, 1]",
        "maps of a random CNN (Glorot uniform, bias 0.1, 8 channels, ReLU, 2 × 2 max-pooling), "
        "and of its first convolution alone on images averaged down, to part size from depth",
        "errors are relative to the channel's own σ and σ², which BNP divides by, the largest "
        "over channels and taps; constant channels are left out; statistics without ε",
        f"small means at most {_SMALL:.0%}; the caption draws taps in the kernel's corner and at "
        "its side, so that every tap is judged by the largest error, seed by seed",
    ),
    cells=cells,
    draw=draw,
    judge=judge,
)
