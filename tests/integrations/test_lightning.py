"""Lightning's loop with the callback is the plain loop with BNP, to the bit."""

import copy
import pathlib
import warnings

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

from equipoise import BNP
from equipoise.integrations.lightning import BNPCallback
from support.bnp_problems import OPTIMIZERS, attached, batches, distance, flat, mlp
from support.forked_ranks import results_of
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

    def test_without_the_callback_it_differs(self, optimizer):
        net = fit(Regression(optimizer), batches())
        assert distance(net, attached(mlp(), optimizer, rho=0.9)[0]) > 0.1


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


def plainly(step, model=None, data=None):
    """A loop with BNP; ``step`` does what follows ``zero_grad()``."""
    model = mlp() if model is None else model
    optimizer = OPTIMIZERS["adam"](model.parameters())
    BNP(model).attach(optimizer)
    for x, y in batches() if data is None else data:
        optimizer.zero_grad()
        step(model, optimizer, x, y)
    return model


def clipped(model, optimizer, x, y):
    mse_loss(model(x), y).backward()
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


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
    with pytest.raises(ValueError, match="rho must lie in"):
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
