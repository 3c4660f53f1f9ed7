"""Sphinx configuration; warnings are errors."""

from importlib.metadata import version as installed_version

project = "Equipoise papers"
author = "The Equipoise developers"
project_copyright = "2026, The Equipoise developers"
version = release = installed_version("equipoise-papers")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "Equipoise papers"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
