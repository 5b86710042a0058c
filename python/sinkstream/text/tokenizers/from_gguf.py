"""Builds the text format of a checkpoint from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import ne
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, warn_caller
from sinkstream.text.tokenizers.pre_tokenizers import pre_tokenizer
from sinkstream.text.tokenizers.vocabulary_kinds import (
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    space_symbol_tokenizer,
)

# `tokenizer.ggml.token_type`
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6

_NO_TOKENIZER = ("no_vocab", "none")

# GGUF names one end token, but many models have several: these, whatever type the file gives them.
# llama.cpp's list, without tokens of code completion, and GLM's.
_END_TEXTS = frozenset({
    "</s>", "<EOT>", "_<EOT>", "<end_of_turn>", "<end_of_utterance>", "<eos>", "<turn|>", "[EOS]",
    "[EOT]", "[e~[", "<|call|>", "<|calls|>", "<|end_of_text|>", "<|end|>", "<|endoftext|>",
    "<|eom_id|>", "<|eot_id|>", "<|flush|>", "<|im_end|>", "<|observation|>", "<|return|>",
    "<|tool_response>", "<|user|>", "<｜end▁of▁sentence｜>",
})  # fmt: skip
# In a vocabulary with all tokens on the left, those on the right do not end a turn: `<|end|>` ends
# a message, and `</s>` is HTML.
_NO_ENDS = (
    ({"<|return|>", "<|call|>"}, "<|end|>"),
    ({"<|flush|>", "<|call|>"}, "<|end|>"),
    ({"<|flush|>", "<|calls|>"}, "<|end|>"),
    ({"<|tool_response>"}, "</s>"),
    ({"<|plamo:eos|>"}, "</s>"),
)
_HTML = frozenset({"</s>"})  # a word of many vocabularies, unless it is marked as a control token
# What a message must not contain either: these begin a turn.
_START_TEXTS = frozenset({
    "<start_of_turn>", "<|assistant|>", "<|end_header_id|>", "<|im_start|>", "<|start_header_id|>",
    "<|system|>", "<|turn>",
})  # fmt: skip

_ROLES = {  # name in chat templates -> name in GGUF
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
}


def text_format_from_gguf(metadata: Mapping[str, Any]) -> TextFormat:
    """Build a GGUF file's tokenizer, and read its chat template and special tokens.

    Args:
        metadata: GGUF keys and values; arrays as sequences.

    Returns:
        The text format; its tokenizer is None if the file has none.

    Raises:
        CheckpointError: The metadata is inconsistent, or names an unsupported tokenizer or
            pre-tokenizer; the message lists the supported ones.
    """
    template = Fields(metadata, "GGUF metadata", "tokenizer.")
    chat_template = template.word("chat_template") if template.has("chat_template") else None
    named = [name for name in template.names() if name.startswith("chat_template.")]
    if chat_template is None and named:
        warn_caller(
            f"load: GGUF metadata should have `tokenizer.chat_template`, but has only "
            f"`tokenizer.{named[0]}`. The model is loaded without a chat template."
        )
    fields = Fields(metadata, "GGUF metadata", "tokenizer.ggml.")
    build = _builder_of(fields)
    if build is None:
        return TextFormat(None, chat_template)
    return build(_Vocabulary(metadata, fields), chat_template)


def check_tokenizer(metadata: Mapping[str, Any]) -> None:
    """Check that a file's tokenizer and pre-tokenizer are known, without building them.

    Raises what `text_format_from_gguf` does.
    """
    fields = Fields(metadata, "GGUF metadata", "tokenizer.ggml.")
    if _builder_of(fields) is _from_byte_level:
        pre_tokenizer(fields.word("pre", "default"))


def _builder_of(fields: Fields) -> _Builder | None:
    """Return what builds a file's tokenizer; None if it has none."""
    if not fields.has("model") or fields.word("model") in _NO_TOKENIZER:
        return None
    build = _BUILDERS.get(fields.word("model"))
    if build is None:
        raise CheckpointError(
            f"load: GGUF metadata has the tokenizer model {quoted(fields.word('model'))}; "
            f"the supported ones are {', '.join(sorted([*_BUILDERS, *_NO_TOKENIZER]))}."
        )
    return build


