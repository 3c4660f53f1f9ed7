"""Definition 2.1, the order of layers, and outputs shared between passes."""

import math

import pytest
import torch
from torch import nn

from equipoise.probes.covariate_shift import covariate_shift
from equipoise.probes.record import CovariateShift
from equipoise.records import from_plain, to_plain
from reference.landscape import covariate_shift as literally
from reference.landscape import gradient_step, pass_over
from support import counting
from support.covariate_shifts import assert_agree, chain, double, names_by_layer, numbers
from support.model_state import left_alone
from support.probe_models import MODELS, batch, build, loss_fn

BATCH = batch()
RATE = 0.1
every_model = pytest.mark.parametrize("name", MODELS)


class TestDefinition:
    """Against a copy of the model and a whole pass for every layer."""

    # In "containers" a layer's parameters are not those that its module holds.
    @pytest.mark.parametrize("name", [n for n in MODELS if n != "containers"])
    def test_agrees_with_the_literal_transcription(self, name):
        model, data = double(name)
        shift = covariate_shift(model, loss_fn, data, RATE)
        layers = names_by_layer(model, shift)
        names = {n for n, p in model.named_parameters() if p.requires_grad}
        assert {name for layer in layers for name in layer} == names
        moved = gradient_step(model, loss_fn, data, RATE)
        assert_agree(shift, literally(model, loss_fn, data, layers, moved))

    def test_layers_follow_use_not_registration(self):
        model, data = double("containers")
        shift = covariate_shift(model, loss_fn, data, RATE)
        layers = {
            "stem.a": ["stem.a.weight", "stem.a.bias"],
            "stem.b": ["stem.b.weight", "stem.b.bias"],
            "norms.0": ["norms.0.weight", "norms.0.bias"],
            "Containers": ["scales.0", "scales.1"],
            "norms.1": ["norms.1.weight", "norms.1.bias"],
        }
        assert [layer.layer for layer in shift.layers] == list(layers)
        moved = gradient_step(model, loss_fn, data, RATE)
        assert_agree(shift, literally(model, loss_fn, data, list(layers.values()), moved))

    def test_the_gradient_after_the_whole_step_is_another_quantity(self):
        """The twin: in the definition, layer i and later ones do not move."""
        model, data = double("plain")
        shift = covariate_shift(model, loss_fn, data, RATE)
        moved = gradient_step(model, loss_fn, data, RATE)
        _, before = pass_over(model, loss_fn, data)
        _, after = pass_over(moved, loss_fn, data)
        for layer, names in zip(shift.layers, names_by_layer(model, shift), strict=True):
            change = math.hypot(*(float((after[n] - before[n]).norm()) for n in names))
            assert change != pytest.approx(layer.l2, rel=0.01)

    def test_two_linear_layers_by_hand(self):
        """L = ½(w₂w₁)², w₁ = w₂ = 1: G₂ = w₁²w₂ goes from 1 to (1 − η)²."""
        model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
        for layer in model:
            nn.init.ones_(layer.weight)
        shift = covariate_shift(
            model, lambda m, x: m(x).square().sum() / 2, torch.ones(1, 1).double(), 0.25
        )
        first, second = shift.layers
        assert (first.l2, first.cosine, first.moved_gradient_norm) == (0.0, 1.0, 1.0)
        assert second.l2 == pytest.approx(1 - 0.75**2, rel=1e-14)
        assert (second.gradient_norm, second.parameters) == (1.0, 1)

    def test_a_step_of_zero_shifts_nothing(self):
        model, data = double("residual")
        assert (
            numbers(covariate_shift(model, loss_fn, data, 0.0)) == [(0.0, pytest.approx(1.0))] * 4
        )


# Outside of the model, as probes restore what a class keeps.


class Counted(nn.Linear):
    """Counts how often it runs."""

    def forward(self, x):
        counting.counted()
        return super().forward(x)


class TestSharedPrefix:
    @every_model
    def test_gives_the_numbers_of_whole_passes(self, name):
        model, data = double(name)
        shared = covariate_shift(model, loss_fn, data, RATE)
        whole = covariate_shift(model, loss_fn, data, RATE, share_prefix=False)
        # Draws from NumPy are not followed from layer to layer.
        assert shared.shared_prefix == (name != "own NumPy generator")
        assert not whole.shared_prefix
        assert_agree(shared, numbers(whole), tolerance=5e-15)

    @pytest.mark.parametrize(
        ("options", "runs"),
        # One whole pass; then, from the second layer on, one from the layer before it.
        [({}, 12 + sum(range(2, 13))), ({"share_prefix": False}, 12 * 12)],
        ids=["shared", "whole"],
    )
    def test_known_layers_do_not_run_again(self, options, runs):
        model = nn.Sequential(*(Counted(6, 6) for _ in range(12)))
        counting.start()
        covariate_shift(model, loss_fn, BATCH, RATE, **options)
        assert runs == counting.count()

    def test_later_layers_than_those_reported_take_no_pass(self):
        model = nn.Sequential(*(Counted(6, 6) for _ in range(12)))
        everything = covariate_shift(model, loss_fn, BATCH, RATE)
        counting.start()
        some = covariate_shift(model, loss_fn, BATCH, RATE, layers=["3", model[9]])
        assert some.layers == (everything.layers[3], everything.layers[9])
        assert counting.count() == 12 + 12 + 9

    def test_blocks_inside_blocks(self):
        inner = [nn.Sequential(Counted(6, 6), nn.Tanh(), Counted(6, 6)) for _ in range(3)]
        model = nn.Sequential(*inner).double()
        data = tuple(part.double() for part in BATCH)
        counting.start()
        shared = covariate_shift(model, loss_fn, data, RATE)
        assert 6 + sum(range(2, 7)) == counting.count()
        whole = covariate_shift(model, loss_fn, data, RATE, share_prefix=False)
        assert_agree(shared, numbers(whole), tolerance=5e-15)


