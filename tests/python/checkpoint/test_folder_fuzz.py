"""Random files of folders give what transformers reads, a warning, or an error."""

from __future__ import annotations

import pytest

from tests.python.checkpoint import folder_fuzz


@pytest.mark.parametrize("part", folder_fuzz.PARTS)
def test_no_random_file_is_silently_read_otherwise(
    part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder_fuzz.main(["--cases", "70", "--part", part]) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_ten_thousand_random_files(capsys: pytest.CaptureFixture[str]) -> None:
    found = folder_fuzz.main(["--cases", "10000", "--seed", "1000"])
    assert found == 0, capsys.readouterr().out
