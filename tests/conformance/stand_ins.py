"""What another project's tests import from that project: names only, but for those that are given.

A test that calls such a name fails, and is listed as the other project's own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkstream.loading.open_checkpoint import open_checkpoint


def install(package: str, known: Mapping[tuple[str, str], Any]) -> None:
    """Make imports from a package succeed.

    Args:
        package: Its name.
        known: What attributes of its modules are, by module and attribute; any other attribute is a
            class that cannot be used.
    """
    sys.meta_path.insert(0, _Names(package, known))


def tokenizer(*_: object, **__: object) -> Any:
    """Return the served model's, as transformers reads it."""
    from transformers import AutoTokenizer

    file = open_checkpoint("smollm2").path
    return AutoTokenizer.from_pretrained(str(Path(file).parent), gguf_file=Path(file).name)


class _Names(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any module of a package."""

    def __init__(self, package: str, known: Mapping[tuple[str, str], Any]) -> None:
        self._package, self._known = package, known

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != self._package:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name, self._known)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Module(types.ModuleType):
    def __init__(self, name: str, known: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(name)
        self._known = known

    def __getattr__(self, name: str) -> Any:
        if (self.__name__, name) in self._known:
            return self._known[self.__name__, name]
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"

        def refuse(own: object, *arguments: object, **named: object) -> None:
            raise AssertionError(f"{path} is the other project's own")

        # An exception, so that a test may expect it.
        return type(name, (Exception,), {"__init__": refuse})
