"""The rest of the training loop: accumulation, scalers, checkpointing, compiling, resuming."""

import contextlib
import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from equipoise.preconditioners import BNP
from support.bnp_problems import OPTIMIZERS, attached, batches, distance, flat, mlp, stepped, train


def accumulate(sizes, optimizer="adam", **options):
    """Train with every batch of 64 cut into micro-batches."""
    model = mlp()
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    BNP(model, **options).attach(optimizer)
    for x, y in batches(10, rows=64):
        optimizer.zero_grad()
        for a, b in zip(x.split(sizes), y.split(sizes), strict=True):
            (mse_loss(model(a), b) * len(a) / 64).backward()
        optimizer.step()
    return model


class TestAccumulation:
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    @pytest.mark.parametrize("sizes", [[16] * 4, [24, 24, 16], [1, 63]])
    def test_micro_batches_are_one_batch(self, sizes, optimizer):
        assert distance(accumulate([64], optimizer), accumulate(sizes, optimizer)) < 1e-13

    def test_q_counts_the_rows_of_all_micro_batches(self):
        """q² = n/N: with the rows of the last micro-batch alone it would be 4 times larger."""
        model = mlp((100, 4), dtype=torch.float64)
        found = []
        for sizes in ([64], [16] * 4):
            twin = copy.deepcopy(model)
            pre = BNP(twin)
            for part in batches(1, 64, 100, 4)[0][0].split(sizes):
                (twin(part).square().sum() / 64).backward()
            pre.step()
            found.append(twin[0].weight.grad)
        torch.testing.assert_close(*found, rtol=0, atol=1e-14)

    def test_transforming_each_micro_batch_differs(self):
        model = mlp()
        pre = BNP(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for x, y in batches(10, rows=64):
            optimizer.zero_grad()
            for a, b in zip(x.split(16), y.split(16), strict=True):
                (mse_loss(model(a), b) / 4).backward()
                pre.step()
            optimizer.step()
        assert distance(model, accumulate([64], "sgd")) > 1e-3


class TestScaler:
    @pytest.mark.parametrize("mode", ["attach", "step"])
    def test_scaling_changes_nothing(self, mode):
        models = []
        for enabled in (True, False):
            model = mlp(dtype=torch.float32)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            scaler = torch.amp.GradScaler("cpu", enabled=enabled)
            pre = BNP(model)
            if mode == "attach":
                pre.attach(optimizer)
            for x, y in batches(8, dtype=torch.float32):
                optimizer.zero_grad()
                scaler.scale(mse_loss(model(x), y)).backward()
                scaler.unscale_(optimizer)
                if mode == "step":
                    pre.step()
                scaler.step(optimizer)
                scaler.update()
            models.append(model)
        assert torch.equal(flat(models[0]), flat(models[1]))

    @pytest.mark.parametrize("fused", [False, True])
    def test_a_skipped_step_changes_nothing(self, fused):
        """A fused optimizer skips by itself: only the statistics see the batch."""
        models = []
        for broken in (True, False):
            model = mlp(dtype=torch.float32)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=10**6)
            BNP(model, rho=0.0).attach(optimizer)
            for i, (x, y) in enumerate(batches(6, dtype=torch.float32)):
                if i == 3:
                    if not broken:
                        continue
                    y = y * float("inf")
                before = flat(model).clone()
                optimizer.zero_grad()
                scaler.scale(mse_loss(model(x), y)).backward()
                scaler.step(optimizer)
                if i == 3:
                    assert torch.equal(flat(model), before)
                scaler.update(8.0)
            models.append(model)
        assert distance(*models) <= (1e-6 if fused else 0)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_autocast(self, dtype):
        model = mlp(dtype=torch.float32)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        pre = BNP(model).attach(optimizer)
        losses = []
        for x, y in batches(20, dtype=torch.float32) * 2:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = mse_loss(model(x).float(), y)
                loss.backward()
                optimizer.step()  # even inside the block
            losses.append(float(loss.detach()))
        assert sum(losses[-20:]) < sum(losses[:20])
        assert pre.state_dict()["layers"]["2"]["mean"].dtype == torch.float32

    def test_low_precision_weights(self):
        model = mlp(dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        BNP(model).attach(optimizer)
        losses = train(model, optimizer, batches(20, dtype=torch.bfloat16) * 2)
        assert losses[-20:].mean() < losses[:20].mean()


@pytest.mark.parametrize("max_norm", [0.01, 1e9])
def test_clipping_bounds_what_the_optimizer_sees(max_norm):
    seen = []
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    BNP(model, max_norm=max_norm).attach(optimizer)
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())
    )
    train(model, optimizer, batches(5))
    norms = torch.stack(seen)
    if max_norm == 0.01:
        torch.testing.assert_close(norms, torch.full((5,), 0.01).double(), rtol=1e-3, atol=0)
    else:
        assert norms.min() > 0.02


