"""Means and variances: exact at once, at every batch size, and where plain sums fail."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise.preconditioners import BNP
from equipoise.preconditioners.bnp import moments
from equipoise.preconditioners.bnp.layer import EAGER
from support.bnp_problems import generator


def watch(batches, **options):
    """Statistics of a linear layer that was trained on these inputs."""
    module = nn.Linear(batches[0].shape[-1], 2, dtype=batches[0].dtype)
    pre = BNP(module, **options)
    for h in batches:
        module.zero_grad()
        module(h).sum().backward()
        pre.step()
    return pre.state_dict()["layers"][""]


def draw(steps, rows, n=4, seed=0, mean=2.0, std=3.0, dtype=torch.float64):
    g = generator(seed)
    return list(
        torch.randn(steps, rows, n, generator=g, dtype=torch.float64).mul(std).add(mean).to(dtype)
    )


@pytest.mark.parametrize("variance", ["total", "batch"])
def test_the_first_step_is_exact(variance):
    (h,) = draw(1, 16)
    found = watch([h], variance=variance)
    assert_close(found["mean"], h.mean(0), rtol=1e-13, atol=0)
    assert_close(found["variance"], h.var(0, correction=0), rtol=1e-12, atol=0)


def test_the_papers_start_is_99_times_off():
    """True variance 0.01: the start at 1 keeps weight 0.99."""
    (h,) = draw(1, 4000, std=0.1)
    found = watch([h], preset="paper")
    assert_close(found["variance"] / 0.01, torch.full((4,), 99.0).double(), rtol=0.01, atol=0)


@pytest.mark.parametrize("rows", [1, 2, 6, 64])
def test_total_variance_is_that_of_the_weighted_mixture(rows):
    data, rho = draw(40, rows), 0.9
    found = watch(data, rho=rho)
    weights = torch.tensor([rho ** (39 - t) for t in range(40)], dtype=torch.float64)
    weights = (weights / weights.sum() / rows).repeat_interleave(rows)[:, None]
    h = torch.cat(data)
    mean = (weights * h).sum(0)
    assert_close(found["mean"], mean, rtol=1e-12, atol=0)
    assert_close(found["variance"], (weights * (h - mean) ** 2).sum(0), rtol=1e-12, atol=0)


class TestOneRow:
    """At N = 1 the variance is that of the stream, within 1 %."""

    def test_total_variance(self):
        found = watch(draw(2000, 1, n=1024), rho=0.996)["variance"].mean() / 9
        assert abs(found - 1) < 0.01

    def test_the_papers_rule(self):
        """Steady state 2/(1 + ρ), with the mean before the update."""
        found = watch(draw(2000, 1, n=1024), rho=0.996, preset="paper")["variance"].mean() / 9
        assert abs(found - 1) < 0.01

    @pytest.mark.parametrize("rows", [2, 6])
    def test_averages_within_batches_lack_one_part_in_n(self, rows):
        found = watch(draw(600, rows, n=256), rho=0.98, variance="batch")["variance"].mean() / 9
        assert abs(found - (rows - 1) / rows) < 0.02


@pytest.mark.parametrize("rows", [1, 64])
def test_mean_1e4_in_float32(rows):
    data = draw(1000 if rows == 1 else 100, rows, n=32, mean=1e4, std=1.0, dtype=torch.float32)
    ours = watch(data, rho=0.999)
    exact = watch([h.double() for h in data], rho=0.999)
    assert ours["mean"].dtype == torch.float32
    assert float((ours["variance"].double() / exact["variance"] - 1).abs().max()) < 0.01


def test_plain_sums_fail_there():
    (h,) = draw(1, 64, mean=1e4, std=1.0, dtype=torch.float32)
    plain = h.square().mean(0) - h.mean(0) ** 2
    assert float((plain / h.double().var(0, correction=0) - 1).abs().max()) > 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_have_float32_statistics(dtype):
    data = [h.to(dtype) for h in draw(5, 64)]
    found, exact = watch(data), watch([h.double() for h in data])
    assert found["variance"].dtype == torch.float32
    assert_close(found["variance"].double(), exact["variance"], rtol=1e-5, atol=0)
    assert_close(found["mean"].double(), exact["mean"], rtol=1e-5, atol=0)


def test_large_batches_are_summed_in_chunks():
    (h,) = draw(1, 3001, n=70)
    found = watch([h])
    assert_close(found["variance"], h.var(0, correction=0), rtol=1e-12, atol=0)


class TestUpdateEvery:
    EVERY = 2
    BEGINNING = EAGER * EVERY

    def test_at_the_beginning_every_step_counts(self):
        data = draw(self.BEGINNING, 8)
        found = watch(data, update_every=self.EVERY, rho=0.9)
        assert_close(found, watch(data, rho=0.9))

    def test_later_every_kth_step_with_the_kth_power_of_the_decay(self):
        """A constant batch is averaged in once for two steps: 1 - 0.9² instead of 1 - 0.9."""
        data = draw(self.BEGINNING + 1, 8)
        found = watch(data, update_every=self.EVERY, rho=0.9)["mean"]
        before = watch(data[:-1], rho=0.9)["mean"] * (1 - 0.9**self.BEGINNING)
        total = 0.9**2 * before + (1 - 0.9**2) * data[-1].mean(0)
        weight = 1 - 0.9 ** (self.BEGINNING + 2)
        assert_close(found, total / weight, rtol=1e-12, atol=0)

    def test_forward_passes_between_updates_are_ignored(self):
        data = draw(self.BEGINNING + 2, 8)
        found = watch([*data[:-1], data[-1] * math.nan], update_every=self.EVERY)
        assert_close(found, watch(data[:-1], update_every=self.EVERY))

    def test_at_the_beginning_they_are_recorded(self):
        data = draw(4, 8)
        found = watch([*data[:-1], data[-1] * math.nan], update_every=self.EVERY)
        assert (found["updates"].tolist(), int(found["seen"])) == ([3] * 4, 4)


class TestNonFinite:
    def test_is_left_out_counted_and_reported(self):
        data = draw(3, 8)
        bad = data[1].clone()
        bad[0, 0] = math.inf
        bad[1, 2] = math.nan
        found, clean = watch([data[0], bad, data[2]]), watch([data[0], data[2]])
        for name in ("mean", "variance"):
            assert_close(found[name][[0, 2]], clean[name][[0, 2]])
        assert found["updates"].tolist() == [2, 3, 2, 3]
        module = nn.Linear(4, 2, dtype=torch.float64)
        pre = BNP(module)
        module(bad).sum().backward()
        pre.step()
        assert pre.report()[""].non_finite == 1
        assert "1 steps not finite" in str(pre.report())

    def test_the_first_batch_may_be_bad(self):
        data = draw(2, 8)
        found = watch([data[0] * math.inf, data[1]])
        assert_close(found["variance"], data[1].var(0, correction=0), rtol=1e-12, atol=0)


class TestWhatCounts:
    """Only forward passes in training mode whose backward pass is taken."""

    def setup_method(self):
        self.module = nn.Linear(4, 2, dtype=torch.float64)
        self.pre = BNP(self.module)
        self.h = draw(2, 8)
        self.module(self.h[0]).sum().backward()
        self.pre.step()
        self.before = self.pre.state_dict()["layers"][""]
        self.module.zero_grad()

    def unchanged(self):
        after = self.pre.state_dict()["layers"][""]
        return all(torch.equal(after[k], v) for k, v in self.before.items())

    def test_evaluation_does_not_count(self):
        self.module.eval()
        self.module(self.h[1]).sum().backward()
        self.pre.step()
        assert self.unchanged()

    def test_no_grad_does_not_count(self):
        with torch.no_grad():
            self.module(self.h[1])
        self.pre.step()
        assert self.unchanged()

    def test_a_forward_pass_alone_does_not_count(self):
        self.module(self.h[1])
        self.pre.step()
        assert self.unchanged()

    def test_paused_training_does_not_count(self):
        with self.pre.paused():
            self.module(self.h[1]).sum().backward()
            raw = self.module.weight.grad.clone()
            self.pre.step()
        assert torch.equal(raw, self.module.weight.grad)
        assert self.unchanged()

    def test_training_counts(self):
        self.module(self.h[1]).sum().backward()
        self.pre.step()
        assert not self.unchanged()

    @pytest.mark.parametrize("vectorised", [False, True])
    def test_transforms_of_functions_do_not_count(self, vectorised):
        """Their gradients are returned, and become no parameter's."""
        parameters = {n: p.detach() for n, p in self.module.named_parameters()}

        def loss(parameters, h):
            return torch.func.functional_call(self.module, parameters, (h,)).square().sum()

        call = torch.func.grad(loss)
        call = torch.func.vmap(call, (None, 0)) if vectorised else call
        assert call(parameters, self.h[1])["weight"].isfinite().all()
        self.pre.step()
        assert self.unchanged()

    def test_gradients_of_inputs_alone_do_not_count(self):
        h = self.h[1].clone().requires_grad_()
        torch.autograd.grad(self.module(h).sum(), h)
        self.module(self.h[0]).sum().backward()
        self.pre.step()
        twin = watch([self.h[0], self.h[0]])
        assert_close(self.pre.state_dict()["layers"][""], twin)


