"""Which trainings make up Figs. 6 and 7: networks, schedules, learning rates, data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from equipoise_papers.experiments.experiment import Scale
from equipoise_papers.lange2022.regimes import grid
from equipoise_papers.lange2022.resnets import imagenet
from equipoise_papers.lange2022.resnets.training import METHODS, Form, ResNetTraining

_WEIGHT_DECAY = 1e-4
# He et al. 2016, section 4.2; the paper's other methods warm up over 1 or 2 epochs.
_WARMUP_OF_BN = 400


@dataclass(frozen=True, slots=True)
class Published:
    """One panel's regime in the paper.

    Args:
        network: Name of the network and the data.
        data: Set of images.
        images: Number of training images.
        side: Pixels a side.
        depth: Layers with weights.
        width: Channels of the first stage.
        batch_size: Samples per step.
        epochs: How many; the paper names only the drops.
        drops: Epochs after which the rate falls to a tenth.
        group_size: Channels in a group.
        init_scale: Factor of the initial weights under BNP.
        weight_decay: Under BNP+GN.
        rates: Best rates of Table 3, for every method of the panel.
        warms_up: Whether training starts at a lower rate.
    """

    network: str
    data: str
    images: int
    side: int
    depth: int
    width: int
    batch_size: int
    epochs: int
    drops: tuple[int, ...]
    group_size: int
    init_scale: float
    weight_decay: float
    rates: Mapping[str, float]
    warms_up: bool = True


@dataclass(frozen=True, slots=True)
class StandIn:
    """What takes the paper's place at scale ``small``.

    Args:
        network: Name of the network and the data.
        side: Pixels a side.
        depth: Layers with weights.
        width: Channels of the first stage.
        batch_size: Samples per step.
        steps: Number of steps.
        centres: Learning rate in the middle of each method's grid.
    """

    network: str
    side: int
    depth: int
    width: int
    batch_size: int
    steps: int
    centres: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ResNetRegime:
    """One panel's regime, in the paper and here."""

    form: Form
    paper: Published
    small: StandIn

    def network(self, data: str) -> str:
        """Name of what was trained on a set of images."""
        return self.paper.network if data == self.paper.data else self.small.network


ORIGINAL = ResNetRegime(
    "original",
    Published(
        "ResNet-110 on CIFAR-10",
        data="cifar10",
        images=50_000,
        side=32,
        depth=110,
        width=16,
        batch_size=128,
        epochs=160,
        drops=(80, 120),
        group_size=4,
        init_scale=0.1,
        weight_decay=1.5e-4,
        rates={"bn": 0.1, "gn": 0.1, "bnp": 0.1, "bnp_gn": 0.1},
    ),
    StandIn(
        "ResNet-20 of width 8 on Fashion-MNIST, 14 × 14",
        side=14,
        depth=20,
        width=8,
        batch_size=128,
        steps=240,
        centres={"bn": 0.1, "gn": 0.1, "bnp": 0.1, "bnp_gn": 0.03},
    ),
)
PREACTIVATION = ResNetRegime(
    "preactivation",
    Published(
        "pre-activation ResNet-110 on CIFAR-100",
        data="cifar100",
        images=50_000,
        side=32,
        depth=110,
        width=16,
        batch_size=128,
        epochs=300,
        drops=(150, 220),
        group_size=4,
        init_scale=0.4,
        weight_decay=2e-4,
        rates={"bn": 0.1, "gn": 0.1, "bnp": 0.01, "bnp_gn": 0.1},
    ),
    StandIn(
        "pre-activation ResNet-20 of width 8 on Fashion-MNIST, 14 × 14",
        side=14,
        depth=20,
        width=8,
        batch_size=128,
        steps=240,
        centres={"bn": 0.1, "gn": 0.1, "bnp": 0.1, "bnp_gn": 0.1},
    ),
)
RESNET18 = ResNetRegime(
    "resnet18",
    Published(
        "ResNet-18 on ImageNet",
        data=imagenet.NAME,
        images=1_281_167,
        side=224,
        depth=18,
        width=64,
        batch_size=256,
        epochs=100,
        drops=(30, 60, 90),
        group_size=32,
        init_scale=1.0,
        weight_decay=8.5e-4,
        rates={"bn": 0.1, "gn": 0.1, "bnp_gn": 0.1},
        # "All models use an initial learning rate of 0.1" (Appendix B); its warm-up is that of the
        # networks for CIFAR.
        warms_up=False,
    ),
    StandIn(
        "ResNet-18 of width 8 on Fashion-MNIST",
        side=28,
        depth=18,
        width=8,
        batch_size=64,
        steps=220,
        centres={"bn": 0.1, "gn": 0.1, "bnp_gn": 0.1},
    ),
)

