"""A tracker's numbers are those of single probes, under the step that training takes."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from equipoise import BNP
from equipoise.probes import conditioning, gradient_growth
from equipoise.probes.activations import activations
from equipoise.probes.covariate_shift import covariate_shift
from equipoise.probes.landscape import landscape
from equipoise.probes.tracker.track import track
from support.probe_models import build, loss_fn
from support.tracked_trainings import BATCHES, TRAININGS, Training, of_model

ETAS = [0.5 * 0.01, 0.01, 2 * 0.01, 4 * 0.01]


def tracked(training, *, every=2, **options):
    """Train, and return the tracker."""
    torch.manual_seed(1)
    with track(
        training.model,
        training.loss_fn,
        training.optimizer,
        every=every,
        conditioning=True,
        **training.options,
        **options,
    ) as tracker:
        for batch in tracker.batches(BATCHES):
            training.take(batch)
    return tracker


def single_probes(training, batch):
    """The numbers of the single probes by name."""
    model, loss = training.model, training.loss_fn
    along = landscape(model, loss, batch, steps=ETAS)
    growth = gradient_growth(model, loss, [batch])
    shift = covariate_shift(model, loss, batch, training.optimizer)
    values = {
        "loss": along.initial_loss,
        "landscape/loss_min": min(along.losses),
        "landscape/loss_max": max(along.losses),
        "landscape/gradient_change_min": min(along.gradient_changes),
        "landscape/gradient_change_max": max(along.gradient_changes),
        "landscape/gradient_norm": along.gradient_norm,
        "landscape/beta": along.beta,
        "growth/rate": growth.rate.value,
        "ics/cosine": np.mean([layer.cosine for layer in shift.layers[1:]]),
    }
    for layer in growth.layers:
        values[f"growth/{layer.layer}/gradient"] = layer.gradient.value
    for layer in shift.layers:
        values[f"ics/{layer.layer}/cosine"] = layer.cosine
        values[f"ics/{layer.layer}/l2"] = layer.l2
    for layer in activations(model, batch, forward=loss):
        values[f"activations/{layer.layer}/mean"] = layer.mean
        values[f"activations/{layer.layer}/variance"] = layer.variance
        values[f"activations/{layer.layer}/dead"] = layer.dead
    for layer in conditioning(model, batch, forward=loss):
        values[f"conditioning/{layer.layer}/raw"] = layer.raw
        values[f"conditioning/{layer.layer}/scaled"] = layer.scaled
    return values


@pytest.mark.parametrize(
    "name", ["Adam", "batch norm and dropout", "noisy batch norm", "autocast"]
)
def test_the_numbers_are_those_of_single_probes(name):
    """Bit for bit: the same noise, and the step that the optimiser then took."""
    make, _ = TRAININGS[name]
    torch.manual_seed(1)
    training, expected = make(), {}
    for step, batch in enumerate(BATCHES):
        if step % 2 == 0:
            expected[step] = single_probes(training, batch)
        training.take(batch)
    torch.manual_seed(1)
    training = make()
    with track(
        training.model, training.loss_fn, training.optimizer, every=2, conditioning=True
    ) as tracker:
        for batch in tracker.batches(BATCHES):
            training.take(batch)
    assert [sample.step for sample in tracker.history] == list(expected)
    for sample in tracker.history:
        found = {name: sample.values[name] for name in expected[sample.step]}
        assert found == expected[sample.step]


def literal_cosines(before, after, batch):
    """Definition 2.1 for layers in a row: a copy and a whole backward pass for each."""

    def gradient(model, layer):
        model.zero_grad()
        loss_fn(model, batch).backward()
        return torch.cat([p.grad.flatten() for p in model[layer].parameters()])

    layers = [i for i, module in enumerate(before) if list(module.parameters())]
    cosines = {}
    for position, layer in enumerate(layers):
        moved = copy.deepcopy(before)
        for earlier in layers[:position]:
            moved[earlier].load_state_dict(after[earlier].state_dict())
        pair = gradient(copy.deepcopy(before), layer), gradient(moved, layer)
        cosines[f"ics/{layer}/cosine"] = float(nn.functional.cosine_similarity(*pair, 0))
    return cosines


def double(lr=0.3):
    model = build("plain").double()
    return Training(model, torch.optim.SGD(model.parameters(), lr))


def clipped():
    training = double()

    def step(training, batch):
        training.optimizer.zero_grad()
        loss = training.loss_fn(training.model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(training.model.parameters(), 0.01)
        training.optimizer.step()
        return loss.detach()

    training.step = step
    return training


def attached_before():
    training = double()
    bnp = BNP(training.model).attach(training.optimizer)
    training.options = {"pause": [bnp.paused]}
    return training


class TestCovariateShift:
    """The step includes everything between the gradient and the parameters."""

    batch = tuple(part.double() for part in BATCHES[0])

    def first_sample(self, training, *, attach_late=False):
        before = copy.deepcopy(training.model)
        if attach_late:
            bnp = BNP(training.model)
            training.options = {"pause": [bnp.paused]}
        tracker = track(training.model, loss_fn, training.optimizer, **training.options)
        if attach_late:
            bnp.attach(training.optimizer)
        tracker.observe(self.batch)
        training.take(self.batch)
        found = {n: v for n, v in tracker.latest.items() if n.count("/") == 2 and "cosine" in n}
        literal = literal_cosines(before, training.model, self.batch)
        naive = covariate_shift(before, loss_fn, self.batch, 0.3)
        return found, literal, {f"ics/{x.layer}/cosine": x.cosine for x in naive.layers}

    @pytest.mark.parametrize("make", [double, clipped, attached_before])
    def test_agrees_with_a_literal_transcription(self, make):
        found, literal, naive = self.first_sample(make())
        assert found == pytest.approx(literal, abs=1e-10)
        assert (found == pytest.approx(naive, abs=1e-6)) == (make is double)

    def test_also_under_a_preconditioner_attached_after_the_tracker(self):
        found, literal, naive = self.first_sample(double(), attach_late=True)
        assert found == pytest.approx(literal, abs=1e-10)
        assert found != pytest.approx(naive, abs=1e-6)


class TestUpdates:
    def test_norms_of_gradients_and_steps(self):
        """In plain gradient descent, the step is the learning rate times the gradient."""
        training = double(lr=0.3)
        batch = tuple(part.double() for part in BATCHES[0])
        sizes = {n: float(p.detach().norm()) for n, p in training.model.named_parameters()}
        tracker = track(training.model, loss_fn, training.optimizer)
        tracker.observe(batch)
        training.take(batch)
        gradients = {n: float(p.grad.norm()) for n, p in training.model.named_parameters()}
        for layer in "0", "2", "4":
            gradient = math.hypot(gradients[f"{layer}.weight"], gradients[f"{layer}.bias"])
            size = math.hypot(sizes[f"{layer}.weight"], sizes[f"{layer}.bias"])
            found = tracker.latest[f"gradients/{layer}/norm"]
            assert found == pytest.approx(gradient, rel=1e-12)
            assert tracker.latest[f"updates/{layer}/ratio"] == pytest.approx(
                0.3 * gradient / size, rel=1e-12
            )
        whole = math.hypot(*gradients.values())
        assert tracker.latest["gradients/norm"] == pytest.approx(whole, rel=1e-12)
        assert tracker.latest["landscape/gradient_norm"] == pytest.approx(whole, rel=1e-12)

    def test_accumulated_gradients_are_summed(self):
        training = double()
        batches = [tuple(part.double() for part in batch) for batch in BATCHES[:2]]
        tracker = track(training.model, loss_fn, training.optimizer)
        for batch in tracker.batches(batches):
            loss_fn(training.model, batch).backward()
        training.optimizer.step()
        expected = math.hypot(*(float(p.grad.norm()) for p in training.model.parameters()))
        assert tracker.latest["gradients/norm"] == pytest.approx(expected, rel=1e-12)
        assert [sample.step for sample in tracker.history] == [0]

    @pytest.mark.parametrize("fused", [False, True])
    def test_the_scale_of_mixed_precision_is_removed(self, fused):
        """A fused optimiser gets scaled gradients, and divides them in its step."""
        model = build("plain")
        optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        tracker = track(model, loss_fn, optimizer)
        tracker.observe(BATCHES[0])
        scaler.scale(loss_fn(model, BATCHES[0])).backward()
        scaler.step(optimizer)
        scaler.update()
        assert tracker.latest["gradients/norm"] == pytest.approx(
            tracker.latest["landscape/gradient_norm"], rel=1e-5
        )

    def test_the_ratio_of_a_layer_of_zeros_is_unknown(self):
        model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        tracker = track(model, optimizer=optimizer)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert math.isnan(tracker.latest["updates/ratio"])


class TestLandscape:
    def test_bands_are_the_range_over_steps_at_each_sample(self):
        training = of_model("plain")
        steps, expected = (0.5, 8.0), []
        with track(training.model, loss_fn, training.optimizer, every=3, steps=steps) as tracker:
            for number, batch in enumerate(tracker.batches(BATCHES)):
                if number % 3 == 0:
                    etas = [0.01 * step for step in steps]
                    found = landscape(training.model, loss_fn, batch, steps=etas)
                    expected.append((found.loss_band, found.gradient_change_band))
                training.take(batch)
        for number, name in enumerate(("loss", "gradient_change")):
            band = tracker.tracking.band(f"landscape/{name}")
            pairs = list(zip(band.lowest, band.highest, strict=True))
            assert pairs == [bands[number] for bands in expected]
            assert band.steps == (0, 3)

    def test_steps_follow_the_learning_rate(self):
        found = []
        for lr in 0.01, 0.05:
            training = of_model("plain")
            training.optimizer.param_groups[0]["lr"] = torch.tensor(lr)
            tracker = track(training.model, loss_fn, training.optimizer, steps=[1.0])
            tracker.observe(BATCHES[0])
            tracker.detach()
            alone = landscape(build("plain"), loss_fn, BATCHES[0], steps=[float(torch.tensor(lr))])
            assert tracker.latest["landscape/loss_max"] == alone.losses[0]
            found.append(alone.losses[0])
        assert found[0] != found[1]

    def test_a_rate_of_one_takes_steps_literally(self):
        model = build("plain")
        tracker = track(model, loss_fn, steps=[0.25], lr=1.0)
        tracker.observe(BATCHES[0])
        alone = landscape(model, loss_fn, BATCHES[0], steps=[0.25])
        assert tracker.latest["landscape/loss_max"] == alone.losses[0]

    def test_the_smoothness_of_a_zero_gradient_is_nan(self):
        model = nn.Linear(6, 1, bias=False)
        nn.init.zeros_(model.weight)

        def squares(model, batch):
            return model(batch[0]).square().sum()

        tracker = track(model, squares, torch.optim.SGD(model.parameters(), 0.1))
        tracker.observe(BATCHES[0])
        tracker.detach()
        assert tracker.latest["landscape/gradient_norm"] == 0
        assert math.isnan(tracker.latest["landscape/beta"])


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_other_numbers_are_measured_if_the_loss_is_not_finite(value):
    model = build("batch norm and dropout")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = track(model, lambda m, b: loss_fn(m, b) * value, optimizer, every=1)
    for batch in tracker.batches(BATCHES[:2]):
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    assert [sample.step for sample in tracker.history] == [0, 1]
    assert not math.isfinite(tracker.latest["loss"])
    assert not {"growth", "ics"} & {name.split("/")[0] for name in tracker.latest}
    assert math.isfinite(tracker.latest["activations/0/mean"])
