"""Using a tracker: when it samples, where numbers go, what measuring costs, what is refused."""

import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from equipoise.instrument import clock as instrument_clock
from equipoise.probes.tracker.record import Tracking
from equipoise.probes.tracker.track import track
from equipoise.records import from_plain
from support.probe_models import build, loss_fn
from support.tracked_trainings import BATCHES, of_model

NUMBERS = {"loss", "landscape", "ics", "growth", "activations", "gradients", "updates"}


def tracked(*, name="plain", every=2, batches=BATCHES, **options):
    """Train, and return the tracker."""
    training = of_model(name)
    with track(training.model, loss_fn, training.optimizer, every=every, **options) as tracker:
        for batch in tracker.batches(batches):
            training.take(batch)
    return tracker


def steps(tracker):
    return [sample.step for sample in tracker.history]


def kinds(tracker):
    return {name.split("/")[0] for name in tracker.tracking.names}


class TestSampledSteps:
    @pytest.mark.parametrize(
        ("every", "expected"),
        [(1, [0, 1, 2, 3, 4, 5]), (4, [0, 4]), (100, [0]), ((5, 1), [1, 5])],
    )
    def test_follow_every(self, every, expected):
        assert steps(tracked(every=every)) == expected

    def test_a_training_without_a_sample_ends_with_a_warning(self):
        with pytest.warns(UserWarning, match="measured nothing: none of the 6 steps was due"):
            assert steps(tracked(every={9})) == []

    def test_a_training_without_a_step_too(self):
        training = of_model("plain")
        with (
            pytest.warns(UserWarning, match=r"saw no step: optimizer\.step\(\) of the tracked"),
            track(training.model, loss_fn, training.optimizer) as tracker,
        ):
            tracker.observe(BATCHES[0])

    def test_a_step_is_a_step_of_the_optimiser(self):
        """Two batches for each; the first is measured."""
        training = of_model("plain")
        tracker = track(training.model, loss_fn, training.optimizer, every=1)
        for number, batch in enumerate(tracker.batches(BATCHES)):
            loss_fn(training.model, batch).backward()
            if number % 2:
                training.optimizer.step()
        assert steps(tracker) == [0, 1, 2]
        first = loss_fn(build("plain"), BATCHES[0]).detach()
        assert tracker.history[0].values["loss"] == float(first)

    def test_a_step_that_a_scaler_skips_does_not_count(self):
        training = of_model("plain")
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
        tracker = track(training.model, loss_fn, training.optimizer, every=1)
        for batch in tracker.batches(BATCHES[:2]):
            training.optimizer.zero_grad()
            (scaler.scale(loss_fn(training.model, batch)) * 1e30).backward()
            scaler.step(training.optimizer)
            scaler.update()
        tracker.detach()
        assert tracker.steps == 0
        assert steps(tracker) == [0]

    def test_without_an_optimiser_a_step_is_a_batch(self):
        model = build("plain")
        tracker = track(model, loss_fn, every=4, lr=0.1)
        for batch in BATCHES:
            tracker.observe(batch)
        assert steps(tracker) == [0, 4]
        assert kinds(tracker) == {"loss", "landscape", "growth", "activations"}

    def test_without_a_loss_only_hooks_and_a_pass_measure(self):
        training = of_model("plain")
        with track(training.model, optimizer=training.optimizer, every=3) as tracker:
            for batch in tracker.batches(BATCHES):
                training.take(batch)
        assert steps(tracker) == [0, 3]
        assert kinds(tracker) == {"activations", "gradients", "updates"}

    def test_without_batches_only_steps_are_measured(self):
        training = of_model("plain")
        with track(training.model, optimizer=training.optimizer, every=3) as tracker:
            for batch in BATCHES:
                training.take(batch)
        assert steps(tracker) == [0, 3]
        assert kinds(tracker) == {"gradients", "updates"}

    def test_models_without_layers_have_a_landscape(self):
        model = nn.ParameterList([torch.tensor([3.0, 0.0])])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        tracker = track(model, lambda m, curvature: (curvature * m[0] ** 2).sum(), optimizer)
        tracker.observe(torch.ones(2))
        tracker.detach()
        assert kinds(tracker) == {"loss", "landscape"}


