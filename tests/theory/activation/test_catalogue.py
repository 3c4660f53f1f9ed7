"""Names, modules and callables become the same activation, or are refused with a reason."""

import math
import warnings

import numpy as np
import pytest
import torch
from mpmath import mp
from torch import nn
from torch.nn import functional as F

from equipoise.theory import (
    Activation,
    UnstableFixedPointWarning,
    as_activation,
    explosion_rate,
)
from equipoise.theory.activation.catalogue import ACTIVATIONS, Kink, alpha_relu, homogeneous
from support.cases import each

POINTS = np.concatenate([np.linspace(-7.3, 7.1, 301), [-1e-9, 1e-9]])
EVERY_NAME = [
    *ACTIVATIONS,
    "alpha_relu(1.5)",
    "alpha_relu(0.75)",
    "leaky_relu(0.2)",
    "elu(0.7)",
    "celu(1.3)",
    "softplus(2)",
    "hardtanh(-0.5,2)",
]


def relative_distance(first, second):
    return abs(first.value - second.value) / second.value


@each("name", EVERY_NAME)
class TestNamed:
    def test_slopes_are_derivatives(self, name):
        phi = as_activation(name)
        x = POINTS[np.min([np.abs(POINTS - k.at) for k in phi.kinks] + [POINTS * 0 + 1], 0) > 1e-3]
        h = 1e-5
        differences = (phi.values(x + h) - phi.values(x - h)) / (2 * h)
        np.testing.assert_allclose(phi(x)[1], differences, rtol=1e-6, atol=1e-8)

    def test_values_are_float64_and_the_same_both_ways(self, name):
        phi = as_activation(name)
        values, slopes = phi(POINTS)
        assert values.dtype == slopes.dtype == np.float64
        assert (values == phi.values(POINTS)).all()

    def test_symmetric_ones_are_odd_or_even(self, name):
        phi = as_activation(name)
        x = np.linspace(0, 9, 91)
        there, back = phi.values(x), phi.values(-x)
        assert ((there == back).all() or (there == -back).all()) == phi.is_symmetric

    def test_arrays_and_tensors_are_the_same_function(self, name):
        phi = as_activation(name)
        plain = phi.function(torch.from_numpy(POINTS)).numpy()
        np.testing.assert_allclose(phi.values(POINTS), plain, rtol=2e-14, atol=1e-15)

    def test_slopes_are_exact_to_float64(self, name):
        """A declared derivative agrees with automatic differentiation beyond float32.

        Where a slope like 1 − tanh² is small, automatic differentiation has lost its digits.
        """
        phi = as_activation(name)
        automatic = Activation(name, phi.function)
        x = POINTS[POINTS != 0]
        np.testing.assert_allclose(phi(x)[1], automatic(x)[1], rtol=1e-14, atol=1e-15)

    def test_the_name_comes_back(self, name):
        assert as_activation(as_activation(name).name).name == as_activation(name).name


@each(
    ("alias", "name"),
    [
        ("swish", "silu"),
        ("linear", "identity"),
        ("hardsilu", "hardswish"),
        (" ReLU ", "relu"),
        ("log-sigmoid", "log_sigmoid"),
        ("hardtanh(-1, 1)", "hardtanh"),
        ("elu", "elu(1)"),
        ("leaky_relu", "leaky_relu(0.01)"),
        ("softplus", "softplus(1)"),
    ],
)
def test_aliases(alias, name):
    assert as_activation(alias).name == name


