"""Attack BNP's attachment to optimizers, and count what is not refused or undone.

Run ``python benchmarks/attachment_attacks.py [--only WORD] [--every N]``: some minutes. Every
attack is made on every optimizer, fresh and after three steps. What is promised: a refusal is a
``TypeError`` or a ``ValueError`` that says what to do, and leaves the optimizer, its state, its
gradients and the parameters bit for bit as they were; so does a step that fails before the
optimizer's own; of one that fails later, only moments and parameters without BNP stay as PyTorch
leaves them; after each the training goes on as if nothing had happened. The exit code is 1 if
anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Optimizer

from equipoise.preconditioners import BNP

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD, decay": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=0.1),
    "SGD, Nesterov": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "SGD, foreach": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, foreach=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, fused=True),
    "SGD, two groups": lambda p: torch.optim.SGD(
        [{"params": (q := list(p))[:3], "weight_decay": 0.1}, {"params": q[3:]}], lr=0.05
    ),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3),
    "AdamW, tensor rate": lambda p: torch.optim.AdamW(
        p, lr=torch.tensor(0.01), weight_decay=0.3, foreach=False
    ),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.001),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "max_norm": {"max_norm": 0.1},
    "update_every": {"update_every": 2},
}
ERRORS = (MemoryError, KeyboardInterrupt)


class Problem:
    """A model with a normaliser, an optimizer of all its parameters, and a BNP attached.

    Args:
        make: Builds the optimizer.
        options: Of BNP.
        steps: Taken before the attack.
        attach: Whether the BNP is attached.
    """

    def __init__(
        self,
        make: Callable[[Any], Optimizer],
        options: dict[str, Any] | None = None,
        *,
        steps: int = 0,
        attach: bool = True,
        run_closure: bool = False,
    ) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = nn.Sequential(
                nn.Linear(5, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 4), nn.Linear(4, 3)
            ).double()
        self.optimizer = make(self.model.parameters())
        self.bnp = BNP(self.model, **(options or {}))
        if attach:
            self.bnp.attach(self.optimizer, run_closure=run_closure)
        self.number = 0
        for _ in range(steps):
            self.backward()
            self.optimizer.step()

    def backward(self) -> Tensor:
        """Loss and gradients of the next batch."""
        generator = torch.Generator().manual_seed(self.number)
        self.number += 1
        x = torch.randn(8, 5, generator=generator, dtype=torch.float64)
        y = torch.randn(8, 3, generator=generator, dtype=torch.float64)
        self.optimizer.zero_grad()
        loss = mse_loss(self.model(x), y)
        loss.backward()
        return loss

    def look(self, *, moments: bool = True, others: bool = True) -> dict[str, Any]:
        """Everything that an accident could change, as bits and identities.

        Args:
            moments: Whether tensors of the state with several elements count.
            others: Whether parameters that are not preconditioned count.
        """
        o, model = self.optimizer, self.model
        named = [(n, p) for n, p in model.named_parameters() if others or not n.startswith("2.")]
        state = {}
        for p, entries in o.state.items():
            kept = entries.items() if isinstance(entries, dict) else [("", entries)]
            state[id(p)] = {
                k: id(v) if _is_large(v) and not moments else _bits(v) for k, v in kept
            }
        return {
            "parameters": {n: (id(p), _bits(p), p.requires_grad) for n, p in named},
            "gradients": {
                n: None if p.grad is None else (id(p.grad), _bits(p.grad)) for n, p in named
            },
            "groups": [
                {k: [id(p) for p in v] if k == "params" else _bits(v) for k, v in g.items()}
                for g in o.param_groups
            ],
            "identities": [id(o.param_groups), *map(id, o.param_groups)]
            + [id(g["params"]) for g in o.param_groups],
            "state": state,
            "hooks": [len(o._optimizer_step_pre_hooks), len(o._optimizer_step_post_hooks)],
            "step": o.__dict__.get("step"),
            "defaults": {k: _bits(v) for k, v in o.defaults.items()},
            "modules": [len(m._forward_hooks) for m in model.modules()],
        }

    def result(self) -> list[Any]:
        """Parameters and state, to compare two trainings."""
        return [_bits(p) for p in self.model.parameters()] + [
            {k: _bits(v) for k, v in s.items()} for s in self.optimizer.state.values()
        ]


def _is_large(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() > 1


def _bits(value: Any) -> Any:
    if isinstance(value, Tensor):
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        return dense.dtype, tuple(dense.shape), dense.contiguous().numpy().tobytes()
    return value


Attack = Callable[[], None]


def refused(problem: Problem, call: Callable[[], object], wanted: str = "") -> None:
    """Assert a refusal in words that leaves everything as it was."""
    before, said = problem.look(), None
    try:
        call()
    except (TypeError, ValueError) as error:
        said = str(error)
    assert said is not None, "was accepted"
    assert re.search(wanted, said), f"says {said}"
    assert said.rstrip().endswith("."), f"no sentence: {said}"
    assert_same(before, problem.look())


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Assert that two looks are the same, and name what is not."""
    changed = [key for key in before if before[key] != after[key]]
    assert not changed, f"changed {', '.join(changed)}"


