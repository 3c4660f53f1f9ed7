"""Evaluate one loss repeatedly from the same random states, buffers and modes.

Probes compare the loss at several points of parameter space. Between two evaluations only the
parameters may differ: not the dropout mask, not the running statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument.compiled import uncompiled_name
from equipoise.instrument.kept_batches import on_copies
from equipoise.instrument.loss_value import checked_loss
from equipoise.instrument.random_states import RandomStates
from equipoise.instrument.snapshot import ModuleStates, refuse_lazy
from equipoise.instrument.types import LossFunction


class Replay:
    """A loss as a function of the parameters' present values.

    Random states, buffers and training modes are captured when the object is built. Every
    evaluation starts from them and restores them, also when the loss raises. A loss that draws
    from NumPy's global generator must do so in its first evaluation already. Parameters are not
    restored: move them inside :func:`~equipoise.instrument.snapshot.parameters_restored` or
    :func:`~equipoise.instrument.snapshot.untouched`.

    Buffers and the batch are never written to. Each evaluation works on copies of buffers, which
    stay in its graph, so that a backward pass may follow at any time.

    Args:
        model: Any module; it runs in the mode it is in.
        loss_fn: ``loss_fn(model, batch)`` returns a scalar.
        batch: What the user's loader yields.

    Attributes:
        names: Names of the trainable parameters, in the model's order; a shared one has its
            first name.
        parameters: The trainable parameters, each once.

    Raises:
        ValueError: If the model has no trainable parameter, has lazy parameters without a
            shape, or parameters that are split over processes.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
        >>> replay = Replay(model, lambda m, x: m(x).sum(), torch.ones(3, 2))
        >>> bool(replay.loss() == replay.loss())
        True
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> None:
        named = {
            uncompiled_name(name): parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        _check(model, named)
        self.model = model
        self.loss_fn = on_copies(loss_fn)
        self.batch = batch
        self.names: tuple[str, ...] = tuple(named)
        self.parameters: tuple[nn.Parameter, ...] = tuple(named.values())
        self.random_states = RandomStates(model)
        # Setting NumPy's state takes 50 µs, as long as a small network's layer.
        self._uses_numpy: bool | None = None
        self._modules = ModuleStates(model)

    def loss(self, *, graph: bool = True) -> Tensor:
        """Evaluate the loss at the parameters' present values.

        Args:
            graph: Whether it can be differentiated.

        Returns:
            The loss, a tensor without dimensions. It need not be finite.

        Raises:
            ValueError: If ``loss_fn`` returns anything but a tensor with one real number.
        """
        with self.replayed():
            return self.evaluate(graph=graph)

    def gradient(self, *, create_graph: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Evaluate the loss and differentiate it; no parameter's ``.grad`` is touched.

        Args:
            create_graph: Whether the gradients can be differentiated again.

        Returns:
            The loss, and one dense gradient per parameter: zeros where the loss does not
            depend on it.

        Raises:
            ValueError: As :meth:`loss`, and if the loss has no graph.
        """
        with self.replayed():
            loss = self.evaluate()
            gradients = differentiate(loss, self.parameters, create_graph=create_graph)
        return (loss if create_graph else loss.detach()), gradients

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Inside the block everything but the parameters is as it was captured."""
        self._restore_random()
        # Autocast caches casts by parameter and does not notice that its values change.
        torch.clear_autocast_cache()
        try:
            with torch.inference_mode(False), self._modules.caches_set_aside():
                self._modules.use_copies()
                yield
        except BaseException:
            self._uses_numpy = True
            raise
        finally:
            self._modules.use_originals()
            if self._uses_numpy is None:
                self._uses_numpy = self.random_states.numpy_was_used()
            self._restore_random()
            torch.clear_autocast_cache()

    def _restore_random(self) -> None:
        self.random_states.restore(numpy=self._uses_numpy is not False)

    def evaluate(self, *, graph: bool = True) -> Tensor:
        """Evaluate the loss inside :meth:`replayed`; errors as in :meth:`loss`."""
        with torch.set_grad_enabled(graph):
            loss: object = self.loss_fn(self.model, self.batch)
            return checked_loss(loss).reshape(())


def differentiate(
    loss: Tensor, parameters: tuple[nn.Parameter, ...], *, create_graph: bool = False
) -> tuple[Tensor, ...]:
    """Dense gradients, zeros where the loss does not depend on a parameter."""
    found = used_gradients(loss, parameters, create_graph=create_graph)
    return tuple(map(dense, found, parameters))


def used_gradients(
    loss: Tensor, parameters: tuple[nn.Parameter, ...], *, create_graph: bool = False
) -> tuple[Tensor | None, ...]:
    """Gradients as ``backward()`` leaves them: ``None`` where the loss uses no parameter.

    Raises:
        ValueError: If the loss uses none at all.
    """
    if not loss.requires_grad:
        raise ValueError(
            "the loss depends on no trainable parameter. Does loss_fn detach the output, or run "
            "the model under torch.no_grad()?"
        )
    return torch.autograd.grad(loss, parameters, create_graph=create_graph, allow_unused=True)


def dense(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """A gradient as a tensor of its parameter's shape."""
    if gradient is None:
        return torch.zeros_like(parameter, requires_grad=False)
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def refuse_frozen(model: nn.Module) -> None:
    """Refuse a model that nothing can train.

    Raises:
        ValueError: If no parameter requires a gradient.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "the model has no trainable parameter. Unfreeze some with requires_grad_(True)."
        )


def _check(model: nn.Module, named: dict[str, nn.Parameter]) -> None:
    refuse_lazy(model)
    refuse_frozen(model)
    for name, parameter in named.items():
        if hasattr(parameter, "device_mesh"):
            raise ValueError(
                f"parameter {name!r} is a DTensor, split over processes, which this probe does "
                "not support. Probe an unsharded copy of the model."
            )