class _Vocabulary:
    """The tokens of a file and their types, checked."""

    def __init__(self, metadata: Mapping[str, Any], fields: Fields) -> None:
        self.fields = fields
        self._metadata = metadata
        self.tokens = self.strings("tokens")
        count = len(self.tokens)
        self.kinds = self.numbers("token_type") if fields.has("token_type") else [_NORMAL] * count
        # The few that are not normal, so that the full list is searched only once.
        self._others = [(i, kind) for i, kind in enumerate(self.kinds) if kind != _NORMAL]
        # Unused ids pad the vocabulary to a round number; their texts do not count. Nor do empty
        # ones, of which there may be several.
        unused = {token_id for token_id, kind in self._others if kind == _UNUSED}
        self.ids = dict(zip(self.tokens, range(count), strict=True))
        if "" in self.ids:
            unused.update(token_id for token_id, token in enumerate(self.tokens) if not token)
        if unused:
            self.ids = {t: i for i, t in enumerate(self.tokens) if i not in unused}
        if len(self.ids) + len(unused) != count:
            raise self._repeated()

    def strings(self, name: str) -> list[str]:
        """Return an array of strings, which is required."""
        found = self._array(name, "strings")
        if set(map(type, found)) - {str}:
            wrong = next((i for i, value in enumerate(found) if not isinstance(value, str)), None)
            if wrong is not None:
                raise self._wrong_entry(name, wrong, "a string", found[wrong])
        return found

    def numbers(self, name: str) -> list[float]:
        """Return an array of numbers, one for each token, which is required."""
        found = self._array(name, "numbers")
        if len(found) != len(self.tokens):
            raise CheckpointError(
                f"load: GGUF metadata: `tokenizer.ggml.{name}` must have one entry for each of "
                f"the {len(self.tokens)} tokens, but has {len(found)}."
            )
        # NaN (the only value unlike itself) cannot be ordered.
        if set(map(type, found)) - {int, float} or any(map(ne, found, found)):
            wrong = (i for i, x in enumerate(found) if not isinstance(x, int | float) or x != x)
            if (index := next(wrong, None)) is not None:
                raise self._wrong_entry(name, index, "a number", found[index])
        return found

    def ordinary(self) -> list[int]:
        """Return the ids of the tokens of ordinary text, in order."""
        kinds = enumerate(self.kinds)
        return [token_id for token_id, kind in kinds if kind == _NORMAL and self.tokens[token_id]]

    def of_kind(self, *kinds: int) -> list[str]:
        """Return the tokens of these kinds (never the normal one), in the order of their ids."""
        tokens = (self.tokens[token_id] for token_id, kind in self._others if kind in kinds)
        return [token for token in tokens if token]

    def words(self, control: Collection[str]) -> frozenset[str]:
        """Return tokens that look like control tokens, but are words of ordinary text."""
        texts = (_END_TEXTS | _START_TEXTS).difference(control)
        seeming = frozenset(token for token in texts if token in self.ids)
        found = seeming & _HTML
        if normal := {token for token in seeming if self.kinds[self.ids[token]] == _NORMAL}:
            merges = self._metadata.get("tokenizer.ggml.merges", ())
            wholes = (merge.replace(" ", "", 1) for merge in merges if isinstance(merge, str))
            found |= normal.intersection(wholes)
        return found

    def named(self, name: str, default: int | None = None) -> int | None:
        """Return the id that a key names; otherwise the default, if that is a token."""
        if not self.fields.has(name):
            return default if default is not None and default < len(self.tokens) else None
        token_id = self.fields.value(name)
        count = len(self.tokens)
        if type(token_id) is int and 0 <= token_id < count and self.kinds[token_id] != _UNUSED:
            return token_id
        self.fields.warn(name, f"be one of the {len(self.ids)} used tokens", "It is ignored.")
        return default if default is not None and default < count else None

    def _array(self, name: str, of: str) -> list[Any]:
        values = self._metadata.get(f"tokenizer.ggml.{name}")
        if values is None or isinstance(values, str | bytes) or not hasattr(values, "__len__"):
            raise self.fields.error(name, f"be an array of {of}")
        found: list[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
        return found

    def _wrong_entry(self, name: str, index: int, rule: str, value: Any) -> CheckpointError:
        return CheckpointError(
            f"load: GGUF metadata: entry {index} of `tokenizer.ggml.{name}` must be {rule}, "
            f"but is {quoted(value)}."
        )

    def _repeated(self) -> CheckpointError:
        first: dict[str, int] = {}
        for token_id, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True)):
            if kind != _UNUSED and token and first.setdefault(token, token_id) != token_id:
                break
        return CheckpointError(
            f"load: GGUF metadata: `tokenizer.ggml.tokens` must not repeat a token, but entries "
            f"{first[token]} and {token_id} are both {quoted(token)}."
        )


def _from_byte_level(vocabulary: _Vocabulary, chat_template: str | None) -> TextFormat:
    fields = vocabulary.fields
    rule = pre_tokenizer(fields.word("pre", "default"))
    tokenizer = byte_level_tokenizer(vocabulary.ids, vocabulary.strings("merges"), rule)
    add_bos = fields.flag("add_bos_token", rule.adds_bos and fields.has("bos_token_id"))
    return _finish(vocabulary, tokenizer, chat_template, add_bos, {})


