"""Measure a training while it runs, without changing it by a bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from equipoise.instrument.criteria import refuse_criterion
from equipoise.instrument.observers import Pause
from equipoise.instrument.types import LossFunction
from equipoise.numerics.options import named_options
from equipoise.probes.tracker.plan import due, planned
from equipoise.probes.tracker.tracker import Sink, Tracker


@named_options
def track(
    model: nn.Module,
    loss_fn: LossFunction | None = None,
    optimizer: Optimizer | None = None,
    *,
    every: int | Iterable[int] = 300,
    landscape: bool | None = None,
    ics: bool | None = None,
    growth: bool | None = None,
    activations: bool | None = None,
    updates: bool | None = None,
    conditioning: bool | None = False,
    steps: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
    lr: float | None = None,
    sink: Sink | None = None,
    pause: Iterable[Pause] = (),
) -> Tracker:
    r"""Measure a training at every N-th step.

    The training equals the untracked one bit for bit in parameters, buffers, gradients, the
    optimiser's state and random states. Give the tracker each batch before the model sees it:

    .. code-block:: python

        with track(model, loss_fn, optimizer) as tracker:
            for batch in tracker.batches(loader):
                ...  # your training step, as it is

    or call ``tracker.observe(batch)`` first in the loop. Numbers have names of two parts for the
    model and of three for a layer:

    ========================================  ====================================================
    ``loss``                                  of the batch, before the step
    ``landscape/loss_min``, ``_max``          of :func:`landscape`, over ``steps``
    ``landscape/gradient_change_min``, …      gradient predictiveness
    ``landscape/beta``                        effective smoothness
    ``ics/cosine``, ``ics/fc1/cosine``, …     of :func:`covariate_shift`, under the step that the
                                              optimiser takes next, whatever it is
    ``growth/rate``, ``growth/fc1/gradient``  of :func:`gradient_growth`
    ``activations/fc1/mean``, …               of :func:`activations`
    ``gradients/fc1/norm``                    of the gradients that the optimiser was given
    ``updates/fc1/ratio``                     length of the step over that of the parameters
    ``conditioning/fc1/raw``, ``scaled``      of :func:`conditioning`
    ========================================  ====================================================

    Args:
        model: Any module, in the mode that it is trained in.
        loss_fn: ``loss_fn(model, batch)`` returns the scalar that training minimises, under
            ``torch.autocast`` if training uses it. It runs again for every measurement, so it
            must not count or log. Without it, the first five rows are not measured.
        optimizer: The one that trains the model. Without it, every observed batch is a step, and
            covariate shift and updates are not measured.
        every: Steps from one sample to the next, or the steps to sample, from 0.
        landscape: Whether to measure the landscape; ``None`` for yes if loss and learning rate
            are given. The next five likewise.
        ics: Internal covariate shift.
        growth: Gradients, layer by layer.
        activations: Moments of layer inputs.
        updates: Norms of gradients and steps.
        conditioning: Condition numbers, which may take long.
        steps: η of the landscape, as multiples of ``lr`` or of the present learning rate of the
            optimiser's first group. The steps of adaptive optimisers are no multiples of the
            gradient: choose ``lr`` such that lr·‖g‖ is about their norm.
        lr: Used instead of the optimiser's learning rate; with 1, ``steps`` are η itself.
        sink: Called as ``sink(step, values)`` with each sample.
        pause: Context managers under which measurements run, such as ``pause=[counter.paused]``,
            for objects that gather statistics from the model's passes. Hooks on modules that have
            ``while_probed()``, as :class:`equipoise.BNP`'s do, are paused without being named.

    Returns:
        An attached tracker. Use it in a ``with`` statement, or call :meth:`Tracker.detach` in the
        end.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If a wanted measurement lacks what it needs, or an option is out of range.

    Note:
        For loggers, ``sink=`` is one line:

        * TensorBoard: ``lambda step, v: [writer.add_scalar(k, v[k], step) for k in v]``
        * Weights & Biases: ``lambda step, v: wandb.log(v, step=step)``
        * A file: ``lambda step, v: csv_writer.writerow([step, v["loss"]])``
        * MLflow: ``lambda step, v: mlflow.log_metrics(v, step=step)``
        * Lightning and Hugging Face: the callbacks of :mod:`equipoise.integrations`, or
          ``self.log_dict(tracker.latest)`` and ``trainer.log(tracker.latest)``

    Note:
        A sample takes the time of 11 to 14 steps of a convolutional network of 5 to 8 layers,
        which at the default interval adds about 4 % to the training, and of 22 steps of one of 20
        layers; ``tracker.cost()`` reports the time of yours. The time for covariate shift grows
        with the number of layers, that for the landscape with the number of ``steps``. Between
        samples a step takes a microsecond more and does not wait for a device. From a sample to
        its step, two copies of the parameters are stored.

    Note:
        With accumulated gradients, a sample uses the first batch of its step, but its step is
        that of the optimiser. A step that a gradient scaler skips is not counted. For a
        ``DistributedDataParallel`` model, the module inside is measured, on the batch of this
        process. Compiled models run uncompiled. Other hooks of your own on modules see the
        additional passes; what they keep is put back.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> loss_fn = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
        >>> loader = [(torch.randn(16, 2), torch.randn(16, 1)) for _ in range(20)]
        >>> with track(model, loss_fn, optimizer, every=10) as tracker:
        ...     for batch in tracker.batches(loader):
        ...         optimizer.zero_grad()
        ...         loss_fn(model, batch).backward()
        ...         optimizer.step()
        >>> [sample.step for sample in tracker.history]
        [0, 10]
        >>> sorted(name for name in tracker.latest if name.count("/") < 2)
        ['activations/dead', 'gradients/norm', 'ics/cosine', 'landscape/beta',
         'landscape/gradient_change_max', 'landscape/gradient_change_min',
         'landscape/gradient_norm', 'landscape/loss_max', 'landscape/loss_min', 'loss',
         'updates/ratio']

    References:
        [santurkar2018], Sections 2.2 and 3.2.
    """
    _check(model, loss_fn, optimizer, sink)
    wishes = {
        "landscape": landscape,
        "ics": ics,
        "growth": growth,
        "activations": activations,
        "conditioning": conditioning,
        "updates": updates,
    }
    inner = _inside_of_replicas(model)
    plan = planned(inner, loss_fn, optimizer, wishes, steps=steps, lr=lr)
    return Tracker(
        inner, loss_fn, optimizer, plan=plan, is_due=due(every), sink=sink, pause=tuple(pause)
    )


def _inside_of_replicas(model: nn.Module) -> nn.Module:
    """The module that is replicated; a replica would wait for a backward pass of its own."""
    inner = getattr(model, "_orig_mod", model)
    return inner.module if isinstance(inner, DistributedDataParallel | DataParallel) else model


def _check(
    model: nn.Module, loss_fn: LossFunction | None, optimizer: Optimizer | None, sink: Any
) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"track needs a torch.nn.Module, got {type(model).__name__}.")
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"loss_fn must be a function, got {type(loss_fn).__name__}.")
    refuse_criterion(loss_fn)
    if sink is not None and not callable(sink):
        raise TypeError(
            f"sink must be a function of (step, values), got {type(sink).__name__}. Give such as "
            "lambda step, values: writer.writerow([step, values['loss']])."
        )
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "device_mesh"):
            raise ValueError(
                f"parameter {name!r} is a DTensor, split over processes, which track does not "
                "support. Track an unsharded training."
            )
    if optimizer is not None:
        _check_optimizer(model, optimizer)


def _check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}. Give the "
            "optimizer itself, not a wrapper or scheduler."
        )
    mine = {id(p) for p in model.parameters()}
    if not any(id(p) in mine for group in optimizer.param_groups for p in group["params"]):
        raise ValueError(
            "the optimizer trains no parameter of this model. Give the one that was built on "
            "model.parameters()."
        )
