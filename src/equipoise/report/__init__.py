"""Records to terminal, JSON, HTML and figures."""

from equipoise.report.figures import conditioning_figure, forward_figure, gradient_figure
from equipoise.report.html import render_checkup
from equipoise.report.reproduction_markdown import save_markdown
from equipoise.report.reproduction_page import render_reproduction, save_reproduction
from equipoise.report.spectrum_table import print_spectra, spectra_markdown
from equipoise.report.store import load, save, save_page
from equipoise.report.terminal import print_checkup
from equipoise.report.theory_table import print_predictions

__all__ = [
    "conditioning_figure",
    "forward_figure",
    "gradient_figure",
    "load",
    "print_checkup",
    "print_predictions",
    "print_spectra",
    "render_checkup",
    "render_reproduction",
    "save",
    "save_markdown",
    "save_page",
    "save_reproduction",
    "spectra_markdown",
]
