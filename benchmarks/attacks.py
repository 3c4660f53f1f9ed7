"""Hostile and unlucky use of the command line: full disks, user code that fails, absurd options.

Run ``python benchmarks/attacks.py [--quick] [--only WORD]``, on Linux; it prints the table of
``docs/threat_model.md`` and fails if an attack is not withstood. Each is one command in a process
and a folder of its own. It is withstood if

- the exit code is the expected one: 2 for bad input, 3 where there was no room for a result;
- no traceback is printed, and the message names what is wrong: the user's file, the option or the
  path;
- what was measured is not lost: with exit code 3 a report is in a temporary folder or on standard
  output, or nothing had been measured yet;
- it ends in time.

Where there is no room means: a limit on the size of files (``ulimit -f``), or standard output is
``/dev/full``.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

# On a busy machine the import of PyTorch alone takes ten.
SECONDS = 180.0
QUICK = ("a trillion seeds",)

# What the attacks name: models, loaders and losses in the user's own file.
USER = """
import torch
from torch import nn
from torch.nn import functional as F

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(),
                         nn.Linear(32, 10))

def batches(count=50):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield (torch.randn(16, 64, generator=generator),
               torch.randint(10, (16,), generator=generator))

class raising_loader:
    def __iter__(self):
        for number, batch in enumerate(batches()):
            if number == 2:
                raise OSError("the third batch cannot be read")
            yield batch

class Corrupt(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if index == 37:
            raise ValueError("item 37 is corrupt")
        return torch.randn(64), index % 10

corrupt = torch.utils.data.DataLoader(Corrupt(), batch_size=16)
corrupt_by_workers = torch.utils.data.DataLoader(Corrupt(), batch_size=16, num_workers=1)
varying = [(torch.randn(16, 64 + n), torch.randint(10, (16,))) for n in range(20)]
nan_inputs = [(torch.full((16, 64), float("nan")), torch.randint(10, (16,))) for _ in range(20)]
empty = []

class Sixth(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = build(), 0
    def forward(self, x):
        Sixth.count = getattr(Sixth, "count", 0) + 1
        if Sixth.count == 6:
            raise RuntimeError("the sixth pass fails")
        return self.inner(x)

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("no way back")

class FailsBackward(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = build()
    def forward(self, x):
        return Backward.apply(self.inner(x))

def complex_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1]) + 0j

def meta_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1]).to("meta")

def stepping_loss(model, batch):
    loss = F.cross_entropy(model(batch[0]), batch[1])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.1)
    return loss

def word_loss(model, batch):
    return "low"

def sparse_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1]).to_sparse()

def backward_loss(model, batch):
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    return loss

def exiting_loss(model, batch):
    raise SystemExit(0)

class Silent(Exception):
    def __str__(self):
        raise RuntimeError("nothing to say")

def raising(error):
    def loss(model, batch):
        raise error
    return loss

circular, other = RuntimeError("causes in a circle"), RuntimeError("b")
circular.__cause__, other.__cause__ = other, circular
ending_loss, silent_loss = raising(GeneratorExit("gone")), raising(Silent())
circular_loss, wordy_loss = raising(circular), raising(ValueError("so " * 3_000_000))

class Killed(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if index == 37:
            import os
            os.kill(os.getpid(), 9)
        return torch.randn(64), index % 10

killed = torch.utils.data.DataLoader(Killed(), batch_size=16, num_workers=1)

class ClosesOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = build()
    def forward(self, x):
        import sys
        sys.stdout.close()
        return self.inner(x)

calls = []

def late_loss(model, batch):
    calls.append(1)
    if len(calls) > 8:
        raise OSError("the ninth loss is lost")
    return F.cross_entropy(model(batch[0]), batch[1])

class NoIterator:
    def __iter__(self):
        return 3

class NoLength(Corrupt):
    def __len__(self):
        return -1

no_iterator, no_length = NoIterator(), NoLength()
inside_itself = {"x": torch.ones(16, 64)}
inside_itself["self"] = inside_itself
on_no_device = [(torch.ones(16, 64, device="meta"), torch.ones(16, device="meta"))]
sparse = [(x.to_sparse(), y) for x, y in batches(20)]
integers = [(x.long(), y) for x, y in batches(20)]

def quantised():
    import warnings
    warnings.simplefilter("ignore")
    from torch.ao.nn.quantized import dynamic
    return nn.Sequential(nn.Flatten(), dynamic.Linear(64, 10))

def on_meta():
    return build().to("meta")

def zero_size():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 0), nn.Linear(0, 10))

