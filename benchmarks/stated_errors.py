"""Stated errors against an independent reference, at random settings of the theory.

Run ``python benchmarks/stated_errors.py [--settings N] [--seed S] [--jobs J] [--records FILE]``.
Activations are names of the catalogue and callables whose kinks are not declared: piecewise
linear ones, smooth ones with a kink, narrow bumps, fractional powers, steep smooth ones; batches
of 4 to 10⁶, γ from 0.05 to 20, β within ±3, ε = 0, ordinary, or a fraction of the critical ε up
to beyond it. Each setting depends on the seed and its number alone.

The reference (``tests/reference/two_angles.py``) shares no code with the library. It knows where
each activation turns. A number is *outside* where its distance to the reference exceeds its stated
error, what two finenesses of the reference in long double differ by, and the rounding of values
in the reference itself. Most settings are judged in float64: long double decides where that
contradicts. A setting whose reference takes longer than ``--limit`` processor seconds, or does not
itself converge, counts as not judged. With ``--records`` every setting is appended to a file of
JSON lines, and a second run goes on where the first ended. Times are processor seconds of the
solution alone, and of adapting a callable alone.

With ``--strict`` the exit code is 1 if any number lies outside, or any setting ends in another
error than ``ValueError``. A setting takes about a third of a second on a quiet core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import erfc

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from equipoise.theory import Setting, as_activation, critical_eps
from equipoise.theory.batch_norm.fixed_point.solution import Solution
from equipoise.theory.batch_norm.fixed_point.solve import solve
from reference.two_angles import NAMES, Function, TwoAngles

Draw = Callable[[np.random.Generator], tuple[Any, str, Function]]


@dataclass(frozen=True)
class Case:
    """One random setting: for the library, and for the reference."""

    family: str
    name: str
    activation: Any
    function: Function
    batch_size: int
    gamma: float
    beta: float
    eps_kind: str
    eps_part: float

    def setting(self) -> Setting:
        """The library's problem."""
        adapted = as_activation(self.activation)
        plain = Setting(adapted, self.batch_size, gamma=self.gamma, beta=self.beta)
        eps = self.eps_part
        if self.eps_kind == "critical":
            eps *= critical_eps(plain)
        if not math.isfinite(eps):
            eps = 0.01
        return Setting(adapted, self.batch_size, eps=eps, gamma=self.gamma, beta=self.beta)


# -- activations -------------------------------------------------------------------------------


def _sigmoid(x):
    return np.where(x > 0, 1 / (1 + np.exp(-abs(x))), np.exp(-abs(x)) / (1 + np.exp(-abs(x))))


def _sigmoid_slope(x):
    return np.exp(-abs(x)) / (1 + np.exp(-abs(x))) ** 2


def _softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))


def _sech2(x):
    decay = np.exp(-2 * abs(x))
    return 4 * decay / (1 + decay) ** 2


def _phi(x):  # SciPy's erfc in float64 is exact to its last digits
    return (erfc(np.asarray(-x, np.float64) * math.sqrt(0.5)) / 2).astype(x.dtype)


def _density(x):
    return np.exp(-x * x / 2) / np.sqrt(8 * np.arctan(x.dtype.type(1)))


def _step(x):
    return (x > 0).astype(x.dtype)


def _mish(x):
    return x * np.tanh(_softplus(x))


def _mish_slope(x):
    return np.tanh(_softplus(x)) + x * _sech2(_softplus(x)) * _sigmoid(x)