@each(
    ("module", "name"),
    [
        (nn.Identity(), "identity"),
        (nn.ReLU(inplace=True), "relu"),
        (nn.ReLU6(), "relu6"),
        (nn.Tanh(), "tanh"),
        (nn.Sigmoid(), "sigmoid"),
        (nn.GELU(), "gelu"),
        (nn.GELU(approximate="tanh"), "gelu_tanh"),
        (nn.SiLU(), "silu"),
        (nn.Mish(), "mish"),
        (nn.SELU(), "selu"),
        (nn.ELU(0.5), "elu(0.5)"),
        (nn.CELU(), "celu(1)"),
        (nn.LeakyReLU(0.3), "leaky_relu(0.3)"),
        (nn.PReLU(init=0.125), "leaky_relu(0.125)"),
        (nn.Softplus(), "softplus(1)"),
        (nn.Softplus(beta=3, threshold=40), "softplus(3)"),
        (nn.Softplus(beta=3), "softplus(3, threshold=20)"),
        (nn.Softsign(), "softsign"),
        (nn.LogSigmoid(), "log_sigmoid"),
        (nn.Tanhshrink(), "tanhshrink"),
        (nn.Hardswish(), "hardswish"),
        (nn.Hardsigmoid(), "hardsigmoid"),
        (nn.Hardtanh(-2, 2), "hardtanh(-2,2)"),
        (torch.tanh, "tanh"),
        (F.relu, "relu"),
        (F.gelu, "gelu"),
        (torch.square, "square"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_modules_and_functions_have_names(module, name):
    phi = as_activation(module)
    assert phi.name == name
    assert as_activation(phi) is phi
    x = torch.from_numpy(POINTS)
    with torch.no_grad():
        expected = copy_in_double(module)(x.clone())
    # PyTorch's softplus turns linear at 20: an error of 2e-9.
    np.testing.assert_allclose(phi.values(POINTS), expected, rtol=1e-12, atol=3e-9)


def test_a_function_is_adapted_as_it_is_now():
    scale = [1.0]

    def scaled(x):
        return torch.tanh(scale[0] * x)

    before = rate(scaled)
    scale[0] = 5.0
    now, expected = rate(scaled), rate(lambda x: torch.tanh(5 * x))
    assert now.value == expected.value > before.value + 1


class Equal:
    """It has no hash, as it defines an equality."""

    def __call__(self, x):
        return torch.tanh(x)

    def __eq__(self, other):
        return True


def test_objects_without_a_hash_are_adapted():
    found = as_activation(Equal())
    assert found.name == "Equal"
    np.testing.assert_allclose(found.values(POINTS), np.tanh(POINTS), rtol=1e-15)


class TestSoftplus:
    """PyTorch's turns linear at threshold/β, with a jump of exp(-threshold)/β."""

    def test_is_refused_where_it_jumps(self):
        with pytest.raises(ValueError, match=r"threshold=0\.5.* jumps by 0\.474"):
            as_activation(nn.Softplus(threshold=0.5))
        with pytest.raises(ValueError, match=r"threshold=10.* jumps by 4\.5"):
            as_activation(nn.Softplus(threshold=10))

    @pytest.mark.parametrize(("beta", "threshold"), [(1, 20), (5, 20), (20, 20)])
    def test_has_the_rate_of_the_same_function(self, beta, threshold):
        found = rate(nn.Softplus(beta, threshold))
        expected = rate(lambda x: F.softplus(x, beta, threshold))
        assert abs(found.value - expected.value) <= found.error + expected.error

    def test_has_not_that_of_the_smooth_one_in_general(self):
        found, smooth = rate(nn.Softplus(20)), rate("softplus(20)")
        assert abs(found.value - smooth.value) > 100 * (found.error + smooth.error)


def rate(activation):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableFixedPointWarning)
        return explosion_rate(activation, 64)


def copy_in_double(module):
    return module.double() if isinstance(module, nn.Module) else module


@pytest.mark.parametrize(
    ("function", "kinks"),
    [
        (lambda x: torch.relu(x - 1), [1.0]),
        (lambda x: x.abs(), [0.0]),
        (lambda x: torch.maximum(0.1 * x, x), [0.0]),
        (lambda x: (x - 1 / 3).clamp(-1, 2), [-2 / 3, 7 / 3]),
        (lambda x: F.hardtanh(x, -math.pi, math.e), [-math.pi, math.e]),
        (F.hardshrink, None),
        (lambda x: F.softshrink(x, 0.5), [-0.5, 0.5]),
        (lambda x: torch.relu(x) ** 2, [0.0]),
        (lambda x: F.elu(x) + torch.relu(x - 2), [0.0, 2.0]),
        (lambda x: torch.relu(x + 5.25) - torch.relu(x - 17.125), [-5.25, 17.125]),
        (torch.atan, []),
        (lambda x: torch.tanh(50 * x), []),
        (lambda x: torch.sin(30 * x), []),
        (lambda x: x**3 - x, []),
        (lambda x: torch.zeros_like(x) + x, []),
    ],
)
def test_kinks_of_a_callable_are_found(function, kinks):
    if kinks is None:
        with pytest.raises(ValueError, match="jumps"):
            as_activation(function)
        return
    found = as_activation(function).kinks
    assert len(found) == len(kinks)
    for kink, at in zip(found, kinks, strict=True):
        assert kink.at == pytest.approx(at, abs=1e-12)
        assert not kink.power


def test_no_kink_hides_at_the_end_of_a_panel():
    """Panels that only touch each other miss kinks between them."""
    generator = np.random.default_rng(5)
    for _ in range(12):
        at = np.sort(generator.uniform(-3, 3, 3))
        slopes = generator.uniform(0.3, 2, 3)

        def pieces(x, at=at, slopes=slopes):
            return x + sum(s * torch.relu(x - k) for s, k in zip(slopes, at, strict=True))

        assert [kink.at for kink in as_activation(pieces).kinks] == pytest.approx(at, abs=1e-11)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("hardsigmoid", lambda x: np.clip(x + 3, 0, 6) / 6),
        ("celu(0.55)", lambda x: np.where(x > 0, x, 0.55 * np.expm1(np.minimum(x, 0) / 0.55))),
        ("gelu_tanh", lambda x: x / (1 + np.exp(-np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)))),
    ],
)
def test_constants_are_float64(name, function):
    """PyTorch's own round 1/6 and 1/alpha to float32, an error of 6e-8."""
    np.testing.assert_allclose(as_activation(name).values(POINTS), function(POINTS), atol=2e-15)


