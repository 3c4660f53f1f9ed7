"""The Hugging Face Trainer with BNP is the plain loop with it; monitored, it is the same."""

import copy
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import mse_loss

from equipoise import BNP, track
from equipoise.integrations.huggingface import BNPCallback, MonitorCallback
from support.bnp_problems import OPTIMIZERS, attached, batches, distance, flat, mlp
from support.framework_trainings import careless_net, clipped, plainly
from support.huggingface_problems import (
    Regression,
    accelerate,
    fit,
    rows,
    train,
    trainer,
    transformers,
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


class TestPlainLoop:
    @pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adamw", "rmsprop"])
    def test_is_the_same(self, optimizer, folder):
        net = train(Regression(), batches(), folder, BNPCallback(rho=0.9), optimizer=optimizer)
        assert torch.equal(flat(net), flat(attached(mlp(), optimizer, rho=0.9)[0]))

    def test_without_the_callback_it_differs(self, folder):
        net = train(Regression(), batches(), folder, optimizer="sgd")
        assert distance(net, attached(mlp(), "sgd", rho=0.9)[0]) > 0.1


class TestAccumulation:
    def test_micro_batches_are_one_batch(self, folder):
        callback, data = BNPCallback(), batches(10, rows=64)
        options = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4}
        net = train(Regression(), data, folder, callback, **options)
        assert distance(net, attached(mlp(), data=data)[0]) < 1e-13
        assert callback.bnp.report()["net.0"].updates == 10

    def test_a_step_per_micro_batch_differs(self, folder):
        data = batches(10, rows=64)
        net = train(Regression(), data, folder, BNPCallback(), per_device_train_batch_size=16)
        assert distance(net, attached(mlp(), data=data)[0]) > 1e-3


class TestClipping:
    def test_the_trainer_clips_raw_gradients(self, folder):
        with pytest.warns(UserWarning, match=r"max_grad_norm=0\.1 bounds the raw gradients"):
            net = train(Regression(), batches(), folder, BNPCallback(), max_grad_norm=0.1)
        assert torch.equal(flat(net), flat(plainly(clipped)))

    def test_the_callback_clips_preconditioned_gradients(self, folder):
        net = train(Regression(), batches(), folder, BNPCallback(max_norm=0.1))
        assert torch.equal(flat(net), flat(attached(mlp(), max_norm=0.1)[0]))
        assert distance(net, plainly(clipped)) > 1e-3

    def test_no_warning_if_both_are_set(self, folder):
        """Warnings are errors here."""
        train(Regression(), batches(1), folder, BNPCallback(max_norm=1.0), max_grad_norm=1.0)


def autocast(model, optimizer, x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
        loss = mse_loss(model(x), y)
    loss.backward()
    optimizer.step()


class TestPrecision:
    def test_bf16_is_the_plain_loop_under_autocast(self, folder, monkeypatch):
        # The trainer of transformers 4 sets it for the whole process.
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
        data, model = batches(dtype=torch.float32), mlp(dtype=torch.float32)
        net = train(Regression(copy.deepcopy(model)), data, folder, BNPCallback(), bf16=True)
        assert torch.equal(flat(net), flat(plainly(autocast, copy.deepcopy(model), data)))
        assert distance(net, attached(model, data=data)[0]) > 1e-3

    def test_fp16_is_the_plain_loop_and_a_skipped_step_changes_nothing(self):
        """The trainer's fp16 needs a GPU; the optimizer that it wraps and steps does not."""
        accelerate.Accelerator(cpu=True)
        data, model = batches(8, dtype=torch.float32), mlp(dtype=torch.float32)
        plain = attached(model, data=data[:3] + data[4:])[0]
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=10**6)
        inner = OPTIMIZERS["adam"](model.parameters())
        optimizer = accelerate.optimizer.AcceleratedOptimizer(inner, scaler=scaler)
        begin(BNPCallback(), model, optimizer)
        for index, (x, y) in enumerate(data):
            loss = mse_loss(model(x), y) * (float("inf") if index == 3 else 1)
            scaler.scale(loss).backward()
            optimizer.step()
            assert optimizer.step_was_skipped == (index == 3)
            optimizer.zero_grad()
        assert torch.equal(flat(model), flat(plain))


def begin(callback, model, optimizer, n_gpu=0):
    arguments = SimpleNamespace(n_gpu=n_gpu, max_grad_norm=0)
    state = SimpleNamespace(global_step=0)
    callback.on_train_begin(arguments, state, None, model=model, optimizer=optimizer)


