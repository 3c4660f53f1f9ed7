"""Compact maps: as they are defined, by every route, unbiased, and linear in the matrix."""

import itertools

import pytest
import torch
from sklearn.kernel_approximation import PolynomialCountSketch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from equipoise.pooling.sketches.random_maclaurin import RandomMaclaurin
from equipoise.pooling.sketches.tensor_sketch import TensorSketch, reached_entries
from reference import sketches as slow

CHANNELS, SIZE = 6, 16


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random(*shape, seed=0):
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


MAPS = {
    "tensor sketch": TensorSketch(CHANNELS, SIZE, generator=seeded()),
    "random maclaurin": RandomMaclaurin(CHANNELS, SIZE, generator=seeded()),
}
every = pytest.mark.parametrize("compact", MAPS.values(), ids=MAPS)
ROUTES = {
    f"{name} {route}": (compact, route)
    for name, compact in MAPS.items()
    for route in ("matrix", "positions")
}
every_route = pytest.mark.parametrize(("compact", "route"), ROUTES.values(), ids=ROUTES)


def sketch(compact, route, x):
    return compact.of_positions(x) if route == "positions" else compact.of_matrix(x.mT @ x)


def slow_sketch(compact, x):
    if isinstance(compact, TensorSketch):
        return slow.tensor_sketch(x, compact.places.numpy(), compact.signs.numpy(), SIZE)
    return slow.random_maclaurin(x, compact.signs.numpy())


def slow_sketch_of_matrix(compact, C):
    if isinstance(compact, TensorSketch):
        return slow.tensor_sketch_matrix(C, compact.places.numpy(), compact.signs.numpy(), SIZE)
    return slow.random_maclaurin_matrix(C, compact.signs.numpy())


def tensor_sketch_with(places, signs, size):
    """A layer with given hashes."""
    layer = TensorSketch(places.shape[1], size, generator=seeded())
    layer.places, layer.signs = places, signs
    layer.reached = reached_entries(places, signs, size)
    return layer


def maclaurin_with(signs):
    layer = RandomMaclaurin(signs.shape[2], signs.shape[1], generator=seeded())
    layer.signs = signs
    return layer


def gradient(function, x, G):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x), x, G)[0]


class TestDefinition:
    @every_route
    def test_a_sum_over_positions(self, compact, route):
        x = random(2, 5, CHANNELS)
        for sample, found in zip(x, sketch(compact, route, x), strict=True):
            expected = sum(slow_sketch(compact, row) for row in sample.numpy())
            assert_close(found.numpy(), expected, rtol=0, atol=1e-13)

    @every
    def test_a_linear_map_of_symmetric_matrices(self, compact):
        C = random(2, CHANNELS, CHANNELS)
        C = C + C.mT
        for one, found in zip(C, compact.of_matrix(C), strict=True):
            expected = slow_sketch_of_matrix(compact, one.numpy())
            assert_close(found.numpy(), expected, rtol=0, atol=1e-13)

    def test_scikit_learn_agrees(self):
        x = random(5, CHANNELS).numpy()
        peer = PolynomialCountSketch(degree=2, n_components=SIZE, random_state=0).fit(x)
        places = torch.as_tensor(peer.indexHash_, dtype=torch.long)
        compact = tensor_sketch_with(places, torch.as_tensor(peer.bitHash_).float(), SIZE)
        for route in ("matrix", "positions"):
            found = sketch(compact, route, torch.as_tensor(x)[None])[0]
            assert_close(found.numpy(), peer.transform(x).sum(0), rtol=0, atol=1e-13)


def inner_products(sketches, x, y):
    """⟨φ(x), φ(y)⟩ under each of the maps."""
    both = torch.stack([x, y])[:, None]  # two samples of one position
    maps = (compact.of_positions(both) for compact in sketches)
    return torch.stack([of_x @ of_y for of_x, of_y in maps])


class TestUnbiased:
    """E ⟨φ(x), φ(y)⟩ = (xᵀy)², over all draws there are, and over many."""

    x, y = torch.tensor([[1.0, 2.0], [3.0, 1.0]], dtype=torch.float64)

    def all_tensor_sketches(self, *, same=False):
        for bits in itertools.product([0, 1], repeat=8):
            places, bits_of_signs = torch.tensor(bits).reshape(2, 2, 2)
            signs = 2.0 * bits_of_signs - 1
            if same:
                places, signs = (rows[:1].expand(2, -1).clone() for rows in (places, signs))
            yield tensor_sketch_with(places, signs, 2)

    def test_maclaurin_over_all_signs(self):
        layers = (
            maclaurin_with(torch.tensor(bits).reshape(2, 1, 2))
            for bits in itertools.product([-1.0, 1.0], repeat=4)
        )
        values = inner_products(layers, self.x, self.y)
        assert_close(values.mean(), (self.x @ self.y) ** 2)

    def test_tensor_sketch_over_all_hashes_and_signs(self):
        values = inner_products(self.all_tensor_sketches(), self.x, self.y)
        assert_close(values.mean(), (self.x @ self.y) ** 2)

    def test_not_with_the_same_hash_twice(self):
        values = inner_products(self.all_tensor_sketches(same=True), self.x, self.y)
        assert abs(values.mean() - (self.x @ self.y) ** 2) > 0.1

    @pytest.mark.parametrize("kind", [TensorSketch, RandomMaclaurin])
    def test_many_draws(self, kind):
        """Of 8 channels, in standard errors."""
        x, y, generator = *random(2, 8, seed=6), seeded(7)
        values = inner_products((kind(8, 32, generator=generator) for _ in range(600)), x, y)
        error = values.std() / len(values) ** 0.5
        assert abs(values.mean() - (x @ y) ** 2) < 4 * error
        assert error < 0.1 * (x @ x) * (y @ y)


