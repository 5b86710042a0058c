"""Result files: JSON, each replaced completely or left untouched."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from sinkstream.errors import InvalidArgument
from sinkstream.files import expand_home, replace_whole


class JsonFile(ABC):
    """A result that can be written to a JSON file and read again."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""

    @classmethod
    @abstractmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the result that `as_dict` describes."""

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the result to a file: completely, or not at all."""
        write_json(path, self.as_dict())

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Self:
        """Read a result that `to_json` wrote.

        Raises:
            InvalidArgument: The file holds something else.
        """
        try:
            return cls.from_dict(json.loads(expand_home(path).read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f'{cls.__name__}: "{Path(path).name}" must be a file that `to_json` wrote, but is '
                f"not: {str(error).rstrip('.')}.",
                param="path",
            ) from None


def write_json(path: str | os.PathLike[str], values: Any) -> None:
    """Replace a file with these values, as JSON."""
    with replace_whole(path) as file:
        file.write((json.dumps(values, indent=2) + "\n").encode())
