"""Checkpoints of a training: one file that is complete at any moment, and fits or says why not.

``torch.distributed.checkpoint`` is not used. Tried with PyTorch 2.13 on two gloo processes, it
resumes elastically, but does not keep what is promised here. It overwrites a folder in place:
after a kill, neither the old nor the new checkpoint could be read. It checks no sums: of 200
single bits flipped in its data file, 163 were read as other numbers without an error. It unpickles
metadata and objects, so that reading a file can run code. Its ``get_state_dict`` lets an optimizer
without a state take a step at rate 0: step hooks are called, and SGD with momentum and weight
decay, Adam, NAdam and ASGD then train to other weights. It casts optimizer states to the type of
the weights, so that NAdam in float64 does not resume to the bit, and its full state dicts lose the
versions of modules. Repairing this would take more code than it saves. Both write 200 MB in 0.3 s.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.training import Evaluation
from equipoise_papers.big.distributed import from_all_ranks
from equipoise_papers.big.state import TrainingState
from equipoise_papers.stopwatch import Stopwatch

FORMAT = "equipoise.training/2"
_PLAIN_STATES = (
    "Let state_dict() hold tensors, numbers, strings, and lists and dictionaries of them alone."
)
_MOST_NAMES = 3


class CheckpointError(ValueError):
    """A checkpoint cannot be written, read or continued; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class PastSteps:
    """The steps that a training took before its checkpoint was written.

    Args:
        count: Number of steps.
        losses: Loss of each.
        evaluations: Made so far.
        seconds: Time of the steps, without evaluations, listeners and checkpoints.
    """

    count: int = 0
    losses: tuple[float, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    seconds: float = 0.0


class Checkpointer:
    """Resumes a training from its checkpoint, and writes checkpoints while it runs.

    Args:
        state: What is saved and restored.
        path: Of the file; ``None`` saves nothing.
        every: Steps from one checkpoint to the next; the last step always has one.
        elastic: Whether a checkpoint of another number of ranks is accepted.

    Attributes:
        past: The steps before this process began.
        losses: Losses of the steps since then; train_big appends to it.
        evaluations: All evaluations, past ones included; train_big appends to it.
        watch: Times the steps since then; paused while a checkpoint is written.
    """

    def __init__(
        self, state: TrainingState, path: Path | None, *, every: int, elastic: bool
    ) -> None:
        self.state = state
        self.past = PastSteps()
        self.losses: list[Tensor] = []
        self.evaluations: list[Evaluation] = []
        self._path, self._every, self._elastic = path, every, elastic
        self._identity = state.identity() if path is not None else {}
        self._device = next(state.model.parameters()).device
        self.watch = Stopwatch(self._device)

    @property
    def seconds(self) -> float:
        """Time of all steps, without evaluations, listeners and checkpoints."""
        return self.past.seconds + self.watch.seconds()

    def begin(self) -> None:
        """Restore the last checkpoint; if there is none, write a first one as a test.

        Raises:
            CheckpointError: On every rank, if it is damaged, of another training, or not the
                same file for all.
        """
        if self._path is not None:
            self._resume_or_write_first(self._path)
        self.watch = Stopwatch(self._device)

    def follow(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Pass batches on, and write a checkpoint after every step that is due for one."""
        step, last = self.past.count, self.state.batches.steps
        for batch in batches:
            yield batch
            step += 1  # the loop asks for the next batch when it has taken the step
            if self._path is not None and (step % self._every == 0 or step == last):
                self._write(self._path, step)

    def _resume_or_write_first(self, path: Path) -> None:
        saved, failure = None, None
        try:
            saved = self._read(path)
        except CheckpointError as error:
            failure = error
        self._raise_on_all_ranks(failure)
        steps = from_all_ranks(None if saved is None else int(saved["step"]), self.state.here)
        if len(set(steps)) > 1:
            raise CheckpointError(
                f"the ranks do not see the same checkpoint {str(path)!r}: they find steps "
                f"{steps}. Put it on a file system that all of them share."
            )
        if saved is None:
            self._write(path, 0)
            self._check_first_can_be_read(path)
        else:
            self._restore(path, saved)

    def _read(self, path: Path) -> dict[str, Any] | None:
        saved = read_checkpoint(path)
        if saved is None:
            return None
        require_same(path, saved["identity"], self._identity_to_compare(saved["identity"]))
        here, batches = self.state.here, self.state.batches
        if saved["ranks"] != here.size and not self._elastic:
            raise CheckpointError(
                f"{str(path)!r} is of {saved['ranks']} ranks, here are {here.size}. Start as many "
                "processes as then, pass elastic=True to go on with these, which is not the same "
                "to the bit, or delete the file to start over."
            )
        if saved["step"] > batches.steps:
            raise CheckpointError(
                f"{str(path)!r} is of step {saved['step']}, beyond the {batches.steps} steps "
                "asked for. Ask for more, or name another file."
            )
        return saved

    def _identity_to_compare(self, saved: dict[str, Any]) -> dict[str, Any]:
        # With another number of ranks, the same batch norms may see another part of the batch.
        # If statistics are the same, it does not matter which layers compute them.
        same_norms = saved["batch norms"] == self._identity["batch norms"]
        ignored = "batch statistics" if self._elastic and same_norms else "batch norms"
        return {topic: value for topic, value in self._identity.items() if topic != ignored}

    def _restore(self, path: Path, saved: dict[str, Any]) -> None:
        state = self.state
        for restore in (state.restore_scheduler_and_also, state.restore_model_and_optimizer):
            failure = None
            try:
                restore(saved)
            except Exception as error:  # of any kind: the other ranks wait for this one
                failure = CheckpointError(
                    f"{str(path)!r} cannot be restored: {str(error).rstrip('.')}. Name another "
                    "file; the model may have changed, so build it again."
                )
            self._raise_on_all_ranks(failure)
        self.past = PastSteps(
            int(saved["step"]),
            tuple(saved["losses"].tolist()),
            tuple(Evaluation(*values) for values in saved["evaluations"]),
            float(saved["seconds"]),
        )
        self.evaluations = list(self.past.evaluations)

    def _write(self, path: Path, step: int) -> None:
        seconds = self.seconds
        with self.watch.paused():
            losses = torch.tensor(self.past.losses, dtype=torch.float64)
            if self.losses:
                losses = torch.cat([losses, torch.stack(self.losses).to("cpu", torch.float64)])
            # Losses are the same on all ranks, so either all ranks look at the weights or none.
            if not (bool(losses.isfinite().all()) and self.state.weights_are_finite()):
                return  # training has diverged and is about to end: keep the last good state
            saved = self.state.capture() | {
                "identity": self._identity,
                "step": step,
                "ranks": self.state.here.size,
                "losses": losses,
                "evaluations": [[e.step, e.loss, e.accuracy] for e in self.evaluations],
                "seconds": seconds,
            }
            failure = None
            if self.state.here.leads:
                try:
                    write_checkpoint(path, saved)
                except CheckpointError as error:
                    failure = error
            self._raise_on_all_ranks(failure)

    def _check_first_can_be_read(self, path: Path) -> None:
        """Refuse states that cannot be read again before any work is lost."""
        failure = None
        if self.state.here.leads:
            try:
                read_checkpoint(path)
            except CheckpointError as error:
                reason = str(error.__cause__).strip().partition("\n")[0]
                failure = CheckpointError(
                    f"the state written to {str(path)!r} cannot be read again: {reason} "
                    f"{_PLAIN_STATES}"
                )
                path.unlink(missing_ok=True)
        self._raise_on_all_ranks(failure)

    def _raise_on_all_ranks(self, failure: CheckpointError | None) -> None:
        """Raise on every rank if one failed: the others would wait for it until a timeout."""
        failures = from_all_ranks(None if failure is None else str(failure), self.state.here)
        message = next((text for text in failures if text is not None), None)
        if message is not None:
            raise CheckpointError(message) from failure


def previous(path: Path) -> Path:
    """Where the checkpoint before the last one is kept."""
    return path.with_name(f"{path.name}.previous")


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a state that readers find complete or not at all, even if power fails.

    The last checkpoint is kept beside it, see :func:`previous`. If the process is killed between
    the two renames, that one is read instead.

    Args:
        path: Its folder is made if it is missing.
        state: Tensors, numbers, strings, and lists, tuples and dictionaries of them.

    Raises:
        CheckpointError: If it cannot be written; the last checkpoint is then still there.
    """
    # A fixed name, so that kill -9 leaves no more than one draft. Only one training writes here.
    draft = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            path.replace(previous(path))
        draft.replace(path)
        _sync_folder(path.parent)
    # Of any kind, because the other ranks wait for this one: PyTorch's writer has exceptions of
    # its own for a full disk, and pickle raises nearly anything.
    except Exception as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        remedy = "Free some space or name another file; what was written before is still there."
        if not isinstance(error, OSError | RuntimeError):
            remedy = _PLAIN_STATES
        reason = str(error).rstrip(".")
        raise CheckpointError(
            f"cannot write the checkpoint {str(path)!r}: {reason}. {remedy}"
        ) from error


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """Read the last complete state, on the CPU; ``None`` if there is none.

    Raises:
        CheckpointError: If the file is damaged, something else, or may not be read.
    """
    if path.is_dir():
        raise CheckpointError(f"the checkpoint {str(path)!r} is a folder. Name a file in it.")
    found = next((p for p in (path, previous(path)) if p.exists()), None)
    if found is None:
        return None
    try:
        _check_sums(found)
        state = torch.load(found, map_location="cpu", weights_only=True)
    except (PermissionError, MemoryError) as error:
        raise CheckpointError(
            f"cannot read the checkpoint {str(found)!r}: {str(error) or 'out of memory'}. Let "
            "this process read it, or name another file."
        ) from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise CheckpointError(_damaged(found, previous(path))) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        older = previous(path)
        both = found != older and older.exists()
        these = f"this one and {str(older)!r}" if both else "this one"
        raise CheckpointError(
            f"{str(found)!r} is no checkpoint of a training ({FORMAT}). Name another file, or "
            f"move {these} away to start over."
        )
    return state


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint that is no longer needed, and the one before it."""
    for file in (path, previous(path)):
        file.unlink(missing_ok=True)


def require_same(path: Path, saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Refuse to continue a checkpoint of another training.

    Args:
        path: Named in the message.
        saved: Identity of the checkpoint's training, by topic; topics may be dictionaries.
        here: Identity of this training.

    Raises:
        CheckpointError: Naming the first differences.

    Examples:
        >>> require_same(Path("run.pt"), {"optimizer": "SGD"}, {"optimizer": "Adam"})
        Traceback (most recent call last):
        equipoise_papers.big.checkpoint.CheckpointError: 'run.pt' is of another training: optimizer
        was 'SGD', here it is 'Adam'. Repeat what it was written with, or name another file.
    """
    wrong = [line for topic in here for line in _differences(topic, saved.get(topic), here[topic])]
    if wrong:
        shown = "; ".join(wrong[:_MOST_NAMES])
        more = f"; and {len(wrong) - _MOST_NAMES} more" if len(wrong) > _MOST_NAMES else ""
        raise CheckpointError(
            f"{str(path)!r} is of another training: {shown}{more}. Repeat what it was written "
            "with, or name another file."
        )


def _differences(topic: str, saved: Any, here: Any) -> list[str]:
    if saved == here:
        return []
    if not (isinstance(saved, dict) and isinstance(here, dict)):
        return [f"{topic} was {saved!r}, here it is {here!r}"]
    names = [*here, *(name for name in saved if name not in here)]
    return [
        f"{topic} {name!r} was {saved.get(name, 'absent')}, here it is {here.get(name, 'absent')}"
        for name in names
        if saved.get(name) != here.get(name)
    ]


def _check_sums(path: Path) -> None:
    """Check the checksum of every tensor; PyTorch writes them, but does not check them."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"the checksum of {damaged!r} is wrong.")


def _damaged(path: Path, older: Path) -> str:
    remedy = "Remove it to start over."
    if older != path and older.exists():
        remedy = f"Remove it to go on from the one before, {str(older)!r}."
    return (
        f"the checkpoint {str(path)!r} is damaged or cut off ({path.stat().st_size} bytes). "
        f"{remedy}"
    )


def _sync_folder(folder: Path) -> None:
    """Wait until the renames are on the disk, where the system offers it."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
