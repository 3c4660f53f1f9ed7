"""Lightning's loop with BNP's callback is the plain loop with BNP, and monitored the same loop."""

import copy
import csv
import pathlib
import warnings

import pytest
import torch
from torch.nn.functional import mse_loss

from equipoise import BNP, track
from equipoise.integrations.lightning import BNPCallback, EquipoiseMonitor
from support import counting
from support.bnp_problems import OPTIMIZERS, attached, batches, distance, flat, mlp
from support.forked_ranks import results_of
from support.framework_trainings import careless_net, clipped, plainly
from support.lightning_problems import (
    QUIET,
    ByHand,
    Regression,
    Validated,
    fit,
    halves,
    loader,
    pl,
    trainer,
)

pytestmark = [
    # Lightning asks torch's trees a question that torch has deprecated.
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    # The data are in memory already, so workers would only be slower.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
class TestPlainLoop:
    def test_is_the_same(self, optimizer):
        net = fit(Regression(optimizer), batches(), BNPCallback(rho=0.9))
        assert torch.equal(flat(net), flat(attached(mlp(), optimizer, rho=0.9)[0]))


def test_without_the_callback_it_differs():
    net = fit(Regression("sgd"), batches())
    assert distance(net, attached(mlp(), "sgd", rho=0.9)[0]) > 0.1


class TestAccumulation:
    """Batches of 64 rows cut into 4."""

    def parts(self):
        return [
            pair
            for x, y in batches(10, rows=64)
            for pair in zip(x.chunk(4), y.chunk(4), strict=True)
        ]

    def test_micro_batches_are_one_batch(self):
        callback = BNPCallback()
        net = fit(Regression(), self.parts(), callback, accumulate_grad_batches=4)
        assert distance(net, attached(mlp(), data=batches(10, rows=64))[0]) < 1e-13
        assert callback.bnp.report()["net.0"].updates == 10

    def test_a_step_per_micro_batch_differs(self):
        net = fit(Regression(), self.parts(), BNPCallback())
        assert distance(net, attached(mlp(), data=batches(10, rows=64))[0]) > 1e-3


class TestClipping:
    def test_the_trainer_clips_raw_gradients(self):
        with pytest.warns(UserWarning, match=r"gradient_clip_val=0\.1 bounds the raw gradients"):
            net = fit(Regression(), batches(), BNPCallback(), gradient_clip_val=0.1)
        assert torch.equal(flat(net), flat(plainly(clipped)))

    def test_the_callback_clips_preconditioned_gradients(self):
        net = fit(Regression(), batches(), BNPCallback(max_norm=0.1))
        assert torch.equal(flat(net), flat(attached(mlp(), max_norm=0.1)[0]))
        assert distance(net, plainly(clipped)) > 1e-3

    def test_no_warning_if_both_are_set(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            fit(Regression(), batches(1), BNPCallback(max_norm=1.0), gradient_clip_val=0.1)


class TestPrecision:
    """Lightning's 16-mixed scales gradients, bf16-mixed does not."""

    @pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
    def test_is_the_plain_loop_under_autocast(self, precision):
        half = torch.float16 if precision == "16-mixed" else torch.bfloat16
        scaler = torch.amp.GradScaler("cpu", enabled=half is torch.float16)

        def step(model, optimizer, x, y):
            with torch.autocast("cpu", dtype=half, cache_enabled=False):
                loss = mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        theirs = torch.amp.GradScaler("cpu") if half is torch.float16 else None
        plugin = pl.plugins.MixedPrecision(precision, "cpu", theirs)
        data, model = batches(dtype=torch.float32), mlp(dtype=torch.float32)
        net = fit(Regression(net=copy.deepcopy(model)), data, BNPCallback(), plugins=[plugin])
        assert torch.equal(flat(net), flat(plainly(step, model, data)))
        assert distance(net, attached(model, data=data)[0]) > 1e-3

    def test_a_skipped_step_changes_nothing(self):
        """Lightning clears gradients between the forward and the backward pass."""
        nets = []
        for broken in (True, False):
            data = batches(8, dtype=torch.float32)
            if broken:
                data.insert(3, (data[5][0], data[5][1] * float("inf")))
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
            plugin = pl.plugins.MixedPrecision("16-mixed", "cpu", scaler)
            model = Regression(net=mlp(dtype=torch.float32))
            nets.append(fit(model, data, BNPCallback(), plugins=[plugin]))
        assert torch.equal(flat(nets[0]), flat(nets[1]))


class TestValidation:
    def test_leaves_the_statistics_alone(self):
        """Its features are a thousand times larger."""
        callback = BNPCallback()
        model = Validated()
        trainer(callback, val_check_interval=10).fit(model, loader(batches()), loader(batches(2)))
        plain, _, pre = attached(mlp())
        assert torch.equal(flat(model.net), flat(plain))
        saved = callback.bnp.state_dict()["layers"]
        for name, statistics in pre.state_dict()["layers"].items():
            assert torch.equal(saved[f"net.{name}"]["mean"], statistics["mean"])


def resumed(model, path, *callbacks):
    trainer(*callbacks, max_epochs=4).fit(model, loader(batches(7)), ckpt_path=path)
    return model.net


@pytest.mark.parametrize("update_every", [1, 4])
class TestResume:
    """Two epochs of seven steps, saved, and two more, against four."""

    @pytest.fixture
    def path(self, tmp_path, update_every):
        first = trainer(BNPCallback(update_every=update_every), max_epochs=2)
        first.fit(Regression("adamw"), loader(batches(7)))
        first.save_checkpoint(tmp_path / "half.ckpt")
        return tmp_path / "half.ckpt"

    @pytest.fixture
    def straight(self, update_every):
        callback = BNPCallback(update_every=update_every)
        return fit(Regression("adamw"), batches(7), callback, max_epochs=4)

    def test_to_the_bit(self, path, straight, update_every):
        callback = BNPCallback(update_every=update_every)
        net = resumed(Regression("adamw", mlp(seed=9)), path, callback)
        assert torch.equal(flat(net), flat(straight))

    def test_without_its_state_it_is_another_run(self, path, straight, update_every):
        saved = torch.load(path, weights_only=True)
        del saved["callbacks"]["BNPCallback"]
        torch.save(saved, path)
        net = resumed(Regression("adamw"), path, BNPCallback(update_every=update_every))
        assert distance(net, straight) > 1e-4

    def test_evaluating_a_checkpoint_does_not_resume_it(self, path, update_every):
        callback = BNPCallback(update_every=update_every)
        one = trainer(callback)
        one.validate(Validated("adamw"), loader(batches(2)), ckpt_path=path, verbose=False)
        model = Regression("adamw")
        one.fit(model, loader(batches(7)))
        plain = attached(mlp(), "adamw", batches(7), update_every=update_every)[0]
        assert torch.equal(flat(model.net), flat(plain))


class Interrupting(pl.Callback):
    def on_train_batch_end(self, *_):
        raise ZeroDivisionError


class TestDetach:
    def watched(self, net):
        return any(module._forward_hooks for module in net.modules())

    def test_at_the_end(self):
        callback = BNPCallback()
        net = fit(Regression(), batches(2), callback)
        assert not self.watched(net)
        assert callback.bnp.report()["net.0"].updates == 2

    def test_after_an_exception(self):
        model = Regression()
        with pytest.raises(ZeroDivisionError):
            fit(model, batches(2), BNPCallback(), Interrupting())
        assert not self.watched(model.net)

    def test_the_next_training_starts_anew(self):
        callback = BNPCallback()
        fit(Regression(), batches(5), callback)
        net = fit(Regression(), batches(), callback)
        assert torch.equal(flat(net), flat(attached(mlp())[0]))


def by_hand(chosen):
    """The plain loop with two optimizers, of which some are preconditioned."""
    model = mlp()
    both = [OPTIMIZERS["adam"](half.parameters()) for half in halves(model)]
    pre = BNP(model)
    for index in chosen:
        pre.attach(both[index])
    for x, y in batches():
        model.zero_grad()
        mse_loss(model(x), y).backward()
        for optimizer in both:
            optimizer.step()
    return model


class TestSeveralOptimizers:
    @pytest.mark.parametrize("chosen", [[0], [1], [0, 1]], ids=str)
    def test_by_position(self, chosen):
        net = fit(ByHand(), batches(), BNPCallback(optimizers=chosen))
        assert torch.equal(flat(net), flat(by_hand(chosen)))
        assert distance(net, by_hand([])) > 1e-2

    def test_a_callback_for_each(self):
        """Their layers are disjoint, so two callbacks are as good as one."""
        callbacks = [
            BNPCallback(optimizers=[0], include=["net.0", "net.2"]),
            BNPCallback(optimizers=[1], include=["net.4"]),
        ]
        net = fit(ByHand(), batches(), *callbacks)
        assert torch.equal(flat(net), flat(by_hand([0, 1])))

    def test_must_be_chosen(self):
        with pytest.raises(ValueError, match=r"2 optimizers.*optimizers=\[0\]"):
            fit(ByHand(), batches(1), BNPCallback())

    def test_must_exist(self):
        with pytest.raises(ValueError, match=r"names \[2\], but configure_optimizers returned 2"):
            fit(ByHand(), batches(1), BNPCallback(optimizers=[0, 2]))


class WithLBFGS(Regression):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


def test_lbfgs_is_refused_and_leaves_no_hooks():
    model = WithLBFGS()
    with pytest.raises(TypeError, match="cannot precondition LBFGS"):
        fit(model, batches(1), BNPCallback())
    assert not any(module._forward_hooks for module in model.modules())


def test_options_are_checked_at_once():
    with pytest.raises(ValueError, match="rho must be a number in"):
        BNPCallback(rho=1.0)


class Path(pl.Callback):
    """The weights after each step."""

    def __init__(self):
        self.points = []

    def on_train_batch_end(self, trainer, module, *_):
        self.points.append(flat(module.net))


def test_weight_averaging_changes_nothing():
    """Training is as without the average, which is that of preconditioned steps."""
    plain, averaged = Path(), Path()
    fit(Regression(), batches(), BNPCallback(), plain)
    ema = pl.callbacks.EMAWeightAveraging(decay=0.9)
    net = fit(Regression(), batches(), BNPCallback(), ema, averaged)
    assert torch.equal(torch.stack(averaged.points), torch.stack(plain.points))
    expected = plain.points[0]
    for point in plain.points[1:]:
        expected = expected.lerp(point, 0.1)
    torch.testing.assert_close(flat(net), expected, rtol=0, atol=1e-13)


def test_the_learning_rate_finder_changes_nothing(tmp_path, monkeypatch):
    """It runs before the callback, and restores weights and optimizer."""
    monkeypatch.chdir(tmp_path)  # where it saves them
    finder = pl.callbacks.LearningRateFinder(num_training_steps=12, update_attr=False)
    net = fit(Regression(), batches(), BNPCallback(), finder)
    assert torch.equal(flat(net), flat(attached(mlp())[0]))


def test_pytorch_lightning_works_too():
    """``pytorch_lightning`` has classes of its own, and calls the same hooks."""
    other = pytest.importorskip("pytorch_lightning")

    class Other(other.LightningModule):
        training_step = Regression.training_step
        configure_optimizers = Regression.configure_optimizers

    model = Other()
    model.net, model.optimizer = mlp(), "adam"
    other.Trainer(callbacks=[BNPCallback()], **QUIET).fit(model, loader(batches()))
    assert torch.equal(flat(model.net), flat(attached(mlp())[0]))


def test_two_processes_are_one(tmp_path):
    """Each with half of every batch. Statistics of their own would drift apart."""
    script = pathlib.Path(__file__).parents[1] / "support" / "lightning_replicas.py"
    found = results_of(script, tmp_path)
    alone = attached(mlp(), "adamw", batches(8, rows=64))[0]
    torch.testing.assert_close(found, flat(alone), rtol=0, atol=1e-13)


def final_state(trained, net):
    """Everything that makes two trainings the same: weights, buffers, moments, random numbers."""
    moments = [
        entry
        for optimizer in trained.optimizers
        for values in optimizer.state_dict()["state"].values()
        for entry in values.values()
    ]
    tensors = [*net.state_dict().values(), *moments, torch.get_rng_state()]
    return [torch.as_tensor(tensor).double() for tensor in tensors]


def equal(states, others):
    return all(torch.equal(a, b) for a, b in zip(states, others, strict=True))


class Logged(Regression):
    """Logs its loss, as most do."""

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.log("loss", loss)
        return loss


class Halved(ByHand):
    """Two optimizers by hand, for the first two layers and the others."""

    def configure_optimizers(self):
        return [OPTIMIZERS["adam"](half.parameters()) for half in (self.net[:2], self.net[2:])]


class OnePassMore(pl.Callback):
    """A careless monitor."""

    def on_train_batch_start(self, trainer, module, batch, index):
        module.net(batch[0].to(module.net[0].weight.dtype))


LOOPS = {
    "plain": (Logged, {}),
    "accumulated": (Logged, {"accumulate_grad_batches": 3}),
    "clipped": (Logged, {"gradient_clip_val": 0.1}),
    "bf16": (Logged, {"precision": "bf16-mixed"}),
    "by hand": (Halved, {}),
}


@pytest.mark.filterwarnings("ignore:You called .self.log:UserWarning")
@pytest.mark.parametrize("loop", LOOPS)
class TestMonitoredIsUnmonitored:
    def state(self, loop, *callbacks):
        kind, options = LOOPS[loop]
        dtype = torch.float32 if loop == "bf16" else torch.float64
        model = kind(net=careless_net(dtype))
        one = trainer(*callbacks, **options)
        torch.manual_seed(4)
        one.fit(model, loader(batches(12, dtype=dtype)))
        return final_state(one, model.net)

    def test_to_the_bit(self, loop):
        """A careless one is not."""
        monitor = EquipoiseMonitor(every=2, growth=True, landscape=True)
        plain = self.state(loop)
        assert equal(self.state(loop, monitor), plain)
        assert not equal(self.state(loop, OnePassMore()), plain)
        assert len(monitor.tracker.history) == (2 if loop == "accumulated" else 6)


class Keeping(Regression):
    """Keeps what its steps found, and counts them."""

    def __init__(self):
        super().__init__()
        self.losses, self.steps = [], 0

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.steps += 1
        self.losses.append(loss.detach())
        return loss


class TestALook:
    def test_leaves_what_a_module_keeps(self):
        model = Keeping()
        fit(model, batches(6), EquipoiseMonitor(every=2, growth=True))
        assert (model.steps, len(model.losses)) == (6, 6)

    @pytest.mark.parametrize(("activations", "passes"), [(True, 8), (False, 5)])
    def test_can_do_without_passes(self, activations, passes, monkeypatch):
        counting.start()
        step = Regression.training_step

        def counted(self, batch, index):
            counting.counted()
            return step(self, batch, index)

        monkeypatch.setattr(Regression, "training_step", counted)
        monitor = EquipoiseMonitor(every=2, activations=activations)
        fit(Regression(), batches(5), monitor)
        assert counting.count() == passes
        assert ("activations/dead" in monitor.tracker.latest) == activations
        assert "updates/ratio" in monitor.tracker.latest


def rows_of(folder):
    """What a CSVLogger wrote, without empty cells."""
    with open(folder / "metrics.csv", encoding="utf-8") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def monitored_rows(folder):
    return [row for row in rows_of(folder) if "equipoise/update_ratio" in row]


@pytest.fixture
def logger(tmp_path):
    return pl.loggers.CSVLogger(tmp_path, name="", version="")


class TestMonitorWrites:
    def test_few_numbers_at_every_nth_step(self, logger, tmp_path):
        model = Logged(net=careless_net())
        monitor = EquipoiseMonitor(every=10)
        fit(model, batches(25), monitor, logger=logger, log_every_n_steps=7)
        found = monitored_rows(tmp_path)
        assert [row["step"] for row in found] == [0, 10, 20]
        names = {name for row in found for name in row if name.startswith("equipoise/")}
        assert {"equipoise/gradient_spread", "equipoise/dead_units"} < names
        assert len(names) <= 8
        # A look would otherwise log the loss of its own pass.
        assert [row["step"] for row in rows_of(tmp_path) if "loss" in row] == [6, 13, 20]

    def test_what_the_tracker_finds_in_a_plain_loop(self, logger, tmp_path):
        monitor = EquipoiseMonitor(every=4, growth=True)
        fit(Regression(), batches(9), monitor, logger=logger, log_every_n_steps=1)
        net = mlp()
        optimizer = OPTIMIZERS["adam"](net.parameters())

        def loss_fn(model, batch):
            return mse_loss(model(batch[0]), batch[1])

        with track(net, loss_fn, optimizer, every=4) as tracker:
            for batch in tracker.batches(batches(9)):
                optimizer.zero_grad()
                loss_fn(net, batch).backward()
                optimizer.step()
        for row, sample in zip(monitored_rows(tmp_path), tracker.history, strict=True):
            assert row["equipoise/update_ratio"] == sample.values["updates/ratio"]
            assert row["equipoise/growth_rate"] == sample.values["growth/rate"]

    def test_nothing_without_a_logger(self):
        monitor = EquipoiseMonitor(every=4)
        fit(Regression(), batches(5), monitor)
        assert len(monitor.tracker.history) == 2


class TestMonitorResumes:
    def test_where_it_was(self, tmp_path, logger):
        data, straight = loader(batches(7)), Regression("adamw")
        options = {"max_epochs": 4, "log_every_n_steps": 1}
        trainer(EquipoiseMonitor(every=4), logger=logger, **options).fit(straight, data)
        first = trainer(EquipoiseMonitor(every=4), max_epochs=2)
        first.fit(Regression("adamw"), data)
        first.save_checkpoint(tmp_path / "half.ckpt")
        again = pl.loggers.CSVLogger(tmp_path, name="", version="again")
        model = Regression("adamw", mlp(seed=9))
        second = trainer(EquipoiseMonitor(every=4), logger=again, **options)
        second.fit(model, data, ckpt_path=tmp_path / "half.ckpt")
        assert torch.equal(flat(model.net), flat(straight.net))
        whole = monitored_rows(tmp_path)
        assert [row["step"] for row in whole] == [0, 4, 8, 12, 16, 20, 24]
        assert monitored_rows(tmp_path / "again") == whole[4:]


def step_hooks(one):
    return [
        hook
        for optimizer in one.optimizers
        for kind in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        for hook in getattr(optimizer, kind).values()
    ]


class CountHooks(pl.Callback):
    """Of the optimizers, after each batch."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, *_):
        self.seen.append(len(step_hooks(trainer)))


class TestMonitorDetaches:
    def test_at_the_end(self):
        one = trainer(EquipoiseMonitor(every=1))
        one.fit(Regression(), loader(batches(2)))
        assert step_hooks(one) == []

    def test_after_an_exception(self):
        monitor = EquipoiseMonitor(every=1)
        one = trainer(monitor, Interrupting())
        with pytest.raises(ZeroDivisionError):
            one.fit(Regression(), loader(batches(2)))
        assert step_hooks(one) == []
        assert len(monitor.tracker.history) == 1

    def test_while_it_trains_it_is_attached(self):
        count = CountHooks()
        fit(Regression(), batches(1), EquipoiseMonitor(), count)
        assert count.seen[0] > 0


class TestMonitorRefuses:
    def test_an_optimizer_that_is_not_there(self):
        with pytest.raises(ValueError, match=r"optimizer=2.*configure_optimizers returned 2"):
            fit(ByHand(), batches(1), EquipoiseMonitor(optimizer=2))

    @pytest.mark.parametrize("every", [0, 2.5])
    def test_an_interval_at_once(self, every):
        with pytest.raises(ValueError, match="every must be"):
            EquipoiseMonitor(every=every)


def test_layers_of_other_optimizers_are_not_judged():
    """They do not move in this one's step, which says nothing about them."""
    monitor = EquipoiseMonitor(every=1, optimizer=1)
    fit(ByHand(), batches(2), monitor)
    ratios = {n for n in monitor.tracker.latest if n.startswith("updates/net")}
    assert ratios == {"updates/net.4/ratio"}
