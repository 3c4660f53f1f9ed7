"""Writes a training's checkpoints while it runs, and finds out where to go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.training.record import Evaluation
from equipoise_papers.big import sharded
from equipoise_papers.big.checkpoint import (
    PLAIN,
    CheckpointError,
    read_checkpoint,
    require_same,
    write_checkpoint,
)
from equipoise_papers.big.distributed import of_all
from equipoise_papers.big.parts import Parts


@dataclass(slots=True)
class Progress:
    """What a training has left so far.

    Args:
        step: Steps taken.
        losses: Of these steps.
        evaluations: Made so far.
        seconds: Of steps, without evaluations, listeners and checkpoints.
    """

    step: int = 0
    losses: tuple[float, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    seconds: float = 0.0


@dataclass(slots=True)
class Keeper:
    """Checkpoints of one training.

    Args:
        parts: What is kept.
        path: Of the file; ``None`` keeps nothing.
        every: Steps from one checkpoint to the next; the last step always has one.
        elastic: Whether another number of ranks may go on.
        found: What a checkpoint held when this training began.
        losses: Of the steps since then, whoever appends them.
        evaluations: All of them.
        writing: Seconds spent on checkpoints.
    """

    parts: Parts
    path: Path | None
    every: int
    elastic: bool
    found: Progress = field(default_factory=Progress)
    losses: list[Tensor] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    writing: float = 0.0
    _aside: float = 0.0
    _since: float = 0.0
    _identity: dict[str, Any] = field(default_factory=dict)

    def begin(self) -> Progress:
        """Put the last checkpoint's states back; without one, see that one can be written.

        Raises:
            CheckpointError: On every rank, if it is damaged, of another training, or not the
                same file for all.
        """
        self._since = time.perf_counter()
        if self.path is None:
            return self.found
        self._identity = self.parts.identity()  # schedules change options with every step
        state, failure = None, None
        try:
            state = self._read()
        except CheckpointError as refusal:
            failure = refusal
        self._agree(failure)
        steps = of_all(None if state is None else int(state["step"]), self.parts.here)
        if len(set(steps)) > 1:
            raise CheckpointError(
                f"the ranks do not see the same checkpoint {str(self.path)!r}: they find steps "
                f"{steps}. Put it on a file system that all of them share."
            )
        if state is None:
            self._write(0)
            self._read_again()
        else:
            self._restore(state)
        self._since = time.perf_counter()
        return self.found

    def follow(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Hand batches on, and write a checkpoint when a step is taken that deserves one."""
        step, last = self.found.step, self.parts.batches.steps
        for batch in batches:
            yield batch
            step += 1  # whoever asks for the next batch has finished with this one
            if self.path is not None and (step % self.every == 0 or step == last):
                start = time.perf_counter()
                self._write(step)
                self.writing += time.perf_counter() - start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._aside += time.perf_counter() - start

    def _read(self) -> dict[str, Any] | None:
        assert self.path is not None
        state = read_checkpoint(self.path)
        if state is None:
            return None
        require_same(self.path, state["identity"], self._required(state["identity"]))
        if state["ranks"] != self.parts.here.size and not self.elastic:
            raise CheckpointError(
                f"{str(self.path)!r} is of {state['ranks']} ranks, here are "
                f"{self.parts.here.size}. Start as many processes as then, pass elastic=True to "
                "go on with these, which is not the same to the bit, or delete the file to begin "
                "anew."
            )
        if state["step"] > self.parts.batches.steps:
            raise CheckpointError(
                f"{str(self.path)!r} is of step {state['step']}, beyond the "
                f"{self.parts.batches.steps} steps asked for. Ask for more, or name another file."
            )
        return state

    def _required(self, saved: dict[str, Any]) -> dict[str, Any]:
        """With other ranks the same batch norms may see another part of the batch."""
        same = saved["batch norms"] == self._identity["batch norms"]
        # Where statistics are the same, it does not matter which layers see to it.
        skipped = "batch statistics" if self.elastic and same else "batch norms"
        return {topic: value for topic, value in self._identity.items() if topic != skipped}

    def _agree(self, failure: CheckpointError | None) -> None:
        """Let all ranks end together if one does, not by a timeout."""
        found = of_all(None if failure is None else str(failure), self.parts.here)
        message = next((text for text in found if text is not None), None)
        if message is not None:
            raise CheckpointError(message) from failure

    def _restore(self, state: dict[str, Any]) -> None:
        for restore in (self.parts.restore_also, self.parts.restore):
            failure = None
            try:
                restore(state)
            except Exception as error:  # whatever a part raises, other ranks wait to hear of it
                failure = CheckpointError(
                    f"{str(self.path)!r} cannot be put back: {str(error).rstrip('.')}. Name "
                    "another file; what was to be trained may have changed, so make it anew."
                )
            self._agree(failure)
        self.found = Progress(
            int(state["step"]),
            tuple(state["losses"].tolist()),
            tuple(Evaluation(*values) for values in state["evaluations"]),
            float(state["seconds"]),
        )
        self.evaluations = list(self.found.evaluations)

    def _write(self, step: int) -> None:
        losses = torch.tensor(self.found.losses, dtype=torch.float64)
        if self.losses:
            losses = torch.cat([losses, torch.stack(self.losses).to("cpu", torch.float64)])
        seconds = self.found.seconds + self._passed()
        finite = bool(losses.isfinite().all())
        # All ranks have the same losses, so that all of them ask for the weights, or none.
        if not (finite and sharded.all_finite(self.parts.model, self.parts.here)):
            return  # training has diverged and is about to end; the last good state is kept
        state = self.parts.capture() | {
            "identity": self._identity,
            "step": step,
            "ranks": self.parts.here.size,
            "losses": losses,
            "evaluations": [[e.step, e.loss, e.accuracy] for e in self.evaluations],
            "seconds": seconds,
        }
        failure = None
        if self.parts.here.leads:
            assert self.path is not None
            try:
                write_checkpoint(self.path, state)
            except CheckpointError as error:
                failure = error
        self._agree(failure)

    def _passed(self) -> float:
        return time.perf_counter() - self._since - self.writing - self._aside

    def _read_again(self) -> None:
        """Before any work is lost, see that what parts call their state can be read again."""
        failure = None
        if self.parts.here.leads:
            assert self.path is not None
            try:
                read_checkpoint(self.path)
            except CheckpointError as error:
                failure = CheckpointError(
                    f"the state written to {str(self.path)!r} cannot be read again: "
                    f"{_first_line(error.__cause__)} {PLAIN}"
                )
                self.path.unlink(missing_ok=True)
        self._agree(failure)


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0]