def _from_sentencepiece(vocabulary: _Vocabulary, chat_template: str | None) -> TextFormat:
    fields = vocabulary.fields
    unknown = vocabulary.of_kind(_UNKNOWN)
    tokenizer = sentencepiece_tokenizer(
        vocabulary.ids,
        vocabulary.tokens,
        vocabulary.ordinary(),
        vocabulary.numbers("scores"),
        unknown=unknown[0] if unknown else None,
        add_space_prefix=fields.flag("add_space_prefix", True),
    )
    add_bos = fields.flag("add_bos_token", True)
    # SentencePiece's own ids, which old files leave out.
    defaults = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return _finish(vocabulary, tokenizer, chat_template, add_bos, defaults)


_Builder = Callable[[_Vocabulary, str | None], TextFormat]


def _from_gemma4(vocabulary: _Vocabulary, chat_template: str | None) -> TextFormat:
    unknown = vocabulary.named("unknown_token_id")
    tokenizer = space_symbol_tokenizer(
        vocabulary.ids,
        vocabulary.strings("merges"),
        unknown=None if unknown is None else vocabulary.tokens[unknown],
    )
    # As in llama.cpp, whatever `add_bos_token` says: early files say false by mistake.
    return _finish(vocabulary, tokenizer, chat_template, vocabulary.fields.has("bos_token_id"), {})


_BUILDERS: dict[str, _Builder] = {
    "gemma4": _from_gemma4,
    "gpt2": _from_byte_level,
    "llama": _from_sentencepiece,
}


def _finish(
    vocabulary: _Vocabulary,
    tokenizer: Tokenizer,
    chat_template: str | None,
    add_bos: bool,
    defaults: Mapping[str, int],
) -> TextFormat:
    """Add the special tokens to a tokenizer, and find which of them start and end a text."""
    roles = {
        role: token_id
        for role, key in _ROLES.items()
        if (token_id := vocabulary.named(key, defaults.get(key))) is not None
    }
    bos = roles.get("bos_token")
    if bos is None and vocabulary.fields.has("bos_token_id"):  # named, but not a token
        add_bos = False
    if add_bos and bos is None:
        raise vocabulary.fields.error(
            "bos_token_id", "be present if `tokenizer.ggml.add_bos_token` is true"
        )
    control = set(vocabulary.of_kind(_CONTROL, _UNKNOWN))
    declared = [roles.get("eos_token"), *map(vocabulary.named, ("eot_token_id", "eom_token_id"))]
    end_texts = _end_texts(vocabulary.ids)
    by_text = (end_texts | (_START_TEXTS & vocabulary.ids.keys())) - vocabulary.words(control)
    ends = {vocabulary.ids[token] for token in end_texts & by_text}
    ends.update(token_id for token_id in declared if token_id is not None)
    _warn_of_types(by_text - control - {vocabulary.tokens[i] for i in declared if i is not None})
    control |= by_text
    # A file may not mark them, but a token that starts or ends a text is never shown.
    control.update(
        vocabulary.tokens[token_id] for token_id in [*ends, *([] if bos is None else [bos])]
    )
    control.discard("")
    _add_tokens(tokenizer, sorted(control, key=vocabulary.ids.__getitem__), special=True)
    text_tokens = [token for token in vocabulary.of_kind(_USER_DEFINED) if token not in control]
    _add_tokens(tokenizer, text_tokens, special=False)
    if add_bos and bos is not None:
        token = vocabulary.tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[token, "$A"], special_tokens=[(token, bos)]
        )
    return TextFormat(
        tokenizer,
        chat_template,
        bos_token_id=bos,
        add_bos=add_bos,
        end_token_ids=frozenset(ends),
        special_tokens={role: vocabulary.tokens[token_id] for role, token_id in roles.items()},
        vocabulary=vocabulary.ids,
    )


def _end_texts(vocabulary: Collection[str]) -> set[str]:
    """Return the tokens of a vocabulary that end a turn by their texts."""
    found = {token for token in _END_TEXTS if token in vocabulary}
    return found - {no_end for tokens, no_end in _NO_ENDS if all(t in vocabulary for t in tokens)}


def _warn_of_types(tokens: Collection[str]) -> None:
    if tokens:
        listed = ", ".join(map(quoted, sorted(tokens)))
        control = "a control token (3)" if len(tokens) == 1 else "control tokens (3)"
        warn_caller(
            f"load: GGUF metadata: `tokenizer.ggml.token_type` must mark {listed} as {control}, "
            f"but does not. The model is loaded as if it did."
        )


def _add_tokens(tokenizer: Tokenizer, tokens: Sequence[str], *, special: bool) -> None:
    """Add tokens that are matched as a unit, before any other processing of a text."""
    added = [AddedToken(token, special=special, normalized=False) for token in tokens]
    if special:
        tokenizer.add_special_tokens(added)
    else:
        tokenizer.add_tokens(added)