class TestEvaluation:
    def test_leaves_the_statistics_alone(self, folder):
        """Its features are a thousand times larger."""
        callback = BNPCallback()
        large = rows([(x * 1e3, y) for x, y in batches(2)])
        options = {"eval_strategy": "steps", "eval_steps": 10, "eval_on_start": True}
        net = train(Regression(), batches(), folder, callback, evaluation=large, **options)
        plain, _, pre = attached(mlp())
        assert torch.equal(flat(net), flat(plain))
        saved = callback.bnp.state_dict()["layers"]
        for name, statistics in pre.state_dict()["layers"].items():
            assert torch.equal(saved[f"net.{name}"]["mean"], statistics["mean"])


SAVING = {"save_strategy": "steps", "save_steps": 6, "optimizer": "adamw"}


@pytest.mark.parametrize("update_every", [1, 4])
class TestResume:
    """Fourteen steps, against eight from the checkpoint of the sixth."""

    @pytest.fixture
    def straight(self, folder, update_every):
        callback = BNPCallback(update_every=update_every)
        return train(Regression(), batches(14), folder, callback, **SAVING)

    def again(self, folder, **options):
        model = Regression(mlp(seed=9))
        path = folder / "checkpoint-6"
        return train(
            model, batches(14), folder, BNPCallback(**options), resume=str(path), **SAVING
        )

    def test_to_the_bit_but_without_its_state(self, folder, straight, update_every):
        """Then it warns, and is another run."""
        kept = folder / "checkpoint-6" / "bnp.pt"
        state = kept.read_bytes()
        net = self.again(folder, update_every=update_every)
        assert torch.equal(flat(net), flat(straight))
        assert kept.read_bytes() == state  # of the sixth step, which was not taken again
        kept.unlink()
        with pytest.warns(UserWarning, match=r"no bnp\.pt in .*checkpoint-6: BNP starts"):
            net = self.again(folder, update_every=update_every)
        assert distance(net, straight) > 1e-4

    def test_from_another_folder(self, folder, straight, update_every):
        elsewhere = shutil.move(folder / "checkpoint-6", folder.with_name("kept"))
        net = train(
            Regression(mlp(seed=9)),
            batches(14),
            folder,
            BNPCallback(update_every=update_every, resume_from=elsewhere),
            resume=str(elsewhere),
            **SAVING,
        )
        assert torch.equal(flat(net), flat(straight))


@pytest.mark.parametrize("only_model", [True, False])
def test_statistics_are_saved_where_the_optimizer_is(folder, only_model):
    options = SAVING | {"save_only_model": only_model}
    train(Regression(), batches(6), folder, BNPCallback(), **options)
    saved = {path.name for path in (folder / "checkpoint-6").iterdir()}
    assert ("bnp.pt" in saved) == ("optimizer.pt" in saved) == (not only_model)


class Interrupting(transformers.TrainerCallback):
    def on_step_end(self, *_, **__):
        raise ZeroDivisionError


class TestDetach:
    def watched(self, net):
        return any(module._forward_hooks for module in net.modules())

    def test_at_the_end(self, folder):
        callback = BNPCallback()
        net = train(Regression(), batches(2), folder, callback)
        assert not self.watched(net)
        assert callback.bnp.report()["net.0"].updates == 2

    def test_at_the_latest_when_the_next_training_begins(self, folder):
        """Callbacks are not told that a training has failed."""
        callback, broken, model = BNPCallback(), Interrupting(), Regression()
        with pytest.raises(ZeroDivisionError):
            train(model, batches(2), folder, callback, broken)
        assert self.watched(model.net)
        net = train(Regression(), batches(), folder, callback)
        assert not self.watched(model.net)
        assert torch.equal(flat(net), flat(attached(mlp())[0]))


class TestRefusals:
    def test_lbfgs(self, folder):
        model = Regression()
        optimizer = torch.optim.LBFGS(model.parameters())
        with pytest.raises(TypeError, match="cannot precondition LBFGS"):
            fit(model, rows(batches(1)), folder, BNPCallback(), optimizer=optimizer)

    def test_data_parallel(self):
        with pytest.raises(ValueError, match=r"over 2 GPUs with DataParallel.*torchrun"):
            begin(BNPCallback(), mlp(), None, n_gpu=2)

    def test_options_are_checked_at_once(self):
        with pytest.raises(ValueError, match="rho must be a number in"):
            BNPCallback(rho=1.0)


