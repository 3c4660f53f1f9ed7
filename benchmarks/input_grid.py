"""Try layers, BNP and probes on a grid of inputs and ways to run, as PyTorch tests operators.

Run ``python benchmarks/input_grid.py [--only WORD] [--compile]``: a minute, and some more with
``--compile``, which compiles each layer for training. Results are compared with those of the same
numbers in float64, contiguous, run eagerly; what PyTorch's batch norm refuses must be refused by a
``ValueError``, ``TypeError`` or PyTorch's own ``RuntimeError``, and change nothing. The exit code
is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from equipoise import layers, probes
from equipoise.preconditioners import BNP

Check = Callable[[], None]
Make = Callable[..., nn.Module]

LAYERS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "renorm 1d": (layers.BatchRenorm1d, (6, 4)),
    "renorm 2d": (layers.BatchRenorm2d, (6, 4, 3, 2)),
    "renorm 3d": (layers.BatchRenorm3d, (6, 4, 2, 3, 2)),
    "ghost 1d": (lambda c, **k: layers.GhostBatchNorm1d(c, virtual_batch_size=3, **k), (6, 4)),
    "ghost 2d": (
        lambda c, **k: layers.GhostBatchNorm2d(c, virtual_batch_size=3, **k),
        (6, 4, 3, 2),
    ),
    "four things 1d": (layers.FourThingsBatchNorm1d, (6, 4)),
    "four things 2d": (layers.FourThingsBatchNorm2d, (6, 4, 3, 2)),
    "l1 norm": (lambda c, **k: layers.LpNorm(c, p=1, **k), (6, 4)),
    "l2 norm 2d": (lambda c, **k: layers.LpNorm(c, p=2, **k), (6, 4, 3, 2)),
    "linf norm": (lambda c, **k: layers.LpNorm(c, p=float("inf"), **k), (6, 4)),
    "synchronised 2d": (layers.SynchronisedBatchNorm2d, (6, 4, 3, 2)),
}
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "every second": lambda x: torch.stack([x, x + 1], 1).flatten(0, 1)[::2],
    "offset": lambda x: torch.cat([x[:1], x])[1:],
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "expanded": lambda x: x[..., :1].expand(x.shape),
    "flipped": lambda x: x.flip(0).flip(0),
    "inference": lambda x: x.clone(),
}
# No second derivative is promised where the output is not twice differentiable.
NOT_TWICE = ("l1 norm", "linf norm")


def numbers(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 2 + 1


def build(make: Make, channels: int, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A layer whose γ and β are not their initial values, and which has seen a batch or two."""
    layer = make(channels, dtype=dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += torch.linspace(-0.5, 0.5, len(parameter)).to(parameter)
    return layer


def run(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return layer(x)


def of_layer(name: str, make: Make, shape: tuple[int, ...]) -> Iterator[tuple[str, Check]]:
    """Checks of one layer."""
    for (layout, change), dtype, training in itertools.product(
        LAYOUTS.items(), TOLERANCES, (True, False)
    ):
        mode = "training" if training else "evaluation"
        case = f"{layout}, {dtype}, {mode}"
        yield case, lambda a=(change, dtype, training): forward(make, shape, *a)
    for training in (True, False):
        mode = "training" if training else "evaluation"
        for needed in itertools.product((True, False), repeat=3):
            yield (
                f"requires_grad {needed}, {mode}",
                lambda a=(needed, training): requires_grad(make, shape, *a),
            )
        for way in ("functional_call", "no_grad", "inference_mode", "func.grad"):
            yield f"{way}, {mode}", lambda a=(way, training): same_way(make, shape, *a)
        for what in ("empty", "0-d", "1-d", "integers", "complex"):
            yield f"{what}, {mode}", lambda a=(what, training): as_batch_norm(make, shape, *a)
        if name not in NOT_TWICE:
            yield f"gradgradcheck, {mode}", lambda t=training: twice(make, shape, t)
    yield "vmap, evaluation", lambda: mapped(make, shape)


def forward(
    make: Make,
    shape: tuple[int, ...],
    change: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
    training: bool,
) -> None:
    """Output, gradients and statistics on an input of this layout and type."""
    exact_x = change(numbers(shape).to(dtype)).to(torch.float64).contiguous()
    exact, layer = build(make, shape[1]), build(make, shape[1], dtype)
    found = []
    for m, x in ((exact, exact_x), (layer, change(numbers(shape).to(dtype)))):
        run(m, x * 1.1)
        m.train(training)
        x = x.detach().requires_grad_()
        y = run(m, x)
        assert y.dtype == x.dtype
        assert y.shape == x.shape
        y.backward(numbers(shape, 1).to(y))
        found.append([y, x.grad, *(p.grad for p in m.parameters()), *m.buffers()])
    tolerance = TOLERANCES[dtype]
    for a, b in zip(*found, strict=True):
        assert_close(b.double(), a.double(), rtol=tolerance, atol=10 * tolerance)


def requires_grad(
    make: Make, shape: tuple[int, ...], needed: tuple[bool, bool, bool], training: bool
) -> None:
    """Only what is asked for has a gradient, and the same as if all had been asked for."""
    found = []
    for wanted in (needed, (True, True, True)):
        layer = build(make, shape[1]).train(training)
        x = numbers(shape).requires_grad_(wanted[0])
        for parameter, one in zip(layer.parameters(), wanted[1:], strict=False):
            parameter.requires_grad_(one)
        y = run(layer, x)
        assert y.requires_grad == any((wanted[0], *wanted[1:][: len(list(layer.parameters()))]))
        if y.requires_grad:
            y.square().sum().backward()
        found.append([x.grad, *(p.grad for p in layer.parameters())])
    for one, gradient, whole in zip(needed, *found, strict=False):
        assert (gradient is not None) == one
        if one:
            assert_close(gradient, whole, rtol=1e-12, atol=1e-12)


def same_way(make: Make, shape: tuple[int, ...], way: str, training: bool) -> None:
    """Another way to call gives the same."""
    layer, x = build(make, shape[1]).train(training), numbers(shape)
    twin = copy.deepcopy(layer)
    expected = run(twin, x)
    if way == "functional_call":
        state = {n: t.clone() for n, t in (*layer.named_parameters(), *layer.named_buffers())}
        before = copy.deepcopy(layer.state_dict())
        found = run(lambda x: torch.func.functional_call(layer, state, (x,)), x)
        assert_close(layer.state_dict(), before, rtol=0, atol=0)
        assert_close({n: state[n] for n in twin.state_dict()}, dict(twin.state_dict()))
    elif way == "func.grad":
        # Like batch norm, a layer cannot write to its buffers inside of it.
        layer, fresh = (
            (make(shape[1], dtype=torch.float64, track_running_stats=False) for _ in range(2))
            if training
            else (build(make, shape[1]).eval() for _ in range(2))
        )
        found = torch.func.grad(lambda x: run(layer, x).square().sum())(x)
        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(run(fresh, leaf).square().sum(), leaf)
    else:
        with getattr(torch, way)():
            found = run(layer, x)
        run(layer, x).sum().backward()  # nothing has become an inference tensor
    assert_close(found.detach(), expected.detach(), rtol=1e-12, atol=1e-12)


def as_batch_norm(make: Make, shape: tuple[int, ...], what: str, training: bool) -> None:
    """What batch norm refuses is refused, and changes nothing; what it takes is taken."""
    x = {
        "empty": lambda: numbers((0, *shape[1:])),
        "0-d": lambda: numbers(()),
        "1-d": lambda: numbers(shape[1:2]),
        "integers": lambda: torch.ones(shape, dtype=torch.long),
        "complex": lambda: numbers(shape).to(torch.complex128),
    }[what]()
    plain = {2: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    expected = build(plain, shape[1]).train(training)
    layer = build(make, shape[1]).train(training)
    before = copy.deepcopy(layer.state_dict())
    try:
        wanted = expected(x)
    except Exception:
        wanted = None
    found, said = None, "."
    try:
        found = layer(x)
    except (ValueError, TypeError, RuntimeError) as error:
        said = str(error)
    assert said, "refused without a word"
    assert (found is None) or (wanted is not None), "accepted"
    if found is None:
        # Some refuse an empty batch in training, of which batch norm says nothing.
        assert wanted is None or (what == "empty" and training), "refused"
        after = layer.state_dict()
        for state in (before, after):  # batch norm counts first and refuses then
            state.pop("num_batches_tracked", None)
        assert_close(after, before, rtol=0, atol=0)
    else:
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype


def twice(make: Make, shape: tuple[int, ...], training: bool) -> None:
    layer = make(shape[1], dtype=torch.float64, track_running_stats=not training).train(training)
    x = numbers(shape)[:3, :2].contiguous() if len(shape) > 2 else numbers(shape)
    layer = layer if len(shape) == 2 else make(2, dtype=torch.float64).train(training)
    for _, buffer in layer.named_buffers():
        buffer.fill_(1)
    frozen = copy.deepcopy(layer)

    def call(x: Tensor) -> Tensor:
        return run(copy.deepcopy(frozen), x)

    assert torch.autograd.gradgradcheck(call, (x.requires_grad_(),), atol=1e-4)


def mapped(make: Make, shape: tuple[int, ...]) -> None:
    layer = build(make, shape[1]).eval()
    x = torch.stack([numbers(shape, seed) for seed in range(3)])
    found = torch.func.vmap(layer)(x)
    assert_close(found, torch.stack([layer(one) for one in x]), rtol=1e-12, atol=1e-12)


def compiled(make: Make, shape: tuple[int, ...]) -> None:
    layer, x = build(make, shape[1], torch.float32), numbers(shape).float().requires_grad_()
    twin, other = copy.deepcopy(layer), x.detach().clone().requires_grad_()
    torch.compiler.reset()
    run(torch.compile(layer), x).square().sum().backward()
    run(twin, other).square().sum().backward()
    assert_close(x.grad, other.grad, rtol=1e-3, atol=1e-4)
    assert_close(layer.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-5)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (6, 4)),
    "linear on sequences": (lambda: nn.Linear(4, 3), (6, 5, 4)),
    "conv1d": (lambda: nn.Conv1d(4, 2, 3, padding=1), (6, 4, 5)),
    "conv2d": (lambda: nn.Conv2d(4, 2, 3, padding=1), (6, 4, 3, 5)),
    "conv2d, groups": (lambda: nn.Conv2d(4, 2, 3, groups=2), (6, 4, 3, 5)),
    "conv3d": (lambda: nn.Conv3d(4, 2, 2), (6, 4, 3, 2, 2)),
    "conv2d, one channel": (lambda: nn.Conv2d(1, 2, 3), (6, 1, 5, 4)),
}


def of_bnp(name: str, make: Any, shape: tuple[int, ...]) -> Iterator[tuple[str, Check]]:
    for (layout, change), dtype, stats in itertools.product(
        LAYOUTS.items(), TOLERANCES, ("channel", "exact")
    ):
        yield (
            f"{layout}, {dtype}, {stats}",
            lambda a=(change, dtype, stats): preconditioned(make, shape, *a),
        )
    for what in ("empty", "one row", "functional_call", "func.grad", "vmap", "double backward"):
        yield what, lambda what=what: around(make, shape, what)


def preconditioned(
    make: Any,
    shape: tuple[int, ...],
    change: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
    stats: str,
) -> None:
    """Statistics and gradients on an input of this layout and type."""
    found = []
    base = change(numbers(shape).to(dtype))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = make().to(dtype)
    for exact in (True, False):
        module = copy.deepcopy(start).double() if exact else copy.deepcopy(start)
        x = base.double().contiguous() if exact else change(numbers(shape).to(dtype))
        bnp = BNP(module, conv_stats=stats)
        out = module(x)
        out.backward(numbers(tuple(out.shape), 1).to(dtype).to(out))
        raw = [p.grad.double().clone() for p in module.parameters()]
        bnp.step()
        state = bnp.state_dict()["layers"][""]
        found.append(
            [state["mean"], state["variance"], *raw, *(p.grad for p in module.parameters())]
        )
    tolerance = TOLERANCES[dtype]
    for i, (a, b) in enumerate(zip(*found, strict=True)):
        loose = 1e-4 if i < 2 and dtype is not torch.float64 else tolerance
        size = float(a.double().abs().max())
        assert_close(b.double(), a.double(), rtol=loose, atol=10 * loose * max(1, size))


def around(make: Any, shape: tuple[int, ...], what: str) -> None:
    """Other ways to run than a plain forward and backward pass."""
    module = make().double()
    plain = copy.deepcopy(module)
    bnp = BNP(module)
    x = numbers(shape)
    fresh = repr(bnp.state_dict())
    parameters = {n: p.detach() for n, p in module.named_parameters()}

    def loss(parameters: Any, x: Tensor, m: nn.Module = module) -> Tensor:
        return torch.func.functional_call(m, parameters, (x,)).square().sum()

    if what == "empty":
        module(x[:0]).sum().backward()
        bnp.step()
        assert repr(bnp.state_dict()["layers"]) == repr(BNP(plain).state_dict()["layers"])
    elif what == "one row":
        module(x[:1]).sum().backward()
        bnp.step()
        assert all(p.grad.isfinite().all() for p in module.parameters())
    elif what == "functional_call":
        loss(dict(module.named_parameters()), x).backward()
        bnp.step()
        assert int(bnp.state_dict()["layers"][""]["seen"]) == 1
    elif what in ("func.grad", "vmap"):
        call = torch.func.grad(loss)
        if what == "vmap":
            call = torch.func.vmap(call, in_dims=(None, 0))
            found, expected = call(parameters, x[:, None]), None
            assert set(found) == set(parameters)
            each = torch.func.grad(lambda p, x: loss(p, x, plain))
            expected = [each(parameters, one[None]) for one in x]
            for n in parameters:
                assert_close(found[n], torch.stack([e[n] for e in expected]))
        else:
            found = call(parameters, x)
            expected = torch.func.grad(lambda p, x: loss(p, x, plain))(parameters, x)
            assert_close(found, expected)
        module.zero_grad()
        bnp.step()
        assert repr(bnp.state_dict()["layers"]) == repr(BNP(plain).state_dict()["layers"]), (
            "counts calls without a gradient of the module"
        )
        module(x).sum().backward()
        bnp.step()
    else:
        x.requires_grad_()
        (g,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
        g.square().sum().backward()
        (h,) = torch.autograd.grad(plain(x).square().sum(), x, create_graph=True)
        h.square().sum().backward()
        for p, q in zip(module.parameters(), plain.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                assert_close(p.grad, q.grad)
        assert fresh


PROBES: dict[str, Callable[[nn.Module, Any, Any], object]] = {
    "gradient_growth": lambda m, loss, b: probes.gradient_growth(m, loss, [b, b]),
    "activations": lambda m, loss, b: probes.activations(m, b, forward=loss),
    "conditioning": lambda m, loss, b: probes.conditioning(m, b, forward=loss),
    "landscape": lambda m, loss, b: probes.landscape(m, loss, b, steps=(0.05,)),
    "covariate_shift": lambda m, loss, b: probes.covariate_shift(m, loss, b, 0.1),
    "hessian": lambda m, loss, b: probes.hessian(m, loss, b, steps=3),
}


def of_probe(name: str, probe: Any) -> Iterator[tuple[str, Check]]:
    for (layout, change), dtype in itertools.product(LAYOUTS.items(), TOLERANCES):
        yield f"{layout}, {dtype}", lambda a=(change, dtype): probed(probe, *a)
    for what in ("empty", "0-d", "integers", "frozen", "no parameters that need gradients"):
        yield what, lambda what=what: refused_or_probed(probe, what)


def network(dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(),
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1),
        ).to(dtype)  # fmt: skip


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean()


def look(model: nn.Module) -> list[Any]:
    tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    return [None if t is None else t.clone() for t in tensors] + [torch.get_rng_state()]


def unchanged(before: list[Any], after: list[Any]) -> bool:
    return all(
        a is b if a is None or b is None else torch.equal(a, b)
        for a, b in zip(before, after, strict=True)
    )


def probed(probe: Any, change: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    """The same numbers, bit for bit in float64 and near them elsewhere, and no trace."""
    x = change(numbers((6, 3, 4, 5)).to(dtype))
    model = network(dtype)
    loss_fn(model, x).backward()
    before = look(model)
    assert probe(model, loss_fn, x)
    assert unchanged(before, look(model)), "leaves a trace"


def refused_or_probed(probe: Any, what: str) -> None:
    x = {
        "empty": numbers((0, 3, 4, 5)),
        "0-d": numbers(()),
        "integers": torch.ones(6, 3, 4, 5, dtype=torch.long),
    }.get(what, numbers((6, 3, 4, 5)))
    model = network(torch.float64)
    if what == "frozen":
        model[0].requires_grad_(False)
    if what.startswith("no "):
        model.requires_grad_(False)
    before, said = look(model), None
    try:
        probe(model, loss_fn, x)
    except (ValueError, TypeError, RuntimeError) as error:
        said = str(error)
    assert said != "", "refused without a word"
    assert said is None or what != "frozen", f"refused: {said}"
    assert unchanged(before, look(model)), "leaves a trace"


def checks(compile_too: bool) -> Iterator[tuple[str, Check]]:
    for name, (make, shape) in LAYERS.items():
        for case, check in of_layer(name, make, shape):
            yield f"layers: {name}, {case}", check
        if compile_too:
            yield f"layers: {name}, compile", lambda a=(make, shape): compiled(*a)
    for name, (make, shape) in MODULES.items():
        for case, check in of_bnp(name, make, shape):
            yield f"BNP: {name}, {case}", check
    for name, probe in PROBES.items():
        for case, check in of_probe(name, probe):
            yield f"probes: {name}, {case}", check


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="make checks whose name contains this word")
    parser.add_argument("--compile", action="store_true", help="compile each layer, too")
    parser.add_argument("--quick", action="store_true", help="every 40th check")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = [c for c in checks(options.compile) if options.only in c[0]]
    tried, failed = 0, []
    for name, check in chosen[:: 40 if options.quick else 1]:
        tried += 1
        try:
            check()
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            failed.append(f"{name}: {type(error).__name__}: {first[:150]}")
    print("\n".join(failed))
    print(f"{tried} checks tried, {len(failed)} failed")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