def test_clipping_leaves_all_gradients_to_the_user():
    """Also those of parameters that are not preconditioned."""
    model = nn.Sequential(mlp((5, 4)), nn.LayerNorm(4, dtype=torch.float64), mlp((4, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    BNP(model, max_norm=0.01).attach(optimizer)
    x, y = batches(1)[0]
    mse_loss(model(x), y).backward()
    raw = [p.grad for p in model.parameters()]
    values = [g.clone() for g in raw]
    optimizer.step()
    assert all(p.grad is g for p, g in zip(model.parameters(), raw, strict=True))
    assert all(map(torch.equal, raw, values))
    assert torch.stack([g.norm() for g in values]).norm() > 0.01


class Checkpointed(nn.Module):
    def __init__(self, body, reentrant):
        super().__init__()
        self.body, self.reentrant = body, reentrant

    def forward(self, x):
        return checkpoint(self.body, x.requires_grad_(), use_reentrant=self.reentrant)


class TestCheckpointing:
    @pytest.mark.parametrize("reentrant", [True, False])
    def test_changes_nothing(self, reentrant):
        plain = attached(mlp(), "adam")[0]
        other, _, pre = attached(Checkpointed(mlp(), reentrant), "adam", _fresh())
        assert torch.equal(flat(other), flat(plain))
        assert pre.report()["body.0"].updates == 30

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_hooks_do_run_twice(self, reentrant):
        model, calls = Checkpointed(mlp(), reentrant), []
        model.body[0].register_forward_hook(lambda *_: calls.append(1))
        model(batches(1)[0][0]).sum().backward()
        assert len(calls) == 2


def _fresh():
    return [(x.clone(), y) for x, y in batches()]


@pytest.mark.parametrize(("backend", "mode"), [("eager", "step"), ("aot_eager", "attach")])
def test_compiling_changes_nothing(backend, mode):
    torch._dynamo.reset()
    results = []
    for compiled in (False, True):
        model = mlp()
        optimizer = OPTIMIZERS["adam" if mode == "attach" else "sgd"](model.parameters())
        pre = BNP(model)
        if mode == "attach":
            pre.attach(optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler's own making
            runner = torch.compile(model, backend=backend) if compiled else model
            train(runner, optimizer, batches(6), None if mode == "attach" else pre)
        assert pre.report()["0"].updates == 6
        results.append(model)
    assert distance(*results) < 1e-13


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_model_may_have_been_compiled_and_run_before(wrapped):
    """Compiled code looks for no new hooks, and for none that are gone."""
    torch.compiler.reset()
    model, twin = mlp(), mlp()
    runner = torch.compile(model, backend="eager")
    runner(batches(1)[0][0])
    pre, other = BNP(runner if wrapped else model), BNP(twin)
    for m, bnp in ((model, pre), (twin, other)):
        optimizer = OPTIMIZERS["adam"](m.parameters())
        bnp.attach(optimizer)
        train(runner if m is model else m, optimizer, batches(3), None)
    assert pre.report()["0"].updates == other.report()["0"].updates == 3
    assert distance(model, twin) < 1e-13
    pre.detach()
    runner(batches(1)[0][0]).sum().backward()
    assert all(layer.pending is None for layer in pre._banks.layers)
    torch.compiler.reset()


def test_a_step_without_memory_has_the_shapes_alone():
    model = mlp().to("meta")
    optimizer = OPTIMIZERS["adam"](model.parameters())
    BNP(model).attach(optimizer)
    model(batches(1)[0][0].to("meta")).sum().backward()
    optimizer.step()
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_the_default_device_does_not_matter():
    """The batch is so large that moments are summed in chunks, in a buffer."""
    x = torch.randn(2, 2, 300, 300, generator=torch.Generator().manual_seed(0))
    found = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3, bias=False))
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        with torch.device(device), BNP(model, conv_stats="exact").attach(optimizer) as pre:
            for _ in range(2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            pre.load_state_dict(pre.state_dict())
        found.append([p.detach() for p in model.parameters()])
    assert_close(*found, rtol=0, atol=0)


class TestResume:
    @pytest.mark.parametrize("update_every", [1, 4])
    @pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adamw"])
    def test_to_the_bit(self, optimizer, update_every, tmp_path):
        data = batches(14)
        straight = attached(mlp(), optimizer, data, update_every=update_every)[0]
        model = mlp()
        first = OPTIMIZERS[optimizer](model.parameters())
        pre = BNP(model, update_every=update_every).attach(first)
        train(model, first, data[:6])
        path = tmp_path / "state.pt"
        torch.save([model.state_dict(), first.state_dict(), pre.state_dict()], path)
        saved = torch.load(path, weights_only=True)

        resumed = mlp(seed=9)
        second = OPTIMIZERS[optimizer](resumed.parameters())
        again = BNP(resumed, update_every=update_every).attach(second)
        for owner, state in zip((resumed, second, again), saved, strict=True):
            owner.load_state_dict(state)
        train(resumed, second, data[6:])
        assert torch.equal(flat(resumed), flat(straight))

    def test_without_the_state_the_run_differs(self):
        data = batches(14)
        straight = attached(mlp(), "sgd", data)[0]
        resumed = attached(attached(mlp(), "sgd", data[:6])[0], "sgd", data[6:])[0]
        assert distance(resumed, straight) > 1e-4

    def test_another_models_state_is_refused(self):
        state = BNP(mlp()).state_dict()
        with pytest.raises(ValueError, match=r"missing \['6'\]"):
            BNP(mlp((5, 7, 6, 3, 3))).load_state_dict(state)
        with pytest.raises(ValueError, match="needs 4"):
            BNP(mlp((4, 7, 6, 3))).load_state_dict(state)
        with pytest.raises(ValueError, match="not a state of BNP"):
            BNP(mlp()).load_state_dict({})


class TestCopies:
    def test_a_copied_model_is_plain(self):
        """An EMA copy neither feeds the statistics nor is preconditioned."""
        model = mlp()
        pre = BNP(model)
        for copied in (copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model)):
            train(copied, torch.optim.SGD(copied.parameters(), lr=0.05), batches(3))
        assert pre.report()["0"].updates == 0
        assert all(layer.pending is None for layer in pre._banks.layers)

    def test_model_optimizer_and_bnp_copied_together_train_alike(self):
        model, data = mlp(), batches(12)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        pre = BNP(model).attach(optimizer)
        train(model, optimizer, data[:6])
        twin, twin_optimizer, _ = copy.deepcopy((model, optimizer, pre))
        for m, o in ((model, optimizer), (twin, twin_optimizer)):
            train(m, o, data[6:])
        assert torch.equal(flat(model), flat(twin))
        assert not torch.equal(flat(model), flat(mlp()))

    def test_checkpoint_keys_are_those_of_the_model(self):
        model = mlp()
        keys = list(model.state_dict())
        attached_keys = list(attached(model, "adam", batches(2))[0].state_dict())
        assert attached_keys == keys


class TestDetach:
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_restores_plain_training(self, optimizer):
        model = mlp()
        first = OPTIMIZERS[optimizer](model.parameters())
        BNP(model).attach(first).detach()
        train(model, first, batches(5))
        plain = mlp()
        train(plain, OPTIMIZERS[optimizer](plain.parameters()), batches(5))
        assert torch.equal(flat(model), flat(plain))
        assert not any(m._forward_hooks for m in model.modules())
        assert distance(attached(mlp(), optimizer, batches(5))[0], plain) > 1e-3

    def test_an_exception_in_the_block_detaches(self):
        model = mlp()
        optimizer = OPTIMIZERS["adam"](model.parameters())
        pre = BNP(model)
        with contextlib.suppress(KeyError), pre:
            pre.attach(optimizer)
            raise KeyError
        assert not optimizer._optimizer_step_pre_hooks
        assert not any(m._forward_hooks for m in model.modules())

    def test_it_can_be_attached_again(self):
        model = mlp()
        optimizer = OPTIMIZERS["adam"](model.parameters())
        pre = BNP(model).attach(optimizer)
        train(model, optimizer, batches(3))
        pre.detach()
        pre.attach(optimizer)
        train(model, optimizer, batches(3))
        assert pre.report()["0"].updates == 6


class TestFrozenAndUnused:
    def test_a_frozen_layer_stays_and_the_rest_learns(self):
        model = mlp()
        model[2].requires_grad_(False)
        before = copy.deepcopy(model)
        trained, _, pre = attached(model, "adam")
        assert torch.equal(flat(trained[2]), flat(before[2]))
        assert not torch.equal(flat(trained[0]), flat(before[0]))
        assert pre.report()["2"].reason == "frozen"

    def test_a_frozen_bias_means_second_moments(self):
        model = mlp((5, 3))
        model[0].bias.requires_grad_(False)
        without = nn.Linear(5, 3, bias=False, dtype=torch.float64)
        found = []
        for m in (model, without):
            pre = BNP(m)
            x, _ = batches(1)[0]
            m(x).sum().backward()
            pre.step()
            found.append(next(m.parameters()).grad)
        torch.testing.assert_close(*found)

    def test_an_unused_layer_stays(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused = mlp((5, 3)), mlp((5, 3))

            def forward(self, x):
                return self.used(x)

        model, _, pre = attached(Two(), "adam")
        assert torch.equal(flat(model.unused), flat(mlp((5, 3))))
        assert pre.report()["unused.0"].updates == 0
        assert pre.report()["used.0"].updates == 30

    def test_gradients_before_any_statistics_are_left_alone(self):
        model = mlp().eval()
        plain, other = copy.deepcopy(model), copy.deepcopy(model)
        train(plain, OPTIMIZERS["sgd"](plain.parameters()), batches(1))
        optimizer = OPTIMIZERS["sgd"](other.parameters())
        BNP(other).attach(optimizer)
        train(other, optimizer, batches(1))
        assert distance(plain, other) < 1e-15


def test_step_and_attach_agree_for_sgd_with_weight_decay():
    model = mlp()
    pre = BNP(model)
    train(model, OPTIMIZERS["sgd decay"](model.parameters()), batches(), pre)
    other = attached(mlp(), "sgd decay")[0]
    assert torch.equal(flat(model), flat(other))
    assert distance(model, stepped(mlp())[0]) > 1e-3


def overflowing(*, early, broken):
    """Train with one batch whose step the scaler skips, or without that batch."""
    model = mlp(dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=10**6)
    BNP(model, rho=0.0).attach(optimizer)
    for i, (x, y) in enumerate(batches(6, dtype=torch.float32)):
        if i == 3 and not broken:
            continue
        if early:
            optimizer.zero_grad()
        loss = mse_loss(model(x), y) * (float("inf") if i == 3 else 1)
        if not early:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(8.0)
    return model


@pytest.mark.parametrize("early", [True, False], ids=["before forward", "after forward"])
def test_a_skipped_step_changes_nothing_wherever_gradients_are_cleared(early):
    """Lightning and many loops clear them between the forward and the backward pass."""
    assert distance(*(overflowing(early=early, broken=b) for b in (True, False))) == 0