class TestRoutes:
    @every
    def test_agree_to_rounding(self, compact):
        x, G = random(2, 40, CHANNELS).relu().float(), random(2, SIZE).float()
        value, other = (sketch(compact, route, x) for route in ("matrix", "positions"))
        assert_close(other, value, rtol=0, atol=1e-6 * float(value.abs().max()))
        slope, other = (
            gradient(lambda x, r=route: sketch(compact, r, x), x, G)
            for route in ("matrix", "positions")
        )
        assert_close(other, slope, rtol=0, atol=1e-6 * float(slope.abs().max()))

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
        positions, channels, size = shape
        layer = TensorSketch(1, 1, generator=seeded())
        layer.places, layer.size = torch.empty(2, channels, device="meta"), size
        assert layer.prefers_positions(positions) is fft

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
        positions, channels, size = shape
        layer = RandomMaclaurin(1, 1, generator=seeded())
        layer.signs = torch.empty(2, size, channels, device="meta")
        assert layer.prefers_positions(positions) is directly


@every_route
class TestEveryRoute:
    def test_gradients_agree_with_differences(self, compact, route):
        x = random(1, 2, CHANNELS).requires_grad_()
        assert gradcheck(lambda x: sketch(compact, route, x), x)
        assert gradgradcheck(lambda x: sketch(compact, route, x), x, fast_mode=True)

    def test_rows_of_zeros_add_nothing(self, compact, route):
        x = random(2, 5, CHANNELS)
        padded = torch.cat([x, torch.zeros(2, 4, CHANNELS)], 1)
        expected = sketch(compact, route, x)
        assert_close(sketch(compact, route, padded), expected, rtol=0, atol=1e-13)

    def test_no_positions_and_no_samples(self, compact, route):
        x = random(2, 5, CHANNELS)
        assert sketch(compact, route, x[:, :0]).tolist() == torch.zeros(2, SIZE).tolist()
        assert sketch(compact, route, x[:0]).shape == (0, SIZE)


class TestReached:
    """Which entries of a Tensor Sketch a symmetric matrix can change."""

    def test_products_that_cancel_reach_nothing(self):
        """s_1(i) s_2(l) C_il + s_1(l) s_2(i) C_li is 0 where both fall in one place."""
        places = torch.tensor([[0, 1], [0, 1]])  # both mixed products at 1
        signs = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        assert reached_entries(places, signs, 8).nonzero().flatten().tolist() == [0, 2]
        same = torch.ones(2, 2)
        assert reached_entries(places, same, 8).nonzero().flatten().tolist() == [0, 1, 2]

    def test_others_are_exactly_zero(self):
        """Fourier transforms leave 1e-9 there."""
        compact = TensorSketch(CHANNELS, 256, generator=seeded())
        x = random(3, 40, CHANNELS).relu().float()
        silent = ~compact.reached
        assert silent.sum() >= 256 - CHANNELS**2
        for route in ("matrix", "positions"):
            assert (sketch(compact, route, x)[:, silent] == 0).all()
        compact.reached = torch.ones_like(compact.reached)
        assert (sketch(compact, "positions", x)[:, silent] != 0).any()


class TestDraws:
    def test_follow_their_generator_alone(self):
        before = torch.get_rng_state()
        for kind in (TensorSketch, RandomMaclaurin):
            first, again, other = (kind(5, 40, generator=seeded(s)) for s in (0, 0, 1))
            assert torch.equal(first.signs, again.signs)
            assert not torch.equal(first.signs, other.signs)
        assert torch.equal(torch.get_rng_state(), before)

    def test_are_uniform(self):
        """Means in standard errors, and the ends of every range."""
        hashes = TensorSketch(2000, 7, generator=seeded())
        W = RandomMaclaurin(50, 100, generator=seeded())
        assert hashes.places.unique().tolist() == list(range(7))
        assert abs(hashes.places.double().mean() - 3) < 4 * (4 / 4000) ** 0.5
        for signs in (hashes.signs, W.signs):
            assert signs.unique().tolist() == [-1, 1]
            assert abs(signs.mean()) < 4 / signs.numel() ** 0.5


# PyTorch's compiler warns about what it does itself.
@every_route
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compile_whole(compact, route):
    torch.compiler.reset()
    x, G = random(2, 5, CHANNELS), random(2, SIZE)

    def function(x):
        return sketch(compact, route, x)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x), function(x), rtol=0, atol=1e-14)
    assert_close(gradient(compiled, x, G), gradient(function, x, G), rtol=0, atol=1e-13)
    torch.compiler.reset()
