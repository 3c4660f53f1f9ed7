"""Which trainings make up Figs. 3 to 5: networks, batches, steps, and grids of learning rates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from equipoise_papers.experiments.experiment import Scale
from equipoise_papers.lange2022.training import Run, Training

# Half decades, so that every grid is a piece of the same series.
_SERIES = tuple(float(f"{digit}e{power}") for power in range(-6, 2) for digit in (1, 3))


@dataclass(frozen=True, slots=True)
class Regime:
    """Network, batch size and learning rates of one panel.

    Args:
        network: ``fc`` or ``cnn5``.
        batch_size: Samples per step.
        steps: Steps at scale small.
        centres: Learning rate in the middle of each method's grid, for every method of the panel.
        paper_rates: Best rates that the paper reports, on CIFAR-10.
        mnist_rates: Those that it reports on MNIST, which Fashion-MNIST stands in for.
        found: Best rate at scale small of each method that the paper's sentences compare; trained
            with eight seeds there. Empty where that takes too long, or where what is open is about
            the end of training, which no number of seeds brings nearer.
        close: Those of them that eight seeds do not tell apart, trained with 24.
    """

    network: str
    batch_size: int
    steps: int
    centres: dict[str, float]
    paper_rates: dict[str, float]
    mnist_rates: dict[str, float] | None = None
    found: Mapping[str, float] = field(default_factory=dict)
    close: tuple[str, ...] = ()

    def reported(self, data: str) -> dict[str, float]:
        """The paper's best rates on the data that some data stand in for."""
        on_digits = self.mnist_rates is not None and not data.startswith("cifar")
        return self.mnist_rates if on_digits and self.mnist_rates else self.paper_rates

    @property
    def name(self) -> str:
        """Network and batch size in words."""
        network = "3 × 100" if self.network == "fc" else "5-layer CNN"
        return f"{network}, batch {self.batch_size}"


# Centres are the best rates of a wider search on Fashion-MNIST.
FC_60 = Regime(
    "fc",
    60,
    2000,
    {
        "vanilla": 0.1,
        "standardised": 0.1,
        "bn": 0.1,
        "ln": 0.1,
        "renorm": 0.1,
        "four_things": 1e-3,
        "bnp_paper": 0.3,
        "bnp": 0.1,
        "adam": 1e-3,
        "bnp_adam": 1e-3,
    },
    {"vanilla": 0.01, "bn": 0.5, "bnp_paper": 0.1, "ln": 0.5},
    {"vanilla": 0.1, "bn": 0.5, "bnp_paper": 0.5, "ln": 0.1},
    found={"vanilla": 0.1, "bn": 0.1, "ln": 0.03, "bnp_paper": 0.3},
)
FC_6 = Regime(
    "fc",
    6,
    3000,
    {
        "vanilla": 0.03,
        "standardised": 0.01,
        "bn": 0.01,
        "ln": 0.01,
        "renorm": 0.01,
        "four_things": 3e-4,
        "bnp_paper": 0.1,
        "bnp": 0.1,
        "adam": 3e-4,
        "bnp_adam": 3e-4,
    },
    {"vanilla": 5e-3, "bn": 5e-2, "bnp_paper": 5e-2, "renorm": 5e-2, "ln": 5e-2},
    found={"vanilla": 0.03, "bn": 0.01, "ln": 0.01, "renorm": 0.01, "bnp_paper": 0.1},
)
FC_1 = Regime(
    "fc",
    1,
    4000,
    {
        "vanilla": 3e-3,
        "standardised": 3e-3,
        "bn_copies": 3e-3,
        "ln": 3e-3,
        "renorm_copies": 3e-3,
        "four_things": 1e-4,
        "bnp_paper": 0.1,
        "bnp": 0.1,
        "adam": 1e-4,
        "bnp_adam": 1e-4,
    },
    {"vanilla": 5e-4, "bnp_paper": 1e-1, "ln": 1e-2},
)
CNN_128 = Regime(
    "cnn5",
    128,
    1500,
    {
        "vanilla": 0.3,
        "bn": 0.3,
        "four_things": 1e-3,
        "bnp_paper": 0.3,
        "bnp": 0.03,
        "adam": 1e-3,
    },
    {"vanilla": 1e-1, "bn": 1e-1, "bnp_paper": 1e-1, "four_things": 5e-3},
)
CNN_2 = Regime(
    "cnn5",
    2,
    1200,
    {
        "vanilla": 0.03,
        "standardised": 0.01,
        "bn": 3e-3,
        "ln": 0.01,
        "renorm": 0.01,
        "four_things": 3e-4,
        "bnp_paper": 0.3,
        "bnp": 0.03,
        "bnp_adam": 3e-4,
    },
    {"vanilla": 1e-3, "bn": 1e-3, "bnp_paper": 1e-2, "four_things": 1e-4, "renorm": 1e-2},
    found={"vanilla": 0.03, "bn": 3e-3, "renorm": 0.01, "four_things": 1e-3, "bnp_paper": 0.3},
    close=("four_things", "bnp_paper"),
)
# Of these two batches the paper says a sentence and reports no rate.
CNN_4 = Regime("cnn5", 4, 1200, {"vanilla": 0.03, "bn": 0.01}, {})
CNN_3 = Regime("cnn5", 3, 1200, {"vanilla": 0.03, "renorm": 0.01}, {})
CNN_1 = Regime(
    "cnn5",
    1,
    1500,
    {
        "vanilla": 0.01,
        "standardised": 0.01,
        "bn_copies": 3e-3,
        "ln": 3e-3,
        "renorm_copies": 3e-3,
        "four_things": 1e-4,
        "bnp_paper": 0.3,
        "bnp": 0.03,
        "bnp_adam": 1e-4,
    },
    {"vanilla": 1e-3, "bnp_paper": 1e-1, "four_things": 1e-3},
)