@pytest.mark.parametrize(("power", "is_power"), [(1.5, True), (0.75, True), (2, False)])
def test_fractional_powers_are_distinguished_from_analytic_pieces(power, is_power):
    (kink,) = as_activation(lambda x: torch.relu(x - 0.5) ** power).kinks
    assert kink == Kink(0.5, power=is_power)


@pytest.mark.parametrize("distance", [0.1, 1.5e-3])
def test_kinks_that_are_close_are_both_found(distance):
    """One kink fewer costs 4e-4 of the rate here, at a claimed error of 6e-15."""
    kinks = as_activation(lambda x: torch.relu(x - 0.37) + torch.relu(x - 0.37 - distance)).kinks
    assert [kink.at for kink in kinks] == pytest.approx([0.37, 0.37 + distance], abs=1e-12)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", lambda x: torch.relu(x) + 0),
        ("tanh", lambda x: torch.tanh(x) + 0),
        ("gelu", lambda x: x * torch.special.ndtr(x)),
        ("leaky_relu(0.2)", lambda x: torch.where(x > 0, x, 0.2 * x)),
        ("hardtanh", lambda x: x.clamp(-1, 1)),
        ("hardswish", lambda x: x * (x + 3).clamp(0, 6) / 6),
        ("elu", lambda x: torch.where(x > 0, x, torch.expm1(x.clamp(max=0)))),
        ("softplus", lambda x: torch.logaddexp(x, torch.zeros_like(x))),
        ("alpha_relu(1.5)", lambda x: torch.relu(x) ** 1.5),
        ("alpha_relu(2)", lambda x: torch.relu(x) * x),
    ],
)
@pytest.mark.parametrize(
    ("batch_size", "options"),
    [(5, {}), (24, {}), (16, {"beta": 0.3, "gamma": 1.5}), (24, {"eps": 0.01})],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::equipoise.theory.UnstableFixedPointWarning")
def test_callables_agree_with_named_ones(name, function, batch_size, options):
    named = explosion_rate(name, batch_size, **options)
    called = explosion_rate(as_activation(function), batch_size, **options)
    assert relative_distance(called, named) < 1e-11


@pytest.mark.parametrize("steep", [lambda x: torch.tanh(50 * x), lambda x: torch.tanh(20 * x + 3)])
def test_steep_smooth_callables_have_a_rate(steep):
    rate = explosion_rate(steep, 64)
    assert rate.error < 1e-5 * rate.value


class TestTaken:
    @pytest.mark.filterwarnings("ignore::equipoise.theory.UnstableFixedPointWarning")
    def test_slopes_that_are_nan_within_underflow_of_a_kink(self):
        """√x² sends back 0/0 where x² is 0: 10⁻³²⁴ away from 0, where nothing needs it."""
        signed = explosion_rate(lambda x: x * torch.sqrt(x * x), 8)
        exact = explosion_rate(homogeneous("signed square", 2.0, 1.0, 1.0), 8)
        assert abs(signed.value - exact.value) <= signed.error + exact.error < 1e-12

    def test_what_the_refusal_of_a_gradient_proposes(self):
        def power(x):
            return torch.where(x > 0, x * torch.sqrt(x.clamp(min=1e-30)), 0 * x)

        found, exact = explosion_rate(power, 8), explosion_rate(alpha_relu(1.5), 8)
        assert abs(found.value - exact.value) <= found.error + exact.error < 1e-11

    def test_functions_that_fail_on_no_points(self):
        def of_rows(x):
            return torch.tanh(x.reshape(-1, x.shape[-1])).reshape(x.shape)

        with pytest.raises(RuntimeError, match="0 elements"):
            of_rows(torch.empty(0))
        assert explosion_rate(of_rows, 8) == explosion_rate(lambda x: torch.tanh(x), 8)


class TestRefused:
    @pytest.mark.parametrize(
        ("function", "reason"),
        [
            (nn.Softmax(0), "not elementwise"),
            (nn.BatchNorm1d(4), "fails on a float64 tensor"),
            (lambda x: x - x.mean(), "not elementwise"),
            (lambda x: x.sort().values, "not elementwise"),
            (lambda x: x[:1], "not elementwise"),
            (lambda x: x.sum(), "not elementwise"),
            (lambda x: x.numpy(), "not elementwise"),
            (lambda x: x.flatten(), "shape \\(8, 12\\) gave \\(96,\\)"),
            (lambda x: x @ x.T if x.dim() == 2 else x, "shape \\(8, 12\\) gave \\(8, 8\\)"),
            (lambda x: torch.where(x > 0, x**1.5, 0 * x), "gradient .* not finite at x = -0.0947"),
            (nn.Dropout(), "random"),
            (nn.RReLU(), "random"),
            (torch.log, "not finite"),
            (lambda x: 1 / (x - 0.0137 + 19.7), "not finite"),
            (lambda x: torch.exp(x * x * x), "not finite"),
            (lambda x: torch.where(x.abs() < 1e-3, math.nan, x), "not finite at x = "),
            (torch.sign, "jumps"),
            (torch.floor, "jumps"),
            (lambda x: torch.where(x > 0.3, x + 1, x), "jumps"),
            (lambda x: x.float().tanh(), "float64"),
            (lambda x: torch.relu(x) ** 0.5, "E\\[φ′²\\] is infinite"),
            (lambda x: torch.relu(x - 1) ** 0.4, "E\\[φ′²\\] is infinite"),
            (lambda x: x @ torch.ones(3, dtype=x.dtype), "fails on a float64 tensor"),
        ],
    )
    def test_with_its_reason(self, function, reason):
        with pytest.raises(ValueError, match=reason):
            as_activation(function)

    def test_objects_that_are_not_callable(self):
        for thing in (3, None, object()):
            with pytest.raises(TypeError, match="a name, a module or a callable"):
                as_activation(thing)

    @each("name", ["rellu", "", "relu(2)", "alpha_relu", "elu(1,2)", "elu(x)"])
    def test_unknown_names_and_numbers(self, name):
        with pytest.raises(ValueError, match=r"."):
            as_activation(name)

    def test_an_unknown_name_lists_the_known_ones(self):
        with pytest.raises(ValueError, match=r"'rellu'.*gelu.*relu"):
            as_activation("rellu")

    @pytest.mark.parametrize("alpha", [0.5, 0.0, -1.0, math.nan])
    def test_slopes_without_a_second_moment(self, alpha):
        with pytest.raises(ValueError, match=str(alpha)):
            alpha_relu(alpha)

    @each(
        "name", ["alpha_relu(1e308)", "leaky_relu(1e308)", "elu(nan)", "celu(0)", "hardtanh(2,1)"]
    )
    def test_numbers_that_overflow_or_make_no_sense(self, name):
        with pytest.raises(ValueError, match="needs"):
            as_activation(name)

    def test_a_prelu_with_many_slopes(self):
        with pytest.raises(ValueError, match="PReLU"):
            as_activation(nn.PReLU(3))

    def test_one_that_overflows(self):
        with pytest.raises(ValueError, match=r"gamma = 60.*grows slower"):
            explosion_rate(as_activation(lambda x: torch.expm1(x)), 1000, gamma=60.0)


def test_a_module_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(1, 1), nn.Tanh()).train()
    before = [p.clone() for p in module.parameters()]
    with pytest.raises(ValueError, match="Sequential"):
        as_activation(module)
    learned = nn.PReLU(1, init=0.3)
    as_activation(nn.Sequential(learned))
    assert learned.weight.dtype == before[0].dtype == torch.float32
    assert module.training


