"""A tracked training equals the untracked one bit for bit; with a careless tracker it does not."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.probes.tracker.track import track
from support.model_state import fingerprint
from support.probe_models import ALL, build, loss_fn
from support.tracked_trainings import BATCHES, TRAININGS, Training, of_model, run

EVERYTHING = ("landscape", "ics", "growth", "activations", "conditioning", "updates")
every_training = pytest.mark.parametrize("name", TRAININGS)


class Observer:
    """Tracks the first training that it is called with."""

    def __init__(self, **options):
        self.options = {"every": 2, "conditioning": True, **options}
        self.tracker = None

    def __call__(self, training, batch):
        if self.tracker is None:
            self.tracker = track(
                training.model,
                training.loss_fn,
                training.optimizer,
                **self.options,
                **training.options,
            )
        self.tracker.observe(batch)


@every_training
class TestEveryTraining:
    def test_tracking_changes_nothing(self, name):
        make, _ = TRAININGS[name]
        observer = Observer()
        assert run(make, observer) == run(make)
        assert set(EVERYTHING) <= {n.split("/")[0] for n in observer.tracker.tracking.names}

    def test_a_careless_tracker_changes_it(self, name):
        make, careless = TRAININGS[name]
        assert run(make, careless) != run(make)


@pytest.mark.parametrize("name", ALL)
def test_every_model(name):
    def make():
        return of_model(name)

    assert run(make, Observer(every=3)) == run(make)


@pytest.mark.parametrize("part", EVERYTHING)
def test_every_part_by_itself(part):
    options = {other: other == part for other in EVERYTHING}
    make, _ = TRAININGS["batch norm and dropout"]
    observer = Observer(**options)
    assert run(make, observer) == run(make)
    found = {name.split("/")[0] for name in observer.tracker.latest}
    assert part in found
    assert found <= {part, "loss", "gradients"}


class TestHooks:
    """Nothing is left on the model between samples, nor on the optimiser afterwards."""

    @staticmethod
    def hooks(optimizer):
        return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)

    def test_are_removed_at_the_end_of_the_block(self):
        training = of_model("plain")
        with track(training.model, loss_fn, training.optimizer, every=1) as tracker:
            for batch in tracker.batches(BATCHES):
                training.take(batch)
            assert self.hooks(training.optimizer) == 2
        assert self.hooks(training.optimizer) == 0

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
    def test_are_removed_when_training_fails(self, error):
        training = of_model("plain")
        tracker = track(training.model, loss_fn, training.optimizer, every=1)

        def fail_in_the_second_step():
            with tracker:
                training.take(next(tracker.batches(BATCHES)))
                tracker.observe(BATCHES[1])
                raise error

        with pytest.raises(error):
            fail_in_the_second_step()
        assert self.hooks(training.optimizer) == 0
        assert [sample.step for sample in tracker.history] == [0, 1]
        assert "landscape/beta" in tracker.latest  # kept from before the error
        assert "ics/cosine" not in tracker.latest  # its step was never taken

    def test_none_is_on_the_model_between_samples(self):
        training = of_model("batch norm and dropout")
        before = fingerprint(training.model)
        with track(training.model, loss_fn, training.optimizer) as tracker:
            tracker.observe(BATCHES[0])
            after = fingerprint(training.model)
            training.take(BATCHES[0])
        assert after == before


class TestWhenAMeasurementFails:
    @staticmethod
    def failing_at(call):
        calls = []

        def fails(model, batch):
            loss = loss_fn(model, batch)
            calls.append(loss)
            if len(calls) == call:
                model.eval()
                raise ZeroDivisionError
            return loss

        return fails

    @pytest.mark.parametrize("call", range(1, 8))
    def test_before_the_step_nothing_has_changed(self, call):
        training = of_model("batch norm and dropout")
        before = fingerprint(training.model)
        tracker = track(training.model, self.failing_at(call), training.optimizer, every=1)
        with pytest.raises(ZeroDivisionError) as raised:
            tracker.observe(BATCHES[0])
        assert fingerprint(training.model) == before
        assert "=False leaves it out." in raised.value.__notes__[0]

    @pytest.mark.parametrize("call", [8, 11, 13])
    def test_after_the_step_the_training_is_where_it_would_be(self, call):
        plain = of_model("batch norm and dropout")
        with torch.random.fork_rng():
            plain.take(BATCHES[0])
        training = of_model("batch norm and dropout")
        tracker = track(training.model, self.failing_at(call), training.optimizer, every=1)
        tracker.observe(BATCHES[0])
        with pytest.raises(ZeroDivisionError):
            training.take(BATCHES[0])
        assert training.state([]) == plain.state([])


class CountCalls(TorchDispatchMode):
    """Counts PyTorch's operations."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("every", "measured"), [((0, 2), False), ((0, 1), True)])
