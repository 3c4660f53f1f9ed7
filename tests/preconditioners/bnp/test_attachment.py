"""attach(): any optimizer, groups and schedulers untouched, decay decoupled, misuse refused."""

import copy
import gc
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from equipoise.preconditioners import BNP
from equipoise.preconditioners.bnp.maps import (
    Factors,
    from_standardised,
    precondition,
    to_standardised,
)
from support.bnp_problems import OPTIMIZERS, attached, batches, distance, flat, mlp, train

EVERY = OPTIMIZERS | {
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.001),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "fused adam": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, maximize=False),
}


class Lion(torch.optim.Optimizer):
    """A third party's optimizer: signs of an interpolated momentum."""

    def __init__(self, params, lr=1e-3, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * torch.sign(0.9 * m + 0.1 * p.grad))
                m.lerp_(p.grad, 0.01)


EVERY["lion"] = lambda p: Lion(p, lr=0.003, weight_decay=0.1)


@pytest.mark.parametrize("optimizer", EVERY)
class TestEveryOptimizer:
    def test_trains_and_gives_gradients_and_groups_back(self, optimizer):
        model = mlp()
        made = EVERY[optimizer](model.parameters())
        groups = copy.deepcopy(
            [{k: v for k, v in g.items() if k != "params"} for g in made.param_groups]
        )
        BNP(model).attach(made)
        losses = train(model, made, batches(1) * 40)
        assert losses[-1] < losses[0]
        made.zero_grad()
        mse_loss(model(batches(1)[0][0]), batches(1)[0][1]).backward()
        raw = [p.grad for p in model.parameters()]
        values = [g.clone() for g in raw]
        made.step()
        assert all(p.grad is g for p, g in zip(model.parameters(), raw, strict=True))
        assert all(map(torch.equal, raw, values))
        after = [{k: v for k, v in g.items() if k != "params"} for g in made.param_groups]
        assert after == groups
        assert [p for g in made.param_groups for p in g["params"]] == list(model.parameters())

    def test_step_maps_are_exactly_two_sided(self, optimizer):
        """A twin whose gradients and steps are mapped by hand, layer by layer."""
        model, twin = mlp(), mlp()
        made, plain = EVERY[optimizer](model.parameters()), EVERY[optimizer](twin.parameters())
        pre = BNP(model).attach(made)
        shrink = next(g["lr"] * (g.get("weight_decay") or 0.0) for g in plain.param_groups)
        for group in plain.param_groups:
            if "weight_decay" in group:
                group["weight_decay"] = 0.0
        for x, y in batches(4):
            train(model, made, [(x, y)])
            factors = pre._banks.factors(squared=False)
            plain.zero_grad()
            mse_loss(twin(x), y).backward()
            old = copy.deepcopy(twin)
            with torch.no_grad():
                for name, f in factors.items():
                    layer = twin.get_submodule(name)
                    layer.weight.grad = (
                        layer.weight.grad - torch.outer(layer.bias.grad, f.mean)
                    ) * f.columns
                    layer.bias.grad = layer.bias.grad * f.bias
            plain.step()
            with torch.no_grad():
                for name, f in factors.items():
                    layer, before = twin.get_submodule(name), old.get_submodule(name)
                    step = (layer.weight - before.weight) * f.columns
                    bias = (layer.bias - before.bias) * f.bias - step @ f.mean
                    layer.weight.copy_(before.weight * (1 - shrink) + step)
                    layer.bias.copy_(before.bias * (1 - shrink) + bias)
        assert distance(model, twin) < 1e-12


def test_muon_on_weights_and_sgd_on_biases():
    """Halves of a layer in two optimizers: the weight's step moves the bias all the same."""
    model = mlp()
    weights = [p for p in model.parameters() if p.dim() == 2]
    biases = [p for p in model.parameters() if p.dim() == 1]
    optimizers = [torch.optim.Muon(weights, lr=0.02), torch.optim.SGD(biases, lr=0.05)]
    pre = BNP(model)
    for optimizer in optimizers:
        pre.attach(optimizer)
    losses = []
    for x, y in batches(1) * 40:
        model.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert pre.report()["0"].updates == 40
    assert pre.report()["0"].reason == ""


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_sgds_are_one(order):
    model = mlp()
    halves = [[p for p in model.parameters() if p.dim() == d] for d in (2, 1)]
    optimizers = [torch.optim.SGD(half, lr=0.05) for half in halves]
    pre = BNP(model)
    for i in order:
        pre.attach(optimizers[i])
    for x, y in batches(10):
        model.zero_grad()
        mse_loss(model(x), y).backward()
        for i in order:
            optimizers[i].step()
    assert distance(model, attached(mlp(), "sgd", batches(10))[0]) < 1e-14


