"""Each head against its formula, and against the composition of public functions."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from equipoise.pooling.heads.bilinear import BilinearPool
from equipoise.pooling.heads.compact import CompactBilinearPool
from equipoise.pooling.heads.isqrt import ISQRTPool
from equipoise.pooling.heads.log_euclidean import LogEuclideanPool
from equipoise.pooling.heads.matrix_power import MatrixPowerPool
from equipoise.pooling.heads.run import RUNPool
from equipoise.pooling.matrices import bilinear, upper_triangle
from equipoise.pooling.roots.newton_schulz import sqrt_newton_schulz
from equipoise.pooling.roots.powers import log_euclidean, matrix_power
from equipoise.pooling.run.factor import run_factor
from equipoise.pooling.run.layer import RUN
from equipoise.pooling.run.matrix import epsilon_from_eta, run_symmetric
from equipoise.pooling.vectors import signed_sqrt, unit_norm
from reference import pooling as reference
from support.cases import each
from support.pooling_family import CHANNELS, both_ways, maps

EXACT = {"rtol": 1e-12, "atol": 1e-12}
BARE = {"signed_root": False, "unit_norm": False}
ENDINGS = [
    BARE,
    {"signed_root": True, "unit_norm": False},
    {"signed_root": True, "unit_norm": True},
]
START = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def transcribed(matrix_of, x, *, signed_root, unit_norm, centred=False):
    """A head that ends in a matrix, sample by sample."""
    vectors = [
        reference.finished(
            reference.triangle(matrix_of(reference.rows(one, centred=centred))),
            signed_root=signed_root,
            unit_norm=unit_norm,
        )
        for one in x.flatten(2).numpy()
    ]
    return torch.from_numpy(np.stack(vectors))


MATRIX_HEADS = {
    "bilinear": (BilinearPool, {}, reference.second_moments),
    "RUN": (
        RUNPool,
        {"start": START, "eta": 0.3, "num_steps": 2},
        lambda F: reference.run_matrix(F, START.numpy(), 0.3, 2),
    ),
    "RUN ones": (
        RUNPool,
        {"start": "ones", "epsilon": 0.75, "num_steps": 3},
        lambda F: reference.run_matrix(F, np.ones(CHANNELS), 0.5, 3),
    ),
    "RUN mean": (
        RUNPool,
        {"start": "mean", "eta": 1.0, "num_steps": 0},
        lambda F: reference.run_matrix(F, F.sum(0), 1.0, 0),
    ),
    "iSQRT": (ISQRTPool, {}, reference.root_matrix),
    "iSQRT frobenius": (
        ISQRTPool,
        {"iterations": 3, "prenormalise": "frobenius"},
        lambda F: reference.root_matrix(F, 3, "frobenius"),
    ),
    "power": (MatrixPowerPool, {}, lambda F: reference.power_matrix(F, 0.5)),
    "power 0.7": (MatrixPowerPool, {"exponent": 0.7}, lambda F: reference.power_matrix(F, 0.7)),
    "log": (LogEuclideanPool, {"eps": 0.1}, lambda F: reference.log_matrix(F, 0.1)),
}
every_matrix_head = pytest.mark.parametrize(
    ("kind", "options", "matrix_of"), MATRIX_HEADS.values(), ids=MATRIX_HEADS
)


@every_matrix_head
@pytest.mark.parametrize("ending", ENDINGS, ids=["bare", "root", "root and norm"])
@pytest.mark.parametrize("centred", [False, True])
def test_matrix_heads_are_their_formulas(kind, options, matrix_of, ending, centred):
    centred = centred and options.get("start") != "mean"  # of centred features it is zero
    x = maps(2)
    found = kind(CHANNELS, centred=centred, **options, **ending)(x)
    expected = transcribed(matrix_of, x, centred=centred, **ending)
    # The root of small numbers loses half of their digits.
    tolerance = 1e-12 if not ending["signed_root"] else 1e-8
    assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("with_run", [False, True], ids=["alone", "after RUN"])
class TestCompact:
    @each("route", ["gram", "fft", "auto"])
    def test_tensor_sketch(self, with_run, route):
        head = CompactBilinearPool(CHANNELS, size=9, route=route, run=with_run, **BARE)
        hashes = head.sketch.places.numpy(), head.sketch.signs.double().numpy(), 9
        self.agree(head, lambda F: reference.tensor_sketch(F, *hashes))

    @each("route", ["gram", "direct", "auto"])
    def test_random_maclaurin(self, with_run, route):
        options = {"size": 9, "method": "random_maclaurin", "route": route, "run": with_run}
        head = CompactBilinearPool(CHANNELS, **options, **BARE)
        W = head.sketch.signs.double().numpy()
        self.agree(head, lambda F: reference.random_maclaurin(F, W))

    @staticmethod
    def agree(head, sketch):
        x = maps(2)
        F = x.flatten(2).mT
        if head.run is not None:
            F = run_factor(F, head.run.start_vector, eta=0.5)
        expected = torch.from_numpy(np.stack([sketch(one) for one in F.numpy()]))
        assert_close(head(x), expected, **EXACT)


BY_POSITION = {"tensor_sketch": "fft", "random_maclaurin": "direct"}


@pytest.mark.parametrize("method", BY_POSITION)
class TestRoutes:
    """All routes give the same results."""

    def heads(self, method, **options):
        routes = ("gram", BY_POSITION[method], "auto")
        options = {"size": 64, "method": method, **options}
        return [CompactBilinearPool(CHANNELS, route=route, **options) for route in routes]

    @pytest.mark.parametrize("centred", [False, True])
    def test_agree_with_their_gradients(self, method, centred):
        x = maps()
        first, *others = (both_ways(h, x) for h in self.heads(method, centred=centred))
        for found in others:
            assert_close(found, first, rtol=1e-7, atol=1e-7)

    def test_nothing_of_the_size_of_the_matrix_unless_asked_for(self, method, monkeypatch):
        gram, by_position, _ = self.heads(method)

        def refuse(*args, **kwargs):
            raise AssertionError("the matrix was formed")

        for name in ("bilinear", "RUN.bilinear"):
            owner, _, attribute = f"equipoise.pooling.heads.compact.{name}".rpartition(".")
            monkeypatch.setattr(f"{owner}.{attribute}", refuse)
        by_position(maps())
        with pytest.raises(AssertionError, match="was formed"):
            gram(maps())

    def test_auto_takes_the_cheaper(self, method):
        """Bit for bit: position by position for one, through the matrix for 4000."""
        gram, by_position, auto = self.heads(method, size=8, signed_root=False)
        for positions, expected in ((1, by_position), (4000, gram)):
            x = maps(2, (1, positions))
            assert torch.equal(auto(x), expected(x))


def test_entries_that_no_pair_of_channels_reaches_have_no_gradient():
    """FFTs leave 1e-9 there, which a signed root would make 3e-5 with a slope of 16,000."""
    x = maps(dtype=torch.float32)
    by_fft, by_gram = (
        CompactBilinearPool(CHANNELS, size=256, route=route, run=False)
        for route in ("fft", "gram")
    )
    assert_close(both_ways(by_fft, x), both_ways(by_gram, x), rtol=1e-3, atol=1e-5)
    by_fft.sketch.reached.fill_(True)
    (_, spoilt), (_, gradient) = both_ways(by_fft, x), both_ways(by_gram, x)
    assert not torch.allclose(spoilt, gradient, rtol=1e-3, atol=1e-5)


class TestVectors:
    def test_full(self):
        x = maps()
        expected = bilinear(x.flatten(2).mT).flatten(-2)
        assert_close(BilinearPool(CHANNELS, vector="full", **BARE)(x), expected, **EXACT)

    def test_inner_products(self):
        options = {"signed_root": False, "unit_norm": True}
        y = BilinearPool(CHANNELS, preserve_inner_products=True, **options)(maps())
        full = BilinearPool(CHANNELS, vector="full", **options)(maps())
        plain = BilinearPool(CHANNELS, **options)(maps())
        assert_close(y @ y.mT, full @ full.mT, rtol=1e-12, atol=0)
        assert not torch.allclose(plain @ plain.mT, full @ full.mT)

    @pytest.mark.parametrize(
        ("vector", "reduction", "expected"),
        [("triangle", None, 10), ("full", None, 16), ("triangle", 3, 6), ("full", 2, 4)],
    )
    def test_output_dim(self, vector, reduction, expected):
        head = RUNPool(CHANNELS, vector=vector, reduction=reduction).double()
        assert head.output_dim == expected
        assert head(maps()).shape == (3, expected)

    def test_sizes_from_the_literature(self):
        assert RUNPool(512, reduction=256).output_dim == 32_896
        assert CompactBilinearPool(64).output_dim == 8192


def test_defaults_of_the_endings():
    """Heads that compress every eigenvalue take neither root nor norm."""
    keep = [kind(CHANNELS) for kind in (BilinearPool, RUNPool, CompactBilinearPool)]
    assert all(head.signed_root and head.unit_norm for head in keep)
    compress = [kind(CHANNELS) for kind in (ISQRTPool, MatrixPowerPool, LogEuclideanPool)]
    assert not any(head.signed_root or head.unit_norm for head in compress)


def test_compositions_of_public_functions():
    """The recipe that a user would write by hand."""
    x, head = maps(), RUNPool(CHANNELS, eta=0.7)
    F, v = x.flatten(2).mT, head.run.start_vector
    by_factor = bilinear(run_factor(F, v, eta=0.7))
    by_matrix = run_symmetric(bilinear(F), v, eta=0.7)
    for matrix in (by_factor, by_matrix):
        assert_close(head(x), unit_norm(signed_sqrt(upper_triangle(matrix))), **EXACT)
    B = bilinear(F)
    assert_close(ISQRTPool(CHANNELS)(x), upper_triangle(sqrt_newton_schulz(B)), **EXACT)
    assert_close(MatrixPowerPool(CHANNELS)(x), upper_triangle(matrix_power(B)), **EXACT)
    logarithm = upper_triangle(log_euclidean(B, eps=1e-3))
    assert_close(LogEuclideanPool(CHANNELS)(x), logarithm, **EXACT)


def test_reduction_is_convolution_norm_and_relu():
    head, x = BilinearPool(CHANNELS, reduction=3, **BARE).double().eval(), maps()
    norm = head.reduction.norm
    for tensor in (norm.running_mean, norm.weight.data, norm.bias.data):
        tensor.add_(torch.linspace(-0.3, 0.2, 3))
    values = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    given = [value.detach().numpy() for value in (head.reduction.conv.weight[..., 0], *values)]
    fewer = [reference.reduced(one, *given) for one in x.flatten(2).numpy()]
    expected = transcribed(reference.second_moments, torch.from_numpy(np.stack(fewer)), **BARE)
    assert_close(head(x), expected, **EXACT)


class TestRUN:
    """Heads with RUN: strength, start, direction."""

    def test_eta_and_epsilon(self):
        x = maps()
        one = RUNPool(CHANNELS, eta=0.3)(x)
        assert_close(RUNPool(CHANNELS, epsilon=epsilon_from_eta(0.3))(x), one, **EXACT)
        assert RUN(CHANNELS).eta == 0.5
        assert not torch.allclose(RUNPool(CHANNELS)(x), one)

    def test_without_strength_it_is_bilinear_pooling(self):
        x = maps()
        assert_close(RUNPool(CHANNELS, eta=0.0)(x), BilinearPool(CHANNELS)(x), **EXACT)

    def test_the_layer_is_the_factor_form(self):
        F, layer = maps().flatten(2).mT, RUN(CHANNELS, eta=0.8, num_steps=3, seed=5)
        v = layer.start_vector
        assert_close(layer(F), run_factor(F, v, eta=0.8, num_steps=3), rtol=0, atol=0)
        assert_close(layer.bilinear(F), bilinear(layer(F)), **EXACT)

    @pytest.mark.parametrize("kind", [RUNPool, CompactBilinearPool])
    def test_a_constant_direction(self, kind):
        """Same vectors, another gradient."""
        x = maps()
        y, gradient = both_ways(kind(CHANNELS), x)
        found, constant = both_ways(kind(CHANNELS, differentiate_direction=False), x)
        assert_close(found, y, **EXACT)
        assert not torch.allclose(constant, gradient)

    def test_the_mean_start_does_not_depend_on_the_seed(self):
        one, other = (RUNPool(CHANNELS, start="mean", seed=seed) for seed in (1, 2))
        assert torch.equal(one(maps()), other(maps()))

    def test_the_mean_start_of_centred_features_is_the_gaussian_one(self):
        options = {"start": "mean", "centred": True, "num_steps": 1}
        head = RUNPool(CHANNELS, seed=1, **options)
        gaussian = RUNPool(CHANNELS, seed=1, centred=True, num_steps=1)
        assert_close(head(maps()), gaussian(maps()), **EXACT)

    def test_without_a_step_centred_features_skip_the_update(self):
        options = {"centred": True}
        head = RUNPool(CHANNELS, start="mean", num_steps=0, **options)
        assert_close(head(maps()), BilinearPool(CHANNELS, **options)(maps()), **EXACT)

    def test_a_given_start_may_have_any_length(self):
        x = maps()
        expected = RUNPool(CHANNELS, start=START)(x)
        for length in (1e-30, 1e30):
            head = RUNPool(CHANNELS, start=length * START)
            assert head.run.start_vector.half().isfinite().all()
            assert_close(head(x), expected, **EXACT)

    def test_a_given_start_is_copied(self):
        start = START.clone()
        head = RUNPool(CHANNELS, start=start)
        expected = head(maps())
        start.zero_()
        assert torch.equal(head(maps()), expected)

    def test_the_start_is_standard_normal(self):
        """Mean 0 and variance 1, in standard errors."""
        start = RUN(20_000).start_vector.double()
        assert abs(start.mean()) < 4 / math.sqrt(20_000)
        assert abs(start.square().mean() - 1) < 4 * math.sqrt(2 / 20_000)


@each(
    ("kind", "options", "message"),
    [
        (RUNPool, {"eta": 0.5, "epsilon": 0.75}, "give eta or epsilon, not both"),
        (RUNPool, {"eta": 1.5}, r"eta must be a number in \[0, 1\]; got 1.5"),
        (RUNPool, {"epsilon": 1.5}, r"epsilon must be a number in \[0, 1\]; got 1.5"),
        (RUNPool, {"num_steps": 0}, "num_steps must be at least 1; got 0"),
        (RUNPool, {"start": "zeros"}, "start must be one of gaussian, mean, ones; got 'zeros'"),
        (RUNPool, {"start": torch.zeros(4)}, "start must be finite and not zero"),
        (RUNPool, {"start": torch.tensor([1.0, math.nan, 0, 0])}, "must be finite and not zero"),
        (RUNPool, {"start": torch.ones(3)}, r"start must have shape \[4\]; got \(3,\)"),
        (RUNPool, {"resample": "always"}, "resample must be one of never, train; got 'always'"),
        (RUNPool, {"vector": "lower"}, "vector must be one of triangle, full; got 'lower'"),
        (ISQRTPool, {"iterations": 0}, "iterations must be a whole number of at least 1"),
        (ISQRTPool, {"prenormalise": "max"}, "prenormalise must be one of trace, frobenius"),
        (MatrixPowerPool, {"exponent": 0.0}, r"exponent must be a number in \(0, inf\]; got 0.0"),
        (
            MatrixPowerPool,
            {"relative_cutoff": 1.0},
            r"relative_cutoff must be a number in \[0, 1\)",
        ),
        (LogEuclideanPool, {"eps": 0.0}, r"eps must be a number in \(0, inf\]; got 0.0"),
        (CompactBilinearPool, {"size": 0}, "size must be a whole number of at least 1"),
        (CompactBilinearPool, {"method": "hash"}, "method must be one of tensor_sketch, random_m"),
        (CompactBilinearPool, {"route": "direct"}, "route must be one of auto, gram, fft"),
        (CompactBilinearPool, {"run": False, "eta": 0.5}, "pass run=True, or neither"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_bad_options(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(CHANNELS, **options)


def test_a_start_of_integers():
    with pytest.raises(TypeError, match=r"start must be floating point; got torch\.int64"):
        RUNPool(CHANNELS, start=torch.ones(CHANNELS, dtype=torch.int64))


@pytest.mark.parametrize("kind", [BilinearPool, RUNPool, ISQRTPool, MatrixPowerPool])
def test_two_threads_and_many_channels(kind):
    """PyTorch's batched solvers are wrong here with two threads; no head uses them."""
    x = maps(3, (4, 6), channels=256, dtype=torch.float32)
    threads = torch.get_num_threads()
    head = kind(256, **BARE)
    try:
        torch.set_num_threads(2)
        found = both_ways(head, x)
    finally:
        torch.set_num_threads(threads)
    exact = both_ways(head.double(), x.double())
    for mine, expected in zip(found, exact, strict=True):
        assert (mine - expected).norm() < 1e-2 * expected.norm()