def on_each(make: Callable[[Any], Optimizer]) -> Iterator[tuple[str, Attack]]:
    """The attacks on one optimizer."""
    for (name, options), steps, error in product(OPTIONS.items(), (0, 3), ERRORS):
        case = f"{name or 'plain'}, {steps} steps, {error.__name__}"
        for where in ("hook", "optimizer", "late", "post hook"):
            yield f"step fails: {where}, {case}", failing(make, options, steps, error, where)
    for (name, options), steps in product(OPTIONS.items(), (0, 3)):
        case = f"{name or 'plain'}, {steps} steps"
        for what in refusals if not name else ():
            yield f"refused: {what}, {case}", refusing(make, options, steps, what)
        yield f"copied: {case}", copying(make, options, steps)
        if steps and not resumes_by_itself(make):
            continue  # of PyTorch's own, which no preconditioner can mend
        yield f"detached: {case}", detaching(make, options, steps)
        yield f"resumed: {case}", resuming(make, options, steps)


@cache
def resumes_by_itself(make: Callable[[Any], Optimizer]) -> bool:
    """Whether the optimizer without BNP goes on from its state as if it had never stopped.

    NAdam of float64 parameters does not: its product of momenta is float32, and float64 when it is
    loaded.
    """
    whole = Problem(make, attach=False, steps=3)
    twin = Problem(make, attach=False)
    for one in (whole, twin):
        one.bnp.detach()
    twin.model.load_state_dict(whole.model.state_dict())
    twin.optimizer.load_state_dict(copy.deepcopy(whole.optimizer.state_dict()))
    twin.number = whole.number
    for one in (whole, twin):
        one.backward()
        one.optimizer.step()
    return whole.result() == twin.result()


def failing(
    make: Callable[[Any], Optimizer],
    options: dict[str, Any],
    steps: int,
    error: type[BaseException],
    where: str,
) -> Attack:
    """A step that raises somewhere; then the same step again, and two more."""

    def attack() -> None:
        hit, twin = (Problem(make, options, steps=steps) for _ in range(2))
        hit.backward(), twin.backward()
        late = where in ("late", "post hook")
        before = hit.look(moments=not late, others=not late)
        end = accident(hit, error, where)
        try:
            hit.optimizer.step()
        except error:
            pass
        else:
            raise AssertionError("raised nothing")
        finally:
            end()
        after = hit.look(moments=not late, others=not late)
        if late and not hit.optimizer.state:  # nothing of plain SGD is copied
            del before["parameters"]
        assert_same(before, after)
        if late:  # moments have moved on, as without BNP
            return
        for _ in range(2):
            hit.optimizer.step(), twin.optimizer.step()
            hit.backward(), twin.backward()
        assert hit.result() == twin.result(), "the next steps differ"

    return attack


def accident(problem: Problem, error: type[BaseException], where: str) -> Callable[[], None]:
    """Let the next step of the optimizer raise; returns what ends that."""
    optimizer = problem.optimizer

    def raises(*_: object) -> None:
        raise error

    if where == "hook":
        return optimizer.register_step_pre_hook(raises).remove
    if where == "post hook":
        handle = optimizer.register_step_post_hook(raises)
        optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)
        return handle.remove
    inner = type(optimizer)

    class Broken(inner):  # type: ignore[misc, valid-type]
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            if where == "late":
                inner.step.__wrapped__(self)  # the optimizer's own step without hooks
            raise error

    Broken.step = Optimizer.profile_hook_step(Broken.step)  # type: ignore[method-assign]
    guard = optimizer.__dict__["step"].__func__
    inside = guard.__closure__
    cell = next(c for c in inside if getattr(c.cell_contents, "__func__", None) is inner.step)
    old = cell.cell_contents
    cell.cell_contents = Broken.step.__get__(optimizer)

    def restore() -> None:
        cell.cell_contents = old

    return restore


