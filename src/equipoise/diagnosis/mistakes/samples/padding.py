"""Masks of attention and of losses that leave the padding, and hide what it pads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of
from equipoise.instrument.batches import tensors
from equipoise.instrument.recording.graph import Node
from equipoise.records import wording
from equipoise.records.finding import Finding

# Less than this is a mask, before a softmax.
_MASK = -1e3
# Padded positions and rows of which it is sure that they are padding, and how many numbers there
# are: of two, they are a mask, or tell one sentence from the next.
_POSITIONS, _ROWS, _NUMBERS = 8, 2, 3


def of_padding(traced: TracedPass) -> list[Finding]:
    """Masks that hide all tokens and show the numbers behind the end of sequences.

    Of attention, or of the loss. Padding is a whole number with which sequences of several lengths
    end, or begin, and which is nowhere else in them.

    Args:
        traced: The pass on a batch whose first axes are those of samples.
    """
    padded = [
        pad
        for x in tensors(traced.batch)
        if x.ndim == 2 and _is_of_whole_numbers(x.dtype)
        if len(torch.unique(x)) >= _NUMBERS
        for pad in _padding(x)
    ]
    if not padded:
        return []
    for pad in padded:
        # Tokens are told from those before them, so that the first of them is no target.
        for told in (pad, pad[:, 1:]):
            if _counts_padding_alone(told, traced):
                return [_finding_of_loss(told)]
    for node in traced.graph.nodes:
        for hidden in _hidden(node, traced, padded[0].shape[0]):
            for pad in padded:
                both = pad.any(1) & ~pad.all(1)
                if hidden.shape == pad.shape and torch.equal(hidden[both], ~pad[both]):
                    return [_finding(node, pad)]
    return []


def _finding(node: Node, pad: Tensor) -> Finding:
    return Finding(
        "critical",
        "Attention sees the padding and not the tokens",
        f"The mask{place_of(node)} hides all but the {wording.count(int(pad.sum()), 'position')} "
        "with which sequences are filled up to one length.",
        "PyTorch's key_padding_mask is True where there is nothing to be seen: tokens == pad. "
        "The attn_mask of scaled_dot_product_attention, and the attention_mask of Hugging Face, "
        "are True, or 1, where there is.",
    )


def _finding_of_loss(pad: Tensor) -> Finding:
    return Finding(
        "critical",
        "The loss counts the padding and not the tokens",
        f"It depends on outputs at {wording.count(int(pad.sum()), 'position')} with which "
        "sequences are filled up to one length, all with one target, and on no others.",
        "Multiply the errors by a mask that is 1 where there are tokens: (tokens != pad).float(); "
        "or give the number of the padding to cross-entropy as its ignore_index.",
    )


def _counts_padding_alone(pad: Tensor, traced: TracedPass) -> bool:
    """Whether a loss has a gradient at padded positions alone, where all targets are equal.

    Positions that are to be told from those before them are filled up, too, with other targets.
    """
    if len(traced.last_layers) != 1:
        return False
    gradient = traced.last_layers[0].gradients[0]
    if gradient is None or gradient.numel() % pad.numel() or not bool(gradient.isfinite().all()):
        return False
    counts = (gradient.detach().reshape(*pad.shape, -1) != 0).any(-1)
    if not bool(counts.any()) or bool((counts & ~pad).any()):
        return False
    return _are_equal(counts, traced.targets)


def _are_equal(places: Tensor, targets: Sequence[Tensor]) -> bool:
    """Whether every target is the same at these places; none of them tells nothing."""
    count, rows = int(places.sum()), list[Tensor]()
    for x in targets:
        if x.numel() and not x.numel() % places.numel():
            rows.append(x.reshape(*places.shape, -1)[places])
        elif x.numel() and not x.numel() % count:  # of these places alone
            rows.append(x.reshape(count, -1))
        else:
            return False
    return bool(rows) and all(bool((x == x[0]).all()) for x in rows)


def _is_of_whole_numbers(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def _padding(x: Tensor) -> Iterator[Tensor]:
    """Where a sequence has ended, or has not begun."""
    for flipped in (x, x.flip(1)):
        values, counts = torch.unique(flipped[:, -1], return_counts=True)
        is_pad = flipped == values[counts.argmax()]
        to_the_end = is_pad.flip(1).long().cummin(1)[0].flip(1).bool()
        rows = int(is_pad.any(1).sum())
        if not torch.equal(to_the_end, is_pad) or int(is_pad.sum()) < _POSITIONS:
            continue
        if rows >= _ROWS and len(torch.unique(is_pad.sum(1))) > 1:
            yield is_pad if flipped is x else is_pad.flip(1)


def _hidden(node: Node, traced: TracedPass, samples: int) -> Iterator[Tensor]:
    """Which positions no query of a sample attends to."""
    if "softmax" in node.name and node.inputs:
        masks = [traced.tensor(node.inputs[0]).detach()]
    elif "scaled_dot_product" in node.name:
        masks = [traced.tensor(one).detach() for one in node.inputs[3:]]
    else:
        return
    for mask in masks:
        while mask.ndim > 2 and len(mask) == 1:  # fused attention takes samples for heads
            mask = mask[0]
        if mask.ndim < 2 or mask.numel() % (samples * mask.shape[-1]) or len(mask) % samples:
            continue
        hides = ~mask if mask.dtype == torch.bool else mask < _MASK
        yield hides.reshape(samples, -1, mask.shape[-1]).all(1)
