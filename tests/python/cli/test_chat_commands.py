"""How a line of a chat is parsed or refused, and what the Tab key adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkstream.cli.chat_commands import (
    ALIASES,
    COMMANDS,
    Command,
    Message,
    completions,
    help_text,
    parse,
    split_ending,
)
from sinkstream.cli.chat_loop import read_entry
from sinkstream.errors import InvalidArgument


@pytest.mark.parametrize("text", ["", "   ", "\t\n"])
def test_a_blank_line_means_nothing(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("text", ["hello", "a // b", "  two words ", "a\n/quit", "a /help"])
def test_what_begins_without_a_slash_is_said_as_it_is(text: str) -> None:
    assert parse(text) == Message(text)


@pytest.mark.parametrize(
    ("text", "said"), [
        ("//help", "/help"), ("//", "/"), ("///x", "//x"), ("// a\nb", "/ a\nb"),
        ("  //help", "  /help"),
    ],
)  # fmt: skip
def test_two_slashes_say_one(text: str, said: str) -> None:
    assert parse(text) == Message(said)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("write", ["/{}", "  /{}", "\t/{}", "/{} "])
def test_a_command_may_be_indented_and_in_capitals(name: str, write: str) -> None:
    argument = " a b.c" if COMMANDS[name].argument else ""
    expected = Command(name, argument.strip())
    for word in (name, name.upper(), name.capitalize()):
        assert parse(write.format(word).rstrip() + argument) == expected


@pytest.mark.parametrize("alias", ALIASES)
def test_the_names_that_other_programs_use_are_known(alias: str) -> None:
    assert parse(f"/{alias}") == Command(ALIASES[alias])


def test_the_names_of_ollama_and_llama_cli_are_among_them() -> None:
    assert {"exit", "bye", "clear", "?"} <= set(ALIASES)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_known_with_its_argument_and_only_so(name: str) -> None:
    if COMMANDS[name].is_optional:
        assert parse(f"/{name}  a b.c ") == Command(name, "a b.c")
        assert parse(f"/{name}") == Command(name)
    elif COMMANDS[name].argument:
        assert parse(f"/{name}  a b.c ") == Command(name, "a b.c")
        for text in (f"/{name}", f"/{name}  "):
            with pytest.raises(InvalidArgument, match=f"/{name} must be followed by "):
                parse(text)
    else:
        assert parse(f"/{name}") == parse(f"/{name} ") == Command(name)
        with pytest.raises(InvalidArgument, match=f"/{name} must have no argument"):
            parse(f"/{name} x")


@pytest.mark.parametrize("text", ["/xyzzy", "/", "/ help", "/helpme", "/etc/passwd?", "/é"])
def test_an_unknown_command_points_to_the_help(text: str) -> None:
    with pytest.raises(InvalidArgument, match="the command must be one that /help lists") as raised:
        parse(text)
    assert len(str(raised.value)) < 160
    assert "Start the line with // to send one that begins with /." in str(raised.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("/sav x", "/save"), ("/histroy", "/history"), ("/Undu", "/undo"), ("/exti", "/exit")],
)
def test_a_misspelt_command_is_suggested(text: str, meant: str) -> None:
    with pytest.raises(InvalidArgument, match=f"Did you mean {meant}\\?"):
        parse(text)


def test_a_system_prompt_may_have_several_lines() -> None:
    assert parse("/system Be brief.\nBe kind.") == Command("system", "Be brief.\nBe kind.")
    assert parse("/system\nBe kind.") == Command("system", "Be kind.")


def test_a_path_has_no_nul() -> None:
    with pytest.raises(InvalidArgument, match=r"FILE must be a path, but is \"a\\u0000b\""):
        parse("/save a\0b")


@given(st.text())
def test_any_text_has_a_meaning_or_an_error_of_one_line(text: str) -> None:
    try:
        is_blank = parse(text) is None
    except InvalidArgument as error:
        is_right = text.lstrip().startswith("/") and str(error).isprintable()
    else:
        is_right = is_blank == (not text.strip())
    assert is_right


class Given:
    """A fixed list of lines; records the prompts."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.prompts: list[str] = []

    def read(self, prompt: str) -> str | None:
        self.prompts.append(prompt)
        return self.lines.pop(0) if self.lines else None


@pytest.mark.parametrize(
    ("line", "meant", "is_continued"),
    [
        ("a", "a", False),
        ("a\\", "a", True),
        ("a\\\\", "a\\", False),
        ("\\", "", True),
        ("a\\ ", "a\\ ", False),
        ("a\\b", "a\\b", False),
    ],
)
def test_a_final_backslash_continues_the_line_and_two_are_one(
    line: str, meant: str, is_continued: bool
) -> None:
    assert split_ending(line) == (meant, is_continued)


def test_continued_lines_are_one_entry_with_a_prompt_of_their_own() -> None:
    lines = Given("one\\", "two\\", "three", "four\\")
    assert read_entry(lines) == "one\ntwo\nthree"
    assert lines.prompts == ["> ", "| ", "| "]
    assert read_entry(lines) == "four"
    assert read_entry(lines) is None


def test_the_help_has_every_command_and_fits_on_80_columns() -> None:
    text = help_text()
    for name, rule in COMMANDS.items():
        assert f"/{name} {rule.argument}".rstrip() in text
        assert rule.meaning in text
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_one_command_is_its_line(name: str) -> None:
    for topic in (name, f"/{name}", name.upper()):
        assert COMMANDS[name].meaning in help_text(topic)
    assert len(help_text(name).splitlines()) == 1


def test_help_on_something_else_is_all_of_it() -> None:
    assert help_text("me") == help_text()


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
