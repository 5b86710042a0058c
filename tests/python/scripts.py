"""Scripts as modules, for tests of what a process would do again and again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def module_of(script: Path) -> ModuleType:
    """Return a script as a new module: it need not be in a package, or on the path."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