class TestNumbers:
    def test_a_sink_receives_each_sample_once(self):
        seen = []
        tracker = tracked(sink=lambda step, values: seen.append((step, values)))
        assert seen == [(sample.step, sample.values) for sample in tracker.history]
        assert steps(tracker) == [0, 2, 4]

    def test_a_sink_may_change_the_numbers_that_it_receives(self):
        tracker = tracked(sink=lambda step, values: values.clear())
        assert kinds(tracker) == NUMBERS

    def test_a_sink_for_single_scalars(self):
        """As TensorBoard's writer takes them."""
        seen = []
        writer = SimpleNamespace(add_scalar=lambda name, value, step: seen.append((name, step)))
        tracker = tracked(sink=lambda step, v: [writer.add_scalar(k, v[k], step) for k in v])
        assert len(seen) == sum(len(sample.values) for sample in tracker.history)

    @pytest.mark.parametrize("name", ["plain", "shared module", "transformer", "containers"])
    def test_loggers_accept_the_names(self, name):
        """MLflow's rule is the strictest."""
        names = tracked(name=name, every=9, conditioning=True).latest
        assert all(re.fullmatch(r"[\w./-]+", name) for name in names)
        assert {name.count("/") for name in names} == {0, 1, 2}
        assert all(type(value) is float for value in names.values())

    def test_latest_is_empty_before_the_first_sample(self):
        assert track(build("plain"), loss_fn, lr=1.0).latest == {}

    def test_json_keeps_everything(self):
        tracker = tracked()
        text = json.dumps(tracker.to_dict(), allow_nan=False)
        assert from_plain(Tracking, json.loads(text)) == tracker.tracking

    def test_a_sink_that_fails_does_not_repeat_the_sample(self):
        def fails(step, values):
            raise ZeroDivisionError

        training = of_model("plain")
        tracker = track(training.model, loss_fn, training.optimizer, every=1, sink=fails)
        tracker.observe(BATCHES[0])
        with pytest.raises(ZeroDivisionError):
            training.take(BATCHES[0])
        assert (steps(tracker), tracker.steps) == ([0], 1)


class TestResuming:
    def train(self, tracker, training, batches):
        for batch in tracker.batches(batches):
            training.take(batch)

    @pytest.mark.parametrize("interrupted_after", [1, 2, 3])
    def test_measures_the_same_as_without_interruption(self, interrupted_after):
        def start():
            training = of_model("plain")
            return training, track(training.model, loss_fn, training.optimizer, every=2)

        training, whole = start()
        self.train(whole, training, BATCHES)
        training, first = start()
        self.train(first, training, BATCHES[:interrupted_after])
        model, optimizer = training.model.state_dict(), training.optimizer.state_dict()
        saved = json.loads(json.dumps(first.state_dict()))
        training, second = start()
        training.model.load_state_dict(model)
        training.optimizer.load_state_dict(optimizer)
        second.load_state_dict(saved)
        self.train(second, training, BATCHES[interrupted_after:])
        assert second.history == whole.history
        assert second.steps == whole.steps
        assert second.cost().steps == len(BATCHES) - interrupted_after

    def test_another_state_is_refused(self):
        tracker = track(build("plain"), loss_fn, lr=1.0)
        with pytest.raises(ValueError, match=r"not a state of a tracker. Give what Tracker\."):
            tracker.load_state_dict({"steps": 3})


class TestCost:
    @pytest.fixture
    def clock(self, monkeypatch):
        """Time passes only where a test says so."""
        clock = SimpleNamespace(now=0.0)
        fake = SimpleNamespace(perf_counter=lambda: clock.now)
        monkeypatch.setattr(instrument_clock, "time", fake)
        return clock

    def test_separates_measuring_from_training(self, clock):
        def slow_loss(model, batch):
            clock.now += 1
            return loss_fn(model, batch)

        training = of_model("plain")
        clock.now = 1000.0  # before the training
        options = {"every": 4, "ics": False}
        with track(training.model, slow_loss, training.optimizer, **options) as tracker:
            for batch in tracker.batches(BATCHES):
                clock.now += 25
                training.take(batch)
            clock.now += 5000  # after it
        cost = tracker.cost()
        assert (cost.steps, cost.samples, cost.training_seconds) == (6, 2, 150)
        # The landscape has four points and a start.
        assert cost.parts == {"landscape": 10, "growth": 2, "activations": 2, "updates": 0}
        assert cost.probing_seconds == 14
        assert cost.percent == pytest.approx(100 * 14 / 150)
        assert (cost.seconds_per_step, cost.seconds_per_sample) == (25, 7)
        assert cost.steps_per_sample == pytest.approx(7 / 25)

    def test_without_an_optimiser_the_time_between_batches_is_training(self, clock):
        with track(build("plain"), loss_fn, lr=1.0, every=2) as tracker:
            for batch in BATCHES:
                tracker.observe(batch)
                clock.now += 25
        assert tracker.cost().training_seconds == 150

    def test_is_unknown_before_the_first_step(self):
        cost = track(build("plain"), loss_fn, lr=1.0).cost()
        assert all(
            math.isnan(x)
            for x in (
                cost.percent,
                cost.seconds_per_step,
                cost.seconds_per_sample,
                cost.steps_per_sample,
            )
        )


