"""Opens a complete checkpoint, and checks that its tokenizer fits its model.

It is above both folders: `text/` imports `checkpoint/`, never the reverse.
"""

from __future__ import annotations

import os
from dataclasses import replace

from sinkstream.checkpoint.checkpoint import (
    Checkpoint,
    FolderText,
    GgufText,
    TensorsOnly,
    TextFormat,
)
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.errors import CheckpointError, warn_caller
from sinkstream.text.tokenizers import from_folder, from_gguf


def open_checkpoint(
    path: str | os.PathLike[str] | None = None, *, revision: str | None = None
) -> Checkpoint:
    """Open a checkpoint: read and check its description, and leave its tensors in their files.

    Args:
        path: A `.gguf` file, a Hugging Face folder, "smollm2", or "org/name" on the hub. If None,
            `$SINKSTREAM_MODEL`, or else "smollm2".
        revision: Branch, tag or commit of a hub repository.

    Returns:
        The checkpoint. Its `source` keeps the files open until `source.close()`.

    Raises:
        CheckpointError: The checkpoint is missing, damaged, unsupported, or inconsistent with its
            own description.

    Example:
        >>> checkpoint = open_checkpoint("smollm2")
        >>> checkpoint.spec.layers
        30
        >>> checkpoint.source.close()
    """
    opened = open_tensors(path, revision=revision)
    try:
        return with_text(opened)
    except BaseException:
        opened.source.close()
        raise


def with_text(opened: TensorsOnly) -> Checkpoint:
    """Complete an open checkpoint with its text format. Closes nothing, even on an error.

    Raises:
        CheckpointError: The text format is damaged, unsupported, or does not fit the model.
    """
    text = _without_useless_ids(_read_text(opened.text), opened.spec.vocab_size)
    _check_vocabulary(text, opened.spec.vocab_size)
    return Checkpoint(
        path=opened.path,
        spec=opened.spec,
        text=text,
        tensors=opened.tensors,
        source=opened.source,
        generation=opened.generation,
    )


def _read_text(described: FolderText | GgufText) -> TextFormat:
    if isinstance(described, FolderText):
        return from_folder.text_format_from_folder(
            described.folder, described.config, described.generation
        )
    return from_gguf.text_format_from_gguf(described.metadata)


def _without_useless_ids(text: TextFormat, rows: int) -> TextFormat:
    """Leave out end and start tokens that the model lacks: no text has them."""
    ends = {token_id for token_id in text.end_token_ids if token_id < rows}
    bos = text.bos_token_id
    if bos is not None and bos >= rows and not text.add_bos:
        bos = None
    for name, token_id in [
        ("end_token_ids", max(text.end_token_ids - ends, default=None)),
        ("bos_token_id", text.bos_token_id if bos is None else None),
    ]:
        if token_id is not None:
            warn_caller(
                f"load: {name} should be in [0, {rows}), the model's vocabulary, but {token_id} "
                "is not. It is ignored."
            )
    return replace(text, end_token_ids=frozenset(ends), bos_token_id=bos)


def _check_vocabulary(text: TextFormat, rows: int) -> None:
    """Refuse a tokenizer with an id for which the model has no embedding row."""
    ids = {}
    if text.bos_token_id is not None:
        ids["bos_token_id"] = {text.bos_token_id}
    sizes = ""
    if text.tokenizer is not None:
        ids["the tokenizer's ids"] = set(text.vocabulary.values())
        count = len(ids["the tokenizer's ids"])
        sizes = f" The model has a vocabulary of {rows} tokens, the tokenizer one of {count}."
    for name, values in ids.items():
        wrong = [value for value in values if not 0 <= value < rows]
        if wrong:
            raise CheckpointError(
                f"load: {name} must be in [0, {rows}), the model's vocabulary, but {max(wrong)} is "
                f"not.{sizes}"
            )