def _second(p: Problem) -> object:
    return BNP(p.model).attach(p.optimizer)


def _foreign(p: Problem) -> object:
    return p.bnp.attach(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))


def _later_closure(p: Problem) -> object:
    return p.optimizer.step(lambda: 0.0)


refusals: dict[str, tuple[Callable[[Problem], object], str]] = {
    "a second BNP": (_second, r"Another BNP .*detach"),
    "a second BNP with options": (
        lambda p: BNP(p.model, rho=0.5, max_norm=1.0).attach(p.optimizer),
        r"Another BNP .*detach",
    ),
    "attached twice": (lambda p: p.bnp.attach(p.optimizer), r"detach\(\) first"),
    "an optimizer of another model": (_foreign, "optimizer that was given"),
    "step() of an attached BNP": (lambda p: p.bnp.step(), "Leave step"),
    "step() of a second BNP": (lambda p: BNP(p.model).step(p.optimizer), "."),
    "a closure": (_later_closure, r"Call backward\(\), then step"),
    "a closure by keyword": (lambda p: p.optimizer.step(closure=lambda: 0.0), "run_closure"),
    "a closure that is no function": (lambda p: p.optimizer.step(3), r"backward\(\)"),
    **{
        f"attach({word})": (lambda p, wrong=wrong: p.bnp.attach(wrong(p)), "optimizer itself")
        for word, wrong in {
            "None": lambda p: None,
            "str": lambda p: "sgd",
            "class": lambda p: torch.optim.SGD,
            "model": lambda p: p.model,
            "parameters": lambda p: list(p.model.parameters()),
            "scheduler": lambda p: _scheduler(),
            "scaler": lambda p: torch.amp.GradScaler("cpu"),
            "list": lambda p: [p.optimizer],
            "groups": lambda p: p.optimizer.param_groups,
            "state": lambda p: p.optimizer.state_dict(),
        }.items()
    },
    "attach(LBFGS)": (
        lambda p: p.bnp.attach(torch.optim.LBFGS(p.model.parameters())),
        "first-order",
    ),
    "attach(ASGD)": (
        lambda p: p.bnp.attach(torch.optim.ASGD(p.model.parameters())),
        r"BNP\.step\(\)",
    ),
    **{
        f"BNP({word})": (lambda p, options=options: BNP(p.model, **options), next(iter(options)))
        for word, options in {
            "rho as text": {"rho": "0.9"},
            "rho None": {"rho": None},
            "rho nan": {"rho": float("nan")},
            "rho 1": {"rho": 1.0},
            "rho complex": {"rho": 0.5j},
            "eps a number": {"eps": 0.1},
            "eps three": {"eps": (0.1, 0.1, 0.1)},
            "eps nan": {"eps": (float("nan"), 0.0)},
            "eps text": {"eps": ("a", "b")},
            "update_every 0": {"update_every": 0},
            "update_every 2.5": {"update_every": 2.5},
            "update_every True": {"update_every": True},
            "max_norm text": {"max_norm": "1"},
            "max_norm nan": {"max_norm": float("nan")},
            "max_norm -1": {"max_norm": -1.0},
            "max_norm a list": {"max_norm": [1.0]},
            "row_scale 0": {"row_scale": 0},
            "row_scale a list": {"row_scale": [1.0]},
            "variance None": {"variance": None},
            "conv_stats 3": {"conv_stats": 3},
            "rows True": {"rows": True},
            "preset": {"preset": "mine"},
            "preset a number": {"preset": 3},
            "bias_correction None": {"bias_correction": None},
            "include a string": {"include": "0"},
            "include a number": {"include": 3},
            "include nothing": {"include": ["none"]},
            "exclude numbers": {"exclude": [3]},
            "process_group": {"process_group": "world"},
        }.items()
    },
    **{
        f"load_state_dict({word})": (
            lambda p, damage=damage: p.bnp.load_state_dict(damage(p.bnp.state_dict())),
            "state",
        )
        for word, damage in {
            "None": lambda s: None,
            "text": lambda s: "state",
            "empty": lambda s: {},
            "list": lambda s: [s],
            "of the optimizer": lambda s: {"state": {}, "param_groups": []},
            "steps as text": lambda s: s | {"steps": "3"},
            "steps negative": lambda s: s | {"steps": -1},
            "no layers": lambda s: s | {"layers": {}},
            "layers a list": lambda s: s | {"layers": list(s["layers"].values())},
            "one layer missing": lambda s: s | {"layers": dict(list(s["layers"].items())[1:])},
            "a mean missing": lambda s: _without(s, "mean"),
            "a mean as text": lambda s: _with(s, "mean", "3"),
            "a mean as a list": lambda s: _with(s, "mean", [0.0] * 5),
            "a mean of another size": lambda s: _with(s, "mean", torch.zeros(9)),
            "a mean of complex numbers": lambda s: _with(
                s, "mean", torch.zeros(5, dtype=torch.complex64)
            ),
            "a variance of NaN": lambda s: _with(s, "variance", torch.full((5,), float("nan"))),
            "a negative variance": lambda s: _with(s, "variance", torch.full((5,), -1.0)),
            "a mean on meta": lambda s: _with(s, "mean", torch.zeros(5, device="meta")),
            "a sparse mean": lambda s: _with(s, "mean", torch.zeros(5).to_sparse()),
            "seen None": lambda s: _with(s, "seen", None),
        }.items()
    },
}


