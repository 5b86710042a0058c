"""SentencePiece-style tokenizers equal a literal implementation of SentencePiece."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sinkstream
from sinkstream.errors import CheckpointError
from sinkstream.text.tokenizers import vocabulary_kinds
from sinkstream.text.tokenizers.vocabulary_kinds import SPACE, ranked_merges
from tests.data import tiny
from tests.python.lanes import examples
from tests.python.text import vocabularies
from tests.python.text.vocabularies import NORMAL, PROSE

METADATA = vocabularies.sentencepiece_metadata()
TOKENS: list[str] = METADATA["tokenizer.ggml.tokens"]
KINDS: list[int] = METADATA["tokenizer.ggml.token_type"]
SCORES = {
    token: score
    for token, kind, score in zip(TOKENS, KINDS, METADATA["tokenizer.ggml.scores"], strict=True)
    if kind == NORMAL
}
IDS = {token: i for i, token in enumerate(TOKENS)}


def reference(text: str, add_space_prefix: bool = True) -> list[int]:
    """Encode as SentencePiece defines it: always merge the pair with the best score."""
    symbols = list(((" " if add_space_prefix else "") + text).replace(" ", SPACE))
    while True:
        pairs = [
            (-SCORES[left + right], i)
            for i, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in SCORES
        ]
        if not pairs:
            break
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    ids: list[int] = []
    for symbol in symbols:
        if symbol in SCORES:
            ids.append(IDS[symbol])
        else:
            ids += [IDS[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return ids


def encode(text: str) -> list[int]:
    tokenizer = vocabularies.sentencepiece().tokenizer
    assert tokenizer is not None
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize(
    "text", ["a", " a", "  two  spaces ", "The sea.\nThe ship", "日本語🎉 x", "\t\x00", "aaaaaaaaa"]
)
def test_a_text_equals_the_reference(text: str) -> None:
    assert encode(text) == reference(text)


def test_prose_equals_the_reference() -> None:
    for begin in range(0, 8000, 400):
        assert encode(PROSE[begin : begin + 400]) == reference(PROSE[begin : begin + 400])


@examples(300)
@given(st.lists(st.one_of(st.text(max_size=4), st.sampled_from(sorted(SCORES)))).map("".join))
def test_any_text_equals_the_reference(text: str) -> None:
    text = text.replace("<s>", "").replace("</s>", "").replace("<unk>", "")
    if text:
        assert encode(text) == reference(text)


def test_a_text_may_be_taken_without_a_space_before_it() -> None:
    tokenizer = vocabularies.sentencepiece_without_prefix().tokenizer
    assert tokenizer is not None
    for text in ("the sea", " the sea", ""):
        assert tokenizer.encode(text, add_special_tokens=False).ids == reference(text, False)


def test_runs_of_one_letter_merge_from_the_left() -> None:
    pieces = ["a", "aa", "aaa", "aaaa", "aaaaaaa"]
    merges = ranked_merges(pieces, list(range(5)), [-9.0, 0.0, -1.0, -2.0, -3.0])
    assert merges[:3] == [("a", "a"), ("aa", "a"), ("a", "aa")]
    assert ("aaaa", "aaa") in merges


def test_control_and_byte_pieces_are_never_merged_into() -> None:
    letters = ["<", "/", "s", ">", "0", "x", "A"]
    tokens = [*TOKENS[:259], *letters, "</", "s>", "0x", "0xA", "A</s>"]
    merges = ranked_merges(tokens, list(range(259, len(tokens))), [0.0] * len(tokens))
    # No merge makes "</s>" or "<0x0A>", which are tokens too, or uses them.
    assert set(merges) == {("<", "/"), ("s", ">"), ("0", "x"), ("0x", "A")}


def merges_of(*pieces: str) -> list[tuple[str, str]]:
    return ranked_merges(list(pieces), list(range(len(pieces))), [0.0] * len(pieces))


def test_a_piece_has_a_limit() -> None:
    most = vocabulary_kinds.MAX_PIECE_CHARACTERS
    assert most == 1024
    assert merges_of("a", "ä" * most) == []
    sentence = rf"must have at most 1024 characters, but \"a{{99}}…\" has {most + 1}\."
    with pytest.raises(CheckpointError, match=sentence):
        merges_of("b", "a" * (most + 1))


def test_the_pieces_have_a_limit_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_kinds, "MAX_CHARACTERS", 6)
    assert merges_of("a", "b", "ab", "ba") == [("a", "b"), ("b", "a")]
    with pytest.raises(CheckpointError, match="at most 6 characters in total, but have 7"):
        merges_of("a", "b", "ab", "bab")


def test_the_merges_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_kinds, "MAX_MERGES", 3)
    assert len(merges_of("a", "aa", "aaa")) == 3
    with pytest.raises(CheckpointError, match="must have at most 3 merges, but have more"):
        merges_of("a", "aa", "aaa", "aaaa")


def test_a_file_without_ids_has_sentencepieces_own() -> None:
    from sinkstream.text.tokenizers.from_gguf import text_format_from_gguf

    metadata = {k: v for k, v in METADATA.items() if not k.endswith("_token_id")}
    text = text_format_from_gguf(metadata)
    assert (text.bos_token_id, text.add_bos, text.end_token_ids) == (1, True, {2})
    assert text.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sinkstream.Model]:
    """Give a tiny model with this vocabulary."""
    config = {**tiny.CONFIGS["llama-one-layer"][0], "vocab_size": len(TOKENS)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.CONFIGS, "llama-sentencepiece", (config, None))
        drawn = tiny.build("llama-sentencepiece")
    folder = tiny.write_folder(drawn, tmp_path_factory.mktemp("models") / "sentencepiece")
    text = vocabularies.sentencepiece()
    assert text.tokenizer is not None
    text.tokenizer.save(str(folder / "tokenizer.json"))
    fields = {**text.special_tokens, "chat_template": text.chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    with sinkstream.load(folder, sinks=4, window=60, threads=1) as loaded:
        yield loaded


def reply(model: sinkstream.Model, prompt: str | list[int] | list[dict[str, str]]) -> str:
    """Stream three tokens, each of which is "▁the", and return their text."""
    bias = {IDS[f"{SPACE}the"]: 1e4}
    running = model.stream(prompt, max_tokens=3, temperature=0, logit_bias=bias, ignore_eos=True)
    text = "".join(running)
    assert running.result().text == text
    return text


def test_a_continuation_of_a_text_keeps_its_first_space(model: sinkstream.Model) -> None:
    prompt = "Down to"
    assert prompt + reply(model, prompt) == "Down to the the the"


def test_a_text_of_its_own_loses_the_space_that_the_tokenizer_puts_before_it(
    model: sinkstream.Model,
) -> None:
    assert reply(model, [{"role": "user", "content": "Where to?"}]) == "the the the"
    assert reply(model, encode("Down to")) == "the the the"
