"""What the parts of a check-up cost, in the user's training steps and in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from equipoise.diagnosis.preconditioning.sizes import samples_wanted, seconds, sizes
from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.record import LeftOut
from equipoise.diagnosis.smoothness.measure import SmoothnessOptions, steps_of_smoothness
from equipoise.records import wording

# What the default check-up should cost: passes, and what does not depend on the model's size.
# benchmarks/first_minute.py tells for which models it does.
STEPS, SECONDS = 25, 3.0
# Measured passes among them: 5 initialisations see 2 batches each.
_PASSES = 10
# Processor time that theory may take at most, beyond so many steps, and at least.
THEORY_STEPS, THEORY_SECONDS = 8, 3.0
_LEAST_THEORY = 1.0
# The same where less does not reach a verdict: a small network of maps of 24 × 24 takes 2 seconds.
FOR_A_VERDICT = 6.0
# What follows after the verdict, beside measuring gradients: condition numbers and pooling.
_LATER_STEPS, _LATER_SECONDS = 3, 1.0
# Beside the model, its gradients and the weights of another initialisation: a Llama with 1.1×10⁹
# weights took 2.6 times their size at its peak.
_MORE_SETS = 2
# What a traced pass and a look at it take, in what a forward pass keeps for its gradients: 6.0
# where logits are by far the largest, 4.0 of a GPT, 3.8 of a ResNet-18 on images of 96 × 96.
_KEPT = 6
_WORTH_TELLING = 1e9  # bytes
# Optional parts, and how to ask for them.
_PARTS = {
    "smoothness": ("how far gradients are reliable", "smoothness=True"),
    "preconditioning": ("what preconditioning would do", "preconditioning=True"),
    "hessian": ("condition numbers of the Hessian", "hessian=True"),
}
# Options that look at layers, one by one.
OF_LAYERS = ("preconditioning=True", "hessian=True")


@dataclass(frozen=True, slots=True)
class Plan:
    """Which optional parts are run.

    Args:
        preconditioning: Condition numbers before and after preconditioning.
        hessian: Those of the Hessian too.
        smoothness: How far gradients are reliable at initialisation.
        left_out: What is not run.
        seconds: What the check-up will about take.
        step_seconds: What one training step takes.
    """

    preconditioning: bool
    hessian: bool
    smoothness: bool
    left_out: tuple[LeftOut, ...]
    seconds: float
    step_seconds: float

    def theory_seconds(self, spent: float, passes: int) -> float:
        """Processor time that theory may take.

        Args:
            spent: Seconds that went by since the start.
            passes: That are still to be measured.

        Examples:
            >>> found = plan(0.1, {})
            >>> [round(found.theory_seconds(spent, passes=10), 1) for spent in (0.1, 1.0, 9.0)]
            [3.1, 2.2, 1.0]
        """
        most = max(THEORY_SECONDS + THEORY_STEPS * self.step_seconds, self.seconds / 2)
        return min(most, max(_LEAST_THEORY, self.seconds_left(spent, passes)))

    def seconds_left(self, spent: float, passes: int) -> float:
        """Processor time that is left for theory, beside what is still to be measured.

        Examples:
            >>> round(plan(0.1, {}).seconds_left(2.0, passes=10), 1)
            1.2
        """
        whole = max(_steps(passes) * self.step_seconds + SECONDS, self.seconds / 2)
        to_come = (passes + _LATER_STEPS) * self.step_seconds + _LATER_SECONDS
        return whole - spent - to_come

    @property
    def notice(self) -> str:
        """The plan in words.

        Examples:
            >>> print(plan(0.1, {"hessian": 25.0}, budget=30).notice)
            A training step takes 0.10 s, the check-up about 5.5 s. Left out: condition numbers of
            the Hessian (about 25 s, hessian=True).
        """
        words = (
            f"A training step takes {_in_seconds(self.step_seconds)}, the check-up about "
            f"{_in_seconds(self.seconds)}."
        )
        if self.left_out:
            listed = "; ".join(
                f"{one.what} (about {_in_seconds(one.seconds)}, {one.option})"
                for one in self.left_out
            )
            words += f" Left out: {listed}."
        return words


def plan(
    step_seconds: float,
    prices: Mapping[str, float],
    *,
    passes: int = _PASSES,
    further: int = 0,
    asked: Sequence[str] = (),
    budget: float | None = None,
) -> Plan:
    """Choose the parts that were asked for, and those that fit a budget.

    Args:
        step_seconds: What one training step takes.
        prices: Seconds of ``smoothness``, ``preconditioning`` and ``hessian``, each without the
            others; of those alone that the model has.
        passes: That are measured, over all initialisations and batches.
        further: Training steps of parts that are not optional.
        asked: Names of parts that are run in any case.
        budget: Seconds for all together; by default nothing beyond the default is run.

    Examples:
        >>> prices = {"preconditioning": 1.0, "smoothness": 4.0, "hessian": 20.0}
        >>> [one.option for one in plan(0.1, prices).left_out]
        ['preconditioning=True', 'smoothness=True', 'hessian=True']
        >>> plan(0.1, prices, budget=100).left_out
        ()
        >>> [round(plan(0.1, prices, passes=n).seconds, 1) for n in (2, 10, 100)]
        [5.5, 5.5, 14.5]
    """
    spent = (_steps(passes) + further) * step_seconds + SECONDS
    run, left = set(asked), []
    spent += sum(prices.get(name, 0.0) for name in run)
    for name, price in sorted(prices.items(), key=lambda pair: pair[1]):
        if name in run:
            continue
        if budget is not None and spent + price <= budget:
            run.add(name)
            spent += price
        else:
            left.append(LeftOut(*_PARTS[name], price))
    return Plan(
        "preconditioning" in run or "hessian" in run,
        "hessian" in run,
        "smoothness" in run,
        tuple(left),
        spent,
        step_seconds,
    )


def prices(
    problem: Problem, model: nn.Module, training: SmoothnessOptions | None
) -> dict[str, float]:
    """Seconds that the optional parts take.

    Args:
        problem: Model, data and loss.
        model: One of its models.
        training: How smoothness is measured in training; ``None`` for the initialisation alone.
    """
    step, found = problem.step_seconds, sizes(model, problem.first, problem.loss_fn)
    samples = samples_wanted(found) if problem.is_extensible(model) else 0
    inputs, hessian = seconds(model, found, samples, step)
    smooth = steps_of_smoothness(model, training) * step
    return {"smoothness": smooth, "preconditioning": inputs, "hessian": hessian}


def _steps(passes: int) -> int:
    """The default's, and what is measured beyond it."""
    return STEPS + max(0, passes - _PASSES)


