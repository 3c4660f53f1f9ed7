"""Sphinx configuration; warnings are errors."""

import sys
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from api import write_pages

write_pages(Path(__file__).parent / "reference")

project = "Equipoise"
author = "The Equipoise developers"
copyright = "2026, The Equipoise developers"
version = release = installed_version("equipoise")

# Runs the tutorial; without it, the tutorial is built without what its cells print.
notebooks = find_spec("myst_nb") is not None

extensions = [
    "myst_nb" if notebooks else "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nb_execution_mode = "auto"
nb_execution_timeout = 300
nb_execution_raise_on_error = True

html_theme = "furo"
html_title = "Equipoise"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"ActivationLike": "ActivationLike", "Array": "Array"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def setup(app):
    if not notebooks:
        from sphinx.directives.code import CodeBlock

        app.add_directive("code-cell", CodeBlock)
