"""Which normaliser at batch sizes 1 to 8: the chooser against two rules that people follow.

Run ``python benchmarks/small_batch_normalisers.py --out FOLDER [--jobs N] [--minutes M]
[--quick]``; it prints the tables of ``docs/fix.md``. Twelve tasks with real data (scikit-learn's
digits, two photographs and descriptions of data) at four batch sizes, 200 steps of SGD. The
chooser is ``equipoise checkup … --fix norms``. Its choice, and every normaliser with all rates, is
judged on other seeds by test data: per cent of classes that are right, or of the variance that is
explained. *If sure*: its choice where that is better beyond chance in the race, else batch norm.
The best of many arms is partly the luckiest; beside it stands the arm that is best on one half of
the seeds, judged on the other half, and the other way round.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from remedies_on import networks, tasks
from remedies_on.exhaustive import Cell, Finished, Outcome, is_negative, shown

_STEPS, _SIZES, _SEEDS = 200, (1, 2, 4, 8), 8
_GROUP, _INSTANCE = "group norm of 8 groups", "instance norm instead"
_WITHIN = 1.0

_TASKS = {
    "digits, ResNet": (tasks.digits, partial(networks.residual, 3, 16)),
    "digits, plain CNN": (tasks.digits, partial(networks.plain, 5, 16)),
    "odd digits, ResNet": (tasks.parity, partial(networks.residual, 3, 16, classes=2)),
    "turned digits, CNN": (tasks.rotation, partial(networks.plain, 5, 16, classes=4)),
    "digits from noise, U-Net": (tasks.denoising, partial(networks.UNet, 1, 1)),
    "digits' pixels, U-Net": (tasks.segmentation, partial(networks.UNet, 1, 2)),
    "half digits, U-Net": (tasks.inpainting, partial(networks.UNet, 1, 1)),
    "photographs, ResNet": (tasks.photographs, partial(networks.residual, 2, 16, classes=2)),
    "colours, U-Net": (tasks.colours, partial(networks.UNet, 1, 3)),
    "details, U-Net": (tasks.details, partial(networks.UNet, 3, 3)),
    "characters, convolutions": (
        tasks.text,
        partial(networks.CausalText, 5, 32, 44, 44, pooled=False),
    ),
    "documents, convolutions": (
        tasks.authorship,
        partial(networks.CausalText, 5, 32, 44, 14, pooled=True),
    ),
}
CELLS = tuple(
    Cell(f"{name} | {size}", task, build, size, _STEPS, family="norms", seeds=_SEEDS)
    for size in _SIZES
    for name, (task, build) in _TASKS.items()
)


def _points(one: Outcome) -> float:
    return statistics.fmean(one.points)


def _with(word: str, one: Finished) -> Outcome:
    """The arm of a rule; the network as it is if there is none such."""
    assert one.plain is not None
    return next((arm for arm in one.arms if word in arm.name), one.plain)


def _rules(one: Finished) -> dict[str, Outcome]:
    assert one.plain is not None
    below = int(one.cell.split("| ")[1]) < 8
    return {
        "chooser": one.plain if one.chosen is None else one.chosen,
        "chooser, if sure": one.chosen if one.chosen and one.is_sure else one.plain,
        "below 8 group norm": _with(_GROUP, one) if below else one.plain,
        "always instance norm": _with(_INSTANCE, one),
        "batch norm as it is": one.plain,
    }


def _short(name: str) -> str:
    for words in (" instead of every norm", " after 20 steps"):
        name = name.replace(words, "")
    return "batch norm" if name == "as it is" else name


def _halves(seeds: int) -> tuple[tuple[range, range], ...]:
    first, second = range(seeds // 2), range(seeds // 2, seeds)
    return (first, second), (second, first)


def _behind(arm: Outcome, arms: Sequence[Outcome]) -> float:
    """Points behind the arm that is best on one half of the seeds, on the other half."""
    found = []
    for chosen, judged in _halves(len(arm.points)):
        best = max(arms, key=lambda one: sum(one.points[i] for i in chosen))
        found.append(statistics.fmean(best.points[i] - arm.points[i] for i in judged))
    return statistics.fmean(found)


def table(found: Sequence[Finished]) -> None:
    """Print finished cells, and how often each rule is within a point of the best arm."""
    whole = [one for one in found if one.whole]
    if not whole:
        print("No cell is finished.")
        return
    names = list(_rules(whole[0]))
    headings = [name.removesuffix(" as it is").split("always ")[-1] for name in names]
    print(f"| task | batch | chosen | {' | '.join(headings)} | best of all arms | |")
    print("|---" * (len(names) + 5) + "|")
    close, unclear, fair = (dict.fromkeys(names, 0) for _ in range(3))
    behind: dict[str, list[float]] = {name: [] for name in names}
    for one in whole:
        rules = _rules(one)
        best = max(one.arms, key=_points)
        for name, arm in rules.items():
            losses = [a - b for a, b in zip(arm.points, best.points, strict=True)]
            points = -statistics.fmean(losses)
            close[name] += points <= _WITHIN
            unclear[name] += points > _WITHIN and not is_negative(losses)
            behind[name].append(_behind(arm, one.arms))
            fair[name] += behind[name][-1] <= _WITHIN
        cells = " | ".join(f"{_points(arm):.1f}" for arm in rules.values())
        chosen = _short(rules["chooser"].name)
        print(f"| {one.cell} | {chosen} | {cells} | {_points(best):.1f} | {_short(best.name)} |")
    print(
        "\n| rule | within a point of the luckiest arm | further, within chance "
        "| within a point of the arm that is best on other seeds | mean points behind it |"
    )
    print("|---|---|---|---|---|")
    for name in names:
        share = f"{close[name]} of {len(whole)} ({close[name] / len(whole):.0%})"
        other = f"{fair[name]} of {len(whole)} ({fair[name] / len(whole):.0%})"
        mean = statistics.fmean(behind[name])
        print(f"| {name} | {share} | {unclear[name]} | {other} | {mean:.2f} |")


def main() -> None:
    """Race, exhaust, and print."""
    quick = replace(CELLS[13], steps=6, family="bnp", seeds=2)
    table(shown(CELLS, [quick], __doc__))


if __name__ == "__main__":
    main()
