"""Condition numbers against the explicit matrices Ĥ, Ĥ U and Ĥ U D."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equipoise.instrument.unfold import unfold
from equipoise.numerics.conditioning import extended_spectra
from equipoise.probes import conditioning
from reference.conditioning import centring, condition, extended, rank, scaling, unfolded


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same_as_literal(found, H):
    """All four condition numbers and the rank, with constant columns left out."""
    H = np.asarray(H)
    varying = H[:, H.std(0) > 1e-12]
    U, D = centring(varying), scaling(varying)
    assert found.raw == pytest.approx(condition(extended(H)), rel=1e-9)
    assert found.centred == pytest.approx(condition(extended(varying) @ U), rel=1e-9)
    assert found.scaled == pytest.approx(condition(extended(varying) @ U @ D), rel=1e-9)
    assert found.scale_spread == pytest.approx(np.linalg.cond(D), rel=1e-9)
    assert found.constant_features == H.shape[1] - varying.shape[1]
    if hasattr(found, "rank"):
        assert found.rank == rank(extended(H))
    else:
        assert (found.rows, found.columns) == extended(H).shape
        assert found.zero_singular_values == H.shape[1] + 1 - rank(extended(H))


class TestExtendedSpectra:
    @pytest.mark.parametrize(
        ("rows", "features"), [(50, 4), (5, 5), (4, 5), (3, 20), (1, 3), (2, 1), (600, 3)]
    )
    def test_any_shape(self, rows, features):
        H = normal(rows, features) * torch.arange(1, features + 1) + 3
        if rows > 1:
            assert_same_as_literal(extended_spectra(H), H)
        else:  # one row: every column is constant
            found = extended_spectra(H)
            assert (found.raw, found.centred, found.scaled, found.rank) == (1, 1, 1, 1)
            assert found.constant_features == features

    def test_rank_deficient(self):
        H = normal(40, 3) @ normal(3, 8, seed=1)
        found = extended_spectra(H)
        assert found.rank == 4
        assert_same_as_literal(found, H)

    def test_constant_and_dead_columns(self):
        H = torch.cat([normal(30, 4), torch.zeros(30, 2), torch.full((30, 1), 0.1)], 1).double()
        found = extended_spectra(H)
        assert found.constant_features == 3
        assert_same_as_literal(found, H)

    @pytest.mark.parametrize("value", [0.0, 1 / 3, 1e8, -1e-8])
    def test_rounding_of_the_mean_does_not_make_a_constant_column_vary(self, value):
        found = extended_spectra(torch.full((999, 2), value, dtype=torch.float64))
        assert found.constant_features == 2
        assert (found.centred, found.scaled, found.scale_spread) == (1.0, 1.0, 1.0)

    def test_a_column_that_barely_varies_is_not_constant(self):
        H = torch.full((64, 1), 1000.0, dtype=torch.float64)
        H[0] += 1e-6
        assert extended_spectra(H).constant_features == 0

    def test_gram_and_svd_agree(self, monkeypatch):
        """Wide, tall and rank-deficient; conditions far below the gram route's limit of 10⁷."""
        for H in (normal(60, 8), normal(8, 60), normal(40, 3) @ normal(3, 30, seed=1)):
            direct = extended_spectra(H + 2)
            monkeypatch.setattr("equipoise.numerics.conditioning._DIRECT", 0)
            gram = extended_spectra(H + 2)
            monkeypatch.undo()
            assert (direct.method, gram.method) == ("svd", "gram")
            assert gram.rank == direct.rank
            for name in ("raw", "centred", "scaled", "scale_spread"):
                assert getattr(gram, name) == pytest.approx(getattr(direct, name), rel=1e-6)

    def test_large_matrices_take_the_gram_route(self):
        found = extended_spectra(normal(600, 520))
        assert found.method == "gram"
        assert found.raw == pytest.approx(condition(extended(normal(600, 520))), rel=1e-6)

    def test_a_wide_layer_without_any_variance(self):
        """More than 512 dead units in a batch of more than 512."""
        found = extended_spectra(torch.zeros(600, 600, dtype=torch.float64))
        assert (found.centred, found.scaled, found.constant_features) == (1.0, 1.0, 600)


