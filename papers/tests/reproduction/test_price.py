"""Scale paper says what it costs, and starts more than a day of work only if it is agreed to."""

import pytest

from equipoise.records import Estimate
from equipoise_papers.reproduction.price import Price, prices, start_or_refuse
from equipoise_papers.reproduction.reproduce import reproduce

HOUR = 3600.0


def price(hours, at_once=1):
    return Price("a.b", 40, Estimate(hours * HOUR, 0.0, "8 of 40 cells timed"), "", at_once)


def test_a_day_starts_unasked():
    said = []
    start_or_refuse([price(47.0, at_once=2)], agreed=False, say=said.append)
    (line,) = said
    assert "40 cells, about 47.0 h of computing" in line
    assert "23.5 h with 2 at once" in line


@pytest.mark.parametrize("agreed", [True, False])
def test_more_is_refused_without_agreement(agreed):
    found, said = [price(20.0), price(5.0)], []
    if agreed:
        start_or_refuse(found, agreed=True, say=said.append)
    else:
        with pytest.raises(ValueError, match=r"25\.0 h\. Add --yes .*--device cuda.*--shard"):
            start_or_refuse(found, agreed=False, say=said.append)
    assert said[-1] == "together about 25.0 h"


def test_only_missing_cells_are_priced(tmp_path):
    def ask():
        return prices("yang2019.fig1d", out=tmp_path, jobs=1, shard=(1, 1), scale="smoke")

    (before,) = ask()
    assert before.cells == 2
    assert before.seconds is not None
    assert before.seconds.method == "2 of 2 cells timed"
    reproduce("yang2019.fig1d", scale="smoke", out=tmp_path)
    (after,) = ask()
    assert after.cells == 0
    assert after.wall == 0.0


def test_a_store_without_its_data_does_not_hide_the_others():
    known = Price("c.d", 3, None, "CIFAR-10 was not found", 1)
    assert known.words() == "c.d: 3 cells, of unknown cost: CIFAR-10 was not found"
    assert known.wall == 0.0