@pytest.mark.parametrize("rows", ["all", "samples"])
def test_what_n_counts_for_sequences(rows):
    module = nn.Linear(24, 2, dtype=torch.float64)
    pre = BNP(module, rows=rows)
    module(torch.randn(3, 4, 24, generator=generator(), dtype=torch.float64)).sum().backward()
    pre.step()
    n = {"all": 12, "samples": 3}[rows]
    assert pre.report()[""].row_scale == pytest.approx(math.sqrt(24 / n))


@pytest.mark.parametrize(
    ("scale", "q2"), [(4.0, 4.0), (lambda n, rows, positions: n * rows * positions, 20.0)]
)
def test_other_row_scales(scale, q2):
    module = nn.Linear(5, 2, dtype=torch.float64)
    pre = BNP(module, row_scale=scale)
    module(torch.randn(4, 5, generator=generator(), dtype=torch.float64)).sum().backward()
    pre.step()
    assert pre.report()[""].row_scale == pytest.approx(math.sqrt(q2))


def test_scales_differ_by_at_most_root_of_1_plus_1_over_eps():
    (h,) = draw(1, 64)
    module = nn.Linear(4, 2, dtype=torch.float64)
    pre = BNP(module, eps=(1e-2, 0.0), include=lambda name, m: True)
    module.bias.requires_grad_(False)
    module(h * torch.tensor([1e-3, 1, 10, 1e4]).double()).sum().backward()
    pre.step()
    assert pre.report()[""].condition == pytest.approx(math.sqrt(101), rel=1e-3)


