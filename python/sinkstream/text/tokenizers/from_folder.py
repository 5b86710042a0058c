"""Reads the text format of a Hugging Face folder: tokenizer.json and the small files next to it.

Nothing is imported from the folder, and the name of a tokenizer class is ignored: tokenizer.json
describes the tokenizer, and the other JSON files name the tokens that start and end a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sinkstream.checkpoint.bounded_file import is_there, read_json, read_optional_json, read_text
from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, warn_caller
from sinkstream.text.tokenizers import catch_panics
from sinkstream.text.tokenizers.control_tokens import control_tokens
from sinkstream.text.tokenizers.folder_tokens import MAX_SMALL_BYTES, add_folder_tokens

MAX_TOKENIZER_BYTES = 64 << 20  # twice the largest known one (262,144 tokens)

_JINJA = "chat_template.jinja"
_NAMED = "additional_chat_templates"
_SETTINGS = "tokenizer_config.json"
_PROCESSOR = "chat_template.json"
_DEFAULT_TEMPLATE = "default"
_MAX_TEMPLATE_BYTES = 1 << 20

_Templates = Mapping[str, Any] | str | None
"""Templates by name, or the only one."""


def text_format_from_folder(
    folder: Path, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
) -> TextFormat:
    """Read a folder's tokenizer, chat template and special tokens.

    Args:
        folder: The checkpoint.
        config: The content of its config.json.
        generation: The content of its generation_config.json; read if it is None.

    Returns:
        The text format; its tokenizer is None if the folder has none.

    Raises:
        CheckpointError: A file is too large, damaged or unreadable, or names a token that does not
            exist.
    """
    settings = read_optional_json(folder / "tokenizer_config.json", MAX_SMALL_BYTES)
    chat_template = choose_template(folder, settings)
    if generation is None:
        generation = read_optional_json(folder / "generation_config.json", MAX_SMALL_BYTES)
    ends = {
        *Fields(config, "config.json").token_ids("eos_token_id"),
        *Fields(generation, "generation_config.json").token_ids("eos_token_id"),
    }
    if not is_there(folder / "tokenizer.json"):
        return TextFormat(None, chat_template, end_token_ids=frozenset(ends))
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    special_tokens = add_folder_tokens(tokenizer, folder, settings)
    # It may have been saved with truncation or padding for batches; a prompt needs neither.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    roles = {role: tokenizer.token_to_id(token) for role, token in special_tokens.items()}
    if (eos := roles.get("eos_token")) is not None:
        ends.add(eos)
    bos = roles.get("bos_token")
    if bos is None:
        bos = next(iter(Fields(config, "config.json").token_ids("bos_token_id")), None)
    start = _start_of_text(tokenizer)
    if start:
        bos = start[0]
    _mark_special(tokenizer, [*ends, *([] if bos is None else [bos])])
    _warn_of_normalized(tokenizer)
    return TextFormat(
        tokenizer,
        chat_template,
        bos_token_id=bos,
        add_bos=bool(start),
        end_token_ids=frozenset(ends),
        special_tokens=special_tokens,
        vocabulary=tokenizer.get_vocab(with_added_tokens=True),
    )


def _read_tokenizer(path: Path) -> Tokenizer:
    source = read_text(path, MAX_TOKENIZER_BYTES)
    with catch_panics("load: tokenizer.json must describe a tokenizer, but does not"):
        tokenizer = Tokenizer.from_str(source)
    return tokenizer


def _start_of_text(tokenizer: Tokenizer) -> list[int]:
    """Return what a tokenizer puts before a text: one token, or none."""
    with catch_panics("load: tokenizer.json must describe a tokenizer that can encode"):
        empty = tokenizer.encode("", add_special_tokens=True).ids
        encoding = tokenizer.encode("a", add_special_tokens=True)
    plain = [i for i, masked in enumerate(encoding.special_tokens_mask) if not masked]
    start = encoding.ids[: plain[0]] if plain else empty
    if len(empty) > len(start) or len(start) > 1:
        warn_caller(
            f"load: tokenizer.json should add at most one token, before a text, but adds "
            f"{quoted(start)} before it and {quoted(empty[len(start) :])} after it. Only "
            f"{quoted(start[:1])} is added."
        )
    return start[:1]


def _mark_special(tokenizer: Tokenizer, ids: Iterable[int]) -> None:
    """Make every added token that starts or ends a text special: never shown, never typed.

    An ordinary token of the vocabulary is left as it is: it is part of words.
    """
    added = tokenizer.get_added_tokens_decoder()
    for token_id in ids:
        token = added.get(token_id)
        if token is not None and not token.special:
            token.special = True
            tokenizer.add_special_tokens([token])


def _warn_of_normalized(tokenizer: Tokenizer) -> None:
    """Warn of control tokens that `tokenizers` matches only after normalizing the text."""
    normalizer = tokenizer.normalizer
    for token in control_tokens(tokenizer).values():
        if normalizer is None or not token.normalized:
            continue
        around = [normalizer.normalize_str(text) for text in ("a ", f"a {token.content} a", " a")]
        if around[1] != around[0] + token.content + around[2]:
            warn_caller(
                f"load: {quoted(token.content)} has the flag `normalized`, and normalization "
                "would change it, but sinkstream matches it in the text as written. The token ids "
                "of chat prompts may therefore differ from those of transformers."
            )


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
        value = read_json(folder / _PROCESSOR, _MAX_TEMPLATE_BYTES).get("chat_template")
        found, where = _named_templates(value, _PROCESSOR), _PROCESSOR
    if found is None or isinstance(found, str):
        return found
    if _DEFAULT_TEMPLATE not in found:
        names = ", ".join(quoted(name) for name in sorted(found)[:8])
        warn_caller(
            f'load: {where} should name a chat template "{_DEFAULT_TEMPLATE}", but names '
            f"{names or 'none'}. The model is loaded without a chat template."
        )
        return None
    template: str = found[_DEFAULT_TEMPLATE]
    return template


def _template_files(folder: Path) -> dict[str, str]:
    """Return the templates that have files of their own; only the default is read."""
    found: dict[str, str] = {}
    if is_there(folder / _JINJA):
        found[_DEFAULT_TEMPLATE] = _read_template(folder / _JINJA)
    if is_there(folder / _NAMED):
        for path in _list_templates(folder / _NAMED):
            name = path.name.removesuffix(".jinja")
            found[name] = _read_template(path) if name == _DEFAULT_TEMPLATE else ""
    return found


def _list_templates(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(".jinja"))
    except OSError as error:
        raise CheckpointError(
            f"load: folder {quoted(folder.name)} cannot be read: {error.strerror}."
        ) from error


def _read_template(path: Path) -> str:
    """Read a template with any line ends as Python opens text."""
    return read_text(path, _MAX_TEMPLATE_BYTES).replace("\r\n", "\n").replace("\r", "\n")


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
