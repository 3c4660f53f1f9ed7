"""The library's verdict along a panel: the depth at which networks train as probably as not."""

import dataclasses
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest

from equipoise_papers.yang2019.trainability import forecast, heat_map
from equipoise_papers.yang2019.trainability.forecast import (
    Forecast,
    ForecastPoint,
    along,
    forecasts,
)
from equipoise_papers.yang2019.trainability.stack import Stack

STACK = Stack(
    data="digits",
    activation="relu",
    batch_size=64,
    depth=10,
    eps=1e-5,
    width=64,
    samples=640,
    rates=(1e-3,),
    seeds=(0, 1),
    test_samples=100,
)


def test_networks_of_a_column_share_a_point():
    deeper = dataclasses.replace(STACK, depth=40, seeds=(3,), rates=(0.1,))
    other = dataclasses.replace(STACK, batch_size=8)
    assert len(forecasts([STACK, deeper, other])) == 2


def test_larger_batches_and_shifts_let_deeper_networks_train():
    depths = {
        size: ForecastPoint.of(dataclasses.replace(STACK, batch_size=size)).run()
        for size in (8, 64)
    }
    shifted = ForecastPoint.of(dataclasses.replace(STACK, beta=1.0)).run()
    assert depths[8].low < depths[8].depth < depths[64].depth < shifted.depth
    assert 20 < depths[64].depth < 40  # 16 over the logarithm of the growth is 40


def test_points_without_a_forecast_break_the_line():
    """Joined across, a line would promise a limit where every depth trains."""
    known, none = Forecast(27.0, 20.0, 37.0), Forecast(math.nan, math.nan, math.nan)
    other = dataclasses.replace(STACK, batch_size=8)
    results = {ForecastPoint.of(STACK): known, ForecastPoint.of(other): none, STACK: None}
    assert along(results, "batch_size") == [(8.0, none), (64.0, known)]
    _, axes = plt.subplots()
    heat_map._forecast(axes, [(8.0, none), (32.0, known), (64.0, none), (128.0, known)])
    (line, *_) = axes.containers[0]
    assert np.isfinite(line.get_ydata()).tolist() == [False, True, False, True]


@pytest.mark.parametrize("parameter", ["beta", "eps"])
def test_positions_are_those_of_the_parameter(parameter):
    point = ForecastPoint.of(STACK)
    assert along({point: Forecast(1.0, 1.0, 1.0)}, parameter)[0][0] == getattr(STACK, parameter)


def test_another_calibration_is_another_forecast(monkeypatch):
    """Records of forecasts outlived the fit that they were made with once."""
    before = ForecastPoint.of(STACK)
    assert ForecastPoint.of(STACK) == before
    monkeypatch.setattr(forecast, "_calibration", lambda: "another")
    assert ForecastPoint.of(STACK) != before
