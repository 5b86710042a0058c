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
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, warn_caller
from sinkstream.text.tokenizers import from_folder, from_gguf


def open_checkpoint(
    path: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    download: bool = False,
) -> Checkpoint:
    """Open a checkpoint: read and check its description, and leave its tensors in their files.

    Args:
        path: A `.gguf` file, a Hugging Face folder, or a name, as for `locate_model`. If None,
            `$SINKSTREAM_MODEL`, or else "smollm2".
        revision: Branch, tag or commit of a hub repository.
        download: Whether to fetch a hub repository.

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
    opened = open_tensors(path, revision=revision, download=download)
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
    """Leave out end and start tokens that the model lacks: they occur in no text."""
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
    """Check that the model has an embedding row for every id of its tokenizer.

    Padding tokens that were added without a row are common, and occur in no text. An ordinary token
    without a row is refused: the tokenizer belongs to a different model.
    """
    if text.bos_token_id is not None and text.bos_token_id >= rows:
        raise CheckpointError(
            f"load: bos_token_id must be in [0, {rows}), the model's vocabulary, but "
            f"{text.bos_token_id} is not."
        )
    excess = {token_id: token for token, token_id in text.vocabulary.items() if token_id >= rows}
    if text.tokenizer is None or not excess:
        return
    last = max(excess)
    if excess.keys() <= text.tokenizer.get_added_tokens_decoder().keys():
        more = f" and {len(excess) - 1} more are" if len(excess) > 1 else " is"
        warn_caller(
            f"load: the ids of added tokens should be in [0, {rows}), the model's vocabulary, but "
            f"{last} ({quoted(excess[last])}){more} not. A prompt with such a token is refused."
        )
        return
    raise CheckpointError(
        f"load: the tokenizer's ids must be in [0, {rows}), the model's vocabulary, but {last} is "
        f"not. The model has a vocabulary of {rows} tokens, the tokenizer one of "
        f"{len(set(text.vocabulary.values()))}."
    )