class TestWeightDecay:
    def decayed(self, make, split=False, data=None):
        model = nn.Sequential(mlp((5, 4)), nn.LayerNorm(4, dtype=torch.float64), mlp((4, 3)))
        parameters = model.parameters()
        if split:
            mine = [p for i in (0, 2) for p in model[i].parameters()]
            parameters = [{"params": mine}, {"params": model[1].parameters()}]
        optimizer = make(parameters)
        BNP(model).attach(optimizer)
        train(model, optimizer, batches(5) if data is None else data)
        return model, optimizer

    @pytest.mark.parametrize("decay", [0.0, 0.3])
    @pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.NAdam])
    def test_a_group_with_other_parameters_behaves_like_two_groups(self, kind, decay):
        """The normaliser's parameters keep the optimizer's own decay."""
        found = [
            self.decayed(lambda p: kind(p, lr=0.01, weight_decay=decay), split)[0]
            for split in (False, True)
        ]
        assert distance(*found) == 0

    def test_the_group_is_the_users_again(self):
        _, optimizer = self.decayed(lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3))
        assert len(optimizer.param_groups) == 1
        assert optimizer.param_groups[0]["weight_decay"] == 0.3
        assert len(optimizer.param_groups[0]["params"]) == 6

    def test_one_step_shrinks_by_lr_times_decay(self):
        models = [
            self.decayed(
                lambda p, d=d: torch.optim.Adam(p, lr=0.01, weight_decay=d), data=batches(1)
            )[0]
            for d in (0.0, 0.3)
        ]
        start = mlp((5, 4))
        for i, old in ((0, start), (2, mlp((4, 3)))):
            torch.testing.assert_close(
                flat(models[0][i]) - flat(models[1][i]), 0.003 * flat(old), rtol=1e-10, atol=1e-14
            )

    def test_decay_inside_the_optimizer_would_move_the_bias(self):
        """P maps the decay of the weights into the bias."""
        factors = Factors(
            torch.full((5,), 3.0).double(), torch.ones(5).double(), torch.ones(()).double()
        )
        layer = mlp((5, 4))[0]
        mapped = from_standardised(
            -0.01 * layer.weight.detach(), -0.01 * layer.bias.detach(), factors, inplace=False
        )
        assert (mapped[1] + 0.01 * layer.bias).abs().max() > 0.01