def _gelu_tanh(x):
    a = np.sqrt(x.dtype.type(2) / (4 * np.arctan(x.dtype.type(1))))
    return a * (x + 0.044715 * x**3), a * (1 + 3 * 0.044715 * x * x)


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
CATALOGUE: dict[str, Function] = {
    "identity": Function(lambda x: x, np.ones_like, turns=()),
    "square": Function(lambda x: x * x, lambda x: 2 * x, turns=()),
    "sin": Function(np.sin, np.cos, turns=(), longest=6.0),
    "tanh": Function(np.tanh, _sech2),
    "sigmoid": Function(_sigmoid, _sigmoid_slope, turns=((0.0, 2.0),)),
    "gelu": Function(lambda x: x * _phi(x), lambda x: _phi(x) + x * _density(x)),
    "gelu_tanh": Function(
        lambda x: x / 2 * (1 + np.tanh(_gelu_tanh(x)[0])),
        lambda x: (
            (1 + np.tanh(_gelu_tanh(x)[0])) / 2
            + x / 2 * _sech2(_gelu_tanh(x)[0]) * _gelu_tanh(x)[1]
        ),
        turns=((0.0, 0.5),),
    ),
    "silu": Function(lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) + x * _sigmoid_slope(x)),
    "mish": Function(_mish, _mish_slope),
    "softsign": Function(lambda x: x / (1 + abs(x)), lambda x: 1 / (1 + abs(x)) ** 2, (0.0,)),
    "log_sigmoid": Function(lambda x: -_softplus(-x), lambda x: _sigmoid(-x)),
    "tanhshrink": Function(lambda x: x - np.tanh(x), lambda x: np.tanh(x) ** 2),
    "relu": Function(lambda x: np.maximum(x, 0), _step, (0.0,), ()),
    "abs": Function(abs, np.sign, (0.0,), ()),
    "relu6": Function(
        lambda x: np.clip(x, 0, 6), lambda x: _step(x) * _step(6 - x), (0.0, 6.0), ()
    ),
    "hardswish": Function(
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
        lambda x: np.where(x < -3, 0 * x, np.where(x > 3, 0 * x + 1, (2 * x + 3) / 6)),
        (-3.0, 3.0),
        (),
    ),
    "hardsigmoid": Function(
        lambda x: np.clip(x + 3, 0, 6) / 6, lambda x: _step(3 - abs(x)) / 6, (-3.0, 3.0), ()
    ),
    "selu": Function(
        lambda x: (
            x.dtype.type(_SELU_SCALE)
            * np.where(x > 0, x, x.dtype.type(_SELU_ALPHA) * np.expm1(np.minimum(x, 0)))
        ),
        lambda x: (
            x.dtype.type(_SELU_SCALE)
            * np.where(x > 0, 1, x.dtype.type(_SELU_ALPHA) * np.exp(np.minimum(x, 0)))
        ),
        (0.0,),
    ),
}


def _named(g: np.random.Generator) -> tuple[Any, str, Function]:
    name = str(g.choice(sorted(CATALOGUE)))
    return name, name, CATALOGUE[name]


def _member(g: np.random.Generator) -> tuple[Any, str, Function]:
    kind = g.choice(["leaky_relu", "elu", "celu", "softplus", "hardtanh"])
    a = round(float(g.uniform(0.05, 2.0)), 3)
    if kind == "hardtanh":
        b = round(a + float(g.uniform(0.1, 2)), 3)
        name = f"hardtanh({-a:g},{b:g})"
        return (
            name,
            name,
            Function(
                lambda x: np.clip(x, -a, b), lambda x: _step(x + a) * _step(b - x), (-a, b), ()
            ),
        )
    name = f"{kind}({a:g})"
    functions = {
        "leaky_relu": Function(
            lambda x: np.where(x > 0, x, a * x),
            lambda x: np.where(x > 0, 1, x * 0 + a),
            (0.0,),
            (),
        ),
        "elu": Function(
            lambda x: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))),
            lambda x: np.where(x > 0, 1, a * np.exp(np.minimum(x, 0))),
            (0.0,),
        ),
        "celu": Function(
            lambda x: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0) / x.dtype.type(a))),
            lambda x: np.where(x > 0, 1, np.exp(np.minimum(x, 0) / x.dtype.type(a))),
            (0.0,),
            ((0.0, a),),
        ),
        "softplus": Function(
            lambda x: _softplus(a * x) / a, lambda x: _sigmoid(a * x), turns=((0.0, 1 / a),)
        ),
    }
    return name, name, functions[str(kind)]


