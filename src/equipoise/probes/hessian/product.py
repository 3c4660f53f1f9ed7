r"""Products of a loss's Hessian with vectors, in the mode and with the noise of training.

.. math:: H_{BB}\,v = \nabla_B \langle \nabla_B \mathcal L, v\rangle

The gradient's graph is built once and differentiated for every v, so no layer runs again. It
contains the batch statistics of normalisers in training mode, so the Hessian is that of the
function that training minimises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from equipoise.instrument.graph_nodes import coarsest_rounding
from equipoise.instrument.replay import Replay
from equipoise.probes.hessian.blocks import ParameterBlock
from equipoise.probes.hessian.second_derivatives import (
    refuse_once_differentiable,
    twice_differentiable,
)


class HessianProduct:
    """The Hessian of the mean of losses, as a map on flat vectors of a block's parameters.

    Args:
        replays: One per batch, of the same model.
        recompute: Whether to build the graph anew for every product. This takes about twice the
            time and, with several batches, the memory of one.
        on_product: Called before every product.

    Attributes:
        parameters: The model's trainable parameters.
        rounding: Relative spacing of the coarsest type that a loss has been computed in so far.
    """

    def __init__(
        self,
        replays: Sequence[Replay],
        *,
        recompute: bool = False,
        on_product: Callable[[], None] = lambda: None,
    ) -> None:
        self._replays = tuple(replays)
        self._on_product = on_product
        self._recompute = recompute
        self._graphs: dict[int, tuple[Tensor, ...]] = {}
        self.parameters = self._replays[0].parameters
        self.rounding = 0.0

    def like(self, block: ParameterBlock) -> Tensor:
        """An empty flat vector for the block, in its widest type, at least float32."""
        members = self._members(block)
        # For parameters in float32, vectors in float64 would take twice the memory and change
        # eigenvalues by 1e-7 of the largest, no more than rounding in the products does.
        dtype = torch.float32
        for parameter in members:
            dtype = torch.promote_types(dtype, parameter.dtype)
        size = sum(parameter.numel() for parameter in members)
        return torch.empty(size, dtype=dtype, device=members[0].device)

    def __call__(self, block: ParameterBlock, vector: Tensor) -> Tensor:
        """Multiply the block's diagonal part of the Hessian by a vector.

        Raises:
            ValueError: If the model uses an operation that cannot be differentiated twice, or
                the loss or the product is not finite.
        """
        self._on_product()
        members = self._members(block)
        pieces = [piece.to(p) for piece, p in zip(_split(vector, members), members, strict=True)]
        total = torch.zeros_like(vector)
        for number, replay in enumerate(self._replays):
            with torch.inference_mode(False), twice_differentiable():
                gradients = self._gradients(number)
                with replay.replayed():  # checkpointed layers run again in a backward pass
                    products = self._differentiate(gradients, block, members, pieces)
            for piece, product in zip(_split(total, members), products, strict=False):
                piece += product.detach().to(piece)
        if not bool(torch.isfinite(total).all()):
            raise ValueError(
                "a product with the Hessian is not finite although the loss is. Look for a root "
                "or a norm at 0, and for overflow in half precision."
            )
        return total.div_(len(self._replays))

    def clear_graphs(self) -> None:
        """Free all graphs and the memory that they hold."""
        self._graphs.clear()

    def _members(self, block: ParameterBlock) -> list[nn.Parameter]:
        return [self.parameters[index] for index in block.indices]

    def _gradients(self, number: int) -> tuple[Tensor, ...]:
        if number in self._graphs:
            return self._graphs[number]
        with torch.enable_grad():
            loss, gradients = self._replays[number].gradient(create_graph=True)
        if not bool(torch.isfinite(loss)):
            raise ValueError(
                f"the loss is {loss.item()} on the batch: it has no Hessian. Check the inputs' "
                "scale and the initialisation."
            )
        refuse_once_differentiable(loss)
        self.rounding = max(self.rounding, coarsest_rounding(loss))
        if not self._recompute:
            self._graphs[number] = gradients
        return gradients

    def _differentiate(
        self,
        gradients: tuple[Tensor, ...],
        block: ParameterBlock,
        members: list[nn.Parameter],
        pieces: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """Products; empty where the gradient is constant: unused parameters, linear losses."""
        varying = [
            (gradients[index], piece)
            for index, piece in zip(block.indices, pieces, strict=True)
            if gradients[index].requires_grad
        ]
        if not varying:
            return ()
        outputs, vectors = zip(*varying, strict=True)
        # backward(create_graph=True) would make a cycle of .grad and graph that is never freed.
        return torch.autograd.grad(
            outputs, members, vectors, retain_graph=not self._recompute, materialize_grads=True
        )


def _split(vector: Tensor, members: list[nn.Parameter]) -> list[Tensor]:
    """Views of a flat vector, shaped as parameters."""
    pieces = torch.split(vector, [member.numel() for member in members])
    return [piece.view_as(member) for piece, member in zip(pieces, members, strict=True)]