# Evaluations and test images: a pass of the CNN over 1,000 costs as much as 10 steps at 128.
_SMALL_TESTS = {"fc": (6, 2000), "cnn5": (3, 1000)}
_SMOKE_STEPS, _SMOKE_DATA = 20, "digits"
_SMALL_SEEDS, _SMALL_DATA = (0, 1, 2), "fashion-mnist"
# With three, accuracies scatter by more than the points by which methods are told apart.
_MORE_SEEDS, _MOST_SEEDS = range(8), range(24)
# The paper trains on CIFAR-10 (and MNIST at batch 60); it does not say for how many epochs.
_PAPER_SEEDS, _PAPER_EPOCHS, _PAPER_TEST = range(5), 20, 10_000
PAPER_SETS = {"cifar10": 50_000, "mnist": 60_000}
"""The paper's sets with their numbers of training images."""


def cells(regime: Regime, scale: Scale) -> tuple[Training, ...]:
    """Every training of a panel: methods × rates × seeds; rates are a grid and the paper's."""
    if scale == "smoke":
        return tuple(
            Training(
                regime.network, _SMOKE_DATA, method, regime.batch_size, _SMOKE_STEPS, rate, 0, 1
            )
            for method, rate in regime.centres.items()
        )
    if scale == "small":
        return tuple(
            Training(
                regime.network,
                _SMALL_DATA,
                method,
                regime.batch_size,
                regime.steps,
                rate,
                seed,
                *_SMALL_TESTS[regime.network],
            )
            for method, centre in regime.centres.items()
            for rate in sorted({*grid(centre, 1), *_reported(regime.paper_rates, method)})
            for seed in _seeds(regime, method, rate)
        )
    sets = PAPER_SETS if regime.mnist_rates else {"cifar10": PAPER_SETS["cifar10"]}
    return tuple(
        Training(
            regime.network,
            name,
            method,
            regime.batch_size,
            _PAPER_EPOCHS * images // regime.batch_size,
            rate,
            seed,
            _PAPER_EPOCHS,
            _PAPER_TEST,
        )
        for name, images in sets.items()
        for method, centre in regime.centres.items()
        for rate in sorted({*grid(centre, 2), *_reported(regime.reported(name), method)})
        for seed in _PAPER_SEEDS
    )


def cells_of(table: Iterable[Regime], scale: Scale) -> tuple[Training, ...]:
    """Every training of several panels."""
    return tuple(cell for regime in table for cell in cells(regime, scale))


@dataclass(frozen=True, slots=True)
class Part:
    """A regime on one set of images.

    Args:
        name: Of the regime, with the set's if there are several.
        regime: Network, batch size and learning rates.
        data: Set of images.
        results: Its trainings.
    """

    name: str
    regime: Regime
    data: str
    results: dict[Training, Run]


def parts(table: Iterable[Regime], results: Mapping[Training, Run]) -> Iterator[Part]:
    """Yield each regime on each set of images."""
    for regime in table:
        mine = {c: r for c, r in results.items() if c.batch_size == regime.batch_size}
        sets = list(dict.fromkeys(cell.data for cell in mine))
        for data in sets:
            name = regime.name if len(sets) == 1 else f"{regime.name}, {data}"
            yield Part(name, regime, data, {c: r for c, r in mine.items() if c.data == data})


def _seeds(regime: Regime, method: str, rate: float) -> Iterable[int]:
    if rate != regime.found.get(method):
        return _SMALL_SEEDS
    return _MOST_SEEDS if method in regime.close else _MORE_SEEDS


def grid(centre: float, neighbours: int) -> tuple[float, ...]:
    """Half decades around a rate of the series.

    Examples:
        >>> grid(0.03, 1)
        (0.01, 0.03, 0.1)
    """
    place = _SERIES.index(centre)
    return _SERIES[place - neighbours : place + neighbours + 1]


def _reported(rates: Mapping[str, float], method: str) -> tuple[float, ...]:
    rate = rates.get(method)
    return () if rate is None else (rate,)