def _linear_pieces(g: np.random.Generator) -> tuple[Any, str, Function]:
    count = int(g.integers(1, 5))
    at = np.sort(g.uniform(-3, 3, count)).tolist()
    slopes, first = g.normal(size=count).tolist(), float(g.normal())

    def torch_form(x):
        return first * x + sum(s * torch.relu(x - k) for s, k in zip(slopes, at, strict=True))

    def value(x):
        return first * x + sum(s * np.maximum(x - k, 0) for s, k in zip(slopes, at, strict=True))

    def slope(x):
        return first + sum(s * _step(x - k) for s, k in zip(slopes, at, strict=True))

    return torch_form, f"pieces at {at}", Function(value, slope, tuple(at), ())


def _kinked(g: np.random.Generator) -> tuple[Any, str, Function]:
    k, s = float(g.uniform(-2, 2)), float(g.choice([1.0, 0.3, 0.01, 1e-4]))
    return (
        lambda x: torch.tanh(x) + s * (x - k).abs(),
        f"tanh + {s} |x - {k}|",
        Function(
            lambda x: np.tanh(x) + s * abs(x - k), lambda x: _sech2(x) + s * np.sign(x - k), (k,)
        ),
    )


def _bump(g: np.random.Generator) -> tuple[Any, str, Function]:
    w, at, h = (
        float(10 ** g.uniform(-2.3, -0.5)),
        float(g.uniform(-2, 2)),
        float(g.uniform(0.2, 2)),
    )
    return (
        lambda x: torch.tanh(x) + h * torch.exp(-(((x - at) / w) ** 2)),
        f"tanh + {h} bump at {at}, width {w}",
        Function(
            lambda x: np.tanh(x) + h * np.exp(-(((x - at) / w) ** 2)),
            lambda x: _sech2(x) - 2 * h / w * ((x - at) / w) * np.exp(-(((x - at) / w) ** 2)),
            turns=((0.0, 1.0), *((at + j * w, 0.9 * w) for j in np.linspace(-8, 8, 17))),
        ),
    )


def _power(g: np.random.Generator) -> tuple[Any, str, Function]:
    a, k = float(g.uniform(0.53, 1.9)), float(g.choice([0.0, g.uniform(-2, 2)]))
    if g.random() < 0.5:
        return (
            lambda x: (x - k).abs() ** a,
            f"|x - {k}|^{a}",
            Function(
                lambda d: abs(d) ** d.dtype.type(a),
                lambda d: a * np.sign(d) * abs(d) ** d.dtype.type(a - 1),
                (k,),
                (),
                k,
                power=True,
            ),
        )
    return (
        lambda x: torch.relu(x - k) ** a,
        f"relu(x - {k})^{a}",
        Function(
            lambda d: np.maximum(d, 0) ** d.dtype.type(a),
            lambda d: np.where(d > 0, a * np.maximum(d, 1e-300) ** d.dtype.type(a - 1), 0 * d),
            (k,),
            (),
            k,
            power=True,
        ),
    )


