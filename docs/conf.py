"""How Sphinx builds the site: `make docs`.

The source directory is the repository itself, so that a relative link leads to the same file on
the site and in the repository. `include_patterns` names the pages of the site.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

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
    "tests/**/README.md",
    "tests/README.md",
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
html_logo = html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_extra_path = ["_root"]
html_copy_source = False


# --- the Python API as objects --------------------------------------------------------------

# The pages are Markdown, for readers of the repository. Their headings become objects of the site:
# its search finds them first, and other projects' pages can refer to them (intersphinx).

sys.path.insert(0, str(Path(__file__).parent / "reference"))
from python_api import PAGES  # noqa: E402  # needs the path


def note_objects(app: Sphinx, doctree: nodes.document) -> None:
    """Note each heading of an API page that is a name."""
    folder, _, name = app.env.current_document.docname.rpartition("/")
    page = PAGES.get(name) if folder == "docs/reference/python_api" else None
    if page is None:
        return
    for section in doctree.findall(nodes.section):
        title = section[0].astext()
        is_page = section.parent is doctree  # one is called like its class
        if is_page or title.partition(".")[0] not in page.names:
            continue
        block = section.next_node(nodes.literal_block, descend=True)
        is_called = block is not None and re.search(rf"\b{re.escape(title)}\(", block.astext())
        if "." in title:
            kind = "method" if is_called else "attribute"
        else:
            kind = "class" if title[0].isupper() else "function"
        domain = app.env.domains.python_domain
        domain.note_object(f"{page.module}.{title}", kind, section["ids"][0], location=section)


def check_objects(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn, which fails the build, if a name of the API is not an object."""
    known = env.domains.python_domain.objects
    names = {f"{page.module}.{name}" for page in PAGES.values() for name in page.names}
    if missing := sorted(names - known.keys()):
        logging.getLogger(__name__).warning("not objects of the site: %s", ", ".join(missing))


def setup(app: Sphinx) -> None:
    """Note the objects of each page that is read, and check them at the end."""
    app.connect("doctree-read", note_objects)
    app.connect("env-check-consistency", check_objects)
