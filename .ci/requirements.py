"""Prints requirements of pyproject.toml, one per line, quoted for `xargs pip install`.

The arguments name extras, or `build-system`. The Makefile installs tools without building the
package, which pip can do only from a list.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def requirements(group: str) -> list[str]:
    """Return the requirements of an extra and of those that it names, or of `build-system`."""
    content = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    groups: dict[str, list[str]] = dict(content["project"]["optional-dependencies"])
    groups["build-system"] = content["build-system"]["requires"]
    if group not in groups:
        known = ", ".join(sorted(groups))
        raise SystemExit(f"requirements: group must be one of {known}, but is {group!r}.")
    found = []
    for requirement in groups[group]:
        other = re.fullmatch(r"sinkstream\[(.*)\]", requirement)
        found += requirements(other[1]) if other else [requirement]
    return found


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print("\n".join(map(shlex.quote, requirements(name))))
