"""What the user's optimiser holds, and what its steps do to the loss."""

import math
from collections import OrderedDict
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from equipoise.diagnosis.optimizer.check import check_optimizer
from equipoise.diagnosis.optimizer.findings import conclude_optimizer
from equipoise.diagnosis.optimizer.given import Stepping, stepping_of
from equipoise.diagnosis.problem import Problem

CURVATURE = 4.0
SGD = torch.optim.SGD


class Parabola(nn.Module):
    """One weight in a valley of the given curvature; the batch has no say."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=dtype))

    def forward(self, inputs):
        return 0.5 * CURVATURE * self.weight.square().sum() + 0 * inputs.sum()


def problem_of(build, inputs=2, dtype=torch.float64):
    inputs = torch.ones(4, inputs, dtype=dtype)
    return Problem.prepare(
        build,
        [(inputs, inputs)] * 2,
        loss_fn=lambda model, batch: model(batch[0]).mean(),
        batches=2,
    )


def stepping_for(problem, subject, optimizer):
    """How the training of a subject takes its steps."""
    return stepping_of(subject, optimizer, problem.fresh(0), partial(problem.fresh, 0))[0]


def check(optimizer, build=Parabola, **options):
    problem = problem_of(build, **options)
    stepping = stepping_for(problem, build, optimizer)
    return check_optimizer(problem, stepping)


def titles(found):
    return [(one.severity, one.title) for one in conclude_optimizer(found)]


class TestQuadratic:
    """Steps of gradient descent multiply the weight by 1 - ηh: they converge where η < 2/h."""

    @pytest.mark.parametrize("stable", [0.1, 1.0, 1.9])
    def test_a_stable_rate_lowers_the_loss_as_the_formula_says(self, stable):
        found = check(partial(SGD, lr=stable / CURVATURE))
        (own,) = found.trials
        assert found.outcome == "falls"
        assert own.before == CURVATURE / 2
        assert own.after == pytest.approx((1 - stable) ** (2 * own.steps) * own.before)

    @pytest.mark.parametrize("unstable", [2.1, 50.0, 1e6])
    def test_an_unstable_rate_is_too_large_and_the_rate_to_try_is_stable(self, unstable):
        found = check(partial(SGD, lr=unstable / CURVATURE))
        assert found.outcome == "too large"
        best = max((one for one in found.trials if one.everywhere), key=lambda one: one.fall)
        assert best.rate * CURVATURE < 2
        ((severity, title),) = titles(found)
        assert severity == "critical"
        assert title.endswith("of SGD is too large")

    @pytest.mark.parametrize(("scaled", "outcome"), [(3.7, "falls"), (3.9, "too large")])
    def test_momentum_may_raise_the_loss_before_it_falls(self, scaled, outcome):
        """The heavy ball is stable where ηh < 2(1 + μ), which is 3.8."""
        found = check(partial(SGD, lr=scaled / CURVATURE, momentum=0.9))
        assert found.trials[0].fall < 0
        assert found.outcome == outcome

    @pytest.mark.parametrize(("scaled", "outcome"), [(1e-2, "falls"), (1e-6, "too small")])
    def test_a_rate_far_below_the_largest_is_too_small(self, scaled, outcome):
        found = check(partial(SGD, lr=scaled / CURVATURE))
        assert found.outcome == outcome
        if outcome == "too small":
            assert 0.1 < max(one.rate for one in found.trials if one.everywhere) * CURVATURE < 2
            assert titles(found)[0][0] == "warning"

    def test_clipped_steps_are_bounded(self):
        unclipped = partial(SGD, lr=3.0 / CURVATURE)
        stepping = Stepping(lambda model: (unclipped(model.parameters()),), clip=0.1)
        found = check_optimizer(problem_of(Parabola), stepping)
        assert found.outcome == "falls"
        assert check(unclipped).outcome == "too large"

    def test_a_rate_that_is_warmed_up_starts_small(self):
        make = partial(SGD, lr=1.0 / CURVATURE)
        stepping = Stepping(lambda model: (make(model.parameters()),), warms_up=True)
        (own,) = check_optimizer(problem_of(Parabola), stepping).trials
        ramp = [min(1.0, 2 * (number + 1) / own.steps) for number in range(own.steps)]
        assert own.after == math.prod(1 - part for part in ramp) ** 2 * own.before

    @pytest.mark.parametrize(
        ("highest", "severity"), [(1.0, None), (47.0, "critical"), (None, "warning")]
    )
    def test_a_schedule_is_judged_at_the_rate_that_it_reaches(self, highest, severity):
        """Whether it stays far below the rate of the optimiser, only the scheduler tells."""
        model = Parabola()
        optimizer = SGD(model.parameters(), lr=47.0 / CURVATURE)
        scheduler = LambdaLR(optimizer, lambda step: (highest or 1.0) / 47 * min(1, step / 5))
        found = check(optimizer if highest is None else ([optimizer], [scheduler]), model)
        if severity is None:
            assert found.outcome == "falls"
            assert found.rate == pytest.approx(highest / CURVATURE)
        else:
            assert found.outcome == "too large"
            assert titles(found)[0][0] == severity

    def test_a_loss_that_comes_back_late_is_no_fault(self):
        """Close to 3.8 the heavy ball needs more than the 60 steps."""
        found = check(partial(SGD, lr=3.798 / CURVATURE, momentum=0.9))
        own = [one for one in found.trials if one.rate == found.trials[0].rate]
        assert [(one.steps, one.fall > 0) for one in own] == [
            (12, False),
            (60, False),
            (300, True),
        ]
        assert found.outcome == "falls"

    def test_steps_that_compute_the_loss_themselves(self):
        found = check(partial(torch.optim.LBFGS, lr=0.5, max_iter=2))
        assert found.outcome == "falls"


def test_a_loss_without_its_own_gradient_is_undecided():
    class Noise(Parabola):
        def forward(self, inputs):
            return self.weight.detach().square().sum() + 0 * self.weight.sum()

    found = check(partial(SGD, lr=0.1), Noise)
    assert found.outcome == "undecided"
    assert titles(found)[0][0] == "note"


class TestHeld:
    def test_one_of_another_model(self):
        model, other = nn.Linear(2, 1), nn.Linear(2, 1)
        problem = problem_of(model, dtype=torch.float32)
        stepping = stepping_for(problem, model, SGD(other.parameters(), lr=0.1))
        found = check_optimizer(problem, stepping)
        assert found.is_of_another_model
        assert (found.outcome, found.trials) == ("not tried", ())
        assert titles(found) == [
            ("critical", "The optimiser holds none of the model's parameters")
        ]

    def test_parameters_that_are_left_out(self):
        def build():
            return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

        found = check(lambda m: SGD(m[0].parameters(), lr=0.1), build, dtype=torch.float32)
        assert found.left_out == ("1.weight", "1.bias")
        assert titles(found)[0] == (
            "warning",
            "The optimiser leaves out 2 of 4 trainable parameters",
        )

        def frozen():
            model = build()
            model[1].requires_grad_(False)
            return model

        assert (
            check(lambda m: SGD(m[0].parameters(), lr=0.1), frozen, dtype=torch.float32).left_out
            == ()
        )

    @pytest.mark.parametrize(
        ("kind", "unused", "severity"),
        [
            (nn.ModuleDict, (), "note"),
            (nn.Sequential, ("critic.weight", "critic.bias"), "note"),
            (nn.Sequential, (), "warning"),
        ],
    )
    def test_another_optimiser_steps_other_networks(self, kind, unused, severity):
        """Whole ones of a model without a forward(), and what the loss does not depend on."""
        model = kind(OrderedDict(actor=nn.Linear(2, 2), critic=nn.Linear(2, 1)))
        problem = Problem.prepare(
            model,
            [(torch.ones(4, 2), torch.ones(4))] * 2,
            loss_fn=lambda m, batch: m.get_submodule("actor")(batch[0]).square().mean(),
        )
        stepping = stepping_for(problem, model, lambda m: SGD(m.actor.parameters(), lr=0.1))
        found = check_optimizer(problem, stepping, unused=unused)
        title = "The optimiser leaves out 2 of 4 trainable parameters"
        assert titles(found)[0] == (severity, title)


class WithoutRate(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        raise NotImplementedError


class Broken(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("no kernel for this device")


class LooksAhead(torch.optim.SGD):
    def step(self, closure=None):
        assert closure is not None, "a closure is needed"


def test_steps_that_a_training_must_take_otherwise_are_no_fault():
    found = check(partial(LooksAhead, lr=0.1))
    reason = "its step() raises AssertionError: a closure is needed"
    assert (found.outcome, found.reason) == ("not tried", reason)
    assert titles(found) == []


def test_a_loss_that_no_rate_keeps_finite_is_critical():
    """Adam's eps of 1e-8 is zero in float16, and 0/0 where a gradient is zero."""

    class Unused(Parabola):
        def forward(self, inputs):
            return 0 * super().forward(inputs) + 1

    found = check(torch.optim.Adam, partial(Unused, torch.float16), dtype=torch.float16)
    assert found.outcome == "undecided"
    assert titles(found) == [("critical", "Steps of Adam make the loss infinite or nan")]


