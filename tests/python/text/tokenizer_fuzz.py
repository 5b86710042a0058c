"""Random tokenizer files of Hugging Face folders, read here and by transformers' AutoTokenizer.

`python -m tests.python.text.tokenizer_fuzz --cases 10000` draws that many. A case fails if the two
give different ids, special tokens or texts, and no error says so; a warning does not excuse it.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.text.chat_format import ChatFormat
from sinkstream.text.messages import check_messages
from sinkstream.text.plain_text import PlainEncoder
from sinkstream.text.tokenizers.from_folder import text_format_from_folder
from sinkstream.text.tokenizers.token_bytes import decode_bytes, token_bytes
from tests.data.tiny_tokenizer import TinyTokenizer
from tests.python.text import vocabularies

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "image_token")
# Names for tokens: of the vocabulary, of tokenizer.json, of neither; longer and shorter ones.
_NAMES = (
    "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|turn|>", "<|turn", "turn|>", "</s>", "<s>",
    "<unk>", "[EOT]", "word", "tool", "<think>", "<a b>", "café", "日本", "Ġx", "the",
    "<|im_end|>\n", "\n", " x", "ß|", "",
)  # fmt: skip
_WORDS = (
    " ", "  ", "\n", "\n\n", "\t", "\u00a0", "\u3000", "\x1c", "a", "the", "sink", "é", "e\u0301",
    "日本", "🎉", "_", "1", "12", "<", "|", "'s", "\u0301", "Ⅷ", ".", "naïve", "ß",
)  # fmt: skip


@lru_cache(maxsize=4)
def _base(kind: str) -> str:
    """Return a tokenizer.json without added tokens other than the model's own."""
    if kind in ("smollm", "qwen2"):
        return TinyTokenizer(kind).build().to_str()
    found = vocabularies.FAMILIES[kind]().tokenizer
    assert found is not None
    return found.to_str()


_KINDS = ("smollm", "qwen2", "metaspace_first", "sentencepiece", "sentencepiece_without_prefix")


def draw_flags(draw: random.Random) -> dict[str, bool]:
    """Draw the flags of an added token; most are false."""
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    odds = (0.15, 0.2, 0.2, 0.2, 0.6)
    return {name: draw.random() < chance for name, chance in zip(names, odds, strict=True)}


def draw_token(draw: random.Random, name: str | None = None) -> Any:
    """Draw a token as the files write it: a string, or an object."""
    name = draw.choice(_NAMES) if name is None else name
    if draw.random() < 0.6:
        return name
    return {"__type": "AddedToken", "content": name, **draw_flags(draw)}


def draw_roles(draw: random.Random, *, typed: bool) -> dict[str, Any]:
    """Draw `bos_token`, `eos_token`, … and the lists of further special tokens."""
    found: dict[str, Any] = {}
    for role in _ROLES:
        if draw.random() < 0.35:
            token = draw.choice((None, draw_token(draw), draw_token(draw), draw_token(draw)))
            if isinstance(token, dict) and not typed:
                token = {name: value for name, value in token.items() if name != "__type"}
            found[role] = token
    for name in ("additional_special_tokens", "extra_special_tokens"):
        if draw.random() < 0.2:
            found[name] = draw.sample(_NAMES, draw.randint(0, 3))
    if draw.random() < 0.1:
        names = draw.sample(_NAMES, 2)
        found["extra_special_tokens"] = dict(
            zip(("image_token", "audio_token"), names, strict=True)
        )
    return dict(draw.sample(list(found.items()), len(found)))


def write_folder(folder: Path, draw: random.Random) -> None:
    """Write a folder's files; each but tokenizer.json and config.json may be absent."""
    for path in folder.iterdir():
        path.unlink()
    tokenizer = Tokenizer.from_str(_base(draw.choice(_KINDS)))
    for name in draw.sample(_NAMES, draw.choice((0, 0, 1, 2, 4))):
        tokenizer.add_tokens([AddedToken(name, **draw_flags(draw))])
    if draw.random() < 0.05:
        tokenizer.enable_padding(pad_token=draw.choice(_NAMES))
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    size = tokenizer.get_vocab_size()

    def ids() -> Any:
        return draw.choice((None, draw.randrange(size + 2), draw.sample(range(size), 2)))

    config = {"model_type": draw.choice(("llama", "qwen3")), "eos_token_id": ids()}
    (folder / "config.json").write_text(json.dumps(config | {"bos_token_id": draw.randrange(size)}))
    if draw.random() < 0.3:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids()}))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if draw.random() < 0.85:
        settings |= draw_roles(draw, typed=draw.random() < 0.9)
        if draw.random() < 0.1:
            settings["add_bos_token"] = draw.random() < 0.5
        if draw.random() < 0.35:
            names = draw.sample(_NAMES[:-1], draw.randint(0, 4))
            numbers = draw.sample(range(size + 4), len(names))
            settings["added_tokens_decoder"] = {
                str(draw.choice((tokenizer.token_to_id(name), number)) or number): {
                    "content": name,
                    **draw_flags(draw),
                }
                for name, number in zip(names, numbers, strict=True)
            }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if draw.random() < 0.5:
        (folder / "special_tokens_map.json").write_text(json.dumps(draw_roles(draw, typed=False)))
    if draw.random() < 0.3:
        names = draw.sample(_NAMES[:-1], draw.randint(1, 3))
        added = {name: size + i for i, name in enumerate(names)}
        (folder / "added_tokens.json").write_text(json.dumps(added))