def test_random_state_is_left_as_it_was():
    state = torch.random.get_rng_state()
    as_activation(lambda x: torch.atan(x))
    assert (torch.random.get_rng_state() == state).all()


def test_a_callable_keeps_its_name_unless_given_another():
    assert as_activation(torch.atan).name == "atan"
    assert as_activation(torch.atan, name="arc").name == "arc"
    assert as_activation(nn.Softshrink()).name == "Softshrink"


class TestNarrowFeatures:
    @pytest.mark.parametrize("width", [0.1, 0.01, 1e-3, 2e-4])
    def test_panels_narrow_towards_a_bump(self, width):
        bump = as_activation(lambda x: torch.tanh(x) + torch.exp(-(((x - 0.3) / width) ** 2)))
        nearest = min(abs(t - 0.3) for t in (*bump.turns, *(k.at for k in bump.kinks)))
        assert nearest < 4 * width

    def test_a_gentle_function_has_none(self):
        assert as_activation(lambda x: torch.tanh(x) + 0.1 * x).turns == ()

    def test_a_kink_is_exact_to_the_last_bit(self):
        at = 0.7899054163730517
        (kink,) = as_activation(lambda x: torch.relu(x - at) - 0.3 * x).kinks
        assert abs(kink.at - at) <= np.spacing(at)