def test_changes_that_are_small_beside_the_loss_are_told():
    class Raised(Parabola):
        def forward(self, inputs):
            return super().forward(inputs) + 1e6

    found = check(partial(SGD, lr=0.1), Raised)
    (finding,) = conclude_optimizer(found)
    assert finding.severity == "good"
    assert finding.detail == "In 12 steps of SGD at 0.1 the loss falls by 2.00 from 1×10⁶."


def test_steps_that_fail_are_a_finding():
    found = check(partial(Broken, lr=0.1))
    assert (found.outcome, found.reason) == ("fails", "RuntimeError: no kernel for this device.")
    assert titles(found) == [("critical", "Steps of Broken fail")]


NOT_TRIED = {
    "its learning rate is zero": partial(SGD, lr=0.0),
    "it maximises": partial(SGD, lr=0.1, maximize=True),
    "groups of WithoutRate have no learning rate": WithoutRate,
    "there are several, which take turns": lambda m: [SGD(m.parameters(), lr=0.1)] * 2,
}


@pytest.mark.parametrize(("reason", "optimizer"), NOT_TRIED.items(), ids=NOT_TRIED)
def test_steps_that_tell_nothing_are_not_taken(reason, optimizer):
    found = check(optimizer)
    assert (found.reason, found.outcome, found.trials) == (reason, "not tried", ())
    worst = {"its learning rate is zero": ["critical"], "it maximises": ["warning"]}
    assert [severity for severity, _ in titles(found)] == worst.get(reason, [])