def _steep(g: np.random.Generator) -> tuple[Any, str, Function]:
    s, at = float(10 ** g.uniform(0.5, 2.1)), float(g.choice([0.0, g.uniform(-1.5, 1.5)]))
    turns = ((at, 1 / s),)
    kind = str(g.choice(["tanh", "softplus", "atan", "swish"]))
    forms: dict[str, tuple[Any, Function]] = {
        "tanh": (
            lambda x: torch.tanh(s * (x - at)),
            Function(
                lambda x: np.tanh(s * (x - at)), lambda x: s * _sech2(s * (x - at)), turns=turns
            ),
        ),
        "softplus": (
            lambda x: torch.logaddexp(s * (x - at), torch.zeros_like(x)) / s,
            Function(
                lambda x: _softplus(s * (x - at)) / s,
                lambda x: _sigmoid(s * (x - at)),
                turns=turns,
            ),
        ),
        "atan": (
            lambda x: torch.atan(s * (x - at)),
            Function(
                lambda x: np.arctan(s * (x - at)),
                lambda x: s / (1 + (s * (x - at)) ** 2),
                turns=turns,
            ),
        ),
        "swish": (
            lambda x: x * torch.sigmoid(s * (x - at)),
            Function(
                lambda x: x * _sigmoid(s * (x - at)),
                lambda x: _sigmoid(s * (x - at)) + s * x * _sigmoid_slope(s * (x - at)),
                turns=turns,
            ),
        ),
    }
    form, function = forms[kind]
    return form, f"{kind}({s:.4g} (x - {at:.4g}))", function


FAMILIES: dict[str, tuple[float, Draw]] = {
    "named": (0.36, _named),
    "member": (0.16, _member),
    "linear pieces": (0.12, _linear_pieces),
    "smooth with a kink": (0.06, _kinked),
    "bump": (0.08, _bump),
    "power": (0.1, _power),
    "steep": (0.12, _steep),
}


def case(seed: int, number: int) -> Case:
    """Draw the setting of a number."""
    g = np.random.default_rng([seed, number])
    shares = [share for share, _ in FAMILIES.values()]
    family = str(g.choice(list(FAMILIES), p=shares))
    activation, name, function = FAMILIES[family][1](g)
    B = int(g.integers(4, 17)) if g.random() < 0.5 else round(10 ** g.uniform(0.61, 6))
    kind = str(g.choice(["zero", "ordinary", "critical"], p=[0.4, 0.3, 0.3]))
    part = {
        "zero": 0.0,
        "ordinary": float(10 ** g.uniform(-9, -0.5)),
        "critical": float(
            g.choice(
                [g.uniform(0.05, 1.5), 1 - 10 ** g.uniform(-9, -0.5), 1 + 10 ** g.uniform(-9, 0)]
            )
        ),
    }[kind]
    beta = float(g.choice([0.0, g.uniform(-3, 3)], p=[0.3, 0.7]))
    gamma = float(g.choice([1.0, 10 ** g.uniform(np.log10(0.05), np.log10(20))], p=[0.3, 0.7]))
    return Case(family, name, activation, function, max(B, 4), gamma, beta, kind, part)


# -- judging -----------------------------------------------------------------------------------


def stated(solution: Solution) -> dict[str, tuple[float, float]]:
    """Every number and its error under the reference's name."""
    found = {
        "q": solution.q,
        "kappa": solution.kappa,
        "cross_c": solution.cross_covariance,
        "cross_rate": solution.cross_rate,
    }
    for way, triple in (("backward", solution.backward), ("forward", solution.forward)):
        found |= {f"{way}_{part}": e for part, e in zip("GLM", triple, strict=True)}
    return {name: (found[name].value, found[name].error) for name in NAMES}


class UnjudgedError(Exception):
    """The reference did not converge, or took too long."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise :class:`UnjudgedError` in a block that takes more processor time."""

    def stop(*_: Any) -> None:
        raise UnjudgedError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def truth(case: Case, setting: Setting, kappa: float, count: int, real: Any) -> dict[str, float]:
    """The reference's numbers, from its own κ next to ours."""
    law = TwoAngles(
        *(case.function, setting.batch_size, setting.eps, setting.gamma, setting.beta, kappa),
        count=count,
        real=real,
    )
    at = real(kappa)
    if setting.eps == 0:
        at = law.map(at)[0]
    else:
        for _ in range(40):
            F, slope = law.map(at)
            step = (np.log(F) - np.log(at)) / (1 - slope * at / F)
            at *= np.exp(np.clip(step, -0.3, 0.3))
            if abs(step) < 4 * np.finfo(real).eps:
                break
    found = {**law.numbers(at), "kappa": at}
    if not all(np.isfinite(value) for value in found.values()):
        raise UnjudgedError("not finite")
    return found


