"""Chooses the chat template of a Hugging Face folder among the files that may hold one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkstream.checkpoint.bounded_file import is_there, read_json, read_text
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, warn_caller

_JINJA = "chat_template.jinja"
_NAMED = "additional_chat_templates"
_SETTINGS = "tokenizer_config.json"
_PROCESSOR = "chat_template.json"
_DEFAULT = "default"
_MAX_BYTES = 1 << 20

_Templates = Mapping[str, Any] | str | None
"""Templates by name, or the only one."""


def choose_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the template that transformers' tokenizer uses for a chat without tools.

    Files of templates hide those in tokenizer_config.json. chat_template.json comes last: it
    belongs to processors, and transformers' tokenizers do not read it.

    Args:
        folder: The checkpoint.
        settings: The content of its tokenizer_config.json.

    Raises:
        CheckpointError: A file is too large or damaged, or a template is not a string.
    """
    found: _Templates = _template_files(folder)
    where = f"the folder {_NAMED}"
    if not found:
        found, where = _named_templates(settings.get("chat_template"), _SETTINGS), _SETTINGS
    if found is None and is_there(folder / _PROCESSOR):
        value = read_json(folder / _PROCESSOR, _MAX_BYTES).get("chat_template")
        found, where = _named_templates(value, _PROCESSOR), _PROCESSOR
    if found is None or isinstance(found, str):
        return found
    if _DEFAULT not in found:
        names = ", ".join(quoted(name) for name in sorted(found)[:8])
        warn_caller(
            f'load: {where} should name a chat template "{_DEFAULT}", but names {names or "none"}. '
            "The model is loaded without a chat template."
        )
        return None
    template: str = found[_DEFAULT]
    return template


def _template_files(folder: Path) -> dict[str, str]:
    """Return the templates that have files of their own; only the default is read."""
    found: dict[str, str] = {}
    if is_there(folder / _JINJA):
        found[_DEFAULT] = _read(folder / _JINJA)
    if is_there(folder / _NAMED):
        for path in _list(folder / _NAMED):
            name = path.name.removesuffix(".jinja")
            found[name] = _read(path) if name == _DEFAULT else ""
    return found


def _list(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(".jinja"))
    except OSError as error:
        raise CheckpointError(
            f"load: folder {quoted(folder.name)} cannot be read: {error.strerror}."
        ) from error


def _read(path: Path) -> str:
    """Read a template with any line ends as Python opens text."""
    return read_text(path, _MAX_BYTES).replace("\r\n", "\n").replace("\r", "\n")


def _named_templates(value: Any, where: str) -> _Templates:
    """Return the templates that a JSON field holds."""
    if isinstance(value, list):
        entries = [entry if isinstance(entry, dict) else {} for entry in value]
        value = {entry.get("name"): entry.get("template") for entry in entries}
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and all(
        isinstance(part, str) for pair in value.items() for part in pair
    ):
        return value
    raise CheckpointError(
        f"load: {where}: `chat_template` must be a string, or named templates as a list or an "
        f"object, but is {quoted(value)}."
    )
