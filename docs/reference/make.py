"""Writes the pages that are made from the code: `python docs/reference/make.py`.

With `--check` it writes nothing, and names the pages that are stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

import command_line
import http_api
import models_and_formats
import python_api

FOLDER = Path(__file__).parent
NOTE = "\n<!-- Do not edit: written by `python docs/reference/make.py`. -->\n"
PAGES = {
    "command_line.md": command_line.page,
    "http.md": http_api.page,
    "models_and_formats.md": models_and_formats.page,
    **python_api.pages(),
}


def main() -> int:
    """Write the pages; with `--check`, only name those that differ."""
    try:
        made = {name: page() + NOTE for name, page in PAGES.items()}
    except ValueError as error:  # it says what the code does not document
        print(error)
        return 1
    if "--check" not in sys.argv[1:]:
        for name, text in made.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return 0
    stale = [name for name, text in made.items() if read(FOLDER / name) != text]
    for name in stale:
        print(f"docs/reference/{name} is stale. Run: python docs/reference/make.py")
    return 1 if stale else 0


def read(path: Path) -> str:
    """Return the text of a page; "" if there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
