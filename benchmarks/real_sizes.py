"""What one line costs on models of the sizes at which they were published, on an accelerator.

Run ``python benchmarks/real_sizes.py [--quick] [NAME …]``; it prints the second table of
``docs/public_models.md``. Every row is ``eq.checkup(model, batch)`` with nothing else, weights and
data random, in float32. A step is a forward and a backward pass; seconds are of the clock, and end
when the device has ended. Without an accelerator it runs on the CPU, which takes hours, and says
so. A package that is missing makes its rows say what to install.
"""

from __future__ import annotations

import argparse
import time
import warnings

import torch

import equipoise as eq
from checked_models import step_seconds
from equipoise.instrument.batches import moved
from public_models import first_screen
from published import PUBLISHED, Published
from published.real import REAL_SIZES

DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
QUICK = "nn.LSTM"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="classes; all by default")
    parser.add_argument("--quick", action="store_true", help="a small model alone")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of the packages
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else DEVICE.type
    print(f"{name}, torch {torch.__version__}\n")
    print("| class | weights | a step | the check-up | memory, to a step's | what it says |")
    print("|---|---|---|---|---|---|")
    models = [one for one in PUBLISHED if one.name == QUICK] if args.quick else REAL_SIZES
    for one in models:
        if one.name in (args.names or [one.name]):
            print(f"| {' | '.join(row(one))} |", flush=True)


def row(published: Published) -> list[str]:
    """Check one model up, and say what it took."""
    torch.manual_seed(0)
    package = published.package
    try:
        model, batch = published.make()
    except ModuleNotFoundError as error:
        return [published.name, *"––––", f"{error.name} is missing: pip install {package}"]
    count = sum(weight.numel() for weight in model.parameters())
    model, batch = model.to(DEVICE), moved(batch, DEVICE)
    cells = [published.name, f"{count / 1e6:,.0f} M"]
    try:
        most_memory()
        step = step_seconds(model, batch, seconds)
        training = most_memory()
        begin = seconds()
        found = eq.checkup(model, batch)
        took = seconds() - begin
    except Exception as error:  # the table tells which models fail, and how
        return [*cells, *"–––", f"{type(error).__name__}: {str(error).splitlines()[0]}"]
    memory = f"{most_memory() / training:.2f}" if training else "–"
    says = " ".join(first_screen(found)).replace("|", "\\|")
    cost = f"{took:.1f} s = {took / step:,.0f} steps"
    return [*cells, f"{1e3 * step:.0f} ms", cost, memory, says]


def most_memory() -> int:
    """The most bytes of the device that were in use at once since the last call."""
    if DEVICE.type != "cuda":
        return 0
    most = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return most


def seconds() -> float:
    """The time when the device has done what it was given."""
    if DEVICE.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
