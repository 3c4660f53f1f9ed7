"""Stated errors of layer norm, group norm and networks without normalisation, at random settings.

Run ``python benchmarks/stated_errors_of_norms.py [--settings N] [--seed S] [--records FILE]``.
Activations are those of ``benchmarks/stated_errors.py``; groups of 4 to 10⁶ features, γ from 0.05
to 20, β within ±3 and at times far out, where only rare features pass; ε = 0 or ordinary; weight
variances from 0.1 to 10 and bias variances from 10⁻⁴ to 1. Each setting depends on the seed and
its number alone.

The reference (``tests/reference/one_sample.py``) shares no code with the library. A number is
*outside* where its distance to the reference exceeds its stated error and what two finenesses of
the reference differ by. With ``--strict`` the exit code is 1 if any number lies outside, or any
setting ends in another error than ``ValueError``. A setting takes about half a second.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from equipoise.records import Estimate
from equipoise.theory import as_activation, group_norm, layer_norm, vanilla
from reference import one_sample
from reference.two_angles import Function
from stated_errors import FAMILIES, UnjudgedError, store, stored, within

Reference = Callable[[Function, float, int], tuple[Any, ...]]
KINDS = ("layer norm", "group norm", "vanilla")


def draw(seed: int, number: int) -> tuple[dict[str, Any], Any, Function]:
    """The setting of a number, its activation, and that as the reference sees it."""
    g = np.random.default_rng([seed, number, 2])
    family = str(g.choice(list(FAMILIES), p=[share for share, _ in FAMILIES.values()]))
    activation, name, function = FAMILIES[family][1](g)
    gamma = float(g.choice([1.0, 10 ** g.uniform(np.log10(0.05), np.log10(20))], p=[0.3, 0.7]))
    far = -gamma * float(g.uniform(3, 12))
    beta = float(g.choice([0.0, g.uniform(-3, 3), far], p=[0.3, 0.6, 0.1]))
    m = int(g.integers(4, 17)) if g.random() < 0.5 else round(10 ** g.uniform(0.61, 6))
    record = {
        "number": number,
        "seed": seed,
        "kind": str(g.choice(KINDS)),
        "family": family,
        "activation": name,
        "group_size": max(m, 4),
        "gamma": gamma,
        "beta": beta,
        "eps": float(g.choice([0.0, 10 ** g.uniform(-9, -0.3)])),
        "weight_variance": float(g.choice([1.0, 10 ** g.uniform(-1, 1)])),
        "bias_variance": float(g.choice([0.0, 10 ** g.uniform(-4, 0)])),
    }
    return record, activation, function


def solve(record: dict[str, Any], activation: Any) -> tuple[dict[str, Estimate], Reference]:
    """The library's numbers, and how the reference finds them from f, a start and a fineness."""
    variances = {key: record[key] for key in ("weight_variance", "bias_variance")}
    both = tuple(variances.values())
    if record["kind"] == "vanilla":
        net = vanilla(activation, **variances)
        found = {"q": net.q, "chi_q": net.chi_q, "chi_1": net.chi_1}
        return found, lambda f, q, count: one_sample.vanilla(f, *both, q, count)
    options = {key: record[key] for key in ("eps", "gamma", "beta")}
    args, m = (*options.values(), *both), record["group_size"]
    if record["kind"] == "layer norm":
        norm = layer_norm(activation, **options, **variances)
        return {"q": norm.q, "rate": norm.rate}, lambda f, q, count: one_sample.layer_norm(
            f, *args, q, count
        )
    norm = group_norm(activation, m, **options, **variances)
    return {"q": norm.q, "rate": norm.rate}, lambda f, q, count: one_sample.group_norm(
        f, m, *args, q, count
    )


def outside(
    function: Function, numbers: dict[str, Estimate], reference: Reference
) -> dict[str, float]:
    """Numbers outside their stated errors, with the ratio of distance to error."""
    found: dict[str, float] = {}
    for counts in ((90, 130), (160, 220)) if function.power else ((30, 44), (60, 80)):
        rough, fine = (reference(function, numbers["q"].value, count) for count in counts)
        if not all(np.isfinite(value) for value in fine):
            raise UnjudgedError("not finite")
        found = {}
        for (name, ours), a, b in zip(numbers.items(), rough, fine, strict=True):
            distance = float(abs(ours.value - b)) - float(abs(a - b)) - 1e-18 * abs(float(b))
            if not distance <= ours.error:
                found[name] = distance / max(ours.error, 1e-300)
        if not found:
            break
    return found


def examine(number: int, seed: int, limit: float) -> dict[str, Any]:
    """One setting's record."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    record, activation, function = draw(seed, number)
    try:
        adapted = as_activation(activation)
        start = time.process_time()
        numbers, reference = solve(record, adapted)
        record["seconds"] = time.process_time() - start
    except ValueError as error:
        return record | {"refused": str(error)}
    except Exception as error:
        return record | {"crashed": repr(error)}
    q, last = numbers["q"].value, list(numbers.values())[-1]
    if not (q > 0 and math.isfinite(last.value)):
        return record | {"unjudged": "no signal"}
    record["rate_error"] = last.error / max(abs(last.value), 1e-300)
    try:
        with within(limit):
            record["outside"] = outside(function, numbers, reference)
    except (UnjudgedError, MemoryError) as reason:
        record["unjudged"] = str(reason)
    return record


def summarise(records: list[dict[str, Any]]) -> bool:
    """Print what was found; return whether all is well."""
    well = True
    for kind in KINDS:
        mine = [r for r in records if r["kind"] == kind]
        judged = [r for r in mine if "outside" in r]
        bad = [r for r in judged if r["outside"]]
        crashed = [r for r in mine if "crashed" in r]
        well &= not bad and not crashed
        print(f"{kind}: settings {len(mine)}, judged {len(judged)}, outside {len(bad)}, ", end="")
        print(f"crashed {len(crashed)}, refused {sum('refused' in r for r in mine)}, ", end="")
        print("not judged", dict(Counter(r["unjudged"] for r in mine if "unjudged" in r)))
        for r in [*bad, *crashed][:10]:
            what = r.get("crashed") or r["outside"]
            print(f"  {r['number']:5} {r['activation']:.50} {what}")
        if loose := [r["rate_error"] for r in judged]:
            times = [r["seconds"] for r in mine if "seconds" in r]
            print(f"  seconds: median {np.median(times):.4f}, worst {max(times):.2f}", end="")
            print(f"; relative error: median {np.median(loose):.0e}, largest {max(loose):.0e}")
    return well


def main() -> int:
    """Examine settings, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of the reference")
    parser.add_argument("--records", type=Path, help="append to and go on from this file")
    parser.add_argument("--quick", action="store_true", help="three settings")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if any is outside")
    arguments = parser.parse_args()
    records = stored(arguments.records, arguments.seed)
    done = {r["number"] for r in records}
    for number in range(3 if arguments.quick else arguments.settings):
        if number in done:
            continue
        records.append(examine(number, arguments.seed, arguments.limit))
        store(arguments.records, records[-1])
    well = summarise(records)
    return 0 if well or not arguments.strict else 1


if __name__ == "__main__":
    if code := main():
        raise SystemExit(code)
