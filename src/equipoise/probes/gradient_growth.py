"""How gradients grow from layer to layer of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.instrument import modules
from equipoise.instrument.batches import is_pair
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.kept_batches import on_copies
from equipoise.instrument.layer_watch import LayerPass, LayerWatch
from equipoise.instrument.loss_value import checked_loss
from equipoise.instrument.progress import silent
from equipoise.instrument.random_states import seed_torch
from equipoise.instrument.recording.origins import origin_in_words
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import LossFunction, Progress
from equipoise.numerics.checks import check_seed, check_size
from equipoise.numerics.growth import growth_rate
from equipoise.numerics.options import named_options
from equipoise.probes.record import GradientGrowth, LayerGradients
from equipoise.records.estimate import Estimate

Array = NDArray[np.float64]
Initialize = Callable[[nn.Module, int], None]
Passes = list[list[list[LayerPass]]]  # [replicate][batch][layer]

# A fit needs a third layer: two points always lie on a line. The first layer is left out of the
# fit where enough others remain, because the data, not the network, set the scale of its input.
_FEWEST_FITTED = 3


class NothingRanError(ValueError):
    """No layer was called that the loss depends on, as where a loss calls methods of a model."""


class GrowthInterrupted(KeyboardInterrupt):
    """Ctrl-C during :func:`gradient_growth`; ``finished`` holds the completed replicates."""

    def __init__(self, finished: GradientGrowth) -> None:
        super().__init__()
        self.finished = finished


@named_options
def gradient_growth(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    *,
    replicates: int = 1,
    initialize: Initialize | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> GradientGrowth:
    r"""Mean squared gradient norm per layer, and the growth fitted through it.

    For every normaliser of the model (or, if it has none that runs on every batch, every
    parametrised layer), with h its
    input (or output) and W the weights that make h,

    .. math:: g_l = E\,\|\partial\mathcal L/\partial h^l\|^2, \qquad
              \text{rate} = \exp(-\text{slope of } \log g_l \text{ against } l),

    where E runs over batches within an initialisation, and rates over initialisations. The
    model runs in the mode it is in. Parameters, gradients, buffers, modes and random states are
    left bit-identical.

    Args:
        model: Any module.
        loss_fn: ``loss_fn(model, batch)`` returns a scalar.
        batches: What the user's loader yields; kept in memory while the probe runs.
        replicates: Initialisations to average over. With 1 and no ``initialize`` the weights
            are taken as they are.
        initialize: ``initialize(model, replicate)`` draws new weights; by default every
            module's ``reset_parameters``. Called under a seeded random state.
        seed: Seed of the initialisations.
        progress: Called with the stage, finished and total passes.

    Returns:
        Layers in order of execution. The fit leaves out layers whose gradient is exactly zero
        and, where at least three others remain, the first, whose scale the data set. Errors are
        standard errors over replicates, or, with one replicate, over batches.

    Raises:
        KeyboardInterrupt: On Ctrl-C; after at least one replicate, its ``finished`` is the record
            of those that were.
        ValueError: If there is no batch, no layer, the loss is not a finite scalar, or the
            default initialisation would leave parameters as they are.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1))
        >>> growth = gradient_growth(model, lambda m, x: m(x).square().mean(), [torch.ones(5, 4)])
        >>> [layer.layer for layer in growth.layers]
        ['0', '2', '3']

    References:
        [yang2019], Section 4: gradient explosion.
    """
    seed = check_seed(seed)
    if _is_one_batch(batches):
        raise ValueError("gradient_growth takes a list of batches, and was given one: [batch].")
    all_batches = list(batches)
    if not all_batches:
        raise ValueError("gradient_growth needs at least one batch, got none.")
    check_size(replicates=replicates)
    if initialize is None and replicates > 1:
        initialize = _reset_parameters
    passes: Passes = []
    loss_fn = on_copies(loss_fn)
    report, total = progress or silent, replicates * len(all_batches)
    try:
        for normalisers in (True, False):  # batches may have norms of their own, as of clients
            passes.clear()
            with untouched(model):
                modules.unfreeze(model)
                for replicate in range(replicates):
                    if initialize is not None:
                        seed_torch(seed + replicate)
                        initialize(model, replicate)
                        torch.clear_autocast_cache()  # of the weights before
                    row = []
                    for batch in all_batches:
                        row.append(_one_pass(model, loss_fn, batch, normalisers=normalisers))
                        done = len(passes) * len(all_batches) + len(row)
                        report("measuring gradients", done, total)
                    passes.append(row)
            if _in_common(passes)[0][0][0]:
                break
    except KeyboardInterrupt as interruption:
        if passes:
            raise GrowthInterrupted(_summary(passes)) from interruption
        raise
    return _summary(passes)


def _is_one_batch(given: object) -> bool:
    """A tensor, a dictionary, or inputs with targets of another form; two inputs are batches."""
    if isinstance(given, tuple) and is_pair(given):
        return bool(given[0].ndim != given[1].ndim)
    return isinstance(given, Tensor | Mapping)


def _one_pass(
    model: nn.Module, loss_fn: LossFunction, batch: Any, *, normalisers: bool
) -> list[LayerPass]:
    """One forward and backward pass; a second one where no layer ran that the loss depends on."""
    found: list[LayerPass] = []
    for enclosing in (False, True):
        with (
            recording_gradients(),
            LayerWatch(model, enclosing=enclosing, normalisers=normalisers) as watch,
        ):
            loss = checked_loss(loss_fn(model, batch))
            if not torch.isfinite(loss):
                remedy = "Check the inputs' scale and the initialisation."
                where = origin_in_words(model, batch, loss_fn, remedy)
                raise ValueError(f"the loss is {loss.item()} on a batch{where}")
            if found := watch.differentiate(loss):
                break
    return found


def _reset_parameters(model: nn.Module, replicate: int) -> None:
    unchanged = []
    # Children first: a parent, such as attention, may reset what its children hold.
    names = {module: name for name, module in model.named_modules()}
    for module in modules.children_first(model):
        name = names[module]
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        own = [p for p in module._parameters.values() if p is not None]
        if not (_redraws(own, reset) if callable(reset) else not own):
            unchanged.append(name or type(module).__name__)
    if unchanged:
        raise ValueError(
            f"cannot draw new weights: {', '.join(unchanged[:5])} "
            f"{'have' if len(unchanged) > 1 else 'has'} parameters but no reset_parameters(). "
            "Pass initialize=, a function of the model and the replicate's number."
        )


def _redraws(own: list[nn.Parameter], reset: Callable[[], Any]) -> bool:
    """Call ``reset`` and return whether it wrote all parameters, or all but constant ones.

    Parameters are set to nan first: comparing values would not do, since the user may have built
    the model under the same seed.
    """
    with torch.no_grad():
        before = [p.clone() for p in own]
        for p in own:
            p.fill_(math.nan)
        reset()
        complete = True
        for p, old in zip(own, before, strict=True):
            if bool(torch.isnan(p).any()):
                p.copy_(old)
                complete = complete and not (p.numel() > 1 and float(old.double().std()) > 0)
    return complete


def _summary(passes: Passes) -> GradientGrowth:
    if not any(batch for row in passes for batch in row):
        raise NothingRanError(
            "the model ran no normalising or parametrised layer that the loss depends on, so "
            "there is nothing to measure. Does the model detach its output, or does the loss call "
            "its methods and not the model? Only calls of modules are seen."
        )
    passes, left_out = _in_common(passes)
    layers = passes[0][0]
    if not layers:
        raise ValueError(
            f"the model ran none of its {len(left_out)} layers on every batch: "
            f"{', '.join(left_out[:5])}. Give batches on which it takes the same path."
        )
    # [replicates, batches, layers]
    gradients = _numbers(passes, lambda layer: layer.gradient)
    per_replicate = gradients.mean(1)
    fitted = _fitted(per_replicate)
    has_weights = [layer.weight_gradient is not None for layer in layers]
    weights = _numbers(passes, lambda layer: layer.weight_gradient or 0.0)
    moments = _numbers(passes, lambda layer: layer.second_moment)
    correlations = _numbers(passes, lambda layer: layer.correlation)
    records = tuple(
        LayerGradients(
            layer=layer.layer,
            kind=layer.kind,
            rows=layer.rows,
            features=layer.features,
            gradient=_average(gradients[..., i]),
            weight_gradient=_average(weights[..., i]) if has_weights[i] else None,
            second_moment=_average(moments[..., i]),
            correlation=_average(correlations[..., i]),
            sharing=layer.sharing,
        )
        for i, layer in enumerate(layers)
    )
    return GradientGrowth(
        layers=records,
        rate=_rate(per_replicate, fitted),
        weight_rate=_rate(weights.mean(1), _fitted(weights.mean(1)))
        if all(has_weights[_first(len(layers)) :])
        else None,
        replicates=len(passes),
        batches=len(passes[0]),
        fitted=fitted,
        left_out=left_out,
    )


def _in_common(passes: Passes) -> tuple[Passes, tuple[str, ...]]:
    """The calls of layers that every pass made, and the others, such as dropped ones."""
    every = [[layer.layer for layer in batch] for row in passes for batch in row]
    common = set(every[0]).intersection(*every[1:])
    left_out = dict.fromkeys(name for names in every for name in names if name not in common)
    order = {name: place for place, name in enumerate(every[0])}

    def kept(batch: list[LayerPass]) -> list[LayerPass]:
        return sorted((x for x in batch if x.layer in common), key=lambda x: order[x.layer])

    return [[kept(batch) for batch in row] for row in passes], tuple(left_out)


def _numbers(passes: Passes, pick: Callable[[LayerPass], float]) -> Array:
    return np.array([[[pick(layer) for layer in batch] for batch in row] for row in passes])


def _average(samples: Array) -> Estimate:
    """Average ``[replicates, batches]``, with the error over replicates if there are several."""
    if len(samples) > 1:
        return Estimate.of_mean(samples.mean(1), f"mean over {len(samples)} initialisations")
    batches = samples.shape[1]
    method = f"mean over {batches} batches" if batches > 1 else "one batch"
    return Estimate.of_mean(samples[0], method)


def _fitted(norms: Array) -> tuple[int, ...]:
    """The layers that a fit goes through; a branch that starts at zero passes no gradient back."""
    flowing = np.all(norms > 0, axis=0)
    return tuple(i for i in range(_first(norms.shape[1]), norms.shape[1]) if flowing[i])


def _first(layers: int) -> int:
    return 1 if layers > _FEWEST_FITTED else 0


def _rate(norms: Array, fitted: Sequence[int]) -> Estimate | None:
    """Fit some of the layers."""
    norms = norms[:, list(fitted)]
    if len(fitted) < _FEWEST_FITTED or not np.isfinite(norms).all():
        return None
    positions = np.array(fitted, dtype=np.float64)
    return growth_rate(np.log(norms), f"fit through {len(fitted)} layers", positions)
