"""Keys, where they are read from, and their weights."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.errors import InvalidArgument
from sinkstream.server.api_keys import tenant_of, weights_of
from sinkstream.server.config import ServerConfig, check_config


def test_keys_come_from_settings_and_from_a_file_with_weights(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# our keys\nteam 3\n\nguest  # the weight is 1\nb 0.5\n")
    config = ServerConfig(host="0.0.0.0", api_keys=("a", "b"), api_key_file=str(file))
    check_config(config)
    weights = {"a": 1.0, "b": 0.5, "team": 3.0, "guest": 1.0}
    assert weights_of(config) == {tenant_of(key): weight for key, weight in weights.items()}
    assert weights_of(ServerConfig()) == {}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a\nb two", "line 2"),
        ("a 0", "line 1"),
        ("a nan", "line 1"),
        ("a 1000", "line 1"),
        ("a 1 2", "line 1"),
        ("é", "line 1"),
        ("# none\n", "at least one key"),
    ],
)
def test_a_file_that_is_not_valid_is_refused(tmp_path: Path, text: str, rule: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=rule) as refused:
        weights_of(ServerConfig(api_key_file=str(file)))
    assert refused.value.param == "api_key_file"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be: No such file or directory"):
        weights_of(ServerConfig(api_key_file=str(tmp_path / "no")))
