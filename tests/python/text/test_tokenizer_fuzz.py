"""Random tokenizer files give the ids of transformers, or an error."""

from __future__ import annotations

import pytest

from tests.python.text import tokenizer_fuzz


def test_no_random_tokenizer_is_silently_read_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert tokenizer_fuzz.main(["--cases", "100"]) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_ten_thousand_random_tokenizers(capsys: pytest.CaptureFixture[str]) -> None:
    found = tokenizer_fuzz.main(["--cases", "10000", "--seed", "1000"])
    assert found == 0, capsys.readouterr().out
