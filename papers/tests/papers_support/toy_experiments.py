"""An experiment of three cells that squares numbers, and counts how often it is asked to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise_papers.experiments.experiment import Experiment
from equipoise_papers.experiments.verdict import Check, Verdict
from equipoise_papers.sweeps.cell import Cell


@dataclass(frozen=True, slots=True)
class Square:
    value: float


@dataclass(frozen=True)
class Number(Cell[Square]):
    value: float

    calculator: ClassVar[Calculator]

    def run(self):
        return self.calculator.run(self)


class Calculator:
    """Counts its calls; ``trouble`` maps a number to the exception that it causes."""

    def __init__(self):
        self.calls = []
        self.trouble = {}
        # Cells that this calculator runs; they are stored as any other number of the same value.
        self.number = type("Number", (Number,), {"calculator": self})

    def run(self, cell):
        self.calls.append(cell.value)
        if cell.value in self.trouble:
            raise self.trouble[cell.value]
        return Square(cell.value**2)


def draw(figure, results):
    """Without axes, which take most of the time of three squares."""
    for cell, record in results.items():
        figure.text(cell.value / 4, record.value / 10, f"{record.value:g}")


def judge(results):
    total = sum(record.value for record in results.values())
    return Verdict((Check("the squares add up to 14", f"{total:g}", total == 14),))


def squares(calculator, **changes):
    parts = {
        "name": "toy.squares",
        "title": "Squares",
        "claim": "1 + 4 + 9 = 14",
        "choices": (),
        "cells": lambda scale: tuple(map(calculator.number, (1.0, 2.0, 3.0))),
        "draw": draw,
        "judge": judge,
    }
    return Experiment(**(parts | changes))