def memory_in_words(model: nn.Module, free: int | None, kept: int | None = None) -> str:
    """What a check-up takes beside the model, if that is much or more than is free.

    Args:
        model: The model, which is in memory.
        free: Bytes; ``None`` if that is not known.
        kept: Bytes that a forward pass was seen to keep for its gradients; ``None`` where nothing
            tells.

    Examples:
        >>> with torch.device("meta"):
        ...     large = nn.Linear(10_000, 100_000, bias=False)
        >>> print(memory_in_words(large, 9 * 10**9))
        Gradients and a second model take about 8.0 GB of memory, and what is computed of a batch
        comes on top; 9.0 GB are free.
        >>> print(memory_in_words(large, 9 * 10**9, kept=10**9))
        The check-up takes about 14 GB of memory: 8.0 GB for gradients and a second model, and 6
        times the 1.0 GB that a forward pass keeps; 9.0 GB are free: it may not do.
        >>> memory_in_words(nn.Linear(10, 10), 8 * 10**9)
        ''
    """
    stored = [*model.parameters(), *model.buffers()]
    of_weights = _MORE_SETS * sum(t.numel() * t.element_size() for t in stored)
    needed = of_weights + _KEPT * (kept or 0)
    scarce = free is not None and needed > free
    if needed < _WORTH_TELLING and not scarce:
        return ""
    if kept is None:
        words = (
            f"Gradients and a second model take about {_gigabytes(of_weights)} of memory, and "
            "what is computed of a batch comes on top"
        )
    else:
        words = (
            f"The check-up takes about {_gigabytes(needed)} of memory: {_gigabytes(of_weights)} "
            f"for gradients and a second model, and {_KEPT} times the {_gigabytes(kept)} that a "
            "forward pass keeps"
        )
    if free is None:
        return f"{words}."
    return f"{words}; {_gigabytes(free)} are free{': it may not do' if scarce else ''}."


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free where a model runs; ``None`` where nothing tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    known = Path("/proc/meminfo")
    if device.type != "cpu" or not known.is_file():
        return None
    for line in known.read_text(encoding="ascii").splitlines():
        name, _, size = line.partition(":")
        if name == "MemAvailable":
            return 1024 * int(size.split()[0])
    return None


def _gigabytes(size: float) -> str:
    return f"{wording.number(size / 1e9, 2)} GB"


def _in_seconds(value: float) -> str:
    if value >= 90:
        return f"{value / 60:.0f} min"
    return f"{wording.number(value, 2)} s"