def model_and_optimizer():
    model = build("plain")
    return model, torch.optim.SGD(model.parameters(), 0.1)


REFUSED = {
    "no module": (
        lambda m, o: track(loss_fn, m),
        TypeError,
        "track needs a torch.nn.Module, got function.",
    ),
    "arguments swapped": (
        lambda m, o: track(m, o),
        TypeError,
        "loss_fn must be a function, got SGD.",
    ),
    "a criterion": (
        lambda m, o: track(m, nn.MSELoss(), o),
        TypeError,
        "loss_fn must be a function of (model, batch), and MSELoss is one of (output, target). "
        "Give such as lambda model, batch: criterion(model(batch[0]), batch[1])",
    ),
    "no optimiser": (
        lambda m, o: track(m, loss_fn, 0.1),
        TypeError,
        "optimizer must be a torch.optim.Optimizer, got float. Give the optimizer itself",
    ),
    "another optimiser": (
        lambda m, o: track(nn.Linear(2, 2), loss_fn, o),
        ValueError,
        "the optimizer trains no parameter of this model. Give the one",
    ),
    "a sink that is no function": (
        lambda m, o: track(m, loss_fn, o, sink={}),
        TypeError,
        "sink must be a function of (step, values), got dict. Give such as lambda step, values:",
    ),
    "every 0": (
        lambda m, o: track(m, loss_fn, o, every=0),
        ValueError,
        "every must be a whole number of at least 1; got 0.",
    ),
    "every 0.5": (
        lambda m, o: track(m, loss_fn, o, every=0.5),
        TypeError,
        "every must be a number of steps, or the steps themselves, got 0.5.",
    ),
    "negative steps": (
        lambda m, o: track(m, loss_fn, o, every=[-1, 2]),
        ValueError,
        "every must name steps, whole numbers from 0; got [-1, 2].",
    ),
    "no steps": (
        lambda m, o: track(m, loss_fn, o, steps=[]),
        ValueError,
        "steps must be finite multiples of the learning rate, at least one; got ().",
    ),
    "no rate": (
        lambda m, o: track(m, loss_fn, o, lr=0.0),
        ValueError,
        "lr must be a finite number above 0; got 0.0.",
    ),
    "landscape without a loss": (
        lambda m, o: track(m, optimizer=o, landscape=True),
        ValueError,
        "track(landscape=True) needs loss_fn, a function of the model and a batch.",
    ),
    "landscape without a rate": (
        lambda m, o: track(m, loss_fn, landscape=True),
        ValueError,
        "track(landscape=True) needs the optimizer, or lr=.",
    ),
    "covariate shift without a step": (
        lambda m, o: track(m, loss_fn, ics=True),
        ValueError,
        "track(ics=True) needs optimizer, the one whose steps are tracked.",
    ),
    "activations without layers": (
        lambda m, o: track(nn.ParameterList([torch.ones(2)]), loss_fn, activations=True),
        ValueError,
        "track(activations=True) needs a model with linear, convolutional or normalising layers.",
    ),
    "nothing": (
        lambda m, o: track(nn.ReLU()),
        ValueError,
        "track has nothing to measure: give it a loss_fn and the optimizer",
    ),
    "lazy layers": (
        lambda m, o: track(nn.LazyLinear(2)),
        ValueError,
        "LazyLinear has lazy parameters without a shape. Run one batch through the model first.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    make, error, message = REFUSED[case]
    model, optimizer = model_and_optimizer()
    with pytest.raises(error, match=re.escape(message)) as refused:
        make(model, optimizer)
    assert "\n" not in str(refused.value)
    assert not optimizer._optimizer_step_pre_hooks


def test_sharded_parameters_are_refused():
    class Sharded(nn.Parameter):
        device_mesh = "two processes"

    model = nn.Linear(2, 2)
    model.weight = Sharded(torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"'weight' is a DTensor, .* Track an unsharded"):
        track(model, loss_fn, lr=1.0)


def test_steps_without_batches_are_refused_at_once():
    training = of_model("plain")
    before = [p.clone() for p in training.model.parameters()]
    tracker = track(training.model, loss_fn, training.optimizer)
    with pytest.raises(RuntimeError, match=r"before it saw a batch. Loop over tracker.batches"):
        training.take(BATCHES[0])
    assert all(map(torch.equal, training.model.parameters(), before))
    tracker.detach()
    training.take(BATCHES[0])


def test_a_detached_tracker_refuses_batches():
    tracker = tracked()
    with pytest.raises(RuntimeError, match="the tracker is detached"):
        tracker.observe(BATCHES[0])
