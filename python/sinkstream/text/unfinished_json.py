"""Closes JSON that ends early, such as the arguments of a call that `max_tokens` has cut off."""

from __future__ import annotations

import re

_SPACES = re.compile(r"[ \t\r\n]*")
_VALUE = re.compile(
    r'"(?:[^"\\]|\\.)*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?=[ \t\r\n,\]}])'
    r"|true|false|null",
    re.DOTALL,
)
# What a text may end in: a string without its end, or the beginning of a number or a word.
_UNFINISHED_STRING = re.compile(r'"(?:[^"\\]|\\.)*\\?', re.DOTALL)
_UNFINISHED_ESCAPE = re.compile(r"u[0-9a-fA-F]{0,3}\Z")
_UNFINISHED = re.compile(r"-?[0-9.eE+-]*|t(?:r(?:u)?)?|f(?:a(?:l(?:s)?)?)?|n(?:u(?:l)?)?")
_CLOSERS = {"{": "}", "[": "]"}


def closed_json(text: str, max_depth: int) -> str:
    """Return an unfinished JSON text with its strings, arrays and objects closed.

    A key without a value is left out, and so is a number or a word that may go on. What is nested
    deeper than `max_depth` is left out with all that follows it. Of a text that is not the
    beginning of JSON, the result is not JSON, either.
    """
    stack: list[str] = []  # closing brackets
    kept, closing = 0, ""  # the end of the longest beginning that can be closed, and what does so
    at, expects_key = 0, False
    while True:
        at = _end(_SPACES, text, at)
        letter = text[at : at + 1]
        if letter in _CLOSERS:
            if len(stack) == max_depth:
                return text[:kept] + closing
            stack.append(_CLOSERS[letter])
            at, expects_key = at + 1, letter == "{"
        elif stack and letter == stack[-1]:
            stack.pop()
            at += 1
        elif letter and letter in ",:":
            expects_key = letter == "," and stack[-1:] == ["}"]
            at += 1
            continue
        elif expects_key and letter not in ('"', ""):
            return text  # it is not JSON
        elif (found := _VALUE.match(text, at)) is not None:
            at = found.end()
            if expects_key:
                continue
        else:
            break
        kept, closing = at, "".join(reversed(stack))
    if _UNFINISHED_STRING.fullmatch(text, at):
        return text[:kept] + closing if expects_key else _closed_string(text) + closing
    return text[:kept] + closing if _UNFINISHED.fullmatch(text, at) else text


def _closed_string(text: str) -> str:
    """Close the string that a text ends in, without an escape sequence that is not complete."""
    for end in (len(text), max(len(text) - 4, 0) + _begin(_UNFINISHED_ESCAPE, text[-4:])):
        before = text[:end]
        if (len(before) - len(before.rstrip("\\"))) % 2:
            return f'{before[:-1]}"'
    return f'{text}"'


def _begin(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return len(text) if found is None else found.start()


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()
