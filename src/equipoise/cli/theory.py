"""Print what theory predicts for activations and batch sizes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from equipoise.theory.table import Prediction, SpectrumPrediction


WORDS_BELONG_TO = "--activation"


def configure(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--activation",
        nargs="+",
        default=["relu", "tanh", "gelu"],
        metavar="NAME",
        help='such as relu, "leaky_relu(0.2)", "alpha_relu(1.5)" (default: relu tanh gelu)',
    )
    parser.add_argument(
        "--batch-size",
        nargs="+",
        type=int,
        default=[8, 64, 512],
        metavar="B",
        help="default: 8 64 512",
    )
    parser.add_argument("--eps", type=float, default=0.0, help="batch norm's ε (default: 0)")
    parser.add_argument("--gamma", type=float, default=1.0, help="its scale (default: 1)")
    parser.add_argument("--beta", type=float, default=0.0, help="its shift (default: 0)")
    parser.add_argument(
        "--weight-variance",
        type=float,
        default=1.0,
        help="fan-in times the weights' variance; changes rates only with --eps (default: 1)",
    )

    parser.add_argument(
        "--spectrum", action="store_true", help="every eigenvalue, forward and backward"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="with --spectrum: a Markdown table, all digits"
    )


def run(args: Namespace) -> list[Prediction] | list[SpectrumPrediction]:
    """Predict every combination."""
    from equipoise.theory.table import prediction_table, spectrum_table

    if args.markdown and (args.json or not args.spectrum):
        raise ValueError("--markdown prints the eigenvalues: add --spectrum, and not --json.")
    table = spectrum_table if args.spectrum else prediction_table
    return table(
        args.activation,
        args.batch_size,
        eps=args.eps,
        gamma=args.gamma,
        beta=args.beta,
        weight_variance=args.weight_variance,
    )


def show(
    rows: list[Prediction] | list[SpectrumPrediction], args: Namespace, console: Console
) -> None:
    """Print a table."""
    from equipoise.report.theory import predictions, spectra
    from equipoise.theory.table import Prediction, SpectrumPrediction

    eigenvalues = [row for row in rows if isinstance(row, SpectrumPrediction)]
    if args.markdown:
        print(spectra.spectra_markdown(eigenvalues))
    elif eigenvalues:
        spectra.print_spectra(eigenvalues, console)
    else:
        predictions.print_predictions([r for r in rows if isinstance(r, Prediction)], console)
