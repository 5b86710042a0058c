"""Added tokens for which the model has no embedding row, such as a padding token."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

import sinkstream
from sinkstream import CheckpointError, InvalidArgument

SENTENCE = (
    r"load: the ids of added tokens should be in \[0, 293\), the model\'s vocabulary, but 294 "
    r'\("<pad>"\) and 1 more are not\. A prompt with such a token is refused\.'
)


@pytest.fixture(params=[True, False], ids=["special", "ordinary"])
def padded(
    request: pytest.FixtureRequest, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> Path:
    """Give a tiny llama whose tokenizer has two added tokens more than the model has rows."""
    folder = shutil.copytree(tiny_folder("llama"), tmp_path / "llama")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = [f"<extra{i}>" for i in range(294 - tokenizer.get_vocab_size())] + ["<pad>"]
    tokenizer.add_tokens([AddedToken(name, special=request.param) for name in names])
    assert tokenizer.token_to_id("<pad>") == 294
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_model_with_more_added_tokens_than_rows_loads(
    padded: Path, tiny_folder: Callable[[str], Path]
) -> None:
    with sinkstream.load(tiny_folder("llama"), threads=1) as model:
        expected = model.generate("the sink", max_tokens=8, temperature=0).token_ids
    with pytest.warns(UserWarning, match=SENTENCE):
        model = sinkstream.load(padded, threads=1)
    with model:
        assert model.generate("the sink", max_tokens=8, temperature=0).token_ids == expected


def test_a_prompt_with_a_token_that_has_no_row_is_refused(padded: Path) -> None:
    settings = json.loads((padded / "tokenizer_config.json").read_text())
    settings["chat_template"] = "<pad>" + settings["chat_template"]
    (padded / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.warns(UserWarning, match=SENTENCE):
        model = sinkstream.load(padded, threads=1)
    message = [{"role": "user", "content": "x"}]
    sentence = r"item \d+ of `prompt` must be a token id in \[0, 293\)"
    with model, pytest.raises(InvalidArgument, match=sentence):
        model.generate(message, max_tokens=1)


def test_a_tokenizer_of_a_larger_model_is_refused(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folder("qwen3"), tmp_path / "qwen3")  # 131 rows, no tokenizer
    shutil.copy(tiny_folder("llama") / "tokenizer.json", folder)
    with pytest.raises(CheckpointError, match=r"the tokenizer's ids must be in \[0, 131\), the"):
        sinkstream.load(folder, threads=1)
