"""Callbacks of Lightning: BNP, and a monitor of the training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from torch import nn
from torch.optim import Optimizer

from equipoise.instrument.training_step import training_step
from equipoise.integrations.monitor import Monitor, checked_every
from equipoise.integrations.optional import base_class
from equipoise.integrations.options import BNPOptions, checked
from equipoise.preconditioners.bnp.bnp import BNP
from equipoise.probes.tracker.tracker import Tracker
from equipoise.records.warn import warn_user

Callback = base_class("Callback", "lightning.pytorch", "pytorch_lightning", extra="lightning")


# The base is known when it runs, not to the type checker.
class BNPCallback(Callback):  # type: ignore[misc, valid-type]
    """Precondition the optimizer of a Lightning training with BNP.

    A :class:`~equipoise.preconditioners.BNP` of the trainer's model is attached when the
    optimizers exist and detached when training ends, also by an exception. Automatic and manual
    optimisation, accumulated gradients, mixed precision and DDP need nothing else. The statistics
    are part of the checkpoint, under this callback, so that a resumed training is the
    uninterrupted one to the bit; validation leaves them alone.

    ``Trainer(gradient_clip_val=...)`` clips the raw gradients, before they are preconditioned;
    ``max_norm`` bounds what the optimizer sees. Lightning's ``LearningRateFinder`` runs before
    any other callback, so that the rates it tries are those of plain training.

    Args:
        optimizers: Which ones of ``configure_optimizers``, by position. Needed if there are
            several; use one callback for each network, with ``include``.
        **options: Those of BNP.

    Attributes:
        bnp: Of the latest training, for ``bnp.report()``; None before the first.

    Raises:
        ModuleNotFoundError: If Lightning is not installed.
        TypeError: If BNP has no such option.
        ValueError: If an option is out of range.

    Examples:
        .. code-block:: python

            trainer = Trainer(callbacks=[BNPCallback(update_every=10)])
    """

    bnp: BNP | None

    def __init__(
        self, *, optimizers: Sequence[int] | None = None, **options: Unpack[BNPOptions]
    ) -> None:
        super().__init__()
        self.bnp = None
        self._positions = None if optimizers is None else tuple(optimizers)
        self._options = checked(options)
        self._saved: dict[str, Any] | None = None

    @property
    def state_key(self) -> str:
        """Name in the checkpoint, which several callbacks must not share."""
        if self._positions is None:
            return "BNPCallback"
        return f"BNPCallback{list(self._positions)}"

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Forget an earlier training; a checkpoint is loaded after this."""
        if stage == "fit":
            self._detach()
            self.bnp = self._saved = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach. The optimizers exist by now, and none has taken a step.

        Raises:
            TypeError: If an optimizer cannot be preconditioned, such as LBFGS.
            ValueError: If there are several optimizers and none is chosen.
        """
        chosen = self._choose(trainer.optimizers)
        # The strategy's model, because it shows wrappers that cannot be preconditioned.
        self.bnp = BNP(trainer.model, **self._options)
        if self._saved is not None:
            self.bnp.load_state_dict(self._saved)
        for optimizer in chosen:
            self.bnp.attach(optimizer, run_closure=True)
        if trainer.gradient_clip_val and self._options.get("max_norm") is None:
            warn_user(
                f"gradient_clip_val={trainer.gradient_clip_val} bounds the raw gradients, before "
                "they are preconditioned. BNPCallback(max_norm=...) bounds what the optimizer "
                "sees."
            )

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Detach."""
        self._detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Detach."""
        self._detach()

    def state_dict(self) -> dict[str, Any]:
        """Statistics; nothing before the first training."""
        return {} if self.bnp is None else self.bnp.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint, now or as soon as there are optimizers."""
        if self.bnp is None:
            self._saved = state_dict
        else:
            self.bnp.load_state_dict(state_dict)

    def _choose(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        if self._positions is None:
            if len(optimizers) > 1:
                raise ValueError(
                    f"There are {len(optimizers)} optimizers. Say which to precondition, as in "
                    "BNPCallback(optimizers=[0])."
                )
            return list(optimizers)
        unknown = [i for i in self._positions if not 0 <= i < len(optimizers)]
        if unknown:
            raise ValueError(
                f"BNPCallback(optimizers={list(self._positions)}) names {unknown}, but "
                f"configure_optimizers returned {len(optimizers)}, counted from 0."
            )
        return [optimizers[i] for i in self._positions]

    def _detach(self) -> None:
        if self.bnp is not None:
            self.bnp.detach()


class EquipoiseMonitor(Callback):  # type: ignore[misc, valid-type]
    """Write a few numbers about the health of a Lightning training to its loggers.

    Every ``every`` steps, :func:`equipoise.probes.track` measures the step that the training
    takes, and every logger of the trainer gets at most eight numbers: ``equipoise/gradient_norm``,
    ``gradient_spread``, ``update_ratio``, ``update_ratio_max``, ``update_ratio_min``,
    ``dead_units``, and if asked for ``growth_rate`` and ``smoothness``; ``docs/probes.md`` says
    what they tell. The training is the one without this callback, to the bit. Accumulated
    gradients, mixed precision, DDP and manual optimisation need nothing else; a resumed training
    is measured at the steps at which the uninterrupted one would be.

    A look runs ``training_step`` once more, with ``self.log`` and ``self.log_dict`` switched off;
    what it keeps in the module is put back. Whatever else it writes, such as images through
    ``self.logger.experiment``, is written twice. With ``activations=False`` nothing runs twice.

    Args:
        every: Steps from one look to the next.
        optimizer: Which one of ``configure_optimizers``, by position.
        activations: Whether to measure dead units, for a forward pass more.
        growth: Whether to measure how gradients grow with depth, for a backward pass more.
        landscape: Whether to measure how smooth the loss is, for five backward passes more.

    Attributes:
        tracker: Of the latest training, with every number of every layer in ``tracker.history``
            and the time they took in ``tracker.cost()``; None before the first.

    Raises:
        ModuleNotFoundError: If Lightning is not installed.
        TypeError: If ``every`` is no whole number.
        ValueError: If ``every`` is below 1.

    Examples:
        .. code-block:: python

            trainer = Trainer(callbacks=[EquipoiseMonitor(every=300)])
    """

    def __init__(
        self,
        *,
        every: int = 300,
        optimizer: int = 0,
        activations: bool = True,
        growth: bool = False,
        landscape: bool = False,
    ) -> None:
        super().__init__()
        self._every, self._position = checked_every(every), optimizer
        self._activations, self._growth, self._landscape = activations, growth, landscape
        self._monitor: Monitor | None = None

    @property
    def tracker(self) -> Tracker | None:
        """Of the latest training; None before the first."""
        return None if self._monitor is None else self._monitor.tracker

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach. A checkpoint is loaded by now.

        Raises:
            ValueError: If there is no such optimizer, or parameters are split over processes.
        """
        self._detach()
        if not 0 <= self._position < len(trainer.optimizers):
            raise ValueError(
                f"EquipoiseMonitor(optimizer={self._position}) names an optimizer, counted from "
                f"0, but configure_optimizers returned {len(trainer.optimizers)}."
            )

        def forward(model: nn.Module, batch: Any) -> Any:
            with trainer.precision_plugin.train_step_context():
                return training_step(model, batch)

        def write(values: dict[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(values, step=_steps(trainer))

        self._monitor = Monitor(
            pl_module,
            forward,
            trainer.optimizers[self._position],
            write=write,
            steps=_steps(trainer),
            every=self._every,
            activations=self._activations,
            growth=self._growth,
            landscape=self._landscape,
        )

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the batch."""
        if self._monitor is not None:
            self._monitor.see(batch)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Detach."""
        self._detach()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Detach."""
        self._detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Detach."""
        self._detach()

    def _detach(self) -> None:
        if self._monitor is not None:
            self._monitor.detach()


def _steps(trainer: Any) -> int:
    """Where Lightning's own numbers of this step stand; its callbacks read this name, too."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)
