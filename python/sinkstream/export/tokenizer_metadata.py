"""Writes a Hugging Face folder's tokenizer and chat template as GGUF metadata.

The tokenizer that the metadata describes is built, and must give the same ids for texts that
distinguish tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, warn_caller
from sinkstream.text.tokenizers.from_gguf import text_format_from_gguf
from sinkstream.text.tokenizers.pre_tokenizers import GPT2_SPLIT, SINGLE_DIGITS, name_of
from sinkstream.text.tokenizers.vocabulary_kinds import SPACE, ranked_merges

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_MORE_ENDS = ("eot_token_id", "eom_token_id")
_CONVERTER = "Convert the folder with llama.cpp's convert_hf_to_gguf.py."

# Contractions, digits, case, spaces and line ends, accents in both forms, scripts, signs, emoji.
_TEXTS = (
    "Hello, world!  It's 12345 o'clock; WE'LL see y'all at 3.14159\n\n\tdon't — ",
    " leading, trailing  \n  \r\n x=fn(a,b)->[1,2];//ok\n\n\n",
    "Ça déjà vu naïve cafe\u0301 Ångström A\u030a ﬁ Ⅳ ½ ²",
    "日本語のテスト。한국어 시험 中文测试，繁體 ไทย हिन्दी עברית العربية ΑΒΓ абв",
    "👩‍👩‍👧 🇫🇷 ❤️ \u200d\u00a0\u3000\u2028 \x00\x07\ufeff~`^$+<=>|",
    "aaaaaaaaaaaaaaaa        bbbb 1000000000 0x7FFF camelCaseHTTPServer2x",
)


def tokenizer_metadata(text: TextFormat, rows: int) -> dict[str, Any]:
    """Return the metadata of a folder's text format: all keys that begin with `tokenizer.`.

    Args:
        text: From `text_format_from_folder`.
        rows: The rows of the embedding; ids without a token are filled up to this number.

    Raises:
        CheckpointError: GGUF has no name for the tokenizer's rules, or would give different ids.
    """
    found: dict[str, Any] = {}
    if text.chat_template is not None:
        found["tokenizer.chat_template"] = text.chat_template
    if text.tokenizer is None:
        return found | {"tokenizer.ggml.model": "none"}
    state = json.loads(text.tokenizer.to_str())
    tokens, kinds = _tokens(state, rows)
    found |= _rules(state, tokens, kinds)
    found["tokenizer.ggml.tokens"] = tokens
    found["tokenizer.ggml.token_type"] = kinds
    found |= _named(text, rows)
    found["tokenizer.ggml.add_bos_token"] = text.add_bos
    _check(text, found)
    return found


def _tokens(state: Mapping[str, Any], rows: int) -> tuple[list[str], list[int]]:
    """Return every token and its type, by id; missing ones become tokens that occur in no text."""
    vocabulary = state["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        raise _refusal("have merges (BPE)", quoted(state["model"].get("type")))
    tokens = [f"[PAD{token_id}]" for token_id in range(rows)]
    kinds = [_UNUSED] * rows
    for token, token_id in vocabulary.items():
        if token_id < rows:
            tokens[token_id], kinds[token_id] = token, _NORMAL
    flagged = []
    for added in state["added_tokens"]:
        token_id = added["id"]
        if token_id < rows:
            tokens[token_id] = added["content"]
            kinds[token_id] = _CONTROL if added["special"] else _USER_DEFINED
        if any(added[flag] for flag in ("single_word", "lstrip", "rstrip")):
            flagged.append(added["content"])
    if flagged:
        more = f" and {len(flagged) - 1} more have" if len(flagged) > 1 else " has"
        warn_caller(
            "quantize: added tokens should not have the flags `single_word`, `lstrip` or `rstrip`, "
            f"which GGUF lacks, but {quoted(flagged[0])}{more} one. Spaces next to such a token "
            "may change the ids."
        )
    return tokens, kinds


def _rules(state: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> dict[str, Any]:
    """Return the kind of tokenizer and what it needs; mark byte and unknown tokens."""
    model = state["model"]
    if model["type"] != "BPE":
        raise _refusal("have merges (BPE)", quoted(model["type"]))
    merges = [(left, right) for left, right in model["merges"]]
    if model.get("byte_fallback"):
        return _scores(state, tokens, kinds, merges)
    splits = _splits(state["pre_tokenizer"])
    normalizer = (state["normalizer"] or {}).get("type")
    name = None
    if splits is not None and normalizer in (None, "NFC"):
        name = name_of(
            splits,
            whole_words=bool(model.get("ignore_merges")),
            composed=normalizer == "NFC",
        )
    if name is None:
        rules = {key: state[key] for key in ("normalizer", "pre_tokenizer")}
        raise _refusal("have a pre-tokenizer that GGUF has a name for", quoted(json.dumps(rules)))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
    }


def _splits(step: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """Return the expressions of a byte-level pre-tokenizer; None if it is a different kind."""
    steps = step["pretokenizers"] if step and step["type"] == "Sequence" else [step or {}]
    splits: list[str] = []
    for number, part in enumerate(steps):
        is_last = number == len(steps) - 1
        if part.get("type") == "ByteLevel" and is_last and not part["add_prefix_space"]:
            return (*splits, GPT2_SPLIT) if part.get("use_regex", True) else tuple(splits)
        if part.get("type") == "Digits" and part["individual_digits"]:
            splits.append(SINGLE_DIGITS)
        elif part.get("type") == "Split" and "Regex" in part["pattern"] and _isolates(part):
            splits.append(part["pattern"]["Regex"])
        else:
            return None
    return None


def _isolates(split: Mapping[str, Any]) -> bool:
    """Return whether every match becomes a word of its own, and so does the text in between."""
    return split["behavior"] == "Isolated" and not split["invert"]


def _scores(
    state: Mapping[str, Any], tokens: list[str], kinds: list[int], merges: list[tuple[str, str]]
) -> dict[str, Any]:
    """Return a SentencePiece vocabulary: pieces with scores, which give the merges and their order.

    tokenizer.json has merges and no scores, in the order of their pieces' scores.
    """
    for token_id, token in enumerate(tokens):
        if kinds[token_id] == _NORMAL and _is_byte(token):
            kinds[token_id] = _BYTE
    unknown = state["model"].get("unk_token")
    if unknown is not None:
        kinds[tokens.index(unknown)] = _UNKNOWN
    ordinary = [token_id for token_id, kind in enumerate(kinds) if kind == _NORMAL]
    ranks = _ranks(["".join(pair) for pair in merges])
    scores = [-float(ranks.get(token, len(ranks) + i)) for i, token in enumerate(tokens)]
    found = ranked_merges(tokens, ordinary, scores)
    same_merges = set(found) == set(merges)
    if not same_merges or [ranks[a + b] for a, b in found] != [ranks[a + b] for a, b in merges]:
        raise _refusal("have merges that follow from the scores of its pieces", "other merges")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.add_space_prefix": _adds_space(state),
    }


def _ranks(pieces: list[str]) -> dict[str, int]:
    """Return the rank of every piece that merges make, in their order.

    Pieces whose merges are mixed with each other had the same score: they have the same rank.
    """
    last = {piece: index for index, piece in enumerate(pieces)}
    ranks: dict[str, int] = {}
    rank, end = -1, -1
    for index, piece in enumerate(pieces):
        if piece not in ranks:
            rank += index > end
            ranks[piece] = rank
            end = max(end, last[piece])
    return ranks


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def _adds_space(state: Mapping[str, Any]) -> bool:
    """Return whether a text gets a space in front; `_check` finds out if this is all."""
    normalizer, splitter = state["normalizer"] or {}, state["pre_tokenizer"] or {}
    if splitter.get("type") == "Metaspace":
        return bool(splitter.get("prepend_scheme", "always") != "never")
    steps = normalizer.get("normalizers", [normalizer])
    return any(step.get("type") == "Prepend" and step["prepend"] == SPACE for step in steps)


def _named(text: TextFormat, rows: int) -> dict[str, Any]:
    """Return the tokens that GGUF names: those with roles, and the ends of a turn."""
    assert text.tokenizer is not None
    found = {}
    for role, key in _ROLES.items():
        token = text.special_tokens.get(role)
        token_id = None if token is None else text.tokenizer.token_to_id(token)
        if token_id is not None and token_id < rows:
            found[f"tokenizer.ggml.{key}"] = token_id
    if text.bos_token_id is not None:
        found["tokenizer.ggml.bos_token_id"] = text.bos_token_id
    ends = sorted(text.end_token_ids - {found.get("tokenizer.ggml.eos_token_id")})
    if ends and "tokenizer.ggml.eos_token_id" not in found:
        found["tokenizer.ggml.eos_token_id"] = ends.pop(0)
    found |= {f"tokenizer.ggml.{key}": end for key, end in zip(_MORE_ENDS, ends, strict=False)}
    return found


def _check(text: TextFormat, metadata: Mapping[str, Any]) -> None:
    """Check that the metadata's tokenizer gives the same ids as the folder's."""
    read = text_format_from_gguf(metadata)
    assert read.tokenizer is not None
    assert text.tokenizer is not None
    for sample in _TEXTS:
        if metadata["tokenizer.ggml.model"] == "llama":
            sample = sample.lstrip()  # SentencePiece adds a space to one that is there already
        ours = text.tokenizer.encode(sample, add_special_tokens=False).ids
        theirs = read.tokenizer.encode(sample, add_special_tokens=False).ids
        if ours != theirs:
            rule = f"split {quoted(sample)} in the same way after the conversion"
            raise _refusal(rule, "would not")
    lost = text.end_token_ids - read.end_token_ids
    if lost:
        token = text.tokenizer.id_to_token(min(lost))
        warn_caller(
            "quantize: a GGUF file can name three tokens that end a turn, but the folder names "
            f"more; {quoted(token)} will not end a turn."
        )


def _refusal(rule: str, found: str) -> CheckpointError:
    return CheckpointError(
        f"quantize: to be written as GGUF, the tokenizer must {rule}, but {_found(found)}. "
        f"{_CONVERTER}"
    )


def _found(found: str) -> str:
    return found if found.startswith("would") else f"has {found}"