def softplus(x, beta=1):
    return mp.log1p(mp.exp(beta * x)) / beta


def sigmoid(x):
    return 1 / (1 + mp.exp(-x))


def exponential_unit(x, alpha, width=1):
    return x if x > 0 else mp.mpf(alpha) * mp.expm1(x / mp.mpf(width))


SMOOTH = {
    "identity": lambda x: x,
    "square": lambda x: x * x,
    "sin": mp.sin,
    "tanh": mp.tanh,
    "erf": mp.erf,
    "sigmoid": sigmoid,
    "gelu": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * sigmoid(mp.sqrt(8 / mp.pi) * (x + mp.mpf(0.044715) * x**3)),
    "silu": lambda x: x * sigmoid(x),
    "mish": lambda x: x * mp.tanh(softplus(x)),
    "selu": lambda x: (
        mp.mpf("1.0507009873554804934193349852946")
        * exponential_unit(x, "1.6732632423543772848170429916717")
    ),
    "softsign": lambda x: x / (1 + abs(x)),
    "log_sigmoid": lambda x: -softplus(-x),
    "tanhshrink": lambda x: x - mp.tanh(x),
    "softplus(2)": lambda x: softplus(x, 2),
    "softplus(0.3)": lambda x: softplus(x, mp.mpf(0.3)),
    "elu(0.7)": lambda x: exponential_unit(x, 0.7),
    "celu(1.3)": lambda x: exponential_unit(x, 1.3, 1.3),
    "alpha_relu(1.5)": lambda x: x ** mp.mpf(1.5) if x > 0 else mp.mpf(0),
}
FAR = np.array(
    [1e-12, 1e-6, 1e-3, 0.03, 0.3, 0.7, 1.0, 1.7, 3.0, 5.0, 7.0, 12.25, 25.0, 37.0, 40.0]
)
UNIT = np.finfo(float).eps


