"""The table that ``equipoise theory`` prints."""

import io
import math
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console

from equipoise.records import Estimate
from equipoise.report.theory.predictions import print_predictions
from equipoise.theory.table import Prediction


def printed(rows):
    console = Console(file=io.StringIO(), width=80)
    print_predictions(rows, console)
    return console.file.getvalue()


def prediction(activation="relu", eps=1e-5, stable=True):
    return Prediction(
        activation=activation,
        batch_size=32,
        eps=eps,
        gamma=1.0,
        beta=0.0,
        weight_variance=1.0,
        bias_variance=0.0,
        rate=Estimate(1.46695, 2e-9, "quadrature", stable=stable),
        depth_scale=2.61,
        max_depth=41.8,
        q=Estimate(0.5, 0.0, "closed form"),
        c=Estimate(0.2887, 1e-9, "quadrature"),
        kappa=Estimate(0.3557, 1e-9, "quadrature"),
    )


class TestPredictions:
    def test_one_row_each(self):
        text = printed([prediction(), prediction("tanh", stable=False)])
        assert "×1.467" in text
        assert " 42 " in text
        assert "ε = 1×10⁻⁵, γ = 1.00, β = 0, σ_w² = 1.00, σ_b² = 0" in text
        assert "tanh" in text
        assert "stable no: deep networks leave this fixed point" in text
        assert "stable no" not in printed([prediction()])

    def test_settings_that_differ_become_columns(self):
        text = printed([prediction(), prediction(eps=0.1)])
        assert "ε" in text.splitlines()[1]
        assert "γ = 1.00, β = 0" in text

    def test_fits_80_columns(self):
        rows = [prediction("[red]" + "x" * 90), prediction(eps=0.1)]
        assert max(map(cell_len, printed(rows).splitlines())) <= 80

    def test_a_prediction_is_a_sentence(self):
        assert str(prediction(stable=False)) == (
            "relu at batches of 32, eps = 1e-05: the squared gradient norm changes by ×1.467 per "
            "layer, and by e¹⁶ over 42 layers; deep networks leave this fixed point"
        )

    def test_none(self):
        assert printed([]) == "No predictions.\n"

    def test_infinite_depth(self):
        free = replace(prediction(), max_depth=math.inf, depth_scale=math.inf)
        assert "∞" in printed([free])