def test_a_dead_feature_keeps_its_weights():
    h = draw(1, 8)[0]
    h[:, 1] = 5.0
    for eps in ((1e-2, 1e-4), (0.0, 0.0)):
        module = nn.Linear(4, 2, dtype=torch.float64)
        with BNP(module, eps=eps) as pre:
            module(h).square().sum().backward()
            pre.step()
        assert float(module.weight.grad[:, 1].abs().max()) < 1e-11
        assert float(module.weight.grad.abs().max()) > 0.1


LAYOUTS = {
    "rows": lambda h: h,
    "transposed": lambda h: h.t().contiguous().t(),
    "every second": lambda h: h.repeat_interleave(2, 0)[::2],
    "expanded": lambda h: h[:1].expand(len(h), -1),
    "sequence": lambda h: h.view(-1, 1, h.shape[1]).expand(-1, 3, -1),
}


@pytest.fixture(params=["where it is", "as on a GPU"])
def place(request, monkeypatch):
    """Welford's recurrence, which GPUs have a kernel for, is checked on every machine."""
    if request.param == "as on a GPU":
        monkeypatch.setattr(moments, "_is_one_piece", lambda h: False)
        monkeypatch.setattr(moments, "_is_on_gpu", lambda h: True)
    return request.param


@pytest.mark.usefixtures("place")
class TestMomentsOfEveryLayout:
    """Every kernel and shifted sums agree with float64, whatever the memory looks like."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_linear(self, layout, dtype, place):
        if dtype is torch.float16 and place == "as on a GPU":
            pytest.skip(
                "a CPU's kernel of batch norm rounds half precision's moments, a GPU's not"
            )
        data = [LAYOUTS[layout](h.to(dtype)) for h in draw(2, 1300, n=6)]
        found, rows = watch(data, rho=0.5), [h.reshape(-1, 6).double() for h in data]
        mean = (rows[0].mean(0) + 2 * rows[1].mean(0)) / 3  # weights 1/2 · 1/2 and 1/2
        tolerance = 1e-12 if dtype is torch.float64 else 2e-5
        assert_close(found["mean"].double(), mean, rtol=tolerance, atol=tolerance)
        square = (rows[0].square().mean(0) + 2 * rows[1].square().mean(0)) / 3
        expected = square - mean**2
        assert_close(found["variance"].double(), expected, rtol=tolerance, atol=tolerance)

    @pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
    def test_convolutions(self, memory):
        (h,) = draw(1, 10 * 5 * 3 * 4, n=1)
        h = h.view(10, 5, 3, 4).contiguous(memory_format=memory)
        module = nn.Conv2d(5, 2, 3, dtype=torch.float64).to(memory_format=memory)
        pre = BNP(module)
        module(h).sum().backward()
        pre.step()
        found = pre.state_dict()["layers"][""]
        assert_close(found["mean"], h.mean((0, 2, 3)), rtol=1e-13, atol=0)
        assert_close(found["variance"], h.var((0, 2, 3), correction=0), rtol=1e-12, atol=0)

    def test_one_feature_alike_in_all_rows_has_next_to_no_variance(self):
        """A feature of 1e4/3 in float32, whose sums cannot be exact."""
        found = watch([torch.full((4096, 3), 1e4 / 3)])
        assert_close(found["mean"], torch.full((3,), 1e4 / 3), rtol=2e-5, atol=0)
        assert float(found["variance"].max()) < (2e-5 * 1e4 / 3) ** 2

    def test_values_whose_squares_overflow_are_left_out(self):
        data = draw(2, 8, dtype=torch.float32)
        bad = data[1].clone()
        bad[::2, 1] = 1e30
        found, clean = watch([data[0], bad]), watch(data[:1])
        assert found["updates"].tolist() == [2, 1, 2, 2]
        for name in ("mean", "variance", "weight"):
            assert_close(found[name][1], clean[name][1])


@pytest.mark.parametrize("passes", [0, 2])
def test_a_step_without_a_forward_pass_takes_the_statistics_as_they_stand(passes):
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    bnp = BNP(layer).attach(optimizer)
    for x in draw(passes, 16, n=3, dtype=torch.float32):
        layer(x).sum().backward()
        optimizer.step()
    statistics, before = bnp.report()[""], layer.bias.detach().clone()
    layer.weight.grad, layer.bias.grad = torch.zeros(2, 3), torch.ones(2)
    optimizer.step()
    assert bnp.report()[""] == statistics
    assert torch.equal(layer.bias, before - 1) == (passes == 0)


def test_sparse_inputs_count_as_dense_ones():
    (h,) = draw(1, 16)
    sparse, dense = watch([h.to_sparse()]), watch([h])
    assert_close(sparse["mean"], dense["mean"], rtol=0, atol=0)
    assert_close(sparse["variance"], dense["variance"], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize(("rows", "counted"), [("all", 5), ("samples", 2)])
def test_nested_inputs_count_as_their_rows(layout, rows, counted):
    (h,) = draw(1, 5)
    nested = torch.nested.nested_tensor([h[:2], h[2:]], layout=layout)
    module = nn.Linear(4, 2, dtype=h.dtype)
    pre = BNP(module, rows=rows)
    module(nested).values().sum().backward()
    pre.step()
    found, dense = pre.state_dict()["layers"][""], watch([h])
    assert_close(found["mean"], dense["mean"], rtol=0, atol=0)
    assert_close(found["variance"], dense["variance"], rtol=0, atol=0)
    assert found["samples"] == counted