@pytest.mark.parametrize("name", SMOOTH)
class TestDigits:
    """Values and slopes against multiple precision, each relative to itself.

    Allowed are 4 units in the last place times 1 + |x f′/f|, what rounding of the argument alone
    does to f: near a zero of f and in tails such as exp(−x²/2) that is large, and no formula of x
    does better. Below the smallest normal number nothing is relative.
    """

    @staticmethod
    def exact(name, x):
        """φ, φ′ and φ″ at a point; exp(−25²) is 1e-272, which its digits allow for."""
        with mp.workdps(400):
            at, step = mp.mpf(float(x)), mp.mpf(10) ** -40 * abs(mp.mpf(float(x)))
            below, here, above = (SMOOTH[name](at + k * step) for k in (-1, 0, 1))
            return here, (above - below) / (2 * step), (above - 2 * here + below) / step**2

    def worst(self, name, phi):
        """Largest errors of values and of slopes, in what is allowed."""
        points = np.concatenate([-FAR, FAR])
        found = []
        for x, value, slope in zip(points, *phi(points), strict=True):
            first, second, third = self.exact(name, x)
            pair = []
            for number, exact, change in ((value, first, second), (slope, second, third)):
                allowed = 4 * UNIT * (abs(exact) + abs(x * change)) + np.finfo(float).tiny
                pair.append(float(abs(mp.mpf(float(number)) - exact) / allowed))
            found.append(pair)
        return np.max(found, axis=0)

    def test_values_and_slopes_keep_their_digits(self, name):
        assert (self.worst(name, as_activation(name)) <= 1).all()


@pytest.mark.parametrize(
    ("name", "plain", "lost"),
    [
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), (True, True)),
        ("gelu", lambda x: F.gelu(x), (True, True)),
        ("tanhshrink", F.tanhshrink, (True, True)),
        ("tanh", torch.tanh, (False, True)),
    ],
)
def test_plain_formulas_lose_digits(name, plain, lost):
    """PyTorch's own functions and automatic differentiation do not pass TestDigits."""
    worst = TestDigits().worst(name, Activation(name, plain))
    assert ((worst > 10) == lost).all()


def test_every_smooth_activation_has_a_twin():
    straight = {"relu", "abs", "hardtanh", "relu6", "hardswish", "hardsigmoid"}
    assert set(ACTIVATIONS) - straight <= set(SMOOTH)
