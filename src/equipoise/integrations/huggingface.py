"""Callbacks of the Hugging Face Trainer: BNP, and a monitor of the training."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Self, Unpack

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from equipoise.integrations.monitor import Monitor, checked_every
from equipoise.integrations.optional import base_class
from equipoise.integrations.options import BNPOptions, checked
from equipoise.preconditioners.bnp.bnp import BNP
from equipoise.probes.tracker.tracker import Tracker
from equipoise.records.warn import warn_user

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
            warn_user(
                f"max_grad_norm={args.max_grad_norm} bounds the raw gradients, before they are "
                "preconditioned. Set max_grad_norm=0, and BNPCallback(max_norm=...) to bound "
                "what the optimizer sees."
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
            warn_user(
                f"Training resumes at step {step}, but there is no {FILE} in {folder}: BNP "
                "starts its statistics anew. BNPCallback(resume_from=...) names another folder."
            )
            return
        bnp.load_state_dict(torch.load(folder / FILE, map_location="cpu", weights_only=True))

    def _detach(self) -> None:
        if self.bnp is not None:
            self.bnp.detach()


class MonitorCallback(TrainerCallback):  # type: ignore[misc, valid-type]
    """Write a few numbers about the health of a Hugging Face training to where it reports.

    Every ``every`` steps, :func:`equipoise.probes.track` measures the step that the training
    takes, and ``trainer.log`` gets at most eight numbers: ``equipoise/gradient_norm``,
    ``gradient_spread``, ``update_ratio``, ``update_ratio_max``, ``update_ratio_min``,
    ``dead_units``, and if asked for ``growth_rate`` and ``smoothness``; ``docs/probes.md`` says
    what they tell. So they are in ``trainer.state.log_history``, and wherever ``report_to`` says.
    The training is the one without this callback, to the bit. Accumulated gradients, mixed
    precision and DDP need nothing else; a resumed training is measured at the steps at which the
    uninterrupted one would be.

    A Trainer does not tell its callbacks that a training has failed. The hooks are removed when
    the next one begins, or on leaving a ``with`` statement:

    .. code-block:: python

        with MonitorCallback(trainer) as monitor:
            trainer.train()

    Args:
        trainer: The callback adds itself to it. Reports go through its ``log``.
        every: Steps from one look to the next.
        activations: Whether to measure dead units, for a forward pass more.
        growth: Whether to measure how gradients grow with depth, for a backward pass more. The
            model must return its loss; so must it for ``landscape``.
        landscape: Whether to measure how smooth the loss is, for five backward passes more.

    Attributes:
        tracker: Of the latest training, with every number of every layer in ``tracker.history``
            and the time they took in ``tracker.cost()``; None before the first.

    Raises:
        ModuleNotFoundError: If transformers is not installed.
        TypeError: If ``every`` is no whole number, or ``trainer`` no trainer.
        ValueError: If ``every`` is below 1.

    Examples:
        .. code-block:: python

            monitor = MonitorCallback(trainer, every=300)
            trainer.train()
    """

    def __init__(
        self,
        trainer: Any,
        *,
        every: int = 300,
        activations: bool = True,
        growth: bool = False,
        landscape: bool = False,
    ) -> None:
        super().__init__()
        self._every = checked_every(every)
        if not hasattr(trainer, "add_callback"):
            raise TypeError(
                f"MonitorCallback(trainer) takes the Trainer that it watches, got {trainer!r}; "
                "make it after the trainer, without callbacks=[...]."
            )
        self._activations, self._growth, self._landscape = activations, growth, landscape
        self._monitor: Monitor | None = None
        self._handle: RemovableHandle | None = None
        self._unwritten: dict[str, float] = {}
        self._trainer = trainer
        trainer.add_callback(self)

    @property
    def tracker(self) -> Tracker | None:
        """Of the latest training; None before the first."""
        return None if self._monitor is None else self._monitor.tracker

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any, **_: Any
    ) -> None:
        """Attach. The optimizer exists by now, and has not taken a step.

        Raises:
            ValueError: If parameters are split over processes.
        """
        self.detach()  # an earlier training may have failed
        self._monitor = monitor = Monitor(
            model,
            self._forward,
            _innermost(optimizer),
            write=self._unwritten.update,
            steps=state.global_step,
            every=self._every,
            activations=self._activations,
            growth=self._growth,
            landscape=self._landscape,
        )

        def see(model: nn.Module, args: Any, kwargs: Any) -> None:
            if model.training and torch.is_grad_enabled():
                monitor.see((args, kwargs))

        self._handle = model.register_forward_pre_hook(see, with_kwargs=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write what was measured at this step, if anything was."""
        if self._unwritten:
            wanted = control.should_log  # which a report answers, but not this one
            self._trainer.log(dict(self._unwritten))
            self._unwritten.clear()
            control.should_log = wanted

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Detach."""
        self.detach()

    def detach(self) -> None:
        """Remove every hook."""
        if self._handle is not None:
            self._handle.remove()
        if self._monitor is not None:
            self._monitor.detach()
        self._unwritten.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _forward(self, model: nn.Module, batch: Any) -> Any:
        args, kwargs = batch
        with self._trainer.compute_loss_context_manager():
            outputs = model(*args, **kwargs)
        if not (self._growth or self._landscape):
            return outputs
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs[0]
        if not isinstance(loss, torch.Tensor):
            raise ValueError(
                "MonitorCallback(growth=True) and landscape=True need the model's own loss, but "
                "it returned none, as where the Trainer smooths labels or has a loss of its own."
            )
        return loss


def _folder(args: Any, step: int) -> Path:
    return Path(args.output_dir) / f"checkpoint-{step}"


def _innermost(optimizer: Any) -> Any:
    """The optimizer that steps; accelerate wraps it in one whose own hooks never run."""
    while type(optimizer).__module__.startswith("accelerate."):
        optimizer = optimizer.optimizer
    return optimizer