def test_a_scheduler_sets_the_same_rates():
    rates = []
    for preconditioned in (True, False):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)
        if preconditioned:
            BNP(model).attach(optimizer)
        rates.append([])
        for batch in batches(10):
            train(model, optimizer, [batch])
            scheduler.step()
            rates[-1].append(
                (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"])
            )
    assert rates[0] == rates[1]


class TestRefusals:
    def test_closures(self):
        model = mlp()
        optimizer = OPTIMIZERS["adam"](model.parameters())
        BNP(model).attach(optimizer)
        for call in (
            lambda: optimizer.step(lambda: 0.0),
            lambda: optimizer.step(closure=lambda: 0.0),
        ):
            with pytest.raises(TypeError, match=r"Call backward\(\), then step\(\)"):
                call()

    def test_a_closure_may_be_run_once(self):
        model = mlp()
        optimizer = OPTIMIZERS["adam"](model.parameters())
        BNP(model).attach(optimizer, run_closure=True)
        calls = []
        for x, y in batches():

            def closure(x=x, y=y):
                calls.append(1)
                optimizer.zero_grad()
                loss = mse_loss(model(x), y)
                loss.backward()
                return loss

            assert optimizer.step(closure) > 0
        assert len(calls) == 30
        assert torch.equal(flat(model), flat(attached(mlp(), "adam")[0]))

    @pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.ASGD])
    def test_optimizers_that_cannot_be_mapped(self, kind):
        model = mlp()
        with pytest.raises(TypeError, match=kind.__name__):
            BNP(model).attach(kind(model.parameters()))

    def test_no_optimizer(self):
        with pytest.raises(TypeError, match="got str"):
            BNP(mlp()).attach("sgd")

    def test_foreign_optimizers_and_second_attachments(self):
        model = mlp()
        pre = BNP(model)
        with pytest.raises(ValueError, match="trains no weight"):
            pre.attach(torch.optim.SGD(mlp().parameters(), lr=0.1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pre.attach(optimizer)
        with pytest.raises(ValueError, match="attached already"):
            pre.attach(optimizer)
        with pytest.raises(ValueError, match="Leave step"):
            pre.step()

    def test_decay_without_a_rate_is_refused(self):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
        rate = optimizer.param_groups[0].pop("lr")
        with pytest.raises(ValueError, match="weight_decay and no lr"):
            BNP(model).attach(optimizer)
        optimizer.param_groups[0]["lr"] = rate
        BNP(model).attach(optimizer)

    @pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
    def test_step_with_an_adaptive_optimizer(self, kind):
        model = mlp()
        with pytest.raises(TypeError, match=r"Use attach\(optimizer\)"):
            BNP(model).step(kind(model.parameters()))
        BNP(model).step(torch.optim.SGD(model.parameters(), lr=0.1))

    def test_step_twice_for_one_gradient(self):
        model = mlp()
        pre = BNP(model)
        model(batches(1)[0][0]).sum().backward()
        pre.step()
        with pytest.raises(ValueError, match="twice"):
            pre.step()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rho": 1.0}, "rho must be a number in"),
            ({"eps": (-1.0, 0.0)}, r"eps\[0\] must be a number in"),
            ({"variance": "within"}, "variance must be one of total, batch"),
            ({"conv_stats": "tap"}, "conv_stats must be one of"),
            ({"rows": "none"}, "rows must be one of"),
            ({"update_every": 0}, "update_every must be a whole number of at least 1"),
            ({"max_norm": 0.0}, "max_norm must be a number in"),
            ({"rho": "0.9"}, "rho must be a number in"),
            ({"rho": None}, "rho must be a number in"),
            ({"rho": True}, "rho must be a number in"),
            ({"eps": 0.01}, "eps must be two numbers"),
            ({"eps": ("a", 0.0)}, r"eps\[0\] must be a number in"),
            ({"variance": 3}, "variance must be one of total, batch; got 3"),
            ({"bias_correction": "no"}, "bias_correction must be True or False; got 'no'"),
            ({"update_every": 2.0}, "update_every must be a whole number"),
            ({"max_norm": "1"}, "max_norm must be a number in"),
            ({"row_scale": "mine"}, "row_scale must be"),
            ({"preset": "mine"}, "preset must be"),
            ({"include": ["head"]}, "'head', which fits no module"),
        ],
    )
    def test_options(self, options, message):
        with pytest.raises(ValueError, match=message):
            BNP(mlp(), **options)

    @pytest.mark.parametrize(
        "options",
        [
            {"include": 3},
            {"exclude": [3]},
            {"include": "0"},
            {"process_group": "world"},
        ],
        ids=str,
    )
    def test_types_of_selections(self, options):
        with pytest.raises(TypeError, match=next(iter(options))):
            BNP(mlp(), **options)

    @pytest.mark.parametrize("damage", ["steps", "layers", "seen", "mean", "variance", "weight"])
    def test_states_that_are_not_whole(self, damage):
        """Whatever is missing or of another type; the statistics stay as they are."""
        _, _, pre = attached(mlp(), "adam", batches(2))
        for kind in ("missing", "text", None):
            state, before = pre.state_dict(), repr(pre.state_dict())
            holder = state if damage in state else state["layers"]["2"]
            holder[damage] = kind
            if kind == "missing":
                del holder[damage]
            with pytest.raises(ValueError, match=r"state .*Give what BNP\.state_dict"):
                pre.load_state_dict(state)
            assert repr(pre.state_dict()) == before

    @pytest.mark.parametrize(
        "numbers",
        [
            torch.full((7,), float("nan")),
            torch.full((7,), -1.0),
            torch.zeros(7, dtype=torch.complex64),
            torch.zeros(7, device="meta"),
            torch.zeros(7).to_sparse(),
        ],
        ids=["nan", "negative", "complex", "meta", "sparse"],
    )
    def test_states_of_other_numbers(self, numbers):
        _, _, pre = attached(mlp(), "adam", batches(2))
        state, before = pre.state_dict(), repr(pre.state_dict())
        state["layers"]["2"]["variance"] = numbers
        with pytest.raises(ValueError, match="variance of '2' is not of finite real numbers"):
            pre.load_state_dict(state)
        assert repr(pre.state_dict()) == before
        with pytest.raises(ValueError, match="counts -1 steps"):
            pre.load_state_dict(pre.state_dict() | {"steps": -1})

    def trained(self):
        model = mlp()
        optimizer = OPTIMIZERS["adam"](model.parameters())
        pre = BNP(model).attach(optimizer)
        train(model, optimizer, batches(4)[:2])
        return model, optimizer, pre

    def test_a_second_bnp_of_one_optimizer(self):
        """Two would precondition twice; the first goes on as if nothing had been asked."""
        model, optimizer, _ = self.trained()
        second = BNP(model)
        with pytest.raises(ValueError, match=r"Another BNP .* detach"):
            second.attach(optimizer)
        with pytest.raises(ValueError, match="Another BNP"):
            BNP(model, rho=0.5).attach(optimizer)
        second.detach()
        train(model, optimizer, batches(4)[2:])
        assert torch.equal(flat(model), flat(attached(mlp(), "adam", batches(4))[0]))

    def test_a_refused_bnp_that_nobody_keeps_leaves_no_hooks(self):
        model, optimizer, _ = self.trained()
        hooks = [len(m._forward_hooks) for m in model.modules()]
        with pytest.raises(ValueError, match="Another BNP"):
            BNP(model).attach(optimizer)
        assert [len(m._forward_hooks) for m in model.modules()] == hooks

    def test_an_attached_bnp_need_not_be_kept(self):
        model = mlp()
        optimizer = OPTIMIZERS["adam"](model.parameters())
        BNP(model).attach(optimizer)
        train(model, optimizer, batches(4))
        assert torch.equal(flat(model), flat(attached(mlp(), "adam", batches(4))[0]))

    def test_after_the_first_is_detached_the_second_is_welcome(self):
        """It preconditions, from its own beginning, as in a process of its own."""
        model, optimizer, first = self.trained()
        twin, separate = copy.deepcopy((model, optimizer.state_dict()))
        first.detach()
        BNP(model).attach(optimizer)
        train(model, optimizer, batches(4)[2:])
        for preconditioned in (True, False):
            alone = copy.deepcopy(twin)
            plain = OPTIMIZERS["adam"](alone.parameters())
            plain.load_state_dict(separate)
            if preconditioned:
                BNP(alone).attach(plain)
            train(alone, plain, batches(4)[2:])
            assert torch.equal(flat(model), flat(alone)) is preconditioned

    def test_refusals_keep_nothing_alive(self):
        model, optimizer, pre = self.trained()
        foreign = torch.optim.SGD(mlp().parameters(), lr=0.1)
        other = BNP(model)

        def refused():
            for call in (
                lambda: pre.attach(optimizer),
                lambda: other.attach(optimizer),
                lambda: pre.attach(foreign),
                lambda: pre.attach("sgd"),
                lambda: optimizer.step(lambda: 0.0),
                lambda: BNP(model, rho=2.0),
                lambda: BNP(nn.ReLU()),
            ):
                with pytest.raises((TypeError, ValueError)):
                    call()

        def count():
            gc.collect()
            return sum(type(o).__module__.startswith("equipoise") for o in gc.get_objects())

        refused()
        before = count()
        refused()
        assert count() == before


