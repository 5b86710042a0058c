"""How Sphinx builds the site: `make docs`.

The source directory is the repository itself, so that a relative link leads to the same file on
the site and in the repository. `include_patterns` names the pages of the site.
"""

from __future__ import annotations

import inspect
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import GoogleDocstring

import sinkstream
from sinkstream import streaming_llm

project = "sinkstream"
author = "sinkstream contributors"
project_copyright = "sinkstream contributors, Apache-2.0"
version = release = sinkstream.__version__

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
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
]

# --- Markdown and notebooks -----------------------------------------------------------------

myst_heading_anchors = 4
# Notebooks are committed with their outputs; tests/python/examples executes them.
nb_execution_mode = "off"

# --- the Python reference -------------------------------------------------------------------

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
maximum_signature_line_length = 80
# Docstrings write `name`, as Markdown does.
default_role = "code"

# Classes that a user makes; all others come from a function or a method.
MADE_BY_USERS = {
    streaming_llm.SinkLayer,
    streaming_llm.StartRecentKVCache,
    streaming_llm.StreamingCache,
}


def hide_constructor(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str, returns: str
) -> tuple[str, None] | None:
    """Show no signature of a class that users do not construct."""
    if what in ("class", "exception") and inspect.isclass(thing) and thing not in MADE_BY_USERS:
        return "", None
    return None


def read_google_style(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Turn sections such as "Args:" into fields.

    The extension `sphinx.ext.napoleon` would do this too, but it takes the text before a colon in
    an attribute's docstring for the attribute's type.
    """
    if what in ("attribute", "data", "property"):
        what = "object"
    lines[:] = GoogleDocstring(lines, what=what, name=name, obj=thing, options=options).lines()


def setup(app: Sphinx) -> None:
    """Connect the functions above to Sphinx."""
    app.connect("autodoc-process-signature", hide_constructor)
    app.connect("autodoc-process-docstring", read_google_style)


# --- what fails the build -------------------------------------------------------------------

# `make docs` turns warnings into errors: a page in no table of contents, a link to nothing, a type
# in a signature that is neither documented nor listed here.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|np|transformers|collections|typing|os|pathlib|types)\..*"),
    (
        "py:class",
        r"sinkstream\.(_core|observe\.open_models|streaming_llm\.rotation)\..*",
    ),
    ("py:class", "Tokenizer"),
]
linkcheck_timeout = 10

# --- the look -------------------------------------------------------------------------------

html_theme = "furo"
html_title = "sinkstream"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_extra_path = ["_root"]
html_copy_source = False
