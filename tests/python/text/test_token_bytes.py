"""The table of bytes decodes as `tokenizers` does, for every family."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import CheckpointError
from sinkstream.text.tokenizers.from_gguf import text_format_from_gguf
from sinkstream.text.tokenizers.token_bytes import TokenBytes, decode_bytes, token_bytes
from tests.python.lanes import examples
from tests.python.text import vocabularies
from tests.python.text.vocabularies import FAMILIES, PROSE

SPARE = 5  # rows of the model without a token
BYTE_PIECE = re.compile(r"<0x(..)>")


def table_of(text: TextFormat) -> tuple[Tokenizer, TokenBytes]:
    assert text.tokenizer is not None
    return text.tokenizer, token_bytes(text.tokenizer, text.tokenizer.get_vocab_size() + SPARE)


def decoded(table: TokenBytes, ids: list[int]) -> str:
    return decode_bytes(table, ids).decode("utf-8", "replace")


def without_broken_runs(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Drop runs of byte pieces that are not UTF-8, which `tokenizers` shows differently."""
    kept: list[int] = []
    run: list[int] = []
    for token_id in [*ids, -1]:
        token = None if token_id < 0 else tokenizer.id_to_token(token_id)
        if token is not None and BYTE_PIECE.fullmatch(token):
            run.append(token_id)
            continue
        if token is None and token_id >= 0:
            continue  # a row without a token does not end a run
        special = token in {"<unk>", "<s>", "</s>"}
        if special:
            continue  # nor does a token that is not shown
        found = b"".join(bytes.fromhex(tokenizer.id_to_token(i)[3:5]) for i in run)
        try:
            found.decode()
            kept += run
        except UnicodeDecodeError:
            pass
        run = []
        if token_id >= 0:
            kept.append(token_id)
    return kept


@pytest.mark.parametrize("family", FAMILIES)
def test_prose_comes_back(family: str) -> None:
    tokenizer, table = table_of(FAMILIES[family]())
    ids = tokenizer.encode(PROSE).ids
    assert decoded(table, ids) == PROSE
    assert decoded(table, ids) == tokenizer.decode(ids, skip_special_tokens=True)


@examples(400)
@given(st.data(), st.sampled_from(sorted(FAMILIES)))
def test_any_ids_decode_as_tokenizers_does(data: st.DataObject, family: str) -> None:
    tokenizer, table = table_of(FAMILIES[family]())
    ids = data.draw(st.lists(st.integers(0, len(table.pieces) - 1), max_size=30))
    ids = without_broken_runs(tokenizer, ids)
    assert decoded(table, ids) == tokenizer.decode(ids, skip_special_tokens=True)


@examples(200)
@given(st.data())
def test_any_ids_of_smollm2_decode_as_tokenizers_does(
    smollm2_text: TextFormat, data: st.DataObject
) -> None:
    tokenizer, table = _smollm2_table(smollm2_text)
    low = data.draw(st.sampled_from([300, 49152 + SPARE]))  # the first 300: single bytes mostly
    ids = data.draw(st.lists(st.integers(0, low - 1), max_size=40))
    assert decoded(table, ids) == tokenizer.decode(ids, skip_special_tokens=True)


_TABLES: list[tuple[Tokenizer, TokenBytes]] = []


def _smollm2_table(text: TextFormat) -> tuple[Tokenizer, TokenBytes]:
    if not _TABLES:
        _TABLES.append(table_of(text))
    return _TABLES[0]


def test_every_single_id_of_smollm2_decodes_as_tokenizers_does(smollm2_text: TextFormat) -> None:
    tokenizer, table = _smollm2_table(smollm2_text)
    for token_id in range(0, len(table.pieces), 7):
        assert decoded(table, [token_id]) == tokenizer.decode([token_id])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_single_id_decodes_as_tokenizers_does(family: str) -> None:
    tokenizer, table = table_of(FAMILIES[family]())
    for token_id in range(len(table.pieces)):
        assert decoded(table, [token_id]) == tokenizer.decode([token_id])


def test_valid_bytes_next_to_invalid_ones_are_shown() -> None:
    tokenizer, table = table_of(vocabularies.sentencepiece())
    ids = [tokenizer.token_to_id(f"<0x{byte}>") for byte in ("E2", "82", "AC", "FF")]
    assert decoded(table, ids) == "€\ufffd"
    assert tokenizer.decode(ids) == "\ufffd" * 4  # a stream could not take the euro sign back