def outside(case: Case, setting: Setting, solution: Solution) -> dict[str, float]:
    """Numbers outside their stated errors, with the ratio of distance to error."""
    numbers = stated(solution)
    kappa = numbers["kappa"][0]
    if kappa == 0:
        return _not_collapsed(case, setting)
    count = 100 if case.function.power else 24

    def beyond(reference: dict[str, float], allowed: dict[str, float]) -> dict[str, float]:
        ratios = {}
        for name, (value, error) in numbers.items():
            distance = float(abs(value - reference[name])) - allowed.get(name, 0.0)
            if not distance <= error:
                ratios[name] = distance / max(error, 1e-300)
        return ratios

    if not beyond(truth(case, setting, kappa, count, np.float64), {}):
        return {}
    found = {}
    # Where a small ε makes a layer at B = 4 to 7, few nodes may agree by accident: many decide.
    # Powers at a kink converge slowly: two finenesses may be off by more than they differ by.
    powers, others = ((110, 150), (300, 450)), ((20, 26), (40, 60), (170, 240))
    for counts in powers if case.function.power else others:
        rough, fine = (truth(case, setting, kappa, c, np.longdouble) for c in counts)
        # Differences of samples are known to the rounding of values, κ* to that by 1/(1 − F′).
        rounding = float(np.finfo(np.longdouble).eps) * math.sqrt(fine["q"] / fine["kappa"])
        if setting.eps:
            rounding /= max(1e-18, 1 - float(fine["forward_G"]))
        allowed = {
            name: float(abs(fine[name] - rough[name]) + rounding * abs(fine[name]))
            for name in NAMES
        }
        if not (found := beyond(fine, allowed)):
            break
    return found


def _not_collapsed(case: Case, setting: Setting) -> dict[str, float]:
    """Values of κ that grow although the library says that every κ shrinks."""
    found = {}
    # Down to those that only rare samples keep alive.
    for kappa in 10.0 ** np.concatenate([np.arange(2, -9, -1.0), np.arange(-9, -40, -3.0)]):
        # Differences of small signals have lost some of their digits, in float64 most of them.
        most = 1 + 1e-6 if kappa > 1e-9 else 2
        growths = (_growth(case, setting, kappa, real) for real in (np.float64, np.longdouble))
        if all((growth := one) > most for one in growths):
            found[f"growth at {kappa:g}"] = growth
    return found


def _growth(case: Case, setting: Setting, kappa: float, real: Any) -> float:
    law = TwoAngles(
        *(case.function, setting.batch_size, setting.eps, setting.gamma, setting.beta, kappa),
        count=60 if case.function.power else 14,
        real=real,
    )
    at = real(kappa)
    return float((law.map(at)[0] - law.rounding(at)) / at)


