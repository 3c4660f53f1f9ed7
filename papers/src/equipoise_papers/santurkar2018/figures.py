"""The paper's figures: which runs, how they are drawn, and whether their claims hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from equipoise_papers.experiments import style
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict
from equipoise_papers.santurkar2018 import claims, drawing, grids
from equipoise_papers.santurkar2018.grids import LABELS
from equipoise_papers.santurkar2018.summaries import (
    absolute_cosine,
    cosine,
    cosine_of,
    looks_by_step,
    relative_shift,
    relative_shift_of,
    runs_of,
    shift_layers,
    spread,
    verdict,
)
from equipoise_papers.santurkar2018.training import Normaliser, ProbedTraining, Run, Sampled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

Results = Mapping[ProbedTraining, Run]
_PLAIN: tuple[Normaliser, ...] = ("none", "batch")
_NOISE: tuple[Normaliser, ...] = ("none", "batch", "noisy", "noise")
_NOISED: tuple[Normaliser, ...] = ("none", "batch", "noisy")
_LP: tuple[Normaliser, ...] = ("none", "batch", "l1", "l2", "linf")


_BARS = "bars are standard errors over seeds"
_OWN_AXES = "every panel has its own axis of values: compare numbers, not heights"


def _experiment(
    name: str,
    title: str,
    claim: str,
    cells: Callable[[Scale], tuple[ProbedTraining, ...]],
    draw: Callable[[FigureBase, Results], None],
    checks: Callable[[Results], tuple[Check, ...]],
    *notes: str,
) -> Experiment:
    def judge(results: Results) -> Verdict:
        return verdict(results, lambda: checks(results))

    return Experiment(
        name=f"santurkar2018.{name}",
        family=grids.FAMILY,
        title=title,
        claim=claim,
        choices=(*notes, *grids.CHOICES),
        cells=cells,
        draw=draw,
        judge=judge,
    )


def _draw_training(figure: FigureBase, results: Results) -> None:
    left, right = figure.subplots(1, 2)
    _draw_losses_and_accuracies(left, right, results)


def _draw_training_and_distributions(figure: FigureBase, results: Results) -> None:
    left, right = drawing.distributions_below(figure, results, _PLAIN, top=2)
    _draw_losses_and_accuracies(left, right, results)


def _draw_losses_and_accuracies(left: Axes, right: Axes, results: Results) -> None:
    drawing.curves(left, results)
    norms = list(dict.fromkeys(cell.norm for cell in results))
    accuracies = [spread(r.accuracy for r in runs_of(results, n)) for n in norms]
    right.bar(
        range(len(norms)),
        [s.mean for s in accuracies],
        yerr=[s.error if s.error == s.error else 0.0 for s in accuracies],
        color=style.PALETTE[0],
        alpha=0.7,
    )
    right.set_xticks(range(len(norms)), [LABELS[n] for n in norms], fontsize=7)
    right.set_ylabel("test accuracy, ±1 standard error", fontsize=8)


def _draw_noisy(figure: FigureBase, results: Results) -> None:
    (axes,) = drawing.distributions_below(figure, results, _NOISED, top=1)
    drawing.curves(axes, results, wide=True)


def _draw_shift(figure: FigureBase, results: Results) -> None:
    """All layers together, and a low, a middle and the last one (Fig. 6)."""
    names = shift_layers(next(iter(results.values())).looks[0])
    chosen = [names[1], names[len(names) // 2], names[-1]]
    panels = figure.subplots(2, 2 + len(chosen), sharex=True, sharey="row")
    drawing.lines(panels[0][0], results, cosine, "ICS: cosine", log=False)
    drawing.lines(panels[0][1], results, absolute_cosine, "", log=False)
    drawing.lines(panels[1][0], results, relative_shift, "ICS: ‖G − G'‖/‖G‖")
    panels[0][0].set_title("all layers", fontsize=8)
    panels[0][1].set_title("all, |cosine|", fontsize=8)
    panels[1][1].set_axis_off()
    for place, layer in enumerate(chosen, 2):
        drawing.lines(panels[0][place], results, cosine_of(layer), "", log=False)
        drawing.lines(panels[1][place], results, relative_shift_of(layer), "")
        panels[0][place].set_title(layer, fontsize=8)
    for axes in panels.flat:
        axes.tick_params(labelsize=6)
        lowest = axes in panels[1] or axes is panels[0][1]
        axes.set_xlabel("step" if lowest else "", fontsize=7)
        if axes is not panels[0][0] and axes.get_legend() is not None:
            axes.get_legend().remove()
    panels[0][1].tick_params(labelbottom=True)


def _draw_linear_shift(figure: FigureBase, results: Results) -> None:
    """As the paper has it, with the loss summed over samples."""
    _draw_shift(
        figure, {cell: run for cell, run in results.items() if cell.rate != grids.AVERAGED_RATE}
    )


def _draw_histograms(figure: FigureBase, results: Results) -> None:
    sampled: Results = {cell: run for cell, run in results.items() if isinstance(cell, Sampled)}
    drawing.histograms(figure, sampled, _LP)


def _judge_histograms(results: Results) -> tuple[Check, ...]:
    return claims.histograms_lp(
        {cell: run for cell, run in results.items() if not isinstance(cell, Sampled)}
    )


def _draw_distance(figure: FigureBase, results: Results, network: str) -> None:
    axes = figure.subplots()
    for norm, marker in zip(_PLAIN, ("o", "s"), strict=True):
        steps = looks_by_step(runs_of(results, norm))
        for (step, looks), dash in ((steps[1], "--"), (steps[-1], "-")):
            label = f"{LABELS[norm]}, step {step:,}"
            drawing.changes_over_distance(axes, looks, norm, label, marker, dash)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.tick_params(labelsize=6, which="minor")
    axes.set_xlabel("distance moved along the gradient")
    axes.set_ylabel("change of the gradient, ‖g′ − g‖")
    data = next(iter(results)).data.replace("gaussian", "Gaussian samples")
    axes.set_title(f"{network}, {data}; thin: each seed, marks: geometric means", fontsize=8)
    # Below the panel, because curves may be in any corner.
    figure.legend(loc="outside lower center", ncols=2, fontsize=7, handlelength=3.5)


def _plain_with_rates(scale: Scale) -> tuple[ProbedTraining, ...]:
    return grids.vgg_cells(scale, _PLAIN) + grids.rate_cells(scale, _PLAIN)


def _noise_with_rates(scale: Scale) -> tuple[ProbedTraining, ...]:
    cells = grids.vgg_cells(scale, _NOISE, small_seeds=3)
    return cells + grids.rate_cells(scale, ("none", "noisy"))


EXPERIMENTS = (
    _experiment(
        "fig1",
        "VGG with and without BN: training, test accuracy, distributions",
        "BN trains faster and tests better; layer input distributions are about as stable.",
        _plain_with_rates,
        _draw_training_and_distributions,
        claims.training,
    ),
    _experiment(
        "fig2",
        "Noisy BN: training with unstable distributions",
        "Noisy BN trains almost as well as BN and far better than the standard network.",
        _noise_with_rates,
        _draw_noisy,
        claims.noisy,
    ),
    _experiment(
        "fig3",
        "Internal covariate shift of VGG (also Fig. 6)",
        "Networks with BN have similar or even larger ICS.",
        lambda scale: grids.vgg_cells(scale, _PLAIN),
        _draw_shift,
        claims.shift_vgg,
        _BARS,
    ),
    _experiment(
        "fig3dln",
        "Internal covariate shift of the deep linear network (also Fig. 6)",
        "The standard deep linear network has almost no ICS throughout; with BN it is larger.",
        lambda scale: grids.linear_cells(scale, _PLAIN) + grids.averaged_cells(scale, _PLAIN),
        _draw_linear_shift,
        claims.shift_linear,
        _BARS,
    ),
    _experiment(
        "fig4",
        "Optimisation landscape of VGG along the gradient",
        "BN improves loss variation, gradient predictiveness (by close to two orders of "
        "magnitude) and effective smoothness.",
        lambda scale: grids.vgg_cells(scale, _PLAIN),
        lambda figure, results: drawing.landscapes(figure, results, "VGG"),
        claims.landscape_vgg,
    ),
    _experiment(
        "random",
        "Optimisation landscape of VGG along random directions",
        "The loss behaves in a similar way along random directions as along the gradient.",
        lambda scale: grids.random_cells(scale, _PLAIN),
        lambda figure, results: drawing.landscapes(
            figure, results, "VGG", along="along random directions"
        ),
        claims.landscape_random,
    ),
    _experiment(
        "fig8",
        "Distributions in the deep linear network",
        "σ tends to be large in practice, so that γ/σ makes the loss flatter.",
        lambda scale: grids.linear_cells(scale, _PLAIN),
        lambda figure, results: drawing.quantiles(figure, results, _PLAIN),
        claims.scales,
        _OWN_AXES,
    ),
    _experiment(
        "fig9",
        "Optimisation landscape of the deep linear network",
        "BN makes loss and gradient change less along the gradient, and β smaller.",
        lambda scale: grids.linear_cells(scale, _PLAIN),
        lambda figure, results: drawing.landscapes(figure, results, "deep linear network"),
        claims.landscape,
    ),
    _experiment(
        "fig10",
        "VGG: change of the gradient against the distance moved",
        "With BN gradients are more predictive, and change slowly nearby.",
        lambda scale: grids.vgg_cells(scale, _PLAIN),
        partial(_draw_distance, network="VGG"),
        claims.distance,
    ),
    _experiment(
        "fig10dln",
        "Deep linear network: change of the gradient against the distance moved",
        "With BN gradients are more predictive, and change slowly nearby.",
        lambda scale: grids.linear_cells(scale, _PLAIN),
        partial(_draw_distance, network="deep linear network"),
        claims.distance,
    ),
    _experiment(
        "fig11",
        "ℓp normalisation of VGG: training and landscape",
        "Every normalisation improves training and smoothness over the standard network.",
        lambda scale: grids.vgg_cells(scale, _LP),
        lambda figure, results: drawing.landscapes(figure, results, "VGG, ℓp", training=True),
        claims.lp_smoother,
    ),
    _experiment(
        "fig12",
        "ℓp normalisation of the deep linear network: training and landscape",
        "Every normalisation improves training and smoothness over the standard network.",
        lambda scale: grids.linear_cells(scale, _LP),
        lambda figure, results: drawing.landscapes(
            figure, results, "deep linear network, ℓp", training=True
        ),
        claims.lp_smoother,
    ),
    _experiment(
        "fig13",
        "ℓp normalisation: training of VGG",
        "All ℓp normalisations perform comparably to or better than BN.",
        lambda scale: grids.vgg_cells(scale, _LP),
        _draw_training,
        claims.lp_as_good,
    ),
    _experiment(
        "fig13dln",
        "ℓp normalisation: training of the deep linear network",
        "All ℓp normalisations perform comparably to or better than BN; ℓ₁ beats it.",
        lambda scale: grids.linear_cells(scale, _LP),
        lambda figure, results: drawing.curves(figure.subplots(), results, wide=True),
        claims.lp_as_good_linear,
    ),
    _experiment(
        "fig14",
        "Distributions under ℓp normalisation",
        "ℓp normalisation lets distributions shift more than in normal networks, and yet trains.",
        lambda scale: (
            *grids.vgg_cells(scale, _LP),
            *grids.sampled_cells(scale, _LP),
        ),
        _draw_histograms,
        _judge_histograms,
        _OWN_AXES,
    ),
)