def test_control_tokens_are_not_shown_and_text_tokens_are() -> None:
    tokenizer, table = table_of(vocabularies.qwen3())
    ids = tokenizer.encode("<|im_start|>a<think>b</think><|im_end|>").ids
    assert table.special == {
        tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    }
    assert decode_bytes(table, ids) == b"a<think>b</think>"


def test_rows_without_a_token_are_empty() -> None:
    _, table = table_of(vocabularies.qwen3())
    assert table.pieces[-SPARE:] == [b""] * SPARE


def test_only_the_first_space_of_a_text_is_stripped() -> None:
    tokenizer, table = table_of(vocabularies.sentencepiece())
    assert table.strip_leading_space
    bos, space = 1, tokenizer.token_to_id("▁")
    assert decode_bytes(table, [space]) == b""
    assert decode_bytes(table, [bos, space, space]) == b" "
    assert not table_of(vocabularies.sentencepiece_without_prefix())[1].strip_leading_space


def test_an_added_token_outside_of_the_byte_alphabet_is_itself() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("日 本", special=False, normalized=False)])
    table = token_bytes(tokenizer, 2)
    assert list(table.pieces) == [b"a", "日 本".encode()]
    assert decoded(table, [1]) == tokenizer.decode([1])


@pytest.mark.parametrize("content", ["café", "ü", "Ġx", "Ċ", "a ¡", "ĠĠ日"])
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "sentencepiece_without_prefix"])
def test_an_added_token_with_letters_of_the_byte_alphabet_is_itself(
    family: str, special: bool, content: str
) -> None:
    base = FAMILIES[family]().tokenizer
    assert base is not None
    tokenizer = Tokenizer.from_str(base.to_str())
    tokenizer.add_tokens([AddedToken(content, special=special, normalized=False)])
    table = token_bytes(tokenizer, tokenizer.get_vocab_size())
    token_id = tokenizer.token_to_id(content)
    assert table.pieces[token_id] == content.encode()
    ids = tokenizer.encode(f"x{content}y").ids
    assert token_id in ids
    assert decoded(table, ids) == ("xy" if special else f"x{content}y")


def test_a_token_that_the_file_and_the_vocabulary_have_is_read_as_text() -> None:
    # deepseek-coder lists the letters that its vocabulary of bytes lacked as added tokens.
    tokenizer = Tokenizer(models.BPE({"a": 0, "ü": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    assert list(token_bytes(tokenizer, 2).pieces) == [b"a", b"\xfc"]
    tokenizer.add_tokens([AddedToken("ü", normalized=False)])
    assert list(token_bytes(tokenizer, 2).pieces) == [b"a", "ü".encode()]


def test_an_added_token_in_gguf_metadata_is_itself() -> None:
    tokens = ["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "café", "<ü>"]
    kinds = [vocabularies.CONTROL, *[vocabularies.NORMAL] * 256, *[vocabularies.USER_DEFINED] * 2]
    metadata = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": kinds} | {
        "merges": [],
        "bos_token_id": 0,
    }
    text = text_format_from_gguf({f"tokenizer.ggml.{k}": v for k, v in metadata.items()})
    tokenizer, table = table_of(text)
    assert tokenizer.encode("xcafé<ü>").ids[1:] == [257, 258]
    assert decoded(table, tokenizer.encode("xcafé<ü>é").ids) == "xcafé<ü>é"


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        (None, "none"),
        (decoders.WordPiece(), "WordPiece"),
        (decoders.Metaspace(), "Metaspace"),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()]), r"Replace \+ Fuse"),
        (
            decoders.Sequence(
                [
                    decoders.Replace("▁", " "),
                    decoders.ByteFallback(),
                    decoders.Fuse(),
                    decoders.Strip(" ", 2, 0),
                ]
            ),
            r"Replace \+ ByteFallback \+ Fuse \+ Strip",
        ),
    ],
)
def test_another_decoder_is_refused_by_name(decoder: decoders.Decoder | None, name: str) -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(CheckpointError, match=f'has the decoder "{name}"; the supported ones are'):
        token_bytes(tokenizer, 1)
