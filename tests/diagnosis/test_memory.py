"""What memory a check-up takes, and what is said where there is too little."""

import gc
import weakref
from contextvars import ContextVar

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.diagnosis.record import UnfinishedError
from support import counting
from support.memory import LiveMemory

TOKENS = 20_000
LOGITS = 4 * 32 * TOKENS * 4  # bytes


class Language(nn.Module):
    """Whose logits are by far the largest of what it computes."""

    def __init__(self):
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(TOKENS, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, TOKENS)

    def forward(self, tokens):
        return self.head(torch.relu(self.hidden(self.embedding(tokens))))


def next_token(model, batch):
    return nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def peak(run):
    """In logits."""
    with LiveMemory(least=LOGITS // 4) as live:
        found = run()
    return found, live.most / LOGITS


def test_no_more_than_a_traced_pass_and_a_look_at_it_is_alive_at_once():
    """A traced pass keeps logits, log-probabilities and both gradients; a step has 3 of them."""
    torch.manual_seed(0)
    model, batch = Language(), torch.randint(0, TOKENS, (4, 33))
    assert peak(lambda: next_token(model, batch).backward())[1] == 3
    model.zero_grad()
    found, most = peak(lambda: eq.checkup(model, batch, loss_fn=next_token))
    assert found.verdict.probability > 0.5
    assert most <= 6


WORDS = (
    "CUDA out of memory. Tried to allocate 1.65 GiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 1.20 GiB is free.\nIf reserved memory is large, set PYTORCH_ALLOC_CONF."
)
ERRORS = {
    "GPU": (torch.OutOfMemoryError(WORDS), "for 1.65 GiB more"),
    "CPU": (
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 1650000000 bytes. Error code 12"
        ),
        "for 1.65 GB more",
    ),
    "NumPy": (MemoryError("Unable to allocate 1.65 GiB for an array"), "for 1.65 GiB more"),
}
REMEDY = "give batches of fewer samples"


class Limited(nn.Module):
    """Fails in some of its forward passes, or on the way back from them."""

    def __init__(self, fails, error, *, backward=False):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.fails, self.backward = fails, backward
        self.kind, self.words = type(error), str(error)

    def forward(self, x):
        output = self.net(x)
        counting.counted()
        if self.fails(counting.count()):
            if not self.backward:
                self.fail()
            elif output.requires_grad:
                output.register_hook(self.fail)
        return output

    def fail(self, *_):
        raise self.kind(self.words)


def checked(fails, error, **kwargs):
    torch.manual_seed(0)
    counting.start()
    batch = torch.randn(32, 8), torch.randint(0, 3, (32,))
    return eq.checkup(Limited(fails, error, **kwargs), batch)


@pytest.fixture(scope="module")
def count():
    """How many forward passes there are."""
    checked(lambda number: False, ValueError())
    assert counting.count() > 8
    return counting.count()


@pytest.mark.parametrize("kind", ERRORS)
def test_too_little_memory_is_said_in_one_line_wherever_it_ends(kind, count):
    error, size = ERRORS[kind]
    # Of every kind at the start and the end, and in the middle of the stages; of one everywhere.
    for first in range(1, count + 1, 1 if kind == "GPU" else max(1, (count - 1) // 3)):
        with pytest.raises(ValueError, match=f"does not suffice {size}.*{REMEDY}") as told:
            checked(lambda number, first=first: number >= first, error)
        assert "\n" not in str(told.value)
        assert "PYTORCH" not in str(told.value)


def test_the_stage_is_named(count):
    with pytest.raises(
        UnfinishedError, match=r"^while measuring gradients: memory does not"
    ) as told:
        checked(lambda number: number > 1, ERRORS["GPU"][0], backward=True)
    found = told.value.finished
    assert REMEDY in found.verdict.details
    assert found.initialisation is not None


def test_what_one_look_lacks_is_a_note(count):
    """One look that fails is not the end, and is not passed over in silence either."""
    notes = []
    for only in range(4, count + 1):
        try:
            found = checked(lambda number, only=only: number == only, ERRORS["GPU"][0])
        except UnfinishedError as error:
            assert REMEDY in str(error)  # noqa: PT017
            continue
        fewer = [one.detail for one in found.findings if one.title.startswith("Theory saw 16 of")]
        told = [one.detail for one in found.findings if "does not suffice" in one.detail]
        assert len(told + fewer) == 1  # a trace is tried again on half of the samples
        notes += told
    assert any(note.startswith("Signs of gradients: memory does not suffice") for note in notes)
    assert any(note.startswith("Samples that see each other: memory") for note in notes)


def test_what_failed_keeps_no_tensors(count):
    """In a notebook an exception stays, and with it the frames that it went through."""
    kept = ContextVar("kept")  # which probes do not put back
    kept.set(large := [])

    class Hungry(Limited):
        def fail(self, *_):
            tensor = torch.ones(1000)
            kept.get().append(weakref.ref(tensor))
            super().fail()

    counting.start()
    batch = torch.randn(32, 8), torch.randint(0, 3, (32,))
    with pytest.raises(UnfinishedError) as told:
        eq.checkup(Hungry(lambda number: number >= count - 2, ERRORS["GPU"][0]), batch)
    assert told.value.__cause__ is not None
    gc.collect()
    assert large
    assert all(tensor() is None for tensor in large)