def examine(number: int, seed: int, limit: float) -> dict[str, Any]:
    """One setting's record."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    drawn = case(seed, number)
    record: dict[str, Any] = {
        "number": number,
        "seed": seed,
        "family": drawn.family,
        "activation": drawn.name,
        "batch_size": drawn.batch_size,
        "gamma": drawn.gamma,
        "beta": drawn.beta,
        "eps_kind": drawn.eps_kind,
    }
    try:
        start = time.process_time()
        adapted = as_activation(drawn.activation)
        record["adapting"] = time.process_time() - start
        setting = drawn.setting()
        record["eps"] = setting.eps
        adapted(np.linspace(-1, 1, 8))
        start = time.process_time()
        solution = solve(setting)
        record["seconds"] = time.process_time() - start
    except ValueError as error:
        return record | {"refused": str(error)}
    except Exception as error:
        return record | {"crashed": repr(error)}
    numbers = stated(solution)
    scale = max(abs(numbers["backward_G"][0]), 1e-300)
    record |= {"method": solution.q.method, "rate_error": numbers["backward_G"][1] / scale}
    start = time.process_time()
    try:
        with within(limit):
            record["outside"] = outside(drawn, setting, solution)
    except (UnjudgedError, MemoryError) as reason:
        record["unjudged"] = str(reason)
    return record | {"judging": time.process_time() - start}


def summarise(records: list[dict[str, Any]]) -> bool:
    """Print what was found; return whether all is well."""
    judged = [r for r in records if "outside" in r]
    bad = [r for r in judged if r["outside"]]
    crashed = [r for r in records if "crashed" in r]
    refused = [r for r in records if "refused" in r]
    print(f"settings {len(records)}: judged {len(judged)}, outside {len(bad)}, ", end="")
    print(f"crashed {len(crashed)}, refused with a reason {len(refused)}, ", end="")
    print(f"not judged {sum('unjudged' in r for r in records)}")
    print("outside by ε:     ", dict(Counter(r["eps_kind"] for r in bad)))
    print("outside by family:", dict(Counter(r["family"] for r in bad)))
    for r in sorted(bad, key=lambda r: -max(r["outside"].values()))[:10]:
        worst = max(r["outside"], key=r["outside"].get)
        print(
            f"  {r['number']:5} {r['activation']:.50} B={r['batch_size']} γ={r['gamma']:.4g} ",
            end="",
        )
        print(f"β={r['beta']:.4g} ε={r['eps']:.6g}: {worst} {r['outside'][worst]:.1f} errors away")
    for r in crashed[:5]:
        print(f"  {r['number']:5} {r['activation']:.50} {r['crashed']:.120}")
    for what in ("seconds", "adapting", "judging"):
        times = np.sort([r[what] for r in records if what in r])
        median, late = np.quantile(times, [0.5, 0.99])
        print(f"{what:9} median {median * 1e3:.2f} ms, 99 % {late * 1e3:.0f} ms, ", end="")
        print(f"worst {times[-1]:.2f} s")
    loose = [r["rate_error"] for r in judged]
    print(f"relative error of the rate: median {np.median(loose):.0e}, 99 % ", end="")
    print(f"{np.quantile(loose, 0.99):.0e}, largest {max(loose):.0e}")
    return not bad and not crashed


def stored(path: Path | None, seed: int) -> list[dict[str, Any]]:
    """Records of a file of JSON lines that were drawn by a seed; none without a file."""
    if path is None or not path.exists():
        return []
    return [r for r in map(json.loads, path.read_text("utf-8").splitlines()) if r["seed"] == seed]


def store(path: Path | None, record: dict[str, Any]) -> None:
    """Append a record to such a file, if there is to be one."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def main() -> int:
    """Examine settings, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--limit", type=float, default=60.0, help="processor seconds of the reference"
    )
    parser.add_argument("--records", type=Path, help="append to and go on from this file")
    parser.add_argument("--quick", action="store_true", help="two settings")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if any is outside")
    arguments = parser.parse_args()
    records = stored(arguments.records, arguments.seed)
    done = {r["number"] for r in records}
    wanted = 2 if arguments.quick else arguments.settings
    left = [number for number in range(wanted) if number not in done]
    work = partial(examine, seed=arguments.seed, limit=arguments.limit)
    with contextlib.ExitStack() as stack:
        examined: Iterable[dict[str, Any]] = map(work, left)
        if arguments.jobs > 1:
            pool = multiprocessing.get_context("spawn").Pool(arguments.jobs)
            examined = stack.enter_context(pool).imap_unordered(work, left, chunksize=4)
        for record in examined:
            records.append(record)
            store(arguments.records, record)
    well = summarise(records)
    return 0 if well or not arguments.strict else 1


if __name__ == "__main__":
    if code := main():
        raise SystemExit(code)