def draw_text(draw: random.Random, tokens: Sequence[str]) -> str:
    """Draw a text with some of these tokens."""
    words = (*_WORDS, *(draw.choice(tokens) for _ in range(12))) if tokens else _WORDS
    return "".join(draw.choice(words) for _ in range(draw.choice((0, 1, 3, 8))))


def _written(text: TextFormat, said: str) -> list[int]:
    """Return the ids of a text that a chat template writes."""
    assert text.tokenizer is not None
    source = f"{{{{ {json.dumps(said, ensure_ascii=False)} }}}}"
    chat = ChatFormat(text, text.tokenizer, source)
    return chat.encode_whole(check_messages([{"role": "user", "content": ""}]), True)


def difference(folder: Path, draw: random.Random) -> str | None:
    """Compare a folder; return the difference, "", or None if one side refuses it."""
    write_folder(folder, draw)
    config = json.loads((folder / "config.json").read_text())
    try:
        ours = text_format_from_folder(folder, config)
    except CheckpointError:
        return None
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
    except Exception:  # its checks raise anything
        return None
    base = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if ours.tokenizer is None:
        return "no tokenizer"
    return _tokens_difference(ours, theirs, base) or _texts_difference(ours, theirs, draw)


def _tokens_difference(ours: TextFormat, theirs: Any, base: Tokenizer) -> str:
    assert ours.tokenizer is not None
    mine = ours.tokenizer.get_added_tokens_decoder()
    other = theirs.backend_tokenizer.get_added_tokens_decoder()
    # `tokenizers` does not show what was special once, whatever another file says.
    special = {token.content for token in base.get_added_tokens_decoder().values() if token.special}
    marked = ours.end_token_ids | {ours.bos_token_id}
    for token_id in {*mine, *other}:
        a, b = mine.get(token_id), other.get(token_id)
        if a is None or b is None or a.content != b.content:
            return f"token {token_id} is {a}, not {b}"
        wanted = copy.copy(b.__getstate__())
        wanted["special"] = b.special or token_id in marked or b.content in special
        if a.__getstate__() != wanted:
            return f"token {token_id} is {a}, not {b}"
    roles = theirs.special_tokens_map
    if dict(ours.special_tokens) != roles:
        return f"roles are {ours.special_tokens}, not {roles}"
    eos = roles.get("eos_token")
    if eos and theirs.eos_token_id not in ours.end_token_ids:
        return f"the end tokens {ours.end_token_ids} lack {theirs.eos_token_id}"
    return ""


def _texts_difference(ours: TextFormat, theirs: Any, draw: random.Random) -> str:
    assert ours.tokenizer is not None
    added = ours.tokenizer.get_added_tokens_decoder().values()
    plain = [token.content for token in added if not token.special]
    special = [token.content for token in added if token.special and token.content]
    for _ in range(3):
        text = draw_text(draw, plain)
        if not any(content in text for content in special):
            mine = ours.bos_ids + (_or_none(PlainEncoder(ours.tokenizer).encode, text) or [])
            wanted = _or_none(theirs.encode, text)
            if wanted is not None and mine != wanted:
                return f"{text!r} is {mine}, not {wanted}"
        text = draw_text(draw, plain + special * 3)
        if text:
            written = _or_none(partial(_written, ours), text)
            wanted = _or_none(partial(theirs.encode, add_special_tokens=False), text)
            if None not in (written, wanted) and written != wanted:
                return f"a template's {text!r} is {written}, not {wanted}"
    return _decoding_difference(ours, theirs, draw)


def _decoding_difference(ours: TextFormat, theirs: Any, draw: random.Random) -> str:
    assert ours.tokenizer is not None
    size = ours.tokenizer.get_vocab_size()
    table = token_bytes(ours.tokenizer, size)
    hidden = ours.end_token_ids | {ours.bos_token_id}  # these are never shown here
    for _ in range(3):
        ids = [draw.randrange(size) for _ in range(draw.choice((1, 2, 5)))]
        if any(i in hidden or _reads_otherwise(ours.tokenizer, i) for i in ids):
            continue
        shown = decode_bytes(table, ids).decode("utf-8", "replace")
        if shown != (wanted := theirs.decode(ids, skip_special_tokens=True)):
            return f"the ids {ids} are {shown!r}, not {wanted!r}"
    return ""


def _or_none(encode: Callable[[str], list[int]], text: str) -> list[int] | None:
    """Return ids, or None if the tokenizer fails on the text (or `tokenizers` panics)."""
    try:
        return encode(text)
    except (InvalidArgument, CheckpointError):
        return None
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # it cannot be imported
            return None
        raise


def _reads_otherwise(tokenizer: Tokenizer, token_id: int) -> bool:
    """Return whether a token's own text differs from what `tokenizers` shows, deliberately."""
    token = tokenizer.get_added_tokens_decoder().get(token_id)
    if token is not None:
        return not token.content.isascii() or (token.special and token.normalized)
    return (tokenizer.id_to_token(token_id) or "").startswith("<0x")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read random folders; return 1 if a difference is silent."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in range(options.seed, options.seed + options.cases):
            said = difference(Path(root), random.Random(case))
            counts["refused" if said is None else "different" if said else "equal"] += 1
            if said:
                print(f"case {case}: {said}")
    print(dict(sorted(counts.items())))
    return int(counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
