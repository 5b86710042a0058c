"""Reads the text format of a Hugging Face folder: tokenizer.json and the small files next to it.

Nothing is imported from the folder, and the name of a tokenizer class is ignored: tokenizer.json
describes the tokenizer, and the other JSON files name the tokens that start and end a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from sinkstream.checkpoint.bounded_file import is_there, read_optional_json, read_text
from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.checkpoint.fields import Fields
from sinkstream.text.templates.template_files import choose_template
from sinkstream.text.tokenizers.control_tokens import control_tokens
from sinkstream.text.tokenizers.rust_panics import catch_panics

MAX_TOKENIZER_BYTES = 64 << 20  # twice the largest known one (262,144 tokens)
_MAX_SMALL_BYTES = 4 << 20


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
    settings = read_optional_json(folder / "tokenizer_config.json", _MAX_SMALL_BYTES)
    chat_template = choose_template(folder, settings)
    if generation is None:
        generation = read_optional_json(folder / "generation_config.json", _MAX_SMALL_BYTES)
    ends = {
        *Fields(config, "config.json").token_ids("eos_token_id"),
        *Fields(generation, "generation_config.json").token_ids("eos_token_id"),
    }
    if not is_there(folder / "tokenizer.json"):
        return TextFormat(None, chat_template, end_token_ids=frozenset(ends))
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    special_tokens = _read_special_tokens(folder, settings)
    roles = {role: tokenizer.token_to_id(token) for role, token in special_tokens.items()}
    if (eos := roles.get("eos_token")) is not None:
        ends.add(eos)
    bos = roles.get("bos_token")
    if bos is None:
        bos = next(iter(Fields(config, "config.json").token_ids("bos_token_id")), None)
    _mark_special(tokenizer, [*ends, *([] if bos is None else [bos])], special_tokens)
    # What the tokenizer puts before a text is its encoding of the empty text.
    with catch_panics("load: tokenizer.json must describe a tokenizer that can encode"):
        start = tokenizer.encode("", add_special_tokens=True).ids
    add_bos = bos is not None and start[:1] == [bos]
    return TextFormat(
        tokenizer,
        chat_template,
        bos_token_id=bos,
        add_bos=add_bos,
        end_token_ids=frozenset(ends),
        special_tokens=special_tokens,
        vocabulary=tokenizer.get_vocab(with_added_tokens=True),
    )


def _read_tokenizer(path: Path) -> Tokenizer:
    source = read_text(path, MAX_TOKENIZER_BYTES)
    with catch_panics("load: tokenizer.json must describe a tokenizer, but does not"):
        tokenizer = Tokenizer.from_str(source)
    # It may have been saved with truncation or padding for batches; a prompt needs neither.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_special_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return `bos_token`, `eos_token`, … by name; each is a string or an object with `content`."""
    found: dict[str, str] = {}
    older = read_optional_json(folder / "special_tokens_map.json", _MAX_SMALL_BYTES)
    for file in (older, settings):  # the later one overrides
        for role, value in file.items():
            token = value.get("content") if isinstance(value, dict) else value
            if role.endswith("_token") and isinstance(token, str):
                found[role] = token
    return found


def _mark_special(tokenizer: Tokenizer, ids: list[int], special_tokens: Mapping[str, str]) -> None:
    """Make every token that starts or ends a text special: matched as a unit, never shown."""
    tokens = {tokenizer.id_to_token(token_id) for token_id in ids}
    tokens |= {t for t in special_tokens.values() if tokenizer.token_to_id(t) is not None}
    already = {token.content for token in control_tokens(tokenizer).values()}
    added = sorted(token for token in tokens - already if token)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in added])
