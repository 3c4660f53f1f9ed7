"""Which trainings there are at each scale; figures choose by network and normaliser."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TypeVar

from equipoise_papers.experiments.experiment import Scale
from equipoise_papers.santurkar2018.training import (
    Normaliser,
    ProbedTraining,
    RandomlyProbed,
    Sampled,
)

Probed = TypeVar("Probed", bound=ProbedTraining)

FAMILY = "santurkar2018.trainings"
LABELS: dict[str, str] = {
    "none": "standard",
    "batch": "BN",
    "noisy": "noisy BN",
    "noise": "standard + noise",
    "l1": "ℓ₁",
    "l2": "ℓ₂",
    "linf": "ℓ∞",
}
OF_TRAINING = (
    "smoke: digits, small: Fashion-MNIST in place of CIFAR-10, with six 3 × 3 convolutions of 12, "
    "24 and 48 channels and a dense layer of 64; paper: VGG-16 on CIFAR-10 from --data-dir",
    "plain SGD without momentum or weight decay, batch 128, rate 0.1; Glorot; the normaliser "
    "before the activation; inputs standardised per channel",
)
CHOICES = (
    *OF_TRAINING,
    "deep linear network: 25 layers of 10 × 10, 1,000 Gaussian samples, full batch, rate 10⁻⁶, "
    "squared loss summed over samples; the normaliser after every layer",
    "probes look at one batch in training mode: 8 points along the gradient, ½ to 4 times the "
    "rate (1/100 to 30 times for the linear network), and the ICS of Definition 2.1 under the "
    "step of SGD; they leave the training bit-identical",
    "means over looks leave out the one before the first step: it is one of 11 or 51 looks, and "
    "one of the source's thousands. Where it matters, a row says what it changes",
    "loss: mean training loss of the second half of the steps, of the linear network per sample; "
    "the loss varies: highest over lowest along the gradient; the gradient changes: greatest "
    "‖g′ − g‖ along it; both, and effective β, as geometric means over looks",
    "drift: mean over looks and layers of |Δμ|/σ + |Δ log σ| of one unit from look to look",
    "small: eight seeds; three in Fig. 2, along random directions, and of the linear network with "
    "the loss averaged; where Figs. 1 and 2 compare training, each normaliser also has its best "
    "rate of three, by three seeds",
)
RATE, BATCH = 0.1, 128
_RATES = (0.03, 0.1, 0.3)
_LINEAR_RATE = 1e-6
# With the loss averaged over the 1,000 samples, the same rate moves weights a thousandth as far.
AVERAGED_RATE = 1e-9


def vgg_cells(
    scale: Scale, norms: Iterable[Normaliser], *, small_seeds: int = 8
) -> tuple[ProbedTraining, ...]:
    """Trainings of VGG at the paper's rate, with probes; ``small_seeds`` at scale small."""
    # With three, a single training of the standard network scatters too much.
    return _vgg(ProbedTraining, scale, norms, small_looks=10, small_seeds=small_seeds)


def random_cells(scale: Scale, norms: Iterable[Normaliser]) -> tuple[RandomlyProbed, ...]:
    """The same trainings with the landscape along random directions."""
    return _vgg(RandomlyProbed, scale, norms, small_looks=5, small_seeds=3)


def _vgg(
    kind: type[Probed],
    scale: Scale,
    norms: Iterable[Normaliser],
    *,
    small_looks: int,
    small_seeds: int,
) -> tuple[Probed, ...]:
    name, steps, seeds, looks = {
        "smoke": ("digits", 10, 1, 2),
        "small": ("fashion-mnist", 150, small_seeds, small_looks),
        "paper": ("cifar10", 15_000, 3, 150),
    }[scale]
    make = partial(kind, "vgg", name, rate=RATE, batch_size=BATCH, steps=steps, looks=looks)
    return tuple(make(norm=norm, seed=seed) for norm in norms for seed in range(seeds))


def sampled_cells(scale: Scale, norms: Iterable[Normaliser]) -> tuple[Sampled, ...]:
    """One training of each normaliser with histograms of activations."""
    name, steps, looks = {
        "smoke": ("digits", 10, 2),
        "small": ("fashion-mnist", 150, 3),
        "paper": ("cifar10", 15_000, 3),
    }[scale]
    make = partial(
        Sampled, "vgg", name, rate=RATE, batch_size=BATCH, steps=steps, looks=looks, seed=0
    )
    return tuple(make(norm=norm) for norm in norms)


def rate_cells(scale: Scale, norms: Iterable[Normaliser]) -> tuple[ProbedTraining, ...]:
    """The same at other rates, without probes, to find each normaliser's best."""
    if scale == "smoke":
        return ()
    name, steps = {"small": ("fashion-mnist", 150), "paper": ("cifar10", 15_000)}[scale]
    make = partial(ProbedTraining, "vgg", name, batch_size=BATCH, steps=steps, looks=0)
    return tuple(
        make(norm=norm, rate=rate, seed=seed)
        for norm in norms
        for rate in _RATES
        if rate != RATE
        for seed in range(3)
    )


def linear_cells(scale: Scale, norms: Iterable[Normaliser]) -> tuple[ProbedTraining, ...]:
    """Trainings of the deep linear network, with probes."""
    steps, seeds, looks = {
        "smoke": (20, 1, 2),
        "small": (10_000, 8, 50),
        "paper": (10_000, 5, 100),
    }[scale]
    return _linear(norms, _LINEAR_RATE, steps, seeds, looks)


def averaged_cells(scale: Scale, norms: Iterable[Normaliser]) -> tuple[ProbedTraining, ...]:
    """The same as if the loss were averaged over samples and not summed."""
    steps, seeds, looks = {
        "smoke": (20, 1, 2),
        "small": (2_000, 3, 10),
        "paper": (10_000, 5, 10),
    }[scale]
    return _linear(norms, AVERAGED_RATE, steps, seeds, looks)


def _linear(
    norms: Iterable[Normaliser], rate: float, steps: int, seeds: int, looks: int
) -> tuple[ProbedTraining, ...]:
    make = partial(
        ProbedTraining, "dln", "gaussian", rate=rate, batch_size=0, steps=steps, looks=looks
    )
    chosen = tuple(norms)
    return tuple(make(norm=norm, seed=seed) for seed in range(seeds) for norm in chosen)