def test_sparse_gradients_of_an_embedding_are_clipped_with_the_rest():
    """The norm is that of all gradients, dense or sparse."""

    def trained(sparse):
        torch.manual_seed(0)
        model = nn.Sequential(nn.EmbeddingBag(9, 6, sparse=sparse), nn.Linear(6, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        BNP(model, max_norm=0.01).attach(optimizer)
        tokens = torch.tensor([[0, 1], [1, 1], [2, 3], [4, 5]])
        for _ in range(3):
            model.zero_grad()
            model(tokens).square().mean().backward()
            raw = model[0].weight.grad.clone()
            optimizer.step()
            assert torch.equal(model[0].weight.grad.to_dense(), raw.to_dense())
        return flat(model)

    torch.testing.assert_close(trained(sparse=True), trained(sparse=False))


def test_squared_factors_are_both_maps_in_turn():
    """PPᵀ/q² is Pᵀ/q followed by P/q."""
    model, _, pre = attached(mlp(), "sgd", batches(2))
    layer = model[0]
    once = pre._banks.factors(squared=True)["0"]
    half = pre._banks.factors(squared=False)["0"]
    G, g = layer.weight.grad, layer.bias.grad
    direct = precondition(G, g, once, inplace=False)
    both = from_standardised(*to_standardised(G, g, half, inplace=False), half, inplace=False)
    for a, b in zip(direct, both, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def trained(make, steps=3, later=None):
    """Parameters after steps of BNP under an optimizer; ``later`` runs before the second one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    data = 3 + torch.randn(16, 4)
    optimizer = make(model)
    bnp = BNP(model).attach(optimizer)
    for step in range(steps):
        if step == 1 and later is not None:
            later(model, optimizer)
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()], bnp.report()


NOT_CENTRED = "no trained bias: scaled by second moments"


class TestGroups:
    """Layers are centred if their biases move, whenever the groups came to say so."""

    @pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
    def test_a_bias_that_comes_later_centres_its_layer(self, kind):
        def weights(model):
            return kind([p for name, p in model.named_parameters() if name != "0.bias"], lr=0.1)

        def add(model, optimizer):
            optimizer.add_param_group({"params": [model[0].bias]})

        _, before = trained(weights, steps=1)
        _, after = trained(weights, later=add)
        _, ever = trained(weights)
        assert (
            before["0"].reason == ever["0"].reason == "no trained bias: scaled by second moments"
        )
        assert after["0"].reason == ""

    @pytest.mark.parametrize(
        "kind", [torch.optim.SGD, partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam]
    )
    def test_a_bias_with_a_rate_of_0_is_frozen(self, kind):
        def still(model):
            biases = [p for p in model.parameters() if p.ndim == 1]
            weights = [p for p in model.parameters() if p.ndim > 1]
            return kind([{"params": weights}, {"params": biases, "lr": 0.0}], lr=0.1)

        def without(model):
            return kind([p for p in model.parameters() if p.ndim > 1], lr=0.1)

        found, report = trained(still)
        expected, _ = trained(without)
        assert all(map(torch.equal, found, expected))
        assert report["0"].reason == NOT_CENTRED

    def test_a_rate_of_0_in_a_tensor_or_an_optimizer_of_its_own_freezes_too(self):
        def in_tensors(model):
            biases = [p for p in model.parameters() if p.ndim == 1]
            weights = [p for p in model.parameters() if p.ndim > 1]
            rates = torch.tensor(0.1), torch.tensor(0.0)
            return torch.optim.Adam(
                [{"params": weights, "lr": rates[0]}, {"params": biases, "lr": rates[1]}], lr=0.1
            )

        def without(model):
            return torch.optim.Adam([p for p in model.parameters() if p.ndim > 1], lr=0.1)

        expected, _ = trained(without)
        found, report = trained(in_tensors)
        assert all(map(torch.allclose, found, expected))  # tensors round a rate otherwise
        assert report["0"].reason == NOT_CENTRED
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        data = 3 + torch.randn(16, 4)
        own = torch.optim.Adam([p for p in model.parameters() if p.ndim == 1], lr=0.0)
        others = without(model)
        bnp = BNP(model).attach(others).attach(own)
        for _ in range(3):
            model.zero_grad()
            model(data).square().mean().backward()
            others.step()
            own.step()
        assert all(map(torch.equal, model.parameters(), expected))
        bnp.detach()

    def test_a_rate_of_0_for_all_freezes_nothing(self):
        """As in the first step of a warm-up, whose moments the next steps go on from."""

        def waiting(model):
            return torch.optim.Adam([{"params": [p]} for p in model.parameters()], lr=0.0)

        _, report = trained(waiting, steps=1)
        assert report["0"].reason == ""

    @pytest.mark.parametrize("rates", [(0.1, 0.1), (0.02, 0.1), (0.0, 0.1)])
    def test_plain_sgd_is_the_limit_of_momentum_at_any_two_rates(self, rates):
        """Of one rate both forms are the same; of two, P acts on the step, and not on a rate."""

        def made(momentum):
            def make(model):
                groups = [
                    {"params": [p for p in model.parameters() if (p.ndim > 1) == of_weights]}
                    for of_weights in (True, False)
                ]
                for group, rate in zip(groups, rates, strict=True):
                    group["lr"] = rate
                return torch.optim.SGD(groups, lr=1.0, momentum=momentum)

            return make

        found, expected = (trained(made(momentum))[0] for momentum in (0.0, 1e-300))
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))