def test_between_samples_nothing_is_computed(every, measured):
    """Hence nothing waits for a device. The twin takes a sample in that step."""

    def calls_of_the_second_step(observe, training):
        observe(BATCHES[0])
        training.take(BATCHES[0])
        with CountCalls() as count:
            observe(BATCHES[1])
            training.take(BATCHES[1])
        return count.calls

    plain, tracked = of_model("batch norm and dropout"), of_model("batch norm and dropout")
    tracker = track(tracked.model, loss_fn, tracked.optimizer, every=every)
    alone = calls_of_the_second_step(lambda _: None, plain)
    assert (calls_of_the_second_step(tracker.observe, tracked) > alone) == measured


class TestCompiledModels:
    @staticmethod
    def compiled(in_place):
        training = of_model("batch norm and dropout")
        if in_place:
            training.model.compile(backend="eager")  # seconds less than inductor
        else:
            training.model = torch.compile(training.model, backend="eager")
        return training

    @pytest.mark.parametrize("in_place", [False, True])
    def test_train_the_same_and_measure_as_the_original(self, in_place):
        def make():
            torch.compiler.reset()
            return self.compiled(in_place)

        observer, original = Observer(), Observer()
        assert run(make, observer) == run(make)
        run(lambda: of_model("batch norm and dropout"), original)
        assert observer.tracker.history == original.tracker.history
        torch.compiler.reset()


@pytest.fixture
def one_process():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_replicated_models(one_process):
    """A reducer that saw a probe's forward pass would wait for its backward pass."""

    def make():
        model = DistributedDataParallel(build("batch norm and dropout"))
        return Training(model, torch.optim.SGD(model.parameters(), lr=0.1))

    observer = Observer()
    assert run(make, observer) == run(make)
    assert "ics/12/cosine" in observer.tracker.latest


class Counter:
    """Counts the passes of a layer, and can be paused if it has ``while_probed``."""

    def __init__(self, *, pausable):
        self.passes, self.paused = 0, False
        if pausable:
            self.while_probed = self.pause

    def __call__(self, *_):
        self.passes += not self.paused
        if not self.paused:
            print("seen")

    @contextlib.contextmanager
    def pause(self):
        self.paused = True
        yield
        self.paused = False


@pytest.mark.parametrize("pausable", [True, False])
def test_observers_are_paused(pausable, capsys):
    """One that cannot be paused sees more passes than there are steps, and forgets them."""
    training = of_model("plain")
    counter = Counter(pausable=pausable)
    training.model[0].register_forward_hook(counter)
    tracker = track(training.model, loss_fn, training.optimizer, every=2)
    for batch in tracker.batches(BATCHES):
        training.take(batch)
    assert (capsys.readouterr().out.count("seen") == len(BATCHES)) == pausable
    assert counter.passes == len(BATCHES)


def test_two_networks():
    """Each has its own tracker; the steps of one do not count for the other."""
    first, second = of_model("plain"), of_model("residual")
    trackers = [track(t.model, loss_fn, t.optimizer, every=2) for t in (first, second)]
    for batch in BATCHES:
        trackers[0].observe(batch)
        first.take(batch)
    assert [tracker.steps for tracker in trackers] == [len(BATCHES), 0]


def test_models_that_a_parametrisation_would_change_when_read():
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)))
    before = fingerprint(model)
    track(model)
    assert fingerprint(model) == before
