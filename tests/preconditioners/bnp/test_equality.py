"""One step is exactly PPᵀ/q² times the gradient, for dense layers and every convolution."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import pad
from torch.testing import assert_close

from equipoise.preconditioners import BNP
from equipoise.preconditioners.bnp.maps import Factors, precondition
from reference.bnp_paper import Convolution, Dense
from support.bnp_problems import attached, distance, generator, mlp, stepped

CONVOLUTIONS = {
    "1d": (nn.Conv1d, (4, 6, 3), {}, (9,)),
    "1d stride dilation": (
        nn.Conv1d,
        (4, 6, 3),
        {"stride": 2, "dilation": 2, "padding": 3},
        (11,),
    ),
    "1x1": (nn.Conv2d, (4, 6, 1), {}, (5, 4)),
    "same": (nn.Conv2d, (4, 6, 3), {"padding": "same"}, (5, 4)),
    "even same": (nn.Conv2d, (4, 6, (2, 4)), {"padding": "same", "dilation": (1, 2)}, (7, 8)),
    "valid": (nn.Conv2d, (4, 6, (3, 2)), {"padding": "valid"}, (5, 4)),
    "stride": (nn.Conv2d, (4, 6, 3), {"stride": (2, 3), "padding": (1, 2)}, (7, 8)),
    "dilation": (nn.Conv2d, (4, 6, 3), {"dilation": (2, 1), "padding": 1}, (7, 8)),
    "groups": (nn.Conv2d, (4, 6, 3), {"groups": 2, "padding": 1}, (5, 4)),
    "depthwise": (nn.Conv2d, (4, 8, 3), {"groups": 4, "stride": 2}, (5, 6)),
    "reflect": (nn.Conv2d, (4, 6, 3), {"padding": 1, "padding_mode": "reflect"}, (5, 4)),
    "circular": (nn.Conv2d, (4, 6, 3), {"padding": 2, "padding_mode": "circular"}, (5, 4)),
    "replicate": (nn.Conv2d, (4, 6, 3), {"padding": 1, "padding_mode": "replicate"}, (5, 4)),
    "3d": (nn.Conv3d, (2, 4, (3, 2, 1)), {"padding": (1, 0, 1), "stride": 2}, (5, 4, 3)),
    "3d groups": (nn.Conv3d, (4, 4, 2), {"groups": 2}, (3, 4, 3)),
}
EPS = (1e-2, 1e-4)


def explicit(rows, gradient, mean, variance, q2, bias):
    """PPᵀ/q² as a matrix, applied to [b; W]ᵀ: ``gradient`` is ``[1 + n, outputs]``."""
    n = rows.shape[1]
    damped = variance + EPS[0] * variance.max() + EPS[1]
    U = torch.eye(n + 1, dtype=torch.float64)
    if bias:
        U[0, 1:] = -mean
    D = torch.diag(torch.cat([torch.ones(1, dtype=torch.float64), damped**-0.5]))
    P = U @ D
    return P @ P.T @ gradient / q2


def im2col(module, h):
    """Rows [samples, positions, channels, taps] by indexing, without unfold."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    k, s, d = module.kernel_size, module.stride, module.dilation
    if module.padding == "same":
        total = [b * (a - 1) for a, b in zip(k, d, strict=True)]
        sides = [(t // 2, t - t // 2) for t in total]
    elif module.padding == "valid":
        sides = [(0, 0)] * len(k)
    else:
        sides = [(p, p) for p in module.padding]
    h = pad(h, [p for side in reversed(sides) for p in side], mode=mode)
    outputs = [
        (size - b * (a - 1) - 1) // c + 1
        for size, a, b, c in zip(h.shape[2:], k, d, s, strict=True)
    ]
    rows = []
    for u in np.ndindex(*outputs):
        taps = [
            h[(slice(None), slice(None), *[u[i] * s[i] + t[i] * d[i] for i in range(len(k))])]
            for t in np.ndindex(*k)
        ]
        rows.append(torch.stack(taps, -1))
    return torch.stack(rows, 1)


def one_step(module, h, **options):
    """Raw and preconditioned gradients of a random linear loss."""
    with BNP(module, **options) as pre:
        out = module(h)
        weights = torch.randn(out.shape, generator=generator(5), dtype=out.dtype)
        (out * weights).sum().backward()
        raw = [p.grad.clone() for p in module.parameters()]
        pre.step()
    return raw, [p.grad for p in module.parameters()]


def expected(module, h, raw, exact):
    """The explicit product, group by group."""
    rows = im2col(module, h)
    samples, positions, channels, taps = rows.shape
    groups = module.groups
    bias = len(raw) > 1
    weights, biases = [], []
    fan_in = channels // groups * taps
    q2 = max(fan_in / samples, math.sqrt(positions))
    for j in range(groups):
        inside = slice(j * channels // groups, (j + 1) * channels // groups)
        outs = slice(j * module.out_channels // groups, (j + 1) * module.out_channels // groups)
        H = rows[:, :, inside].reshape(samples * positions, fan_in)
        if exact:
            mean, variance = H.mean(0), H.var(0, correction=0)
        else:
            flat = h[:, inside].transpose(0, 1).flatten(1)
            mean, variance = (
                v.repeat_interleave(taps) for v in (flat.mean(1), flat.var(1, correction=0))
            )
        if not bias:
            variance = variance + mean**2
        G = raw[0][outs].flatten(1)
        g = raw[1][outs] if bias else torch.zeros(len(G), dtype=G.dtype)
        new = explicit(H, torch.cat([g[None], G.T]), mean, variance, q2, bias)
        weights.append(new[1:].T.reshape(raw[0][outs].shape))
        biases.append(new[0])
    return [torch.cat(weights), torch.cat(biases)][: len(raw)]


@pytest.mark.parametrize("bias", [True, False])
class TestExplicitProduct:
    @pytest.mark.filterwarnings("ignore:Using padding='same'")
    @pytest.mark.parametrize("conv_stats", ["channel", "exact"])
    @pytest.mark.parametrize("case", CONVOLUTIONS)
    def test_convolution(self, case, conv_stats, bias):
        kind, sizes, options, space = CONVOLUTIONS[case]
        module = kind(*sizes, **options, bias=bias, dtype=torch.float64)
        h = torch.randn(3, sizes[0], *space, generator=generator(), dtype=torch.float64) + 0.7
        raw, new = one_step(module, h, conv_stats=conv_stats)
        for ours, product in zip(
            new, expected(module, h, raw, conv_stats == "exact"), strict=True
        ):
            assert_close(ours, product, rtol=1e-13, atol=1e-13)

    @pytest.mark.parametrize("shape", [(5,), (1, 5), (8, 5), (3, 4, 5), (2, 3, 2, 5)])
    def test_linear_on_any_leading_dimensions(self, shape, bias):
        module = nn.Linear(5, 4, bias=bias, dtype=torch.float64)
        h = torch.randn(shape, generator=generator(), dtype=torch.float64) + 0.7
        raw, new = one_step(module, h)
        H = h.reshape(-1, 5)
        mean, variance = H.mean(0), H.var(0, correction=0)
        if not bias:
            variance = variance + mean**2
        g = raw[1] if bias else torch.zeros(4, dtype=torch.float64)
        q2 = max(5 / len(H), 1)
        product = explicit(H, torch.cat([g[None], raw[0].T]), mean, variance, q2, bias)
        # One row has no variance: its exact 0 is a difference divided by ε₂ = 1e-4.
        close = 1e-13 if len(H) > 1 else 1e-11
        for ours, theirs in zip(new, [product[1:].T, product[0]], strict=False):
            assert_close(ours, theirs, rtol=close, atol=close)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_attached_convolutions_make_the_explicit_step(case, last):
    """Two-sided, on contiguous and on channels-last weights."""
    kind, sizes, options, space = CONVOLUTIONS[case]
    module = kind(*sizes, **options, dtype=torch.float64)
    h = torch.randn(3, sizes[0], *space, generator=generator(), dtype=torch.float64) + 0.7
    if last and len(space) == 2:
        module.to(memory_format=torch.channels_last)
    start = [p.detach().clone() for p in module.parameters()]
    _, new = one_step(module, h)
    expect = [p - 0.1 * g for p, g in zip(start, new, strict=True)]
    module.zero_grad()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    with BNP(module) as pre:
        pre.attach(optimizer)
        out = module(h)
        weights = torch.randn(out.shape, generator=generator(5), dtype=out.dtype)
        (out * weights).sum().backward()
        optimizer.step()
    for ours, theirs in zip(module.parameters(), expect, strict=True):
        assert_close(ours.detach(), theirs, rtol=1e-12, atol=1e-12)


def test_channel_statistics_are_not_exact_ones():
    """On a 5 x 4 map with padding the two differ, so the tests above can fail."""
    kind, sizes, options, space = CONVOLUTIONS["same"]
    module = kind(*sizes, **options, dtype=torch.float64)
    h = torch.randn(3, 4, *space, generator=generator(), dtype=torch.float64) + 0.7
    raw, new = one_step(module, h, conv_stats="channel")
    assert not torch.allclose(new[0], expected(module, h, raw, True)[0], rtol=1e-2)


def test_channels_last_and_unbatched_inputs_are_the_same():
    kind, sizes, options, space = CONVOLUTIONS["groups"]
    module = kind(*sizes, **options, dtype=torch.float64)
    h = torch.randn(1, 4, *space, generator=generator(), dtype=torch.float64)
    _, plain = one_step(module, h)
    module.zero_grad()
    _, unbatched = one_step(module, h[0])
    module.zero_grad()
    module.to(memory_format=torch.channels_last)
    _, last = one_step(module, h.to(memory_format=torch.channels_last))
    for a, b, c in zip(plain, unbatched, last, strict=True):
        assert_close(b, a.reshape(b.shape), rtol=1e-13, atol=1e-14)
        assert_close(c, a, rtol=1e-13, atol=1e-14)


def test_erratum_1_step_5_needs_the_new_weight_gradient():
    H = torch.randn(9, 5, generator=generator(), dtype=torch.float64) * 2 + 1
    G = torch.randn(7, 5, generator=generator(1), dtype=torch.float64)
    g = torch.ones(7, dtype=torch.float64)
    mean, variance = H.mean(0), H.var(0, correction=0)
    product = explicit(H, torch.cat([g[None], G.T]), mean, variance, 1.0, True)
    damped = variance + EPS[0] * variance.max() + EPS[1]
    factors = Factors(mean, 1 / damped, torch.ones((), dtype=torch.float64))
    weight, bias = precondition(G, g, factors, inplace=False)
    assert_close(weight, product[1:].T, rtol=1e-13, atol=1e-13)
    assert_close(bias, product[0], rtol=1e-13, atol=1e-13)
    assert (g - G @ mean - product[0]).abs().max() > 1  # with the old gradient


class TestPaperPreset:
    """``preset="paper"`` is Algorithms 2 and 3, over several steps."""

    @pytest.mark.parametrize("rows", [1, 2, 9])
    def test_dense(self, rows):
        module = nn.Linear(5, 4, dtype=torch.float64)
        self.compare(module, Dense(5), lambda g: torch.randn(rows, 5, generator=g).double() + 2)

    @pytest.mark.parametrize("rows", [1, 3])
    def test_convolution(self, rows):
        module = nn.Conv2d(3, 4, 3, padding=1, dtype=torch.float64)
        self.compare(
            module, Convolution(3), lambda g: torch.randn(rows, 3, 5, 4, generator=g).double() + 2
        )

    def test_the_default_is_not_the_paper(self):
        module = nn.Linear(5, 4, dtype=torch.float64)
        with pytest.raises(AssertionError):
            self.compare(
                module, Dense(5), lambda g: torch.randn(9, 5, generator=g).double(), preset=None
            )

    @staticmethod
    def compare(module, reference, draw, preset="paper"):
        g = generator(2)
        pre = BNP(module, preset=preset)
        for _ in range(6):
            module.zero_grad()
            h = draw(g)
            module(h).square().mean().backward()
            raw = [p.grad.numpy().copy() for p in module.parameters()]
            pre.step()
            for ours, theirs in zip(
                module.parameters(), reference.precondition(h.numpy(), *raw), strict=True
            ):
                np.testing.assert_allclose(ours.grad.numpy(), theirs, rtol=1e-12, atol=1e-14)


class Frozen(nn.Module):
    """BatchNorm whose gradient does not pass through the statistics (γ = 1, β = 0)."""

    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, h):
        mean, variance = h.detach().mean(0), h.detach().var(0, correction=0)
        return (h - mean) / (variance + self.eps).sqrt()


def test_proposition_7_one_step_of_batch_norm_is_one_step_of_bnp():
    """Three stacked layers at once; Ŵ = W diag(1/σ), b̂ = b − W(μ/σ) before and after."""
    eps, lr = 1e-3, 0.1
    linears = [mlp((6, 5)), mlp((5, 5), seed=1), mlp((5, 3), seed=2)]
    with_bn = nn.Sequential(
        *[part for m in linears for part in (Frozen(eps), m[0], nn.Tanh())][:-1]
    )
    x = torch.randn(20, 6, generator=generator(), dtype=torch.float64) * 3 + 1
    features, h = [], x
    for part in with_bn:
        if isinstance(part, Frozen):
            features.append(h.detach())
        h = part(h)

    def folded():
        """The plain network that computes the same on these features."""
        parts = []
        for m, f in zip(linears, features, strict=True):
            scale = (f.var(0, correction=0) + eps).rsqrt()
            plain = nn.Linear(m[0].in_features, m[0].out_features, dtype=torch.float64)
            with torch.no_grad():
                plain.weight.copy_(m[0].weight * scale)
                plain.bias.copy_(m[0].bias - m[0].weight @ (f.mean(0) * scale))
            parts += [plain, nn.Tanh()]
        return nn.Sequential(*parts[:-1])

    plain = folded()
    assert_close(plain(x), with_bn(x), rtol=0, atol=1e-13)
    pre = BNP(plain, rho=0.0, eps=(0.0, eps), row_scale=1.0)
    for model in (with_bn, plain):
        model(x).square().mean().backward()
        if model is plain:
            pre.step()
        torch.optim.SGD(model.parameters(), lr=lr).step()
    after = folded()
    for ours, theirs in zip(plain.parameters(), after.parameters(), strict=True):
        assert_close(ours, theirs, rtol=0, atol=1e-13)


def test_attached_sgd_is_the_explicit_form():
    model = mlp()
    assert distance(attached(model, "sgd")[0], stepped(model)[0]) == 0
    two_sided = attached(model, "sgd", max_norm=1e9)[0]
    assert 0 < distance(two_sided, stepped(model)[0]) < 1e-14