matrices = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed))


class TestTheorems:
    @given(matrices, st.integers(1, 6))
    @settings(max_examples=60, deadline=None)
    def test_centring_never_hurts_at_full_column_rank(self, generator, features):
        """κ(Ĥ U) ≤ κ(Ĥ): centring removes the overlap between the ones and H."""
        rows = features + 2 + int(generator.integers(20))
        H = generator.normal(size=(rows, features)) @ generator.normal(size=(features, features))
        H += 10 * generator.normal(size=features)
        found = extended_spectra(torch.from_numpy(H))
        assert found.rank == features + 1
        assert found.centred <= found.raw * (1 + 1e-9)

    def test_it_may_hurt_without_full_column_rank(self):
        """The twin: H = 2·I₂ has κ(Ĥ) = √(6/4) and κ(Ĥ U) = 2/√2."""
        found = extended_spectra(2 * torch.eye(2, dtype=torch.float64))
        assert found.raw == pytest.approx(math.sqrt(1.5), rel=1e-14)
        assert found.centred == pytest.approx(math.sqrt(2), rel=1e-14)
        assert found.centred > found.raw

    @given(matrices, st.booleans())
    @settings(max_examples=40, deadline=None)
    def test_scaled_is_invariant_under_affine_changes_of_the_features(self, generator, wide):
        """h → a ⊙ h + c, with any signs."""
        H = generator.normal(size=(5, 9) if wide else (30, 4))
        a = generator.choice([-1, 1], H.shape[1]) * 10 ** generator.uniform(-3, 3, H.shape[1])
        changed = a * H + 5 * generator.normal(size=H.shape[1]) * np.abs(a)
        first, second = (extended_spectra(torch.from_numpy(M)) for M in (H, changed))
        assert second.scaled == pytest.approx(first.scaled, rel=1e-6)

    def test_raw_and_centred_are_not(self):
        H = normal(30, 4)
        changed = H * torch.tensor([1, 10, 100, 1000]) + 50
        first, second = extended_spectra(H), extended_spectra(changed)
        assert second.raw > 100 * first.raw
        assert second.centred > 100 * first.centred
        assert second.scale_spread > 100 * first.scale_spread


