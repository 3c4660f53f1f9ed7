"""Whether one line checks up the models that people have: classes of public packages, unedited.

Run ``python benchmarks/public_models.py [--quick] [NAME …]``; it prints the table of
``docs/public_models.md``. Every row is ``eq.checkup(model, batch)`` with nothing else, of a model
that its package's own arguments make small, with random weights; ``benchmarks/published/`` has
them. A package that is missing makes its rows say what to install. Processor seconds, one thread.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence

import torch

from checked_models import Checked, checked, on_one_thread, summary
from equipoise.diagnosis.record import Checkup
from published import PUBLISHED, Published

QUICK = ("nn.LSTM",)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="classes; all by default")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    on_one_thread()
    warnings.simplefilter("ignore")  # of the packages
    chosen = args.names or (QUICK if args.quick else [one.name for one in PUBLISHED])
    print(
        "| package | class | works | a step | the check-up | within price | loss that was found "
        "| what the first screen says |"
    )
    print("|---|---|---|---|---|---|---|---|")
    rows = [row(one) for one in PUBLISHED if one.name in chosen]
    print("\n" + summary([found for found in rows if found is not None]))


def row(published: Published) -> Checked | None:
    """Check one model and print its line; None if its package is not installed."""
    torch.manual_seed(0)
    package = published.package.partition(" ")[0]
    try:
        model, batch = published.make()
    except ModuleNotFoundError as error:
        line(package, published.name, f"{error.name} is missing: pip install {published.package}")
        return None
    found = checked(model, batch)
    if found.found is None:
        line(package, published.name, "no", says=[found.error])
        return found
    line(
        package,
        published.name,
        "yes",
        f"{found.step:.3f} s",
        found.cost,
        found.loss,
        says=first_screen(found.found),
    )
    return found


def line(
    package: str,
    name: str,
    works: str,
    step: str = "–",
    cost: str = "– | –",
    loss: str = "–",
    says: Sequence[str] = ("–",),
) -> None:
    """Print a line of the table."""
    cells = [package, name, works, step, cost, loss, " ".join(says).replace("|", "\\|")]
    print(f"| {' | '.join(cells)} |", flush=True)


def first_screen(found: Checkup) -> list[str]:
    """The verdict, and the first finding that it does not repeat."""
    verdict = found.verdict.sentence
    others = [one.title for one in found.headlines if one.title not in verdict]
    return [f"**{verdict}**", *others[:1]]


if __name__ == "__main__":
    main()
