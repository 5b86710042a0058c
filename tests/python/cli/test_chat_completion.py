"""The Tab key completes commands, options and file names, and nothing in a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkstream.cli.chat_completion import completions


def complete(line: str) -> list[str]:
    """Return the lines that Tab may complete a line to."""
    begin = line.rfind(" ") + 1
    return [line[:begin] + found for found in completions(line, line[begin:])]


def test_commands_are_completed() -> None:
    assert complete("/sa") == ["/save "]
    assert complete("/s") == ["/save ", "/set ", "/stats", "/system "]
    assert complete("  /he") == ["  /help "]
    assert complete("/EX") == ["/exit"]
    assert "/help " in complete("/")


@pytest.mark.parametrize("line", ["hello", "", "hello /sa", "//sa", "/undo x", "/system y"])
def test_a_message_and_a_complete_command_are_not(line: str) -> None:
    assert [found for found in complete(line) if found.strip() != line.strip()] == []


def test_file_names_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "talk one.session").touch()
    (tmp_path / "talk two.session").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / ".hidden").touch()
    monkeypatch.chdir(tmp_path)
    for command in ("/load", "/save", "/LOAD"):
        assert complete(f"{command} talk o") == [f"{command} talk one.session"]
        assert complete(f"{command} f") == [f"{command} folder/"]
        assert complete(f"{command} {tmp_path}/ta") == [
            f"{command} {tmp_path}/talk one.session",
            f"{command} {tmp_path}/talk two.session",
        ]
    assert complete("/load ") == [
        "/load folder/",
        "/load talk one.session",
        "/load talk two.session",
    ]
    assert complete("/load .h") == ["/load .hidden"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert complete("/load ~/fo") == ["/load ~/folder/"]
    (tmp_path / "~no-such-user").mkdir()
    (tmp_path / "~no-such-user" / "one.session").touch()
    assert complete("/load ~no-such-user/o") == ["/load ~no-such-user/one.session"]


@pytest.mark.parametrize("path", ["/missing/x", "~no-such-user/x", "\0", "/dev/null/x"])
def test_a_path_that_cannot_be_read_has_no_completion(path: str) -> None:
    assert complete(f"/load {path}") == []


def test_options_are_completed() -> None:
    assert complete("/set temp") == ["/set temperature "]
    assert complete("/set top") == ["/set top-k ", "/set top-p "]
    assert complete("/set temperature 0.") == []
    assert complete("/help sa") == ["/help save"]
