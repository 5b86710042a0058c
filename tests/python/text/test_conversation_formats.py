"""The formats of conversations that a model keeps, whatever values of `thinking` it is given."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from sinkstream.request.tools import Tools
from sinkstream.text import chat_format, turn_format
from sinkstream.text.conversation_formats import MOST_TAGS, MOST_TURNS, ConversationFormats
from sinkstream.text.tools import learn_call_format
from sinkstream.text.tools.generic_form import GENERIC_CALLS
from tests.python.text.encoding import detect_turn_format
from tests.python.text.reasoning_templates import THINK, WRITTEN, text_format


class Found:
    """A format that can be counted."""


def test_a_client_cannot_make_a_model_keep_more_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Found] = weakref.WeakSet()
    searches: list[Any] = []

    def find(found_for: Any, _: frozenset[int]) -> Found:
        searches.append(found_for)
        alive.add(found := Found())
        return found

    monkeypatch.setattr(turn_format, "turn_format_of", find)
    monkeypatch.setattr(chat_format, "ChatFormat", lambda *_, **__: None)
    monkeypatch.setattr(learn_call_format, "learn_call_format", lambda *_: GENERIC_CALLS)
    formats = ConversationFormats(text_format(WRITTEN, *THINK), None)
    default = formats.turns(None)
    for number in range(10_000):
        formats.turns(f"effort{number}")
        formats.turns(None, Tools(({"function": number},)))
        formats.tags(f"effort{number}")
        assert formats.turns(None) is default  # in use, so it stays
    assert len(alive) == MOST_TURNS
    assert len(formats._tags) == MOST_TAGS
    assert len(formats._chats) == MOST_TURNS
    assert len(searches) == 20_001


def test_a_format_that_was_dropped_is_found_again() -> None:
    text = text_format(WRITTEN, *THINK)
    formats = ConversationFormats(text, None)
    opening = formats.turns(False).opening("Be brief.")
    other = formats.turns(True)
    for number in range(MOST_TURNS):
        formats._turns.get((None, str(number)), lambda: other)
    assert (False, "") not in formats._turns
    assert formats.turns(False).opening("Be brief.") == opening
    assert opening == detect_turn_format(text, False).opening("Be brief.")