_SMALL_SEEDS, _SMALL_GROUP = tuple(range(8)), 4
SMALL_WARMUP = 0.08
_SMALL_LOOKS, _SMALL_TESTS = 10, 1000
_PAPER_SEEDS, _PAPER_TESTS = range(5), 10_000


def cells(regime: ResNetRegime, scale: Scale) -> tuple[ResNetTraining, ...]:
    """Every training of a panel: methods × rates × seeds; rates are a grid and the paper's."""
    return {"smoke": _smoke, "small": _small, "paper": _paper}[scale](regime)


def _smoke(regime: ResNetRegime) -> tuple[ResNetTraining, ...]:
    steps = 8
    return tuple(
        ResNetTraining(
            form=regime.form,
            method=method,
            weight_decay=_weight_decay(regime, method),
            depth=18 if regime.form == "resnet18" else 8,
            width=4,
            data="digits",
            side=8,
            group_size=_SMALL_GROUP,
            init_scale=_init_scale(regime, method),
            batch_size=32,
            steps=steps,
            warmup=2,
            drops=_drops(regime, steps),
            rate=rate,
            seed=0,
            evaluations=2,
            test_samples=100,
        )
        for method, rate in regime.small.centres.items()
    )


def _small(regime: ResNetRegime) -> tuple[ResNetTraining, ...]:
    small = regime.small
    return tuple(
        ResNetTraining(
            form=regime.form,
            method=method,
            weight_decay=_weight_decay(regime, method),
            depth=small.depth,
            width=small.width,
            data="fashion-mnist",
            side=small.side,
            group_size=_SMALL_GROUP,
            init_scale=_init_scale(regime, method),
            batch_size=small.batch_size,
            steps=small.steps,
            warmup=round(SMALL_WARMUP * small.steps),
            drops=_drops(regime, small.steps),
            rate=rate,
            seed=seed,
            evaluations=_SMALL_LOOKS,
            test_samples=_SMALL_TESTS,
        )
        for method, centre in small.centres.items()
        for rate in sorted({*grid(centre, 1), regime.paper.rates[method]})
        for seed in _SMALL_SEEDS
    )


def _paper(regime: ResNetRegime) -> tuple[ResNetTraining, ...]:
    paper = regime.paper
    epoch = paper.images // paper.batch_size
    return tuple(
        ResNetTraining(
            form=regime.form,
            method=method,
            weight_decay=_weight_decay(regime, method),
            depth=paper.depth,
            width=paper.width,
            data=paper.data,
            side=paper.side,
            group_size=paper.group_size,
            # Without any normaliser 110 layers at the usual scale start at logits of 10⁷.
            init_scale=paper.init_scale if METHODS[method].preconditioned else 1.0,
            batch_size=paper.batch_size,
            steps=paper.epochs * epoch,
            warmup=_warmup(paper, method, epoch),
            drops=tuple(drop * epoch for drop in paper.drops),
            rate=rate,
            seed=seed,
            evaluations=paper.epochs,
            test_samples=_PAPER_TESTS,
            augmented=True,
        )
        for method, reported in paper.rates.items()
        for rate in grid(reported, 1)
        for seed in _PAPER_SEEDS
    )


def _warmup(paper: Published, method: str, epoch: int) -> int:
    """The shorter of the paper's two gradual warm-ups, and He et al.'s for batch norm."""
    if not paper.warms_up:
        return 0
    return epoch if METHODS[method].gradual else _WARMUP_OF_BN


def _weight_decay(regime: ResNetRegime, method: str) -> float:
    return regime.paper.weight_decay if method == "bnp_gn" else _WEIGHT_DECAY


def _init_scale(regime: ResNetRegime, method: str) -> float:
    """Scale for shallow networks: under BNP alone the paper's would make the signal vanish."""
    return regime.paper.init_scale if method == "bnp_gn" else 1.0


def _drops(regime: ResNetRegime, steps: int) -> tuple[int, ...]:
    """The paper's drops, at the same shares of a shorter training."""
    return tuple(round(steps * drop / regime.paper.epochs) for drop in regime.paper.drops)