def _scheduler() -> object:
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    return torch.optim.lr_scheduler.StepLR(other, 1)


def _with(state: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    first = next(iter(state["layers"]))
    layers = state["layers"] | {first: state["layers"][first] | {key: value}}
    return state | {"layers": layers}


def _without(state: dict[str, Any], key: str) -> dict[str, Any]:
    changed = _with(state, key, None)
    del changed["layers"][next(iter(changed["layers"]))][key]
    return changed


def refusing(
    make: Callable[[Any], Optimizer], options: dict[str, Any], steps: int, what: str
) -> Attack:
    """A call that must be refused; then training goes on as without it."""
    call, wanted = refusals[what]

    def attack() -> None:
        hit, twin = (Problem(make, options, steps=steps) for _ in range(2))
        hit.backward(), twin.backward()
        state = repr(hit.bnp.state_dict())
        refused(hit, lambda: call(hit), wanted)
        assert repr(hit.bnp.state_dict()) == state, "changed the statistics"
        for _ in range(2):
            hit.optimizer.step(), twin.optimizer.step()
            hit.backward(), twin.backward()
        assert hit.result() == twin.result(), "the next steps differ"

    return attack


def detaching(make: Callable[[Any], Optimizer], options: dict[str, Any], steps: int) -> Attack:
    """After detach() the optimizer is the plain one, and the BNP can be attached again."""

    def attack() -> None:
        hit = Problem(make, options, steps=steps)
        hit.bnp.detach()
        look = hit.look()
        assert (look["hooks"], look["step"]) == ([0, 0], None)
        assert not any(look["modules"])
        twin = Problem(make, attach=False)
        twin.bnp.detach()
        twin.model.load_state_dict(hit.model.state_dict())
        twin.optimizer.load_state_dict(copy.deepcopy(hit.optimizer.state_dict()))
        twin.number = hit.number
        for _ in range(2):
            hit.backward(), twin.backward()
            hit.optimizer.step(), twin.optimizer.step()
        assert hit.result() == twin.result(), "training is not plain"
        hit.bnp.attach(hit.optimizer)
        hit.backward()
        hit.optimizer.step()

    return attack


def copying(make: Callable[[Any], Optimizer], options: dict[str, Any], steps: int) -> Attack:
    """Copies and pickles of an attached optimizer are plain, and leave it as it is."""

    def attack() -> None:
        hit = Problem(make, options, steps=steps)
        hit.backward()
        before = hit.look()
        for twin in (copy.deepcopy(hit.optimizer), pickle.loads(pickle.dumps(hit.optimizer))):
            assert "step" not in twin.__dict__, "the copy is guarded"
            twin.step()
        assert_same(before, hit.look())

    return attack


def resuming(make: Callable[[Any], Optimizer], options: dict[str, Any], steps: int) -> Attack:
    """States of model, optimizer and BNP make the same training."""

    def attack() -> None:
        hit, twin = Problem(make, options, steps=steps), Problem(make, options)
        twin.model.load_state_dict(hit.model.state_dict())
        twin.optimizer.load_state_dict(copy.deepcopy(hit.optimizer.state_dict()))
        twin.bnp.load_state_dict(hit.bnp.state_dict())
        twin.number = hit.number
        for _ in range(3):
            hit.backward(), twin.backward()
            hit.optimizer.step(), twin.optimizer.step()
        assert hit.result() == twin.result(), "the resumed training differs"

    return attack


def of_sparse_gradients() -> Iterator[tuple[str, Attack]]:
    """Embeddings with sparse gradients beside layers, clipped or not, in steps that fail."""
    makes: dict[str, Callable[[Any], Optimizer]] = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
        "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
        "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    }
    for (name, make), max_norm, sparse, fails in product(
        makes.items(), (None, 0.01, 1e9), (True, False), (False, True)
    ):

        def attack(
            make: Callable[[Any], Optimizer] = make,
            max_norm: float | None = max_norm,
            sparse: bool = sparse,
            fails: bool = fails,
        ) -> None:
            found = []
            for kind in (sparse, False):
                with torch.random.fork_rng():
                    torch.manual_seed(0)
                    model = nn.Sequential(nn.EmbeddingBag(9, 6, sparse=kind), nn.Linear(6, 1))
                optimizer = make(model.parameters())
                BNP(model, max_norm=max_norm).attach(optimizer)
                tokens = torch.tensor([[0, 1], [1, 1], [2, 3], [4, 5]])
                for _ in range(3):
                    optimizer.zero_grad()
                    model(tokens).square().mean().backward()
                    raw = {n: (id(p.grad), _bits(p.grad)) for n, p in model.named_parameters()}
                    if fails:
                        handle = optimizer.register_step_pre_hook(_raise)
                        try:
                            optimizer.step()
                        except MemoryError:
                            handle.remove()
                    else:
                        optimizer.step()
                    now = {n: (id(p.grad), _bits(p.grad)) for n, p in model.named_parameters()}
                    assert raw == now, "gradients changed"
                    if fails:
                        optimizer.step()
                found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
            torch.testing.assert_close(*found)

        yield f"sparse {sparse}, {name}, max_norm {max_norm}, fails {fails}", attack


def _raise(*_: object) -> None:
    raise MemoryError


def of_leaks() -> Iterator[tuple[str, Attack]]:
    """Refusals, failed steps and detached preconditioners keep no object alive."""

    def fails(p: Problem) -> None:
        handle = p.optimizer.register_step_pre_hook(_raise)
        try:
            p.optimizer.step()
        finally:
            handle.remove()

    def detaches(p: Problem) -> None:
        model = nn.Linear(3, 3)
        BNP(model).attach(torch.optim.SGD(model.parameters(), lr=0.1)).detach()

    calls = {name: call for name, (call, _) in refusals.items()}
    for name, call in (calls | {"a failing step": fails, "attach, detach": detaches}).items():

        def attack(call: Callable[[Problem], object] = call) -> None:
            problem = Problem(OPTIMIZERS["AdamW"], steps=2)
            problem.backward()

            def once() -> None:
                with contextlib.suppress(TypeError, ValueError, MemoryError):
                    call(problem)

            def count() -> int:
                gc.collect()
                kinds = [type(o) for o in gc.get_objects()]
                ours = sum(str(kind.__module__).startswith("equipoise") for kind in kinds)
                return ours + sum(issubclass(kind, Tensor) for kind in kinds)

            once()
            before = count()
            for _ in range(3):
                once()
            assert count() <= before, f"{count() - before} objects more"

        yield f"leaks: {name}", attack


def attacks() -> Iterator[tuple[str, Attack]]:
    for name, make in OPTIMIZERS.items():
        for what, attack in on_each(make):
            yield f"{name}: {what}", attack
    yield from of_sparse_gradients()
    yield from of_leaks()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="make attacks whose name contains this word")
    parser.add_argument("--every", type=int, default=1, help="make every n-th attack only")
    parser.add_argument("--quick", action="store_true", help="make every 400th attack only")
    options = parser.parse_args()
    if options.quick:
        options.every = 400
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tried, failed = 0, []
    chosen = [a for a in attacks() if options.only in a[0]][:: options.every]
    for name, attack in chosen:
        tried += 1
        try:
            attack()
        except Exception as error:  # whatever it is, it is a failed promise
            first = (str(error).splitlines() or [""])[0]
            failed.append(f"{name}: {type(error).__name__}: {first[:150]}")
            print(failed[-1], flush=True)
    print(f"{tried} attacks tried, {len(failed)} failed")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
