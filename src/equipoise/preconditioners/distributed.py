"""One flat all-reduce makes the statistics those of all replicas together.

Without it replicas that share gradients but not statistics drift apart silently.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise.preconditioners.statistics import Batch
from equipoise.preconditioners.sums import about


def replicas(group: dist.ProcessGroup | None) -> int:
    """Processes that share gradients; 1 where nothing is distributed."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(group)


def reduce_over(
    batch: Batch, owner: Tensor, group: dist.ProcessGroup | None, *, first: bool
) -> Batch:
    """Add the batches of all replicas.

    Args:
        batch: This replica's.
        owner: Layer of each feature.
        group: The replicas.
        first: Whether this is the first update, before which replicas have no common shift and
            so need a second all-reduce, for the mean of theirs.
    """
    rows = batch.counts[0]
    shift, sums = batch.shift, batch.sums
    if first and shift is not None:
        mine = shift
        shift = _common(mine, (rows > 0).to(shift)[owner], group)
        sums = torch.stack(about(shift, mine, sums[0], sums[1], rows[owner]))
    flat = torch.cat([sums.flatten(), batch.counts.flatten()])
    dist.all_reduce(flat, group=group)
    total, counts = flat.tensor_split([sums.numel()])
    return Batch(shift, total.view_as(sums), counts.view_as(batch.counts), batch.all_used)


def _common(shift: Tensor, seen: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    both = torch.cat([shift * seen, seen])
    dist.all_reduce(both, group=group)
    total, replicas_seen = both.chunk(2)
    return total / replicas_seen.clamp(min=1)
