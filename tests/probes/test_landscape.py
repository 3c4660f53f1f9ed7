"""The loss along a line: its definition, known answers, noise, overflow and precision."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.probes.landscape import landscape
from equipoise.probes.record import Landscape
from equipoise.records import from_plain, to_plain
from reference.landscape import landscape as literally
from support.model_state import left_alone
from support.probe_models import MODELS, batch, build, loss_fn

BATCH = batch()
STEPS = (0.01, 0.1, 0.5)
RISING = (1e-3, 1e-2, 0.1, 1.0, 10.0)


def double(name):
    return build(name).double(), tuple(part.double() for part in BATCH)


def bowl(model, curvature):
    """L = ½ Σ c w², whose Hessian is diag(c)."""
    return 0.5 * (curvature * model[0] ** 2).sum()


def at(*values, dtype=torch.float64):
    return nn.ParameterList([nn.Parameter(torch.tensor(values, dtype=dtype))])


@pytest.mark.parametrize("name", MODELS)
class TestDefinition:
    """Against a copy of the model for every point."""

    def test_along_the_gradient(self, name):
        model, data = double(name)
        found = landscape(model, loss_fn, data, steps=STEPS)
        rows = zip(found.losses, found.gradient_changes, found.cosines, found.betas, strict=True)
        expected = literally(model, loss_fn, data, STEPS)
        for row, literal in zip(rows, expected, strict=True):
            assert row == pytest.approx(literal, rel=1e-10)
        assert found.beta == max(found.betas)
        assert found.loss_band == (min(found.losses), max(found.losses))

    def test_along_a_random_direction(self, name):
        model, data = double(name)
        generator = torch.Generator().manual_seed(4)
        found = landscape(
            model, loss_fn, data, steps=STEPS, direction="random", generator=generator
        )
        assert found.direction_norm == pytest.approx(found.gradient_norm, rel=1e-12)
        generator.manual_seed(4)
        trained = [p for p in model.parameters() if p.requires_grad]
        drawn = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in trained]
        scale = found.gradient_norm / float(torch.cat([d.reshape(-1) for d in drawn]).norm())
        given = [scale * d for d in drawn]
        again = landscape(model, loss_fn, data, steps=STEPS, direction=given)
        assert again.losses == pytest.approx(found.losses, rel=1e-12)
        expected = literally(model, loss_fn, data, STEPS, given)
        for k, literal in enumerate(expected):
            row = found.losses[k], found.gradient_changes[k], found.cosines[k], found.betas[k]
            assert row == pytest.approx(literal, rel=1e-10)


class TestQuadratic:
    """On ½ θᵀHθ the gradient changes by ηHd, so β = ‖Hd‖/‖d‖ at every distance."""

    curvature = torch.tensor([3.0, 1.0], dtype=torch.float64)

    def test_effective_smoothness(self):
        found = landscape(at(1.0, 1.0), bowl, self.curvature, steps=RISING)
        expected = math.sqrt((9**2 + 1) / (3**2 + 1))  # g = (3, 1), H g = (9, 1)
        assert found.betas == pytest.approx([expected] * 5, rel=1e-10)

    def test_along_the_steepest_axis_it_is_the_largest_eigenvalue(self):
        direction = [torch.tensor([1.0, 0.0], dtype=torch.float64)]
        found = landscape(
            at(1.0, 1.0), bowl, self.curvature, steps=[-0.5, 0.5], direction=direction
        )
        assert found.betas == pytest.approx([3.0, 3.0], rel=1e-12)
        assert found.distances == (0.5, 0.5)

    def test_gradients_turn_round_beyond_the_minimum(self):
        found = landscape(at(1.0), bowl, torch.tensor([2.0]), steps=[0.25, 1.0])
        assert found.cosines == (1.0, -1.0)

    def test_steps_are_not_normalised(self):
        """The twin: with steps of fixed length this loss would not depend on the scale of g."""
        small, large = (
            landscape(at(1.0), bowl, torch.tensor([c]), steps=[0.1]).losses[0] / c
            for c in (1.0, 4.0)
        )
        assert (small, large) == pytest.approx((0.5 * 0.9**2, 0.5 * 0.6**2))


class TestZero:
    def test_gradient(self):
        found = landscape(at(0.0, 0.0), bowl, torch.ones(2), steps=[0.1, 1.0])
        assert found.zero_gradient
        assert (found.losses, found.gradient_changes) == ((0.0, 0.0), (0.0, 0.0))
        assert all(map(math.isnan, (found.beta, *found.betas, *found.cosines)))

    def test_gradient_with_a_given_direction(self):
        found = landscape(
            at(0.0, 0.0), bowl, torch.ones(2), steps=[2.0], direction=[torch.ones(2)]
        )
        assert found.zero_gradient
        assert found.beta == pytest.approx(1.0)

    def test_step(self):
        found = landscape(at(1.0), bowl, torch.ones(1), steps=[0.0, 0.5])
        assert (found.losses[0], found.gradient_changes[0]) == (found.initial_loss, 0.0)
        assert (found.cosines[0], math.isnan(found.betas[0])) == (1.0, True)
        assert found.beta == found.betas[1]

    def test_step_alone_has_no_smoothness(self):
        found = landscape(at(1.0), bowl, torch.ones(1), steps=[0.0])
        assert math.isnan(found.beta)


class TestNoise:
    @pytest.mark.parametrize(
        "name", ["batch norm and dropout", "transformer", "buffers reassigned"]
    )
    def test_is_the_same_at_every_point(self, name):
        """A short step changes the loss by −η‖g‖², and by nothing else."""
        model, data = double(name)
        found = landscape(model, loss_fn, data, steps=[1e-6])
        slope = (found.losses[0] - found.initial_loss) / 1e-6
        assert slope == pytest.approx(-(found.gradient_norm**2), rel=1e-3)

    def test_fresh_noise_changes_the_loss_more(self):
        model, data = double("batch norm and dropout")
        fresh = [float(loss_fn(model, data).detach()) for _ in range(2)]
        assert abs(fresh[1] - fresh[0]) > 1e-3


class TestBatchNorm:
    def test_one_sample_is_refused_by_the_layer_and_leaves_no_trace(self):
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        refused = pytest.raises(ValueError, match="more than 1 value per channel")
        with left_alone(model), refused:
            landscape(model, loss_fn, batch(rows=1), steps=STEPS)

    def test_two_samples_pass_no_gradient_through(self):
        """At ε = 0 their outputs are ±1 for all weights."""

        class Exact(nn.Module):
            def forward(self, x):
                return (x - x.mean(0)) / (x - x.mean(0)).square().mean(0).sqrt()

        model = nn.Sequential(nn.Linear(6, 4), Exact()).double()
        data = tuple(part[:2].double() for part in BATCH)
        found = landscape(model, loss_fn, data, steps=[0.1])
        assert found.gradient_norm < 1e-14
        assert found.losses[0] == pytest.approx(found.initial_loss, rel=1e-12)

    def test_the_model_runs_in_the_mode_it_is_in(self):
        model, data = double("batch norm and dropout")
        training = landscape(model, loss_fn, data, steps=[0.1])
        model.eval()
        assert landscape(model, loss_fn, data, steps=[0.1]).losses != training.losses


def quartic(model, _):
    return (model[0] ** 4).sum()


class TestOverflow:
    def test_infinite_losses_are_kept(self):
        found = landscape(at(1.0, dtype=torch.float32), quartic, None, steps=[0.1, 1e10, 1e20])
        assert math.isfinite(found.losses[0])
        assert found.losses[1:] == (math.inf, math.inf)
        assert found.gradient_changes[1] == pytest.approx(4 * 4e10**3, rel=1e-5)
        assert found.gradient_changes[2] == found.beta == found.loss_band[1] == math.inf

    def test_nan_is_kept(self):
        def loss(model, _):
            return quartic(model, _) - 2 * quartic(model, _)

        found = landscape(at(1.0, dtype=torch.float32), loss, None, steps=[0.1, -1e20])
        assert math.isnan(found.losses[1])
        assert all(map(math.isnan, (*found.loss_band, found.beta)))

    def test_an_infinite_gradient_leaves_the_parameters_as_they_were(self):
        model = at(1e13, dtype=torch.float32)
        found = landscape(model, quartic, None, steps=[0.1])
        assert found.gradient_norm == math.inf
        assert model[0].tolist() == [torch.tensor(1e13).item()]

    @pytest.mark.parametrize("scale", [1e-25, 1e22])
    def test_norms_that_float32_cannot_square(self, scale):
        def loss(model, _):
            return scale * bowl(model, 1.0)

        found = landscape(at(3.0, 4.0, dtype=torch.float32), loss, None, steps=[0.1 / scale])
        assert found.gradient_norm == pytest.approx(5 * scale, rel=1e-6)
        assert found.gradient_changes[0] == pytest.approx(0.5 * scale, rel=1e-5)
        assert found.cosines == pytest.approx([1.0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
class TestHalfPrecision:
    def test_norms_are_not_computed_in_half_precision(self, dtype):
        """65536 entries of 16: the square overflows float16, and bfloat16 loses the last ones."""
        model = nn.ParameterList([nn.Parameter(torch.full((65536,), 16.0, dtype=dtype))])
        found = landscape(model, lambda m, _: (m[0].float() ** 2).sum() / 2, None, steps=[0.5])
        assert found.gradient_norm == 16 * 256
        assert found.gradient_changes == (8 * 256,)

    def test_the_floor_is_reported(self, dtype):
        found = landscape(at(1.0, dtype=dtype), bowl, torch.ones(1), steps=[1e-6, 1.0])
        assert found.relative_floor == torch.finfo(dtype).eps
        assert found.losses[0] == found.initial_loss  # 1 − 10⁻⁶ is 1 in half precision
        lost, taken = found.step_errors
        assert taken < 0.02 < 1 < lost

    def test_a_model_in_half_precision(self, dtype):
        model = build("plain").to(dtype)
        data = tuple(part.to(dtype) for part in BATCH)
        with left_alone(model):
            found = landscape(model, loss_fn, data, steps=[1.0])
        exact = landscape(build("plain"), loss_fn, BATCH, steps=[1.0])
        assert found.losses == pytest.approx(exact.losses, rel=20 * found.relative_floor)
        assert found.beta == pytest.approx(exact.beta, rel=20 * found.relative_floor)


class TestOptions:
    def test_parameters_without_a_gradient_stay(self):
        """A frozen layer counts in no norm."""
        model, data = double("frozen parameters")
        found = landscape(model, loss_fn, data, steps=[0.1])
        trained = [p for p in model.parameters() if p.requires_grad]
        assert found.parameter_norm == pytest.approx(
            float(nn.utils.parameters_to_vector(trained).norm().detach()), rel=1e-12
        )

    def test_losses_alone(self):
        model, data = double("residual")
        found = landscape(model, loss_fn, data, steps=STEPS, gradients=False)
        assert found.losses == landscape(model, loss_fn, data, steps=STEPS).losses
        assert (found.gradient_changes, found.cosines, found.betas) == (None, None, None)
        assert math.isnan(found.beta)
        assert found.gradient_change_band is None

    def test_steps_from_a_tensor(self):
        found = landscape(at(1.0), bowl, torch.ones(1), steps=torch.tensor([0.5, 1.0]))
        assert found.steps == (0.5, 1.0)

    def test_complex_parameters(self):
        model = nn.ParameterList([nn.Parameter(torch.tensor([3 + 4j]))])
        found = landscape(model, lambda m, _: m[0].abs().square().sum() / 2, None, steps=[0.5])
        assert (found.gradient_norm, found.beta) == pytest.approx((5.0, 1.0))

    def test_the_record_survives_json(self):
        found = landscape(at(1.0), bowl, torch.ones(1), steps=[0.0, 1e200])
        again = from_plain(Landscape, to_plain(found))
        assert to_plain(again) == to_plain(found)
        alone = landscape(at(1.0), bowl, torch.ones(1), steps=[1.0], gradients=False)
        assert from_plain(Landscape, to_plain(alone)) == alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": []}, "steps must hold at least one number"),
        ({"steps": [0.1, math.inf]}, "steps must be finite numbers, got"),
        ({"steps": [1.0], "direction": "downhill"}, "'gradient', 'random' or a sequence .* got"),
        ({"steps": [1.0], "direction": "random"}, "a random direction needs generator="),
        ({"steps": [1.0], "direction": [torch.ones(3)]}, r"shape \(3,\) for '0' of shape \(2,\)"),
        ({"steps": [1.0], "direction": []}, "0 tensors for 1 parameters"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=message) as error:
        landscape(at(1.0, 1.0), bowl, torch.ones(2), **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("direction", "kind"),
    [
        ([np.ones((1, 2)), np.ones(1)], "ndarray"),
        ([0.5, 0.5], "float"),
        (0.5, "float"),
        (None, "NoneType"),
    ],
    ids=["arrays", "numbers", "number", "nothing"],
)
def test_a_direction_of_something_else_than_tensors_is_refused(direction, kind):
    with pytest.raises(TypeError, match=rf"sequence of tensors, got {kind}\. .* torch.as_tensor"):
        landscape(nn.Linear(2, 1), total, torch.ones(3, 2), steps=[0.1], direction=direction)


def test_a_direction_may_come_from_a_generator():
    model = nn.Linear(2, 1)
    along = [torch.ones_like(p) for p in model.parameters()]
    found = landscape(model, total, torch.ones(3, 2), steps=[0.1], direction=iter(along))
    assert found == landscape(model, total, torch.ones(3, 2), steps=[0.1], direction=along)


def total(model, x):
    return model(x).square().sum()