class TestBert:
    """A model of the library, with its default optimizer."""

    @pytest.fixture
    def model(self):
        return transformers.BertForSequenceClassification(
            transformers.BertConfig(
                vocab_size=30,
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=32,
                max_position_embeddings=8,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )

    @pytest.fixture
    def data(self):
        words = torch.randint(30, (80, 8))
        return words, (words[:, 3] > 14).long()

    def test_is_the_plain_loop(self, model, data, folder):
        words, labels = data
        plain = copy.deepcopy(model).train()
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0)
        BNP(plain).attach(optimizer)
        for x, y in zip(words.split(8), labels.split(8), strict=True):
            optimizer.zero_grad()
            plain(input_ids=x, labels=y).loss.backward()
            optimizer.step()

        callback = BNPCallback()
        fit(
            model,
            [{"input_ids": x, "labels": y} for x, y in zip(words, labels, strict=True)],
            folder,
            callback,
            optimizer=None,
            optim="adamw_torch",
            learning_rate=1e-3,
            per_device_train_batch_size=8,
        )
        assert torch.equal(flat(model), flat(plain))
        report = callback.bnp.report()
        assert len(report.used) == 8
        assert "embedding" in report["bert.embeddings.word_embeddings"].reason


class OnePassMore(transformers.TrainerCallback):
    """A careless monitor."""

    def on_step_begin(self, args, state, control, *, model, **_):
        weight = model.net[0].weight
        model.net(torch.ones(4, 5, dtype=weight.dtype, device=weight.device))


OPTIONS = {
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 3},
    "clipped": {"max_grad_norm": 0.1},
    "bf16": {"bf16": True},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 3},
}


@pytest.mark.parametrize("option", OPTIONS)
class TestMonitoredIsUnmonitored:
    @pytest.fixture(autouse=True)
    def same_precision(self, monkeypatch):
        # The trainer of transformers 4 sets it for the whole process.
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")

    def state(self, option, folder, *callbacks, monitored=False):
        """Weights, buffers, moments and random numbers in the end, and the monitor's looks."""
        dtype = torch.float32 if option == "bf16" else torch.float64
        model, data = Regression(careless_net(dtype)), rows(batches(12, dtype=dtype))
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        options = {"evaluation": data[:32], **OPTIONS[option]}
        one = trainer(model, data, folder, *callbacks, optimizer=optimizer, **options)
        looks = []
        if monitored:
            monitor = MonitorCallback(one, every=2, growth=True, landscape=True)
        one.train()
        if monitored:
            looks = monitor.tracker.history
        moments = [v for s in optimizer.state_dict()["state"].values() for v in s.values()]
        tensors = [*model.state_dict().values(), *moments, torch.get_rng_state()]
        return [torch.as_tensor(tensor).double() for tensor in tensors], looks

    def test_to_the_bit(self, option, folder):
        """A careless one is not."""
        found, looks = self.state(option, folder, monitored=True)
        careless, _ = self.state(option, folder, OnePassMore())
        expected, _ = self.state(option, folder)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(careless, expected, strict=True))
        assert len(looks) == (2 if option == "accumulated" else 6)


class Reports(transformers.TrainerCallback):
    """What any reporter gets."""

    def __init__(self):
        self.found = []

    def on_log(self, args, state, control, *, logs, **_):
        self.found.append((state.global_step, dict(logs)))

    def steps_with(self, name):
        return [step for step, logs in self.found if name in logs]


def monitored(folder, *callbacks, steps=25, every=10, resume=None, model=None, **options):
    model = Regression() if model is None else model
    optimizer = OPTIMIZERS["adam"](model.parameters())
    data = rows(batches(steps))
    one = trainer(model, data, folder, *callbacks, optimizer=optimizer, **options)
    monitor = MonitorCallback(one, every=every)
    one.train(resume_from_checkpoint=resume)
    return one, monitor


