"""BNP, the preconditioner: built on a model, attached to an optimizer."""

from __future__ import annotations

import copy
import operator
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import ASGD, SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from equipoise.numerics.options import named_options
from equipoise.numerics.precision import without_autocast
from equipoise.preconditioners.bnp.attachment import Attachment, attached_to
from equipoise.preconditioners.bnp.banks import Banks, check_state
from equipoise.preconditioners.bnp.layer import RecordingHook, UpdateSchedule, WatchedLayer
from equipoise.preconditioners.bnp.maps import (
    clip_gradients,
    map_in_place,
    precondition,
)
from equipoise.preconditioners.bnp.report import LayerReport, Report
from equipoise.preconditioners.bnp.selection import Choice, select, unwrapped
from equipoise.preconditioners.bnp.settings import (
    ConvStatistics,
    Preset,
    Rows,
    RowScale,
    Settings,
    Variance,
    with_preset,
)


class BNP:
    r"""Precondition gradients as if every layer's input were standardised.

    Hooks track the mean :math:`\mu` and variance :math:`\sigma^2` of each layer's input. With
    :math:`h = \mu + \tilde\sigma z`, gradients become those of a layer fed with z, and steps of
    that layer become steps of this one: :math:`P^T g / q` and :math:`P \Delta / q`, which for
    gradient descent is :math:`PP^T g / q^2`:

    .. math:: G_W \leftarrow \frac{G_W - G_b \mu^T}{q^2 \tilde\sigma^2}, \quad
              G_b \leftarrow \frac{G_b}{q^2} - G_W \mu, \quad
              \tilde\sigma^2 = \sigma^2 + \varepsilon_1 \max \sigma^2 + \varepsilon_2, \quad
              q^2 = \max\{n / N, \sqrt{rs}\}

    with n columns, N rows and :math:`rs` output positions (1 for a linear layer). The forward
    pass, the checkpoint of the model and the optimizer's class and groups stay as they are. A
    layer without a trained bias is scaled by second moments, not centred.

    Statistics are those of the forward passes so far. A step without a forward pass since the last
    one is preconditioned with the statistics as they stand; before the first pass it is plain.

    Use :meth:`attach` with any optimizer, or :meth:`step` with SGD. Adaptive optimizers must not
    be fed preconditioned gradients: they cancel the scaling and diverge.

    Args:
        model: Linear layers and convolutions of PyTorch are preconditioned; :meth:`report` lists
            the rest with reasons.
        rho: Weight of the past in the running statistics, in [0, 1).
        eps: ε₁ and ε₂, not negative.
        preset: ``"paper"`` for Algorithms 2 and 3 to the letter: it sets the statistics' start
            to μ = 0, σ² = 1 and overrides ``bias_correction``, ``variance``, ``row_scale``,
            ``conv_stats``.
        bias_correction: Whether averages are exact from the first step.
        variance: ``"total"`` tracks the variance of all samples seen; ``"batch"`` averages the
            variance within batches, which is too small by 1/N.
        row_scale: q²: the paper's, a number, or a function of three tensors with an entry per
            layer: columns, N, output positions.
        conv_stats: One mean and variance per ``"channel"``, or ``"exact"`` ones per kernel tap.
        update_every: Steps between updates of the statistics; 10 is cheaper. Over the first
            ten times as many steps every step updates, because features move fastest there.
        include: Names of modules to use, with ``*`` and ``?``, or a function that decides by
            name and module.
        exclude: Names of modules to leave out, or such a function.
        rows: What N counts for a linear layer on ``[batch, ..., features]``: ``"all"`` rows, or
            ``"samples"`` for a loss that is a mean over them.
        process_group: Processes that share gradients; all of them by default.
        max_norm: Bound of the norm of the gradients that the optimizer sees. Clipping before
            bounds the raw gradients only, which preconditioning may enlarge a lot.

    Raises:
        TypeError: If the model, a selection of layers or the process group is of another type.
        ValueError: If an option is out of range, or no layer can be preconditioned.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> bnp = BNP(model).attach(optimizer)
        >>> bnp
        BNP(2 of 2 layers, attached to 1 optimizer)
        >>> model(torch.randn(16, 4)).square().mean().backward()
        >>> optimizer.step()
        >>> bnp.report()["0"].updates
        1
        >>> bnp.detach()

    References:
        [lange2022], Algorithms 2 and 3.
    """

    @named_options
    def __init__(
        self,
        model: nn.Module,
        *,
        rho: float = 0.99,
        eps: tuple[float, float] = (1e-2, 1e-4),
        preset: Preset | None = None,
        bias_correction: bool = True,
        variance: Variance = "total",
        row_scale: RowScale = "paper",
        conv_stats: ConvStatistics = "channel",
        update_every: int = 1,
        include: Choice | None = None,
        exclude: Choice | None = None,
        rows: Rows = "all",
        process_group: dist.ProcessGroup | None = None,
        max_norm: float | None = None,
    ) -> None:
        settings = Settings(
            rho=rho,
            eps=eps,
            bias_correction=bias_correction,
            variance=variance,
            row_scale=row_scale,
            conv_stats=conv_stats,
            update_every=update_every,
            rows=rows,
            max_norm=max_norm,
        )
        self.settings = with_preset(settings, preset)
        _check_group(process_group)
        self._choice = include, exclude
        self._model = unwrapped(model)
        exact = self.settings.conv_stats == "exact"
        layers, self._skipped = select(self._model, include=include, exclude=exclude, exact=exact)
        if not layers:
            raise ValueError(
                "BNP found no layer to precondition: "
                + (
                    "; ".join(f"{s.name or 'model'}: {s.reason}" for s in self._skipped[:5])
                    or "the model has no parameters"
                )
                + ". It needs a linear layer or a convolution."
            )
        self._schedule = UpdateSchedule(update_every)
        self._banks = Banks(layers, self.settings, self._schedule, process_group)
        self._attachments: list[Attachment] = []
        self._handles: list[RemovableHandle] = []
        self._register_hooks()
        # Hooks of modules end with the last BNP or optimizer that uses what they record.
        weakref.finalize(self._banks, _remove, self._handles)

    def attach(self, optimizer: Optimizer, *, run_closure: bool = False) -> Self:
        """Precondition every step of an optimizer, until :meth:`detach`.

        The optimizer sees Pᵀg/q and its step Δ becomes PΔ/q. Weight decay of preconditioned
        parameters is applied decoupled, θ ← (1 − lr · decay) θ + PΔ/q. Gradients, groups and
        states stay those of the user. Of a step that raises, what was changed about gradients,
        groups, counters and preconditioned parameters is undone; moments, and parameters that
        are not preconditioned, stay as PyTorch leaves them. Several optimizers may be attached;
        the statistics are updated with the steps of the first.

        Args:
            optimizer: Any first-order optimizer that trains parameters of this model.
            run_closure: Accept ``step(closure)`` and run the closure once, before the step, as
                training frameworks expect. By default a closure is refused.

        Raises:
            TypeError: If it is no optimizer, or needs closures (LBFGS) or averages parameters
                (ASGD).
            ValueError: If it trains none of the layers, or a BNP is attached to it already.
        """
        for layer in self._banks.layers:
            layer.refresh()
        attachment = Attachment(
            self._banks,
            optimizer,
            leads=not self._attachments,
            run_closure=run_closure,
            divided=self._note_stepped_biases,
        )
        self._attachments.append(attachment)
        if not self._handles:
            self._register_hooks()
        self._note_stepped_biases()
        return self

    def _note_stepped_biases(self) -> None:
        """Centre the layers whose biases the optimizers train; groups may come and go.

        A bias whose rate is 0, while that of its weight is not, stays where it is.
        """
        moves = {key: moving for a in self._attachments for key, moving in a.moves.items()}
        for layer in self._banks.layers:
            key, weight_moves = id(layer.bias), moves.get(id(layer.weight), True)
            layer.bias_is_stepped = key in moves and (moves[key] or not weight_moves)

    def step(self, optimizer: Optimizer | None = None) -> None:
        """Replace gradients by PPᵀg/q², in place: between ``backward()`` and ``optimizer.step()``.

        Args:
            optimizer: Checked to be of the SGD family, if given.

        Raises:
            TypeError: If the optimizer is not of the SGD family.
            ValueError: If an optimizer is attached, or these gradients have been preconditioned.
        """
        if self._schedule.paused:
            return
        if optimizer is not None and not isinstance(optimizer, SGD | ASGD):
            raise TypeError(
                f"step() is for SGD, got {type(optimizer).__name__}: adaptive optimizers cancel "
                "the scaling of a preconditioned gradient and diverge. Use attach(optimizer)."
            )
        if optimizer is not None and attached_to(optimizer) not in (None, *self._attachments):
            raise ValueError(
                "Another BNP preconditions this optimizer already, and step() would do it twice. "
                "Leave step() out, or call detach() of the other."
            )
        if self._attachments:
            raise ValueError(
                f"{type(self._attachments[0].optimizer).__name__} is attached, so its steps are "
                "preconditioned already. Leave step() out, or do not attach."
            )
        found, done = [], False
        for layer in self._banks.layers:
            gradient = layer.weight.grad
            if gradient is None:
                continue
            if layer.preconditioned == (id(gradient), gradient._version):
                done = True  # no backward pass since
            else:
                found.append((layer, gradient))
        if done and not found:
            raise ValueError(
                "step() was called twice for the same gradients, which would precondition them "
                "twice. Call it once between backward() and optimizer.step()."
            )
        with torch.no_grad(), without_autocast(self._banks.layers[0].weight.device):
            self._banks.update()
            factors = self._banks.factors(squared=True)
            for layer, gradient in found:
                bias = None if layer.bias is None else layer.bias.grad
                map_in_place(precondition, gradient, bias, factors[layer.name])
            if self.settings.max_norm is not None:
                clip_gradients(self._model.parameters(), self.settings.max_norm)
        for layer, gradient in found:
            layer.preconditioned = id(gradient), gradient._version
        self._schedule.count_step()

    def detach(self) -> None:
        """Remove every hook; training is plain again. The statistics are kept."""
        for attachment in self._attachments:
            attachment.remove()
        self._attachments.clear()
        _remove(self._handles)
        torch.compiler.reset()
        for layer in self._banks.layers:
            layer.bias_is_stepped = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Train plainly inside the block, and leave the statistics alone."""
        with self._schedule.pausing():
            yield

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        used = len(self._banks.layers)
        whole, optimizers = used + len(self._skipped), len(self._attachments)
        plural = "s" * (optimizers != 1)
        return f"BNP({used} of {whole} layers, attached to {optimizers} optimizer{plural})"

    def report(self) -> Report:
        """List every layer with parameters: used or why not, κ(D), q. Waits for the device."""
        found = {s.name: LayerReport(s.name, s.kind, False, s.reason) for s in self._skipped}
        for bank in self._banks.banks:
            s = bank.statistics
            columns = bank.factors(squared=False).values()
            numbers = [
                (int(updates.max()), max(0, seen - int(updates.min())))
                for updates, seen in zip(s.by_layer(s.updates), s.seen, strict=True)
            ]
            for layer, factors, (updates, bad) in zip(bank.layers, columns, numbers, strict=True):
                scales = factors.columns / factors.bias
                if factors.mean is not None:
                    scales = torch.cat([scales, scales.new_ones(1)])
                found[layer.name] = LayerReport(
                    layer.name,
                    type(layer.modules[0]).__name__,
                    used=True,
                    reason=_remark(layer),
                    condition=float(scales.max() / scales.min()) if updates else None,
                    row_scale=float(1 / factors.bias) if updates else None,
                    updates=updates,
                    non_finite=bad,
                )
        order = [name for name, _ in self._model.named_modules() if name in found]
        return Report(tuple(found[name] for name in order))

    def state_dict(self) -> dict[str, Any]:
        """Statistics and step count, as copies: tensors and numbers only."""
        _ = self._banks.banks  # built anew if the model has moved
        return {"format": 1, "steps": self._schedule.steps, "layers": self._banks.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken, to the bit.

        Raises:
            ValueError: If the state is not one, or is of other layers.
        """
        if not isinstance(state, dict) or state.get("format") != 1:
            raise ValueError("This is not a state of BNP. Give what BNP.state_dict() returned.")
        try:
            steps, layers = operator.index(state["steps"]), state["layers"]
            if steps < 0:
                raise ValueError(
                    f"This state of BNP counts {steps} steps. Give what BNP.state_dict() "
                    "returned, unchanged."
                )
            check_state(layers, self._banks.layers)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"This state of BNP is not whole ({type(error).__name__}: {error}). Give what "
                "BNP.state_dict() returned, unchanged."
            ) from error
        self._banks.load(layers)
        self._schedule.steps = steps
        self._schedule.refresh()

    def __deepcopy__(self, memo: dict[int, Any]) -> BNP:
        """A preconditioner of the copied model, attached to copies of the optimizers."""
        model = copy.deepcopy(self._model, memo)
        twin = copy.copy(self)
        memo[id(self)] = twin
        exact = self.settings.conv_stats == "exact"
        include, exclude = self._choice
        layers, twin._skipped = select(model, include=include, exclude=exclude, exact=exact)
        twin._model, twin._schedule = model, UpdateSchedule(self._schedule.update_every)
        twin._banks = Banks(layers, self.settings, twin._schedule, self._banks.group)
        twin._attachments, twin._handles = [], []
        weakref.finalize(twin._banks, _remove, twin._handles)
        twin.load_state_dict(self.state_dict())
        for old, new in zip(self._banks.layers, layers, strict=True):
            new.shift, new.pending = copy.deepcopy((old.shift, old.pending))
        if self._handles:
            twin._register_hooks()
        for a in self._attachments:
            twin.attach(copy.deepcopy(a.optimizer, memo), run_closure=a.run_closure)
        return twin

    def _register_hooks(self) -> None:
        by_sample = self.settings.rows == "samples"
        self._handles[:] = [
            module.register_forward_hook(
                RecordingHook(layer, self._schedule, by_sample=by_sample), with_kwargs=True
            )
            for layer in self._banks.layers
            for module in layer.modules
        ]
        # Compiled code looks for no new hooks: a model that has run already would be trained
        # without statistics, so without BNP.
        torch.compiler.reset()


def _check_group(group: object) -> None:
    made = getattr(dist, "ProcessGroup", ())  # absent from builds without torch.distributed
    if group is not None and not isinstance(group, made):
        raise TypeError(
            f"process_group must be a torch.distributed.ProcessGroup or None, got "
            f"{type(group).__name__}. Give what torch.distributed.new_group() returned."
        )


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


def _remark(layer: WatchedLayer) -> str:
    if not layer.weight.requires_grad:
        return "frozen"
    return "" if layer.centred else "no trained bias: scaled by second moments"