class TestLinear:
    @pytest.mark.parametrize("shape", [(20, 5), (4, 5), (3, 7, 5), (2, 3, 4, 5), (5,)])
    def test_inputs_of_any_dimension(self, shape):
        x = normal(*shape) + 2
        (found,) = conditioning(nn.Linear(5, 2).double(), x)
        H = x.reshape(-1, 5)
        assert (found.layer, found.kind, found.skipped) == ("Linear", "Linear", None)
        if len(H) > 1:
            assert_same_as_literal(found, H)

    @pytest.mark.parametrize(
        "offset",
        [100, 3000],
    )
    def test_float32_inputs_are_measured_in_float64(self, offset):
        """Far from zero κ(Ĥ) grows as the squared offset, and no direction is lost."""
        x = (normal(50, 3) + offset).float()
        (found,) = conditioning(nn.Linear(3, 1), x)
        exact = condition(extended(x.double().numpy()), threshold=1e-14)
        assert found.raw == pytest.approx(exact, rel=1e-6)
        assert found.zero_singular_values == 0

    def test_rounding_adds_nothing_to_the_rank(self):
        """Layer norm makes every row sum to zero: one direction is lost in any dtype."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(40, 32), nn.LayerNorm(32), nn.Linear(32, 3))
        x = normal(256, 40)
        exact = conditioning(model.double(), x)[1]
        single = conditioning(model.float(), x.float())[1]
        assert exact.zero_singular_values == 1
        assert single.zero_singular_values == 1
        assert single.raw == pytest.approx(exact.raw, rel=1e-3)


CONVOLUTIONS = {
    "1d": (nn.Conv1d(3, 4, 3), (2, 3, 9)),
    "1d stride": (nn.Conv1d(3, 4, 3, stride=2), (2, 3, 9)),
    "1d dilation": (nn.Conv1d(2, 4, 3, dilation=3), (2, 2, 12)),
    "1d same": (nn.Conv1d(2, 4, 5, padding="same"), (2, 2, 9)),
    "1d same, dilated": (nn.Conv1d(2, 2, 4, padding="same", dilation=2), (2, 2, 9)),
    "1d valid": (nn.Conv1d(2, 2, 4, padding="valid"), (2, 2, 9)),
    "1d depthwise": (nn.Conv1d(4, 8, 3, groups=4), (2, 4, 9)),
    "2d": (nn.Conv2d(2, 4, 3), (2, 2, 6, 5)),
    "2d uneven": (
        nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)),
        (2, 2, 8, 7),
    ),
    "2d groups": (nn.Conv2d(6, 4, 3, padding=1, groups=2), (2, 6, 5, 5)),
    "2d reflect": (nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect"), (2, 2, 5, 5)),
    "2d replicate": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"), (2, 2, 5, 5)),
    "2d circular": (nn.Conv2d(2, 3, 3, padding=2, padding_mode="circular"), (2, 2, 5, 5)),
    "2d same, circular": (
        nn.Conv2d(2, 3, (2, 3), padding="same", padding_mode="circular", dilation=2),
        (2, 2, 5, 5),
    ),
    "2d pointwise": (nn.Conv2d(5, 3, 1), (2, 5, 3, 3)),
    "2d, fewer rows than columns": (nn.Conv2d(6, 3, 3), (2, 6, 4, 4)),
    "3d": (nn.Conv3d(1, 2, (2, 3, 2), stride=(1, 1, 2), padding=(0, 1, 1)), (2, 1, 3, 4, 4)),
    "no bias": (nn.Conv2d(2, 4, 2, bias=False), (3, 2, 5, 5)),
}


@pytest.mark.parametrize(("conv", "shape"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
class TestConvolutions:
    def test_condition_numbers_are_those_of_the_literal_matrix(self, conv, shape):
        x = normal(*shape) + 0.5
        (found,) = conditioning(conv.double(), x)
        groups = unfolded(conv, x.numpy())
        worst = max(groups, key=lambda H: condition(extended(H)))
        assert_same_as_literal(found, worst)

    def test_the_literal_matrix_times_the_weights_is_the_convolution(self, conv, shape):
        x = normal(*shape)
        output = (
            conv.double()(x)
            .movedim(1, -1)
            .reshape(-1, conv.groups, conv.out_channels // conv.groups)
        )
        weights = conv.weight.detach().reshape(conv.groups, -1, conv.weight[0].numel())
        for group, H in enumerate(unfolded(conv, x.numpy())):
            products = H @ weights[group].T.numpy()
            if conv.bias is not None:
                products += conv.bias.detach().reshape(conv.groups, -1)[group].numpy()
            np.testing.assert_allclose(products, output[:, group].detach().numpy(), atol=1e-12)


class TestModels:
    def test_layers_come_in_order_of_execution_and_shared_ones_once(self):
        class Backwards(nn.Module):
            def __init__(self):
                super().__init__()
                self.last = nn.Linear(4, 1)
                self.shared = nn.Linear(4, 4)
                self.first = nn.Linear(4, 4)
                self.unused = nn.Linear(4, 4)

            def forward(self, x):
                return self.last(self.shared(self.shared(self.first(x))))

        model = Backwards().double()
        x = normal(30, 4)
        found = conditioning(model, x)
        assert [layer.layer for layer in found] == ["first", "shared", "last"]
        assert_same_as_literal(found[1], model.first(x).detach())  # the first call

    def test_the_input_is_the_first_element_or_what_forward_takes(self):
        model, x = nn.Linear(4, 2).double(), normal(9, 4)
        (whole,), (pair,) = conditioning(model, x), conditioning(model, [x, "targets"])
        (keyed,) = conditioning(model, {"x": x}, forward=lambda m, b: m(b["x"]))
        assert whole == pair == keyed

    def test_the_model_runs_in_the_mode_it_is_in(self):
        model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
        x = normal(30, 4) * 100
        (training,) = conditioning(model, x)
        (evaluating,) = conditioning(model.eval(), x)
        assert training.raw < 10 < evaluating.raw

    def test_dead_units_are_constant(self):
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
        nn.init.constant_(model[0].bias, -100.0)
        nn.init.constant_(model[0].bias[:2], 100.0)
        found = conditioning(model, normal(30, 4))[1]
        assert found.constant_features == 4
        assert found.zero_singular_values == 4

    def test_skipped_layers_say_why(self):
        model = nn.Sequential(
            nn.ConvTranspose1d(2, 2, 3), nn.Flatten(), nn.Linear(20, 30), nn.Linear(30, 2)
        )
        with torch.no_grad():
            model[2].weight.fill_(float("inf"))
        x = torch.ones(12, 2, 8)
        deconv, wide, after = conditioning(model, x, largest=10)
        assert deconv.skipped == "transposed convolutions have no unfolded matrix"
        assert wide.skipped == "12 × 20 is beyond the limit of 10"
        assert (wide.rows, wide.columns, wide.method) == (12, 21, "none")
        assert math.isnan(wide.raw)
        *_, after = conditioning(model, x)
        assert after.skipped == "its inputs are not finite"

    def test_the_limit_is_on_the_smaller_side(self):
        model = nn.Linear(30, 2).double()
        assert conditioning(model, normal(5, 30), largest=5)[0].skipped is None
        assert conditioning(model, normal(6, 30), largest=5)[0].skipped is not None

    @pytest.mark.parametrize("effort", [-1, 0, math.nan])
    def test_an_effort_that_is_not_positive_is_refused(self, effort):
        with pytest.raises(
            ValueError, match=rf"effort must be a finite number above 0; got {effort}"
        ):
            conditioning(nn.Linear(2, 1), normal(5, 2), effort=effort)

    def test_a_limit_below_two_is_refused(self):
        with pytest.raises(
            ValueError, match="largest must be a whole number of at least 2; got 1"
        ):
            conditioning(nn.Linear(2, 2), torch.ones(3, 2), largest=1)

    def test_progress_counts_layers(self):
        seen = []
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        conditioning(model, normal(9, 4).float(), progress=lambda *step: seen.append(step))
        assert seen == [("measuring conditioning", 1, 2), ("measuring conditioning", 2, 2)]

    def test_a_model_without_such_layers(self):
        assert conditioning(nn.BatchNorm1d(4), normal(9, 4).float()) == ()

    def test_a_convolution_of_a_single_unbatched_sample(self):
        conv, x = nn.Conv1d(3, 2, 3).double(), normal(3, 12)
        assert conditioning(conv, x) == conditioning(conv, x[None])

    def test_inputs_given_by_keyword(self):
        model, x = nn.Linear(4, 2).double(), normal(9, 4)
        (found,) = conditioning(model, x, forward=lambda m, b: m(input=b))
        assert found == conditioning(model, x)[0]


class TestSamples:
    """With little effort, condition numbers are those of a sample of rows."""

    def test_they_are_close_and_say_how_close(self):
        torch.manual_seed(0)
        layer, inputs = nn.Conv2d(3, 4, 3, padding=1), torch.randn(32, 3, 16, 16)
        (exact,) = conditioning(layer, inputs)
        (sampled,) = conditioning(layer, inputs, effort=1e7)
        assert sampled.rows < exact.rows == sampled.sampled_from
        assert abs(math.log(sampled.raw / exact.raw)) < 3 * sampled.sampling_error

    def test_the_default_device_does_not_matter(self):
        layer, inputs = nn.Linear(20, 2), normal(2000, 20).float()
        expected = conditioning(layer, inputs, effort=1e5)
        with torch.device("meta"):
            assert conditioning(layer, inputs, effort=1e5) == expected

    @pytest.mark.parametrize("effort", [1e6, 1.1e6, 1.3e6, 2e6])
    def test_no_sample_is_nearly_square(self, effort):
        """100 Gaussian rows have a condition number of thousands, all 2000 of 1.6."""
        layer, inputs = nn.Linear(100, 2), normal(2000, 100).float()
        (exact,) = conditioning(layer, inputs)
        (sampled,) = conditioning(layer, inputs, effort=effort)
        assert sampled.sampled_from == 2000
        assert not 0.5 < sampled.rows / 100 < 1.9
        assert sampled.raw < 7 * exact.raw
        assert sampled.sampling_error < 1

    def test_what_a_layer_leaves_the_next_may_take(self):
        model = nn.Sequential(nn.Linear(4, 100), nn.Linear(100, 2))
        inputs = normal(2000, 4).float()
        both = conditioning(model, inputs, effort=3e7)
        (alone,) = conditioning(model[1], model[0](inputs).detach(), effort=1.5e7)
        assert both[1].rows > alone.rows

    def test_enough_effort_takes_all_rows(self):
        layer, inputs = nn.Linear(4, 2), torch.randn(64, 4)
        assert conditioning(layer, inputs, effort=1e9) == conditioning(layer, inputs)


@pytest.mark.parametrize("groups", [1, 2])
def test_sampled_rows_are_rows_of_the_unfolded_input(groups):
    convolution = nn.Conv2d(4, 4, 3, stride=2, padding=1, dilation=2, groups=groups)
    inputs, rows = torch.randn(3, 4, 9, 7), torch.tensor([0, 5, 17, 3])
    assert torch.equal(unfold(convolution, inputs, rows), unfold(convolution, inputs)[:, rows])


class TestConvolutionsThatChangeTheirInput:
    """The unfolded input is not what they multiply: they are skipped, with the reason."""

    class Padded(nn.Conv2d):
        def forward(self, x):
            return super().forward(nn.functional.pad(x, (1, 1, 1, 1)))

    @pytest.mark.parametrize("side", [2, 6], ids=["too small as it is", "of another size"])
    def test_they_are_skipped(self, side):
        (record,) = conditioning(self.Padded(2, 3, 3), torch.randn(4, 2, side, side))
        assert "pads or changes the input" in record.skipped

    def test_others_are_measured(self):
        (record,) = conditioning(nn.Conv2d(2, 3, 3, padding=1), torch.randn(4, 2, 6, 6))
        assert record.skipped is None


def test_sparse_inputs_are_measured_as_dense_ones():
    layer, x = nn.Linear(4, 2, dtype=torch.float64), normal(9, 4)
    assert conditioning(layer, x.to_sparse()) == conditioning(layer, x)


def test_nested_inputs_are_measured_as_the_rows_of_all_samples():
    layer, samples = nn.Linear(4, 2, dtype=torch.float64), [normal(7, 4), normal(5, 4)]
    nested = torch.nested.nested_tensor(samples, layout=torch.jagged)
    assert conditioning(layer, nested) == conditioning(layer, torch.cat(samples))


def test_calls_inside_of_a_transform_are_passed_over():
    layer, x = nn.Linear(4, 2, dtype=torch.float64), normal(9, 4)

    def forward(model, batch):
        return torch.func.vmap(model)(batch[:6]), model(batch)

    assert conditioning(layer, x, forward=forward) == conditioning(layer, x)


def test_copies_that_a_model_makes_of_itself_are_passed_over():
    layer, x = nn.Linear(4, 2, dtype=torch.float64), normal(9, 4)

    def forward(model, batch):
        return copy.deepcopy(model)(2 * batch), model(batch)

    assert conditioning(layer, x, forward=forward) == conditioning(layer, x)


def test_complex_inputs_are_skipped():
    (record,) = conditioning(nn.Linear(4, 2, dtype=torch.complex64), torch.randn(9, 4) + 0j)
    assert "complex" in record.skipped


def test_a_recurrent_layer_is_measured_where_its_state_varies():
    layer, x = nn.Linear(6, 2, dtype=torch.float64), normal(20, 4)

    def forward(model, batch):
        state = batch.new_zeros(20, 2)
        for _ in range(3):
            state = torch.tanh(model(torch.cat([batch, state], 1)))
        return state

    (record,) = conditioning(layer, x, forward=forward)
    with torch.no_grad():
        first = torch.tanh(layer(torch.cat([x, x.new_zeros(20, 2)], 1)))
    (second,) = conditioning(layer, torch.cat([x, first], 1))
    assert record == second
    assert record.constant_features == 0