class TestMonitorWrites:
    def test_few_numbers_at_every_nth_step(self, folder):
        reports = Reports()
        one, _ = monitored(folder, reports)
        assert reports.steps_with("equipoise/update_ratio") == [1, 11, 21]
        names = {n for _, logs in reports.found for n in logs if n.startswith("equipoise/")}
        assert {"equipoise/gradient_spread", "equipoise/dead_units"} < names
        assert len(names) <= 8
        history = [entry["step"] for entry in one.state.log_history if names <= entry.keys()]
        assert history == [1, 11, 21]

    def test_beside_what_the_trainer_logs(self, folder):
        """A log of ours must not count as the one that the trainer wants to write."""
        reports = Reports()
        monitored(folder, reports, every=5, logging_strategy="steps", logging_steps=1)
        assert reports.steps_with("loss") == list(range(1, 26))
        assert reports.steps_with("equipoise/update_ratio") == [1, 6, 11, 16, 21]

    def test_what_the_tracker_finds_in_a_plain_loop(self, folder):
        _, monitor = monitored(folder, steps=9, every=4)
        net = mlp()
        optimizer = OPTIMIZERS["adam"](net.parameters())
        with track(net, optimizer=optimizer, every=4, activations=False) as tracker:
            for x, y in batches(9):
                optimizer.zero_grad()
                mse_loss(net(x), y).backward()
                optimizer.step()
        for look, sample in zip(monitor.tracker.history, tracker.history, strict=True):
            assert look.values["updates/ratio"] == sample.values["updates/ratio"]
            assert look.values["updates/net.0/ratio"] == sample.values["updates/0/ratio"]

    def test_the_step_where_the_model_itself_is_never_called(self, folder):
        """A loss of the user's own may call its parts."""
        model = Regression()
        optimizer = OPTIMIZERS["adam"](model.parameters())
        one = trainer(model, rows(batches(3)), folder, optimizer=optimizer)
        one.compute_loss = lambda model, inputs, *_, **__: mse_loss(
            model.net(inputs["x"]), inputs["labels"]
        )
        monitor = MonitorCallback(one, every=2)
        one.train()
        assert len(monitor.tracker.history) == 2
        assert "updates/ratio" in monitor.tracker.latest


class TestMonitorResumes:
    def test_where_it_was(self, folder):
        straight, _ = monitored(folder, steps=14, every=4, save_strategy="steps", save_steps=6)
        path = str(folder / "checkpoint-6")
        model = Regression(mlp(seed=9))
        again, _ = monitored(folder, steps=14, every=4, resume=path, model=model)
        assert torch.equal(flat(model.net), flat(straight.model.net))
        assert again.state.log_history[:-1] == straight.state.log_history[:-1]


class TestMonitorDetaches:
    def hooks(self, one, optimizer):
        return [
            *one.model._forward_pre_hooks.values(),
            *optimizer._optimizer_step_pre_hooks.values(),
            *optimizer._optimizer_step_post_hooks.values(),
        ]

    @pytest.fixture
    def optimizer_and_trainer(self, folder):
        def make(*callbacks):
            model = Regression()
            optimizer = OPTIMIZERS["adam"](model.parameters())
            data = rows(batches(3))
            return optimizer, trainer(model, data, folder, *callbacks, optimizer=optimizer)

        return make

    def test_at_the_end(self, optimizer_and_trainer):
        optimizer, one = optimizer_and_trainer()
        MonitorCallback(one, every=1)
        one.train()
        assert self.hooks(one, optimizer) == []

    def test_after_an_exception_on_leaving_the_block(self, optimizer_and_trainer):
        optimizer, one = optimizer_and_trainer(Interrupting())
        with pytest.raises(ZeroDivisionError), MonitorCallback(one, every=1) as monitor:
            one.train()
        assert self.hooks(one, optimizer) == []
        assert len(monitor.tracker.history) == 1

    def test_without_a_block_when_the_next_training_begins(self, optimizer_and_trainer):
        """Callbacks are not told that a training has failed."""
        broken = Interrupting()
        optimizer, one = optimizer_and_trainer(broken)
        MonitorCallback(one, every=1)
        with pytest.raises(ZeroDivisionError):
            one.train()
        assert self.hooks(one, optimizer) != []
        one.remove_callback(broken)
        one.train()
        assert self.hooks(one, optimizer) == []


class TestMonitorRefuses:
    def test_growth_of_a_loss_that_the_model_does_not_return(self, folder):
        class Silent(Regression):
            def forward(self, x, labels):
                return {"logits": self.net(x)}

        model = Silent()
        optimizer = OPTIMIZERS["adam"](model.parameters())
        one = trainer(model, rows(batches(1)), folder, optimizer=optimizer)
        one.compute_loss = lambda model, inputs, *_, **__: mse_loss(
            model(**inputs)["logits"], inputs["labels"]
        )
        MonitorCallback(one, growth=True)
        with pytest.raises(ValueError, match="need the model's own loss"):
            one.train()

    def test_what_is_no_trainer(self):
        with pytest.raises(TypeError, match="takes the Trainer that it watches, got 'trainer'"):
            MonitorCallback("trainer")

    @pytest.mark.parametrize("every", [0, 2.5])
    def test_an_interval_at_once(self, every):
        with pytest.raises(ValueError, match="every must be"):
            MonitorCallback(None, every=every)
