"""How the Hessian's probe runs, cleans up, handles edge cases and refuses."""

import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

from equipoise.layers import BatchRenorm1d
from equipoise.probes.hessian.measure import hessian
from reference.hessian import explicit
from support.hessian_models import cross_entropy, double, eigenvalues, labelled, smooth
from support.model_state import differences, fingerprint
from support.probe_models import batch, build, loss_fn

BATCH = batch()


def measure(model, **options):
    return hessian(model, loss_fn, BATCH, **options)


ALIVE = weakref.WeakSet()


class Tag:
    """Lives as long as the graph that holds it."""


class Tagged(torch.autograd.Function):
    """The identity; its node in the graph holds a tag."""

    @staticmethod
    def forward(ctx, x):
        ctx.tag = Tag()
        ALIVE.add(ctx.tag)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class TestLeavesNoTrace:
    @pytest.mark.parametrize("product", [0, 1, 3, 24, 26])
    def test_after_a_keyboard_interrupt(self, product):
        """Before the first product, during the iteration, and while weights are moved."""
        model = build("batch norm and dropout")
        before = fingerprint(model)

        def progress(stage, done, total):
            if done == product:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            measure(model, steps=23, tolerance=1e-12, progress=progress)
        assert differences(before, fingerprint(model)) == []

    def test_no_graph_stays_in_memory(self):
        """Freed by reference counts alone; backward(create_graph=True) leaves its graph behind."""
        model = build("batch norm and dropout")

        def loss(model, data):
            return (Tagged.apply(model(data[0])) - data[1]).square().mean()

        gc.disable()
        try:
            hessian(model, loss, BATCH)
            assert len(ALIVE) == 0
            with warnings.catch_warnings(action="ignore"):  # PyTorch warns of the leak
                loss(model, BATCH).backward(create_graph=True)
            assert len(ALIVE) == 1
        finally:
            gc.enable()
            model.zero_grad()


class TestExecution:
    def test_a_compiled_model_is_measured_as_the_original(self):
        torch.compiler.reset()
        model = build("plain")
        expected = measure(model, blocks="layers")
        assert measure(torch.compile(model, backend="eager"), blocks="layers") == expected
        torch.compiler.reset()

    def test_the_generator_decides_the_start(self):
        model = build("plain")

        def values(seed):
            generator = None if seed is None else torch.Generator().manual_seed(seed)
            return measure(model, steps=2, generator=generator)

        assert values(None) == values(0) != values(1)

    @pytest.mark.parametrize("blocks", ["whole", "both"])
    def test_progress_ends_with_the_total(self, blocks):
        calls = []
        measure(
            build("plain"), blocks=blocks, progress=lambda stage, *numbers: calls.append(numbers)
        )
        done, totals = zip(*calls, strict=True)
        assert len(set(totals)) == 1
        assert list(done[:-1]) == list(range(len(done) - 1))
        assert done[-2] < done[-1] == totals[-1]

    def test_activation_checkpointing_measures_the_same(self):
        """Layers that run again in backward passes see the buffers that the first pass saw."""
        stored, recomputed = (
            hessian(Checkpointed(again), cross_entropy, labelled(), tolerance=1e-8)
            for again in (False, True)
        )
        assert recomputed.largest.value == pytest.approx(stored.largest.value, rel=1e-10)

    def test_errors_cover_half_precision(self):
        model, data = smooth(nn.LayerNorm), labelled(30)
        values = eigenvalues(model, cross_entropy, data)
        half = (data[0].bfloat16(), data[1])
        found = hessian(model.bfloat16(), cross_entropy, half)
        assert found.largest.error > 1e-3 * float(values[-1])
        assert abs(found.largest.value - float(values[-1])) < found.largest.error
        assert abs(found.smallest.value - float(values[0])) < found.smallest.error


class Checkpointed(nn.Module):
    def __init__(self, again):
        super().__init__()
        torch.manual_seed(0)
        self.inner = smooth(BatchRenorm1d)
        self.again = again

    def forward(self, x):
        if self.again:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
        return self.inner(x)


class Unused(nn.Module):
    """One layer that the loss uses, one that it does not use, one that is detached."""

    def __init__(self):
        super().__init__()
        self.used, self.unused, self.detached = (nn.Linear(3, 2) for _ in range(3))

    def forward(self, x):
        return self.used(x) + self.detached(x).detach()