class Matrix(Parabola):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 1, dtype=torch.float64))


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.AdamW, lr=0.1, weight_decay=0.2),
        partial(SGD, lr=0.1, weight_decay=0.01, momentum=0.9),
        partial(SGD, lr=0.1, weight_decay=0.3),
        partial(torch.optim.Muon, lr=0.1, weight_decay=0.2),
    ],
)
def test_decay_alone_halves_weights_in_the_steps_that_are_told(optimizer):
    found = check(optimizer, Matrix)
    weight = nn.Parameter(torch.ones(1, 1, dtype=torch.float64))
    stepper, steps = optimizer([weight]), 0
    while weight > 0.25:
        steps += int(weight < 0.5)  # momentum has come up to its speed
        weight.grad = torch.zeros_like(weight)
        stepper.step()
    assert steps == pytest.approx(found.half_life, rel=0.25)
    assert ("warning", f"Weight decay halves weights in {round(found.half_life)} steps") in titles(
        found
    )
    assert check(partial(torch.optim.Adam, lr=0.1, weight_decay=0.2)).half_life == math.inf


@pytest.mark.parametrize(("rate", "unmoved"), [(1e-3, 1.0), (0.1, 0.0)])
def test_steps_below_half_of_a_rounding_error_are_swallowed(rate, unmoved):
    """Beside 1 the numbers of bfloat16 are 2⁻⁸ and 2⁻⁷ apart, and Adam's step is its rate."""
    build = partial(Parabola, torch.bfloat16)
    found = check(partial(torch.optim.Adam, lr=rate), build, dtype=torch.bfloat16)
    assert found.unmoved == unmoved
    swallowed = "Rounding swallows most steps of weights in half precision"
    assert (("warning", swallowed) in titles(found)) == (unmoved == 1.0)


class Temperature(nn.Module):
    """A criterion with a parameter."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output, target):
        return ((output - target) * self.scale).square().mean()


@pytest.mark.parametrize("steps_criterion", [True, False])
def test_parameters_of_the_loss_stay_as_they_are(steps_criterion):
    criterion, inputs = Temperature(), torch.ones(4, 2)
    moved = []

    def optimizer(model):
        made = SGD(
            [*model.parameters(), *(criterion.parameters() if steps_criterion else ())], 0.1
        )
        made.register_step_post_hook(lambda *_: moved.append(criterion.scale.item() != 1.0))
        return made

    problem = Problem.prepare(lambda: nn.Linear(2, 2), [(inputs, inputs)], loss_fn=criterion)
    found = check_optimizer(problem, stepping_for(problem, None, optimizer))
    assert found.outcome == "falls"
    assert any(moved) == steps_criterion
    assert criterion.scale.item() == 1.0
    assert criterion.scale.grad is None


def test_nothing_of_the_users_changes():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    problem = problem_of(model, dtype=torch.float32)
    check_optimizer(problem, stepping_for(problem, model, optimizer))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert optimizer.param_groups[0]["lr"] == 1e6
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())