class TestLayers:
    def test_an_ordered_list_of_blocks(self):
        model, data = chain(4), [part.double() for part in BATCH]
        blocks = covariate_shift(list(model), loss_fn, data, RATE)
        assert blocks == covariate_shift(nn.ModuleList(model), loss_fn, data, RATE)
        assert blocks.layers == covariate_shift(model, loss_fn, data, RATE, layers=[*model]).layers
        assert [(b.layer, b.kind, b.parameters) for b in blocks.layers] == [
            (str(i), "Sequential", 42) for i in range(4)
        ]

    def test_a_single_layer(self):
        (layer,) = covariate_shift(nn.Linear(6, 1), loss_fn, BATCH, RATE).layers
        assert (layer.layer, layer.l2, layer.cosine) == ("Linear", 0.0, 1.0)

    def test_shared_weights_belong_to_their_first_user(self):
        model, data = double("tied weights")
        first, second = covariate_shift(model, loss_fn, data, RATE).layers
        assert (first.parameters, second.parameters) == (36 + 6, 6)

    def test_a_shared_module_is_one_layer(self):
        model, _ = double("shared module")
        shift = covariate_shift(model, loss_fn, [part.double() for part in BATCH], RATE)
        assert [layer.layer for layer in shift.layers] == ["layer", "head"]

    def test_parametrised_weights_belong_to_the_layer(self):
        model, data = double("parametrizations")
        assert [layer.layer for layer in covariate_shift(model, loss_fn, data, RATE).layers] == [
            "0",
            "2",
        ]

    def test_frozen_layers_neither_move_nor_count(self):
        model, data = double("frozen parameters")
        names = [layer.layer for layer in covariate_shift(model, loss_fn, data, RATE).layers]
        assert "0" not in names
        assert "4" in names

    def test_names_are_those_of_the_model_before_it_was_compiled(self):
        model = build("plain")
        compiled = torch.compile(model, backend="eager")
        assert covariate_shift(compiled, loss_fn, BATCH, RATE) == covariate_shift(
            model, loss_fn, BATCH, RATE
        )
        assert covariate_shift(compiled, loss_fn, BATCH, RATE, layers=["2"]).layers

    @pytest.mark.parametrize(
        ("layers", "message"),
        [
            (["7"], "layers names '7', which the model lacks. It has 0, 1, 2"),
            ([nn.Linear(2, 2)], "layers names a Linear, which the model lacks"),
            (["1"], "a Tanh among layers uses no trainable parameter"),
            ([], "layers must hold at least one"),
        ],
        ids=["name", "module", "no parameters", "none"],
    )
    def test_unknown_layers_are_refused(self, layers, message):
        with pytest.raises(ValueError, match=message):
            covariate_shift(build("plain"), loss_fn, BATCH, RATE, layers=layers)

    @pytest.mark.parametrize("model", [[], [torch.relu]])
    def test_blocks_are_modules(self, model):
        with pytest.raises(TypeError, match="must be a module or a list of modules, got"):
            covariate_shift(model, loss_fn, BATCH, RATE)


class TestEdges:
    def test_a_zero_gradient_is_flagged(self):
        model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 1, bias=False))
        nn.init.zeros_(model[1].weight)
        zeros = BATCH[0], torch.zeros(8, 1)
        first, second = covariate_shift(model, loss_fn, zeros, RATE).layers
        for layer in (first, second):
            assert (layer.l2, layer.gradient_norm, layer.zero_gradient) == (0.0, 0.0, True)
            assert math.isnan(layer.cosine)

    @pytest.mark.parametrize("rate", [math.nan, math.inf, 1e300, 10**400])
    def test_rates_that_weights_cannot_hold_are_refused(self, rate):
        with pytest.raises(ValueError, match="a learning rate, must be a number within"):
            covariate_shift(nn.Linear(2, 2), lambda m, x: m(x).sum(), torch.ones(3, 2), rate)

    def test_one_sample_under_batch_norm_is_refused_and_leaves_no_trace(self):
        model = build("batch norm and dropout")
        refused = pytest.raises(ValueError, match="more than 1 value per channel")
        with left_alone(model), refused:
            covariate_shift(model, loss_fn, batch(rows=1), RATE)

    def test_divergence_is_kept(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1))
        last = covariate_shift(model, loss_fn, BATCH, 1e30).layers[-1]
        assert not math.isfinite(last.l2)

    def test_half_precision_reports_its_floor(self):
        model = build("plain").bfloat16()
        data = tuple(part.bfloat16() for part in BATCH)
        shift = covariate_shift(model, loss_fn, data, RATE)
        assert shift.relative_floor == torch.finfo(torch.bfloat16).eps
        exact = covariate_shift(build("plain"), loss_fn, BATCH, RATE)
        for half, full in zip(shift.layers, exact.layers, strict=True):
            assert half.cosine == pytest.approx(full.cosine, abs=0.01)

    def test_the_record_survives_json(self):
        shift = covariate_shift(build("plain"), loss_fn, BATCH, RATE)
        assert from_plain(CovariateShift, to_plain(shift)) == shift
