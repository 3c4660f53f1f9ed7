"""Compact maps: as they are defined, by every route, unbiased, and linear in the matrix."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.kernel_approximation import PolynomialCountSketch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from equipoise.pooling.sketches.maps import (
    MaclaurinProjections,
    TensorSketchHash,
    maclaurin_directly,
    tensor_sketch_by_fft,
)
from equipoise.pooling.sketches.random_maclaurin import (
    random_maclaurin,
    random_maclaurin_matrix,
    random_maclaurin_pair,
)
from equipoise.pooling.sketches.tensor_sketch import (
    tensor_sketch,
    tensor_sketch_matrix,
    tensor_sketch_pair,
)
from reference import sketches as slow

CHANNELS, SIZE = 6, 16


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random(*shape, seed=0):
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


HASHES = TensorSketchHash.draw(CHANNELS, SIZE, generator=seeded())
PROJECTIONS = MaclaurinProjections.draw(CHANNELS, SIZE, generator=seeded())


class Tensor:
    """The Tensor Sketch with one set of hashes."""

    routes = ("fft", "gram", "auto")

    def of(self, x, route="auto"):
        return tensor_sketch(x, HASHES, route=route)

    def of_matrix(self, C):
        return tensor_sketch_matrix(C, HASHES)

    def of_pair(self, u, v):
        return tensor_sketch_pair(u, v, HASHES)

    def slow(self, x):
        return slow.tensor_sketch(x, HASHES.places.numpy(), HASHES.signs.numpy(), SIZE)

    def slow_matrix(self, C):
        return slow.tensor_sketch_matrix(C, HASHES.places.numpy(), HASHES.signs.numpy(), SIZE)


class Maclaurin:
    """The Random Maclaurin map with one pair of projections."""

    routes = ("direct", "gram", "auto")

    def of(self, x, route="auto"):
        return random_maclaurin(x, PROJECTIONS, route=route)

    def of_matrix(self, C):
        return random_maclaurin_matrix(C, PROJECTIONS)

    def of_pair(self, u, v):
        return random_maclaurin_pair(u, v, PROJECTIONS)

    def slow(self, x):
        return slow.random_maclaurin(x, PROJECTIONS.signs.numpy())

    def slow_matrix(self, C):
        return slow.random_maclaurin_matrix(C, PROJECTIONS.signs.numpy())


MAPS = {"tensor sketch": Tensor(), "random maclaurin": Maclaurin()}
every = pytest.mark.parametrize("compact", MAPS.values(), ids=MAPS)
ROUTES = {f"{name} {r}": (compact, r) for name, compact in MAPS.items() for r in compact.routes}
every_route = pytest.mark.parametrize(("compact", "route"), ROUTES.values(), ids=ROUTES)
CHOICES = {name: choice for name, choice in ROUTES.items() if choice[1] != "auto"}
every_choice = pytest.mark.parametrize(("compact", "route"), CHOICES.values(), ids=CHOICES)


def gradient(function, x, G):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x), x, G)[0]


class TestDefinition:
    @every_route
    def test_a_sum_over_positions(self, compact, route):
        for sample in random(2, 5, CHANNELS):
            expected = sum(compact.slow(row) for row in sample.numpy())
            assert_close(compact.of(sample, route).numpy(), expected, rtol=0, atol=1e-13)

    @every
    def test_a_linear_map_of_the_matrix(self, compact):
        """Symmetric or not."""
        for C in random(2, CHANNELS, CHANNELS):
            found = compact.of_matrix(C).numpy()
            assert_close(found, compact.slow_matrix(C.numpy()), rtol=0, atol=1e-13)

    @every
    def test_a_pair_of_vectors(self, compact):
        u, v = random(2, 3, CHANNELS)
        outer = u[:, :, None] * v[:, None, :]
        assert_close(compact.of_pair(u, v), compact.of_matrix(outer), rtol=0, atol=1e-13)
        assert not torch.allclose(compact.of_pair(u, v), compact.of_pair(v, u))

    def test_scikit_learn_agrees(self):
        x = random(5, CHANNELS).numpy()
        peer = PolynomialCountSketch(degree=2, n_components=SIZE, random_state=0).fit(x)
        places = torch.as_tensor(peer.indexHash_, dtype=torch.long)
        hashes = TensorSketchHash(places, torch.as_tensor(peer.bitHash_).float(), SIZE)
        for route in Tensor.routes:
            found = tensor_sketch(torch.as_tensor(x), hashes, route=route)
            assert_close(found.numpy(), peer.transform(x).sum(0), rtol=0, atol=1e-13)


class TestRankOneUpdate:
    """The sketch of RUN's features is the sketch of RUN's matrix."""

    eta = 0.5

    def updated(self, seed):
        F = random(9, CHANNELS, seed=seed).relu().numpy()
        v = slow.dominant_direction(F, np.ones(CHANNELS), steps=1)
        return F, v, slow.rank_one_update(F, v, self.eta)

    @every_route
    def test_corrected_after_the_sketch(self, compact, route):
        F, v, updated = (torch.as_tensor(a) for a in self.updated(seed=3))
        h = self.eta * F.T @ (F @ v) - 0.5 * self.eta**2 * (F @ v).square().sum() * v
        corrected = compact.of(F, route) - compact.of_pair(v, h) - compact.of_pair(h, v)
        assert_close(corrected, compact.of(updated, route), rtol=0, atol=1e-13)
        assert_close(corrected, compact.of_matrix(updated.T @ updated), rtol=0, atol=1e-13)
        assert (compact.of(F, route) - corrected).norm() > 0.1 * corrected.norm()


class TestUnbiased:
    """E ⟨φ(x), φ(y)⟩ = (xᵀy)², over all draws there are, and over many."""

    x, y = torch.tensor([[1.0, 2.0], [3.0, 1.0]], dtype=torch.float64)

    def test_maclaurin_over_all_signs(self):
        values = [
            random_maclaurin_pair(self.x, self.x, W) * random_maclaurin_pair(self.y, self.y, W)
            for bits in itertools.product([-1.0, 1.0], repeat=4)
            for W in [MaclaurinProjections(torch.tensor(bits).reshape(2, 1, 2))]
        ]
        assert_close(sum(values).item() / len(values), (self.x @ self.y).item() ** 2)

    def all_sketches(self):
        for bits in itertools.product([0, 1], repeat=8):
            places, signs = torch.tensor(bits).reshape(2, 2, 2)
            yield TensorSketchHash(places, 2.0 * signs - 1, size=2)

    def inner_products(self, hashes, x, y):
        both = torch.stack([x, y])
        maps = (tensor_sketch_pair(both, both, h) for h in hashes)
        return torch.stack([of_x @ of_y for of_x, of_y in maps])

    def test_tensor_sketch_over_all_hashes_and_signs(self):
        values = self.inner_products(self.all_sketches(), self.x, self.y)
        assert_close(values.mean(), (self.x @ self.y) ** 2)

    def test_not_with_the_same_hash_twice(self):
        hashes = [
            TensorSketchHash(h.places[:1].expand(2, -1), h.signs[:1].expand(2, -1), 2)
            for h in self.all_sketches()
        ]
        values = self.inner_products(hashes, self.x, self.y)
        assert abs(values.mean() - (self.x @ self.y) ** 2) > 0.1

    def test_many_draws(self):
        """Of 8 channels, in standard errors."""
        x, y, generator = *random(2, 8, seed=6), seeded(7)
        hashes = [TensorSketchHash.draw(8, 32, generator=generator) for _ in range(600)]
        maclaurin = [MaclaurinProjections.draw(8, 32, generator=generator) for _ in range(600)]
        both = (
            self.inner_products(hashes, x, y),
            torch.stack(
                [
                    random_maclaurin_pair(x, x, W) @ random_maclaurin_pair(y, y, W)
                    for W in maclaurin
                ]
            ),
        )
        for values in both:
            error = values.std() / len(values) ** 0.5
            assert abs(values.mean() - (x @ y) ** 2) < 4 * error
            assert error < 0.1 * (x @ x) * (y @ y)


class TestRoutes:
    @every
    def test_agree_to_rounding(self, compact):
        x, G = random(2, 40, CHANNELS).relu().float(), random(2, SIZE).float()
        first, *others = (compact.of(x, route) for route in compact.routes)
        slopes = [gradient(lambda x, r=r: compact.of(x, r), x, G) for r in compact.routes]
        for other, slope in zip(others, slopes[1:], strict=True):
            assert_close(other, first, rtol=0, atol=1e-6 * float(first.abs().max()))
            assert_close(slope, slopes[0], rtol=0, atol=1e-6 * float(slopes[0].abs().max()))

    @pytest.mark.parametrize(
        ("shape", "fft"),
        [
            ((784, 512, 8192), False),  # 302 ms against 10.4, one thread
            ((784, 128, 1024), False),  # 10.1, 0.77
            ((49, 512, 8192), False),  # 5.3, 2.2
            ((49, 512, 1024), True),  # 0.86, 2.2
            ((196, 2048, 8192), True),  # 46, 116
            ((784, 2048, 1024), True),  # 56, 238
        ],
    )
    def test_the_measured_choice_of_tensor_sketch(self, shape, fft):
        assert tensor_sketch_by_fft(*shape) is fft

    @pytest.mark.parametrize(
        ("shape", "directly"),
        [
            ((784, 512, 8192), False),  # 343 ms against 120
            ((196, 128, 8192), False),  # 21, 7.8
            ((196, 512, 8192), True),  # 73, 101
            ((49, 2048, 1024), True),  # 10, 238
        ],
    )
    def test_the_measured_choice_of_maclaurin(self, shape, directly):
        assert maclaurin_directly(*shape) is directly

    @pytest.mark.parametrize("positions", [1, 4000])
    def test_auto_takes_the_cheaper(self, positions):
        """Bit for bit: one position goes by itself, 4000 through the matrix."""
        x = random(positions, CHANNELS)
        routes = {1: ("fft", "direct"), 4000: ("gram", "gram")}[positions]
        for compact, route in zip(MAPS.values(), routes, strict=True):
            assert torch.equal(compact.of(x), compact.of(x, route))


@every_route
class TestEveryRoute:
    def test_gradients_agree_with_differences(self, compact, route):
        x = random(2, CHANNELS).requires_grad_()
        assert gradcheck(lambda x: compact.of(x, route), x)
        assert gradgradcheck(lambda x: compact.of(x, route), x)

    def test_any_leading_dimensions(self, compact, route):
        x = random(2, 3, 5, CHANNELS)
        one_by_one = torch.stack([compact.of(s, route) for s in x.flatten(0, 1)])
        assert_close(compact.of(x, route), one_by_one.reshape(2, 3, SIZE), rtol=0, atol=1e-13)

    def test_rows_of_zeros_add_nothing(self, compact, route):
        x = random(2, 5, CHANNELS)
        padded = torch.cat([x, torch.zeros(2, 4, CHANNELS)], 1)
        assert_close(compact.of(padded, route), compact.of(x, route), rtol=0, atol=1e-13)

    def test_nothing_at_all(self, compact, route):
        x = random(2, 5, CHANNELS)
        assert compact.of(x[:, :0], route).tolist() == torch.zeros(2, SIZE).tolist()
        assert compact.of(x[:0], route).shape == (0, SIZE)
        assert compact.of_pair(x[:0], x[:0]).shape == (0, 5, SIZE)

    @pytest.mark.parametrize("stranger", [0.0, torch.nan, torch.inf])
    def test_strangers_change_nothing(self, compact, route, stranger):
        x, G = random(3, 5, CHANNELS), random(3, SIZE)
        mixed = x.clone()
        mixed[1] = stranger
        found, alone = (gradient(lambda x: compact.of(x, route), a, G) for a in (mixed, x))
        rest = [0, 2]
        assert torch.equal(compact.of(mixed, route)[rest], compact.of(x, route)[rest])
        assert torch.equal(found[rest], alone[rest])

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_narrow_types_are_computed_in_float32(self, compact, route, dtype):
        x = random(2, 5, CHANNELS).to(dtype)
        found, exact = compact.of(x, route), compact.of(x.double(), route)
        assert found.dtype == gradient(lambda x: compact.of(x, route), x, found).dtype == dtype
        assert_close(found.double(), exact, rtol=0, atol=20 * torch.finfo(dtype).eps)

    def test_autocast_changes_nothing(self, compact, route):
        x, G = random(2, 5, CHANNELS).float(), random(2, SIZE).float()
        x.requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = compact.of(x, route)
        values = inside, compact.of(x, route)
        assert_close(*values, rtol=0, atol=0)
        assert_close(*(torch.autograd.grad(v, x, G)[0] for v in values), rtol=0, atol=0)


class TestDraws:
    def test_follow_their_generator_alone(self):
        before = torch.get_rng_state()
        for draw in (TensorSketchHash.draw, MaclaurinProjections.draw):
            first, again, other = (draw(5, 40, generator=seeded(s)) for s in (0, 0, 1))
            assert torch.equal(first.signs, again.signs)
            assert not torch.equal(first.signs, other.signs)
        assert torch.equal(torch.get_rng_state(), before)

    def test_are_uniform(self):
        """Means in standard errors, and the ends of every range."""
        hashes = TensorSketchHash.draw(5000, 7, generator=seeded())
        W = MaclaurinProjections.draw(50, 100, generator=seeded())
        assert hashes.places.unique().tolist() == list(range(7))
        assert abs(hashes.places.double().mean() - 3) < 4 * (4 / 10000) ** 0.5
        for signs in (hashes.signs, W.signs):
            assert signs.unique().tolist() == [-1, 1]
            assert abs(signs.mean()) < 4 / signs.numel() ** 0.5

    @pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
    def test_sizes(self, sizes):
        for draw in (TensorSketchHash.draw, MaclaurinProjections.draw):
            with pytest.raises(ValueError, match="at least 1 channel and size 1"):
                draw(*sizes, generator=seeded())


# PyTorch's compiler warns of what it does itself.
@every_choice
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compile_whole(compact, route):
    torch.compiler.reset()
    x, G = random(2, 5, CHANNELS), random(2, SIZE)
    compiled = torch.compile(lambda x: compact.of(x, route), backend="aot_eager", fullgraph=True)
    assert_close(compiled(x), compact.of(x, route), rtol=0, atol=1e-14)
    slope = gradient(lambda x: compact.of(x, route), x, G)
    assert_close(gradient(compiled, x, G), slope, rtol=0, atol=1e-13)
    torch.compiler.reset()


def test_two_threads_at_256_channels():
    x, threads = random(2, 300, 256).relu(), torch.get_num_threads()
    hashes = TensorSketchHash.draw(256, 512, generator=seeded())
    G = random(2, 512)
    expected = gradient(lambda x: tensor_sketch(x, hashes, route="fft"), x, G)
    try:
        torch.set_num_threads(2)
        found = gradient(lambda x: tensor_sketch(x, hashes, route="gram"), x, G)
    finally:
        torch.set_num_threads(threads)
    assert_close(found, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))


@every
class TestErrors:
    @pytest.mark.parametrize("shape", [(3, 5), (CHANNELS,)])
    def test_other_channels(self, compact, shape):
        with pytest.raises(ValueError, match=r"for 6 channels; need \[..., N, D\] with D = 6"):
            compact.of(torch.zeros(shape))
        with pytest.raises(ValueError, match=r"need \[..., D\] with D = 6, got shape \(5,\)"):
            compact.of_pair(torch.zeros(6), torch.zeros(5))
        with pytest.raises(ValueError, match="drawn for 6 channels"):
            compact.of_matrix(torch.zeros(5, 5))
        with pytest.raises(ValueError, match="need square matrices"):
            compact.of_matrix(torch.zeros(5, 6))

    def test_other_routes(self, compact):
        with pytest.raises(ValueError, match=r"route must be 'auto'.*got 'fastest'"):
            compact.of(torch.zeros(2, CHANNELS), "fastest")

    def test_not_floating(self, compact):
        with pytest.raises(TypeError, match=r"floating-point values, got torch\.int64"):
            compact.of(torch.zeros(2, CHANNELS, dtype=torch.int64))