def without_parameters():
    return nn.ReLU()

def deep():
    layers = [nn.Flatten(), nn.Linear(64, 8)]
    for _ in range(10_000):
        layers += [nn.Linear(8, 8), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(8, 10))

def nested():
    net = nn.Linear(64, 10)
    for _ in range(10_000):
        net = nn.Sequential(net)
    return net

def nothing():
    return None

def scripted():
    import warnings
    warnings.simplefilter("ignore")
    return torch.jit.script(build())

class Unhashable(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
    def __eq__(self, other):
        return self is other

def inside():
    model = build()
    model[1].parent = model
    return model

def buffer_on_meta():
    model = build()
    model[2].running_mean = model[2].running_mean.to("meta")
    return model

def for_inference():
    with torch.inference_mode():
        return build()

class SparseOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = build()
    def forward(self, x):
        return self.inner(x).to_sparse()

def exits():
    raise SystemExit(0)
"""


@dataclass(frozen=True)
class Attack:
    """One command.

    Args:
        group: Heading in the table.
        name: What is done.
        command: Arguments of ``equipoise``.
        codes: Exit codes that are right.
        says: What the message holds, as a regular expression.
        room: Bytes that a file may have; ``None`` for no limit.
        full: Whether standard output is full.
        seconds: In which it ends.
    """

    group: str
    name: str
    command: tuple[str, ...]
    codes: tuple[int, ...] = (2,)
    says: str = ""
    room: int | None = None
    full: bool = False
    seconds: float = SECONDS


def late(name: str, says: str, target: str = "build", **options: str) -> Attack:
    """User code that fails once the work has begun."""
    given = {"data": "user.py:batches", "batch_size": "16", "batches": "5"} | options
    pairs = [(f"--{key.replace('_', '-')}", value) for key, value in given.items()]
    command = ("checkup", f"user.py:{target}", *(word for pair in pairs for word in pair))
    return Attack("user code that fails", name, command, says=says)


def odd(
    name: str,
    target: str,
    says: str,
    codes: tuple[int, ...] = (2,),
    seconds: float = SECONDS,
) -> Attack:
    """A factory that returns what no check-up expects."""
    small = ("--seeds", "1", "--batches", "1")
    command = ("checkup", f"user.py:{target}", "--data", "user.py:batches", *small)
    return Attack("odd models", name, command, codes, says, seconds=seconds)


def absurd(name: str, says: str, *command: str) -> Attack:
    """Options that make no sense."""
    return Attack("absurd options", name, command, says=says)


CHECKUP = ("checkup", "user.py:build", "--seeds", "1", "--batches", "1")
PROBE = ("probe", "user.py:build")
REPRODUCE = ("reproduce", "yang2019.fig1d", "--scale", "smoke")
ROOM = "no room for results"
ATTACKS = (
    Attack("odd models", "sparse inputs", (*CHECKUP, "--data", "user.py:sparse"), (0,)),
    Attack(ROOM, "checkup under ulimit -f", CHECKUP, (3,), "File too large", room=1024),
    Attack(ROOM, "probe under ulimit -f", PROBE, (3,), "File too large", room=1024),
    Attack(ROOM, "report under ulimit -f", ("report", "made"), (3,), "cannot write", room=1024),
    Attack(ROOM, "reproduce under ulimit -f", REPRODUCE, (3,), "File too large", room=16),
    Attack(ROOM, "figures under ulimit -f", REPRODUCE, (3,), "figure", room=8192),
    Attack(ROOM, "checkup on a full standard output", CHECKUP, (3,), "standard output", full=True),
    Attack(ROOM, "probe on a full standard output", PROBE, (3,), "standard output", full=True),
    Attack(
        ROOM,
        "report on a full standard output",
        ("report", "made", "--json"),
        (3,),
        "standard output",
        full=True,
    ),
    Attack(
        ROOM, "reproduce on a full standard output", REPRODUCE, (3,), "standard output", full=True
    ),
    Attack(
        ROOM,
        "theory on a full standard output",
        ("theory", "--activation", "relu"),
        (3,),
        "standard output",
        full=True,
    ),
    late(
        "a loader that raises at batch 3",
        r"third batch.*user\.py:\d+",
        data="user.py:raising_loader",
    ),
    late("a corrupt item", r"item 37 is corrupt.*user\.py:\d+", data="user.py:corrupt"),
    late("a corrupt item in a worker", r"item 37 is corrupt", data="user.py:corrupt_by_workers"),
    late("a model that fails on its sixth pass", r"sixth pass.*user\.py:\d+", "Sixth"),
    late("a model that fails in backward", r"no way back.*user\.py:\d+", "FailsBackward"),
    late("varying numbers of features", r"6[45]", data="user.py:varying"),
    late("inputs that are nan", "finite|nan", data="user.py:nan_inputs"),
    late("a loader without batches", "batch|empty", data="user.py:empty"),
    late("a complex loss", "complex", loss="user.py:complex_loss"),
    late("a loss on the meta device", "meta", loss="user.py:meta_loss"),
    late("a loss that steps the model", r"change|step", loss="user.py:stepping_loss"),
    late("a loss that is a word", "str|tensor", loss="user.py:word_loss"),
    late("a sparse loss", r"sparse .take .to_dense", loss="user.py:sparse_loss"),
    late("a loss that goes backward", r"call backward\(\) itself", loss="user.py:backward_loss"),
    late("a loss that exits", r"exits with 0.*user\.py:\d+", loss="user.py:exiting_loss"),
    late("a loss that fails later", r"while .*ninth.*user\.py:\d+", loss="user.py:late_loss"),
    late("no Exception", r"GeneratorExit: gone.*user\.py:\d+", loss="user.py:ending_loss"),
    late("no text", r"Silent: .*no text.*user\.py:\d+", loss="user.py:silent_loss"),
    late("causes in a circle", r"a circle.*user\.py:\d+", loss="user.py:circular_loss"),
    late("megabytes of text", r"\A.{,5000}user\.py:\d+ in", loss="user.py:wordy_loss"),
    late("a worker that is killed", "worker|Connection", data="user.py:killed"),
    late("no iterator", "could not be iterated over", data="user.py:no_iterator"),
    late("no length", "could not tell its length", data="user.py:no_length"),
    late("a batch inside itself", "holds itself", data="user.py:inside_itself"),
    late("inputs on the meta device", "meta device", data="user.py:on_no_device"),
    late("integers as inputs", r"x\.float", data="user.py:integers"),
    odd("quantised", "quantised", "quanti|parameter|gradient|differentiate"),
    odd("on the meta device", "on_meta", "meta"),
    odd("a layer of size zero", "zero_size", "", (0, 2)),
    odd("no parameters", "without_parameters", "parameter|weight|layer|loss|shape"),
    # 25 training steps of some seconds each, on a busy machine.
    odd("10,000 layers", "deep", "", (0, 2), 480.0),
    odd("10,000 containers, one in another", "nested", "deep|nest|recursion"),
    odd("nothing", "nothing", "None|Module"),
    odd("a script", "scripted", "Give the module that it was made from"),
    odd("modules without a hash", "Unhashable", "__hash__"),
    odd("a module inside itself", "inside", "inside itself"),
    odd("a buffer on the meta device", "buffer_on_meta", "meta device"),
    odd("weights of inference mode", "for_inference", "inference_mode"),
    odd("sparse outputs", "SparseOutputs", r"outputs are sparse .take .to_dense"),
    odd("standard output closed", "ClosesOutput", "", (0,)),
    odd("an exit", "exits", "exit|SystemExit"),
    absurd("unknown device", "hpu", "checkup", "user.py:build", "--device", "hpu"),
    absurd("no device", "nowhere", "checkup", "user.py:build", "--device", "nowhere"),
    absurd("a trillion seeds", "10,000", "checkup", "user.py:build", "--seeds", "999999999999"),
    absurd("no seeds", "from 1", "checkup", "user.py:build", "--seeds", "0"),
    absurd("a trillion samples a batch", "batch", "checkup", "--batch-size", "999999999999"),
    absurd("no batch", "batch", "checkup", "--batch-size", "0"),
    absurd("a home of nobody", "nouser", "checkup", "~nouser/x.py:build"),
    absurd("a name of 5,000 letters", "long", "checkup", f"{'x' * 5000}.py:build"),
    absurd("a folder of 5,000 letters", "long", *CHECKUP, "--out", "x" * 5000),
    absurd("a folder that is a file", "not a folder", *CHECKUP, "--out", "user.py"),
    absurd("a factory that is not there", "absent", "checkup", "user.py:absent"),
    absurd("data that are not there", "absent", *CHECKUP, "--data", "user.py:absent"),
    absurd("absurd random data", "random|memory", *CHECKUP, "--data", "random:999999999:10"),
    absurd("a checkpoint that is not there", "absent", *CHECKUP, "--checkpoint", "absent.pt"),
    absurd("a checkpoint that is a program", "evil.pt", *CHECKUP, "--checkpoint", "evil.pt"),
    absurd("a report that is none", "report.json", "report", "bad"),
    absurd("a report that is not there", "absent", "report", "absent"),
    absurd("a report of 5,000 letters", "cannot read", "report", "x" * 5000),
    absurd("a folder 1,500 deep", "folders deep", *CHECKUP, "--out", "x/" * 1500),
    absurd("a link to nowhere", "a link to a place", *CHECKUP, "--out", "link"),
    absurd("an unknown figure", "no experiment", "reproduce", "yang2019.fig99"),
    absurd("no workers", "jobs", *REPRODUCE, "--jobs", "0"),
    absurd("part 5 of 2", "5/2", *REPRODUCE, "--shard", "5/2"),
    absurd("records without a place", "cannot write", *REPRODUCE, "--out", "user.py"),
    absurd("paper without data", "not found", "reproduce", "lange2022.fig3", "--scale", "paper"),
)


class Program:
    """Leaves a file if it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Run a command."""
        return os.system, ("touch ran",)


def prepare(folder: Path, *, report: bool) -> None:
    """Write what the attacks name, and perhaps a report whose page is still to be made."""
    (folder / "user.py").write_text(USER, "utf-8")
    (folder / "evil.pt").write_bytes(pickle.dumps(Program()))
    (folder / "link").symlink_to("nowhere")
    (folder / "bad").mkdir()
    (folder / "bad" / "report.json").write_text('{"schema": 5, "verdict": 3}', "utf-8")
    if report:
        made = run(folder, (*CHECKUP, "--out", "made"))
        assert made.returncode == 0, made.stderr
        (folder / "made" / "report.html").unlink()


def run(
    folder: Path,
    command: tuple[str, ...],
    room: int | None = None,
    full: bool = False,
    seconds: float = SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run ``equipoise`` in a folder, without data or a cache of the user's."""

    def limits() -> None:
        if room is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    environment = os.environ | {"EQUIPOISE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    environment.pop("EQUIPOISE_DATA", None)
    with Path("/dev/full" if full else os.devnull).open("w") as sink:
        return subprocess.run(
            [sys.executable, "-m", "equipoise", *command],
            cwd=folder,
            stdout=sink if full else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=seconds,
            preexec_fn=limits,
            env=environment,
        )


def trouble(attack: Attack, folder: Path) -> tuple[str, float]:
    """What is wrong with the answer to an attack, if anything, and how long it took."""
    started = time.monotonic()
    try:
        done = run(folder, attack.command, attack.room, attack.full, attack.seconds)
    except subprocess.TimeoutExpired:
        return f"does not end in {attack.seconds:g} s", attack.seconds
    seconds = time.monotonic() - started
    wrong = []
    if done.returncode not in attack.codes:
        wrong.append(f"exit code {done.returncode}")
    if "Traceback" in done.stderr:
        wrong.append("a traceback")
    if not re.search(attack.says, done.stderr, re.DOTALL) and done.returncode != 0:
        wrong.append(f"does not say {attack.says!r}")
    if (folder / "ran").exists():
        wrong.append("ran a program")
    if seconds > attack.seconds:
        wrong.append(f"{seconds:.0f} s")
    if wrong:
        wrong.append(repr(done.stderr[-400:]))
    return "; ".join(wrong), seconds


def main() -> None:
    """Attack, print the table, and fail if an attack was not withstood."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", metavar="WORD", help="attacks whose name holds it")
    args = parser.parse_args()
    times: dict[str, list[float]] = defaultdict(list)
    failed: dict[str, list[str]] = defaultdict(list)
    for attack in ATTACKS:
        if args.only not in attack.name or (args.quick and attack.name not in QUICK):
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            prepare(folder, report=attack.command[:2] == ("report", "made"))
            wrong, seconds = trouble(attack, folder)
        times[attack.group].append(seconds)
        if wrong:
            failed[attack.group].append(f"{attack.name}: {wrong}")
        print(
            f"{attack.name}: {wrong or 'withstood'}, {seconds:.1f} s", file=sys.stderr, flush=True
        )
    print("| attacks | tried | failed | seconds, median and most |")
    print("|---|---|---|---|")
    for group, seconds_of in times.items():
        ordered = sorted(seconds_of)
        middle, most = ordered[len(ordered) // 2], ordered[-1]
        print(f"| {group} | {len(ordered)} | {len(failed[group])} | {middle:.0f}, {most:.0f} |")
    if any(failed.values()):
        raise SystemExit("\n".join(line for lines in failed.values() for line in lines))


if __name__ == "__main__":
    main()
