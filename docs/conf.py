"""How Sphinx builds the site: `make docs`.

The source directory is the repository itself, so that a relative link leads to the same file on
the site and in the repository. `include_patterns` names the pages of the site.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"

project = "sinkstream"
author = "sinkstream contributors"
project_copyright = "sinkstream contributors, Apache-2.0"
version = release = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["version"]

root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "benchmarks/**.md",
    "csrc/**.md",
    "examples/**.ipynb",
    "python/**.md",
    "tests/**.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]

extensions = [
    "myst_nb",  # includes myst_parser
    "sphinx_copybutton",
]

# --- Markdown and notebooks -----------------------------------------------------------------

myst_heading_anchors = 4
# Notebooks are committed with their outputs; tests/python/examples executes them.
nb_execution_mode = "off"

# --- what fails the build -------------------------------------------------------------------

# `make docs` turns warnings into errors: a page in no table of contents, a link to nothing.
nitpicky = True
linkcheck_timeout = 10

# --- the look -------------------------------------------------------------------------------

html_theme = "furo"
html_title = "sinkstream"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_extra_path = ["_root"]
html_copy_source = False
