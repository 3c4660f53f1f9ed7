"""The options of BNP as keyword arguments of a callback."""

from __future__ import annotations

import dataclasses
from typing import TypedDict, cast

from torch.distributed import ProcessGroup

from equipoise.preconditioners.bnp.selection import Choice
from equipoise.preconditioners.bnp.settings import (
    ConvStatistics,
    Preset,
    Rows,
    RowScale,
    Settings,
    Variance,
    with_preset,
)


class BNPOptions(TypedDict, total=False):
    """What :class:`~equipoise.preconditioners.BNP` takes beside the model."""

    rho: float
    eps: tuple[float, float]
    preset: Preset | None
    bias_correction: bool
    variance: Variance
    row_scale: RowScale
    conv_stats: ConvStatistics
    update_every: int
    include: Choice | None
    exclude: Choice | None
    rows: Rows
    process_group: ProcessGroup | None
    max_norm: float | None


def checked(options: BNPOptions) -> BNPOptions:
    """Check options now; BNP gets them only when the trainer has a model and optimizers.

    Raises:
        TypeError: If there is no option of a name.
        ValueError: If a value is out of range.

    Examples:
        >>> checked({"update_every": 10})
        {'update_every': 10}
        >>> checked({"update_every": 0})
        Traceback (most recent call last):
        ValueError: update_every must be a whole number of at least 1; got 0.
        >>> checked({"momentum": 0.9})
        Traceback (most recent call last):
        TypeError: BNP has no option 'momentum'. It has bias_correction, conv_stats, ...
    """
    known = BNPOptions.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(f"BNP has no option {name!r}. It has {', '.join(sorted(known))}.")
    settings = {f.name for f in dataclasses.fields(Settings)}
    given = {name: value for name, value in options.items() if name in settings}
    # A TypedDict's items are objects to the type checker, which knows their types by name only.
    with_preset(Settings(**given), options.get("preset"))  # type: ignore[arg-type]
    return cast(BNPOptions, dict(options))
