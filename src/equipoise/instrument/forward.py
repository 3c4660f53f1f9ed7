"""How a model takes a batch, how a hook finds a module's input, and what records gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Result = TypeVar("Result")


def run_on_batch(model: nn.Module, batch: Any) -> Any:
    """Run a model on a batch.

    Args:
        model: Any module.
        batch: A mapping is passed as keywords; of a tuple or list, the first element is the
            input; anything else is the input itself.

    Examples:
        >>> run_on_batch(nn.Identity(), (torch.ones(1), torch.zeros(1)))
        tensor([1.])
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, tuple | list) else batch)


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The input of a module call, given by position or by keyword."""
    return next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)


def within_transform() -> bool:
    """Whether a transform of ``torch.func`` is at work, whose tensors have no numbers to read.

    Examples:
        >>> inside = torch.func.vmap(lambda x: x + within_transform())
        >>> inside(torch.zeros(2)), within_transform()
        (tensor([1., 1.]), False)
    """
    return torch._C._functorch.peek_interpreter_stack() is not None


def rows_of(x: Tensor) -> Tensor:
    """A tensor as it is, of nested ones the rows of all samples, one below the other."""
    if not x.is_nested:
        return x
    return torch.cat([sample.reshape(-1, sample.shape[-1]) for sample in x.unbind()])


def entries_of(gradient: Tensor) -> Tensor:
    """A gradient as it is, of sparse ones the entries that are not left out as zeros.

    Examples:
        >>> table = torch.nn.Embedding(5, 1, sparse=True)
        >>> table(torch.tensor([3, 1, 3])).sum().backward()
        >>> entries_of(table.weight.grad).tolist()
        [[1.0], [2.0]]
    """
    return gradient.coalesce().values() if gradient.is_sparse else gradient


@contextmanager
def recording_gradients() -> Iterator[None]:
    """Record gradients inside, whatever the caller has switched off.

    Examples:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> with torch.inference_mode(), recording_gradients():
        ...     (x**2).requires_grad
        True
    """
    with torch.inference_mode(False), torch.enable_grad():
        yield


def with_gradients_inside(run: Callable[[], Result]) -> Result:
    """Run a model or a loss; where gradients are off, but it takes some itself, with them.

    Losses of physics-informed networks and forces of potentials are made of derivatives by the
    inputs, which cannot be taken where nothing is recorded.

    Examples:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> with torch.no_grad():
        ...     with_gradients_inside(lambda: torch.autograd.grad(x**2, x)[0])
        tensor(6.)
    """
    try:
        return run()
    except RuntimeError as error:
        if torch.is_grad_enabled() or "does not require grad" not in str(error):
            raise
    with torch.enable_grad():
        return run()
