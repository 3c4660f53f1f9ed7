"""An experiment of three cells that squares numbers, and counts how often it is asked to."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise_papers.reproduction.experiment import Experiment
from equipoise_papers.reproduction.record import Check, Verdict


@dataclass(frozen=True, slots=True)
class Number:
    value: float


@dataclass(frozen=True, slots=True)
class Square:
    value: float


class Calculator:
    """Counts its calls; ``trouble`` maps a number to the exception that it causes."""

    def __init__(self):
        self.calls = []
        self.trouble = {}

    def run(self, cell):
        self.calls.append(cell.value)
        if cell.value in self.trouble:
            raise self.trouble[cell.value]
        return Square(cell.value**2)


def draw(figure, results):
    axes = figure.subplots()
    axes.plot([cell.value for cell in results], [record.value for record in results.values()])


def judge(results):
    total = sum(record.value for record in results.values())
    return Verdict((Check("the squares add up to 14", f"{total:g}", total == 14),))


def squares(calculator, **changes):
    parts = {
        "name": "toy.squares",
        "title": "Squares",
        "claim": "1 + 4 + 9 = 14",
        "choices": (),
        "record": Square,
        "cells": lambda scale: (Number(1.0), Number(2.0), Number(3.0)),
        "run": calculator.run,
        "draw": draw,
        "judge": judge,
    }
    return Experiment(**(parts | changes))