class TestEdgeCases:
    def data(self, rows=5):
        return torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))

    @pytest.mark.parametrize("density", [False, True])
    def test_a_linear_loss_has_no_curvature(self, density):
        found = hessian(nn.Linear(3, 2), lambda m, x: m(x).sum(), self.data(), density=density)
        assert (found.largest.value, found.largest.error) == (0.0, 0.0)
        assert (found.smallest.value, found.smallest.error) == (0.0, 0.0)
        assert found.converged

    def test_parameters_that_the_loss_does_not_use(self):
        found = hessian(
            Unused(), lambda m, x: m(x).square().mean(), self.data(), blocks="both", density=True
        )
        assert [block.block for block in found.blocks] == ["used", "detached", "unused"]
        used, *others = found.blocks
        assert used.largest.value == pytest.approx(found.largest.value, rel=1e-6)
        for block in others:
            assert (block.largest.value, block.largest.error, block.trace.value) == (0, 0, 0)
        assert found.density.nodes.count(0.0) >= 16

    def test_one_parameter(self):
        model = nn.Linear(1, 1, bias=False)
        found = hessian(model, lambda m, x: m(x).square().sum(), torch.tensor([[2.0]]))
        assert found.largest.value == found.smallest.value == 8.0
        assert found.whole.products == 1

    def test_frozen_parameters_are_constants(self):
        model, data = double("frozen parameters")
        found = hessian(model, loss_fn, data, blocks="both")
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert found.whole.parameters == trainable < sum(p.numel() for p in model.parameters())
        assert {block.block for block in found.blocks} == {"1", "4", "8", "9", "12"}

    def test_a_vanishing_hessian_keeps_its_eigenvalues(self):
        """At 1e-25 squares are zero in float32."""
        model, x = nn.Linear(3, 1), self.data()
        found, tiny = (
            hessian(model, lambda m, x, s=scale: s * m(x).square().mean(), x)
            for scale in (1.0, 1e-25)
        )
        assert tiny.largest.value == pytest.approx(1e-25 * found.largest.value, rel=1e-5)
        assert tiny.whole.products == found.whole.products

    def test_errors_cover_an_asymmetric_hessian(self):
        """Spectral normalisation holds its singular vectors constant, so H is not symmetric."""
        model, data = double("parametrizations")
        matrix = explicit(model, loss_fn, data)
        found = hessian(model, loss_fn, data, tolerance=1e-10)
        skew = float(torch.linalg.matrix_norm(matrix - matrix.T, 2)) / 2
        assert skew > 0.01 * found.largest.value
        assert found.largest.error > skew / 2
        true = float(torch.linalg.eigvalsh((matrix + matrix.T) / 2)[-1])
        assert 1e-4 * true < abs(found.largest.value - true) < found.largest.error

    def test_a_batch_of_two_has_no_curvature_before_batch_norm(self):
        """Without ε all outputs are ±1, so their gradient is exactly zero."""
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, eps=1e-12)).double()
        x = self.data(2).double()
        groups = {"before": model[0].parameters()}
        found = hessian(model, lambda m, x: m(x).pow(3).mean(), x, blocks=groups)
        assert abs(found.blocks[0].largest.value) < 1e-6


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"steps": 0}, "steps must be a whole number of at least 1; got 0"),
            ({"probes": 0}, "probes must be a whole number of at least 1; got 0"),
            ({"tolerance": 0.0}, r"tolerance must be a number in \(0, 1\); got 0.0"),
            ({"tolerance": float("nan")}, "tolerance must be a number in"),
            (
                {"blocks": "layer"},
                "blocks must be 'whole', 'layers', 'both' or parameters by name",
            ),
            ({"blocks": None}, "blocks must be .* got NoneType"),
            ({"blocks": {}}, "blocks must name at least one group of parameters"),
            ({"blocks": {"a": []}}, "block 'a' needs trainable parameters .* holds no parameter"),
            ({"blocks": {"a": torch.ones(2)}}, "block 'a' needs trainable .* something else"),
            ({"blocks": {"a": list(nn.Linear(6, 6).parameters())}}, "holds something else"),
        ],
    )
    def test_options(self, options, message):
        with pytest.raises(ValueError, match=message):
            measure(build("plain"), **options)

    def test_frozen_parameters_are_no_block(self):
        model = build("frozen parameters")
        with pytest.raises(ValueError, match="needs trainable parameters of the model"):
            measure(model, blocks={"a": model[0].weight})

    @pytest.mark.parametrize(
        ("loss", "error", "message"),
        [
            (lambda m, x: m(x), ValueError, "one number, got shape"),
            (lambda m, x: 1.0, ValueError, "must be a floating-point tensor"),
            (lambda m, x: m(x).sum().detach(), ValueError, "depends on no trainable parameter"),
            (lambda m, x: m(x).sum() * float("nan"), ValueError, "the loss is nan on the batch"),
            (lambda m, x: (m(x) * 0).norm(), ValueError, "is not finite although the loss is"),
        ],
    )
    def test_losses(self, loss, error, message):
        with pytest.raises(error, match=message):
            hessian(nn.Linear(3, 2), loss, torch.ones(4, 3))

    def test_a_model_without_trainable_parameters(self):
        with pytest.raises(ValueError, match="the model has no trainable parameter"):
            measure(build("plain").requires_grad_(False))

    def test_complex_parameters(self):
        model = nn.Linear(2, 2, dtype=torch.complex64)
        with pytest.raises(ValueError, match="parameter 'weight' is complex"):
            hessian(model, lambda m, x: m(x).abs().sum(), torch.ones(1, 2))

    def test_operations_without_a_second_derivative_are_named(self):
        model = nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 1))
        tokens = torch.arange(8).reshape(4, 2)

        def loss(model, tokens):
            return model(tokens).square().mean()

        message = "second derivatives, and embedding_bag_backward has none: replace it, or measure"
        with pytest.raises(ValueError, match=message):
            hessian(model, loss, tokens)
        later = {"later": [*model[1].parameters(), *model[3].parameters()]}
        assert hessian(model, loss, tokens, blocks=later).blocks[0].largest.value > 0
