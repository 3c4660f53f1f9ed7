"""BNP as a callback of the Hugging Face Trainer."""

from __future__ import annotations

import warnings
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import torch

from equipoise.integrations.optional import base_class
from equipoise.integrations.options import BNPOptions, checked
from equipoise.preconditioners.bnp.bnp import BNP

TrainerCallback = base_class("TrainerCallback", "transformers", extra="huggingface")

FILE = "bnp.pt"  # in the folder of a checkpoint


# The base is known when it runs, not to the type checker.
class BNPCallback(TrainerCallback):  # type: ignore[misc, valid-type]
    """Precondition the optimizer of a Hugging Face Trainer with BNP.

    A :class:`~equipoise.preconditioners.BNP` of the trainer's model is attached when training
    begins and detached when it ends. Accumulated gradients, mixed precision and DDP need nothing
    else; evaluation leaves the statistics alone. They are saved as ``bnp.pt`` in the folder of
    each checkpoint, so that a resumed training is the uninterrupted one to the bit.

    ``max_grad_norm`` of the training arguments, which is 1 unless changed, clips the raw
    gradients, before they are preconditioned; ``max_norm`` bounds what the optimizer sees. Set
    one of them: ``max_grad_norm=0`` or ``max_norm``.

    Args:
        resume_from: Folder of the checkpoint that training resumes from. Needed if it is not
            ``checkpoint-<step>`` in the output folder: the trainer does not pass it on.
        **options: Those of BNP.

    Attributes:
        bnp: Of the latest training, for ``bnp.report()``; None before the first.

    Raises:
        ModuleNotFoundError: If transformers is not installed.
        TypeError: If BNP has no such option.
        ValueError: If an option is out of range.

    Examples:
        .. code-block:: python

            trainer = Trainer(model, arguments, callbacks=[BNPCallback(max_norm=1.0)])
    """

    bnp: BNP | None

    def __init__(
        self,
        *,
        resume_from: str | PathLike[str] | None = None,
        **options: Unpack[BNPOptions],
    ) -> None:
        super().__init__()
        self.bnp = None
        self._resume_from = resume_from
        self._options = checked(options)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any, **_: Any
    ) -> None:
        """Attach. The optimizer exists by now, and has not taken a step.

        Raises:
            TypeError: If the optimizer cannot be preconditioned, such as LBFGS.
            ValueError: If the trainer uses ``DataParallel``.
        """
        self._detach()  # an earlier training may have failed
        if args.n_gpu > 1:
            raise ValueError(
                f"The Trainer spreads batches over {args.n_gpu} GPUs with DataParallel, which "
                "runs throw-away copies of the layers. Start one process per GPU: torchrun."
            )
        self.bnp = BNP(model, **self._options)
        if state.global_step > 0:
            self._load(self.bnp, args, state.global_step)
        self.bnp.attach(_innermost(optimizer))
        if args.max_grad_norm and self._options.get("max_norm") is None:
            warnings.warn(
                f"max_grad_norm={args.max_grad_norm} bounds the raw gradients, before they are "
                "preconditioned. Set max_grad_norm=0, and BNPCallback(max_norm=...) to bound "
                "what the optimizer sees.",
                stacklevel=2,
            )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the statistics beside the optimizer, where that is saved."""
        # Trials of a search are not resumed, and callbacks do not know their folders.
        wanted = args.should_save and not args.save_only_model and not state.is_hyper_param_search
        if wanted and self.bnp is not None:
            torch.save(self.bnp.state_dict(), _folder(args, state.global_step) / FILE)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Detach."""
        self._detach()

    def _load(self, bnp: BNP, args: Any, step: int) -> None:
        folder = _folder(args, step) if self._resume_from is None else Path(self._resume_from)
        if not (folder / FILE).is_file():
            warnings.warn(
                f"Training resumes at step {step}, but there is no {FILE} in {folder}: BNP "
                "starts its statistics anew. BNPCallback(resume_from=...) names another folder.",
                stacklevel=3,
            )
            return
        bnp.load_state_dict(torch.load(folder / FILE, map_location="cpu", weights_only=True))

    def _detach(self) -> None:
        if self.bnp is not None:
            self.bnp.detach()


def _folder(args: Any, step: int) -> Path:
    return Path(args.output_dir) / f"checkpoint-{step}"


def _innermost(optimizer: Any) -> Any:
    """The optimizer that steps; accelerate wraps it in one whose own hooks never run."""
    while type(optimizer).__module__.startswith("accelerate."):
        optimizer = optimizer.optimizer
    return optimizer
