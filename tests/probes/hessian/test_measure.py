"""Eigenvalues against the explicit Hessian of the function that training minimises."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise.data import load
from equipoise.models import mlp
from equipoise.probes.hessian.measure import hessian
from reference.hessian import by_differences, explicit, through_batch_norm
from support.hessian_models import (
    SMALL,
    assert_extremes,
    cross_entropy,
    double,
    eigenvalues,
    labelled,
    smooth,
)
from support.probe_models import loss_fn

TIGHT = {"tolerance": 1e-10, "steps": 400}


class TestAgainstTheExplicitHessian:
    @pytest.mark.parametrize("name", SMALL)
    def test_extremal_eigenvalues(self, name):
        model, data = double(name)
        expected = eigenvalues(model, loss_fn, data)
        found = hessian(model, loss_fn, data, **TIGHT)
        assert found.converged
        assert_extremes(found.whole, expected)

    @pytest.mark.parametrize("norm", [None, nn.BatchNorm1d, nn.LayerNorm])
    def test_differences_of_gradients_agree(self, norm):
        """Differences of first derivatives check PyTorch's second derivatives too."""
        model, data = smooth(norm), labelled()
        matrix = by_differences(model, cross_entropy, data)
        assert_close(matrix, explicit(model, cross_entropy, data), rtol=0, atol=1e-9)
        found = hessian(model, cross_entropy, data, **TIGHT)
        values = torch.linalg.eigvalsh(matrix)
        assert found.largest.value == pytest.approx(float(values[-1]), rel=1e-8)
        assert found.smallest.value == pytest.approx(float(values[0]), rel=1e-8)

    @pytest.mark.parametrize("name", ["shared module", "tied weights", "residual"])
    def test_every_layer_block(self, name):
        model, data = double(name)
        found = hessian(model, loss_fn, data, blocks="both", **TIGHT)
        names = [n for n, _ in model.named_parameters()]
        assert sum(block.parameters for block in found.blocks) == found.whole.parameters
        for block in found.blocks:
            own = [n for n in names if n.rpartition(".")[0] == block.block]
            assert_extremes(block, eigenvalues(model, loss_fn, data, own))

    def test_attention_without_a_fused_second_derivative(self):
        model = Attention().double()
        x = torch.randn(3, 4, 6, dtype=torch.float64)

        def loss(model, x):
            return model(x).square().mean()

        gradients = torch.autograd.grad(loss(model, x), model.parameters(), create_graph=True)
        with pytest.raises(RuntimeError, match="flash_attention_for_cpu_backward is not impl"):
            torch.autograd.grad(sum(g.sum() for g in gradients), model.parameters())
        assert_extremes(hessian(model, loss, x, **TIGHT).whole, eigenvalues(model, loss, x))

    def test_errors_hold_after_too_few_steps(self):
        model, data = smooth(nn.BatchNorm1d), labelled()
        values = eigenvalues(model, cross_entropy, data)
        found = hessian(model, cross_entropy, data, steps=4)
        assert not found.converged
        assert found.largest.error > 0.01 * float(values[-1])
        assert_extremes(found.whole, values, relative=1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(6, 18)

    def forward(self, x):
        return F.scaled_dot_product_attention(*self.projection(x).unsqueeze(1).chunk(3, -1))


class Free(nn.Module):
    """Batch norm of its only parameter, one unit's pre-activations."""

    def __init__(self, eps):
        super().__init__()
        self.y = nn.Parameter(torch.randn(6, dtype=torch.float64))
        self.norm = nn.BatchNorm1d(1, eps=eps).double().requires_grad_(False)
        self.norm.weight.fill_(1.7)

    def forward(self, targets):
        z = self.norm(self.y[:, None])[:, 0]
        return F.softplus(-targets * z).sum()


class TestTrainingMode:
    targets = torch.tensor([1.0, -1, 1, 1, -1, 1], dtype=torch.float64)

    def explicit(self, model):
        """[santurkar2018], equations (34) to (42), in the specification's form."""
        y = model.y.detach()
        norm = model.norm
        hat = (y - y.mean()) / (y.var(correction=0) + norm.eps).sqrt()
        z = (norm.weight * hat + norm.bias).detach()
        g = -self.targets * torch.sigmoid(-self.targets * z)
        H = torch.diag(torch.sigmoid(z) * torch.sigmoid(-z))
        return through_batch_norm(y, g, H, norm.weight, norm.eps)

    @pytest.mark.parametrize("eps", [1e-5, 0.3])
    def test_batch_statistics_are_differentiated(self, eps):
        model = Free(eps)
        found = hessian(model, lambda m, t: m(t), self.targets, **TIGHT)
        assert_extremes(found.whole, torch.linalg.eigvalsh(self.explicit(model)))

    def test_in_evaluation_mode_they_are_constants(self):
        model = Free(1e-5).eval()
        found = hessian(model, lambda m, t: m(t), self.targets, **TIGHT)
        z = model.norm(model.y[:, None])[:, 0].detach()
        scale = model.norm.weight.square() / (1 + 1e-5)
        diagonal = scale * torch.sigmoid(z) * torch.sigmoid(-z)
        assert_extremes(found.whole, diagonal.detach().sort().values)
        wrong = torch.linalg.eigvalsh(self.explicit(model))
        assert abs(found.smallest.value - float(wrong[0])) > 0.1

    def test_a_deep_net_has_another_hessian_than_in_evaluation_mode(self):
        """The mode decides the sign of the smallest eigenvalue and two orders of magnitude."""
        digits = load("digits")
        data = (digits.inputs[:128], digits.targets[:128])
        torch.manual_seed(0)
        model = mlp(64, 10, depth=8, width=32)
        training = hessian(model, cross_entropy, data)
        evaluation = hessian(model.eval(), cross_entropy, data)
        assert training.converged
        assert evaluation.converged
        assert evaluation.largest.value < 0.5
        assert training.largest.value - training.largest.error > 50 * evaluation.largest.value
        assert training.smallest.value + training.smallest.error < -10


class TestNoise:
    """Every product has the dropout mask that training would draw next."""

    def test_the_mask_is_the_next_one(self):
        model, data = double("batch norm and dropout")
        for seed in (0, 1):
            torch.manual_seed(seed)
            expected = eigenvalues(model, loss_fn, data)
            for recompute in (False, True):
                torch.manual_seed(seed)
                found = hessian(model, loss_fn, data, recompute=recompute, **TIGHT)
                assert_extremes(found.whole, expected)

    def test_another_mask_has_other_eigenvalues(self):
        model, data = double("batch norm and dropout")
        first, second = (
            (torch.manual_seed(seed), hessian(model, loss_fn, data).largest.value)[1]
            for seed in (0, 1)
        )
        assert abs(first - second) > 1e-3 * abs(first)


class TestSeveralBatches:
    def batches(self):
        return [labelled(seed=seed) for seed in range(3)]

    def explicit(self, model):
        matrices = [explicit(model, cross_entropy, data) for data in self.batches()]
        return sum(matrices) / len(matrices)

    @pytest.mark.parametrize("recompute", [None, False, True])
    def test_the_mean_of_their_hessians(self, recompute):
        model = smooth(nn.BatchNorm1d)
        first, *more = self.batches()
        found = hessian(
            model, cross_entropy, first, more_batches=more, recompute=recompute, **TIGHT
        )
        assert found.batches == 3
        assert_extremes(found.whole, torch.linalg.eigvalsh(self.explicit(model)))

    def test_each_has_its_own_statistics(self):
        """One batch of all samples has other statistics, hence another Hessian."""
        model = smooth(nn.BatchNorm1d)
        together = tuple(torch.cat(part) for part in zip(*self.batches(), strict=True))
        joint = hessian(model, cross_entropy, together, **TIGHT).largest.value
        mean = float(torch.linalg.eigvalsh(self.explicit(model))[-1])
        assert abs(joint - mean) > 0.01 * mean

    def test_noise_and_buffers_follow_as_in_training(self):
        """Each pass notes its initial state: two batches, each evaluated three times."""
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
        starts = {}

        def loss(model, data):
            start = (model[1].num_batches_tracked.item(), torch.rand(1).item())
            starts.setdefault(data[0].shape[0], set()).add(start)
            return F.cross_entropy(model(data[0].float()), data[1])

        hessian(model, loss, labelled(7), more_batches=[labelled(9)], recompute=True)
        ((count, noise),) = starts[7]
        ((next_count, next_noise),) = starts[9]
        assert (count, next_count) == (0, 1)
        assert noise != next_noise


class TestDensity:
    def test_all_eigenvalues_of_a_small_model(self):
        model, data = smooth(nn.BatchNorm1d), labelled()
        found = hessian(model, cross_entropy, data, density=True)
        values = eigenvalues(model, cross_entropy, data)
        assert_close(
            torch.tensor(found.density.nodes, dtype=values.dtype), values, rtol=0, atol=1e-12
        )
        assert found.density.probes == 0
        assert found.whole.trace.value == pytest.approx(float(values.sum()), rel=1e-12)
        assert_extremes(found.whole, values, relative=1e-12)

    def test_moments_within_standard_errors(self):
        """Over 30 draws of two probes each, z² of mean, square and trace is about 1."""
        model, data = smooth(nn.BatchNorm1d, width=8), labelled()
        values = eigenvalues(model, cross_entropy, data)
        z = []
        for seed in range(30):
            generator = torch.Generator().manual_seed(seed)
            found = hessian(
                model, cross_entropy, data, density=True, steps=6, probes=2, generator=generator
            )
            assert found.density.probes == 2
            for estimate, true in (
                (found.density.mean(lambda x: x), values.mean()),
                (found.density.mean(lambda x: x * x), values.square().mean()),
                (found.whole.trace, values.sum()),
            ):
                z.append((estimate.value - float(true)) / estimate.error)
        assert 0.5 < torch.tensor(z).square().mean() < 2.5

    def test_curve_of_few_steps_is_that_of_the_eigenvalues(self):
        """Both are broadened alike, so they differ by the error of the probes."""
        model, data = smooth(width=8), labelled()
        options = {"density": True, "generator": torch.Generator().manual_seed(1)}
        few = hessian(model, cross_entropy, data, steps=12, probes=8, **options).density
        every = hessian(model, cross_entropy, data, **options).density
        assert (few.probes, every.probes) == (8, 0)
        points = torch.linspace(every.nodes[0], every.nodes[-1], 30).tolist()
        pairs = zip(few.curve(points), every.curve(points, width=few.width), strict=True)
        z = torch.tensor([(a.value - b.value) / a.error for a, b in pairs])
        assert z.abs().max() < 5
        assert 0.1 < z.square().mean() < 3

    def test_every_layer_has_its_own(self):
        model, data = smooth(), labelled()
        found = hessian(model, cross_entropy, data, blocks="both", density=True)
        assert [len(block.density.nodes) for block in found.blocks] == [16, 20, 10]
        traces = sum(block.trace.value for block in found.blocks)
        assert traces == pytest.approx(found.whole.trace.value, rel=1e-12)
