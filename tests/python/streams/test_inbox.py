"""The inbox returns the text and the events of the same batches, each once."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import pytest

from sinkstream import Evicted, Finished, Prefill, PromptToken, Started, Token
from sinkstream.request.options import Sampling
from sinkstream.request.stream_request import make_request
from sinkstream.streams import inbox as inbox_module
from sinkstream.streams.batch import Batch
from sinkstream.streams.events import Event
from sinkstream.streams.inbox import PENDING, Inbox


def make_inbox() -> Inbox:
    request = make_request(
        [5, 6], {"seed": 1, "max_tokens": 9}, defaults=Sampling(), vocab_size=300
    )
    return Inbox(request, request_id=1)


def batch(text: str, *lengths: int, marks: list[tuple[str, int, int]] | None = None) -> Batch:
    ids = list(range(len(lengths)))
    return Batch(text, ids, [-0.5] * len(ids), list(lengths), [], marks or [])


def test_an_inbox_needs_a_batch_until_the_end_is_there() -> None:
    inbox = make_inbox()
    assert inbox.next_text() is PENDING
    assert inbox.next_event() is PENDING
    assert inbox.skip() is PENDING
    inbox.finish("length")
    assert inbox.next_text() is None


def test_an_inbox_gives_text_whole_and_events_one_by_one() -> None:
    inbox = make_inbox()
    marks = [("started", 0, 2), ("evicted", 1, 3)]
    inbox.receive(batch("abc", 1, 2, marks=marks))
    assert inbox.next_text() == "abc"
    assert inbox.next_event() is PENDING
    inbox.receive(batch("abc", 1, 2, marks=marks))
    started = Started(2, 1, Sampling(), 1)
    expected = [started, Token("a", 0, -0.5), Evicted(3), Token("bc", 1, -0.5)]
    assert [inbox.next_event() for _ in range(5)] == [*expected, PENDING]
    assert inbox.tail.text == "abcabc"


def test_text_that_belongs_to_no_token_comes_with_the_end() -> None:
    inbox = make_inbox()
    inbox.receive(batch("abc", 1))
    assert inbox.next_event() == Token("a", 0, -0.5)
    assert inbox.next_event() is PENDING
    inbox.finish("cancelled")
    assert inbox.next_event() == Finished("cancelled", "bc")
    assert inbox.next_event() is None


def test_text_that_belongs_to_no_token_is_not_lost_where_text_is_read_on() -> None:
    inbox = make_inbox()
    inbox.receive(batch("abc", 1))
    assert inbox.next_event() == Token("a", 0, -0.5)
    assert inbox.next_text() == "bc"
    inbox.finish("cancelled")
    assert inbox.next_text() is None


def test_what_is_skipped_is_in_the_tail_alone() -> None:
    inbox = make_inbox()
    inbox.receive(batch("abc", 1))
    assert inbox.next_event() == Token("a", 0, -0.5)
    assert inbox.skip() is PENDING
    assert inbox.next_text() is PENDING
    assert inbox.tail.text == "abc"


def test_an_inbox_without_a_tail_keeps_nothing_that_it_has_returned() -> None:
    inbox = make_inbox()
    inbox.keep_no_tail()
    inbox.receive(batch(" ", 1))
    assert not inbox.has_text
    assert inbox.next_text() == " "
    inbox.receive(batch("abc", 1, 2))
    assert inbox.has_text
    assert inbox.next_text() == "abc"
    inbox.finish("length", [("text", "d"), ("thought", "e")])
    assert inbox.next_event() == Finished("length", "d", "e")
    assert (inbox.tail.text, inbox.thoughts.text, inbox.tail.token_ids) == ("", "", [])


def test_a_closed_inbox_gives_nothing() -> None:
    inbox = make_inbox()
    inbox.receive(batch("abc", 1))
    inbox.close()
    assert inbox.next_text() is None
    assert inbox.next_event() is None
    assert inbox.finish_reason is None


def test_the_prompts_tokens_come_after_the_start_and_are_kept() -> None:
    inbox = make_inbox()
    first, second = (5, None, ()), (6, -0.5, ((6, -0.5), (7, -1.5)))
    inbox.receive(batch("", marks=[("started", 0, 2)])._replace(prompt=(first,)))
    assert [type(inbox.next_event()) for _ in range(2)] == [Started, PromptToken]
    marks = [("started", 0, 2), ("prefill", 0, 2)]
    inbox.receive(batch("a", 1, marks=marks)._replace(prompt=(second,)))
    kinds = [type(inbox.next_event()) for _ in range(4)]
    assert kinds == [Started, PromptToken, Prefill, Token]
    assert inbox.prompt.tokens == [PromptToken(*first), PromptToken(*second)]


def test_a_reader_that_skips_the_events_still_has_the_prompt() -> None:
    inbox = make_inbox()
    inbox.receive(batch("")._replace(prompt=((5, None, ()), (6, -0.5, ()))))
    assert inbox.next_text() is PENDING
    assert [token.alternatives for token in inbox.prompt.tokens] == [(), ()]
    assert inbox.prompt.tokens[1].logprob == -0.5


def test_a_prompt_of_any_length_takes_as_many_calls_of_who_reads_all_events() -> None:
    """An event loop reads so: whatever it does for each token, other clients wait for."""
    scored = (6, -0.5, ((6, -0.5), (7, -1.5)))

    def calls_for(tokens: int) -> int:
        calls = 0

        def count(_: FrameType, event: str, __: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        inbox = make_inbox()
        marks = [("started", 0, 2)]
        long = batch("", marks=marks)._replace(prompt=((5, None, ()), *[scored] * tokens))
        gc.disable()  # a collection calls what other tests have told it to
        sys.setprofile(count)
        try:
            inbox.receive(long)
            events = inbox.next_events()
        finally:
            sys.setprofile(None)
            gc.enable()
        assert events == [Started(2, 1, Sampling(), 1)]
        assert inbox.prompt.tokens == [PromptToken(5, None), *[PromptToken(*scored)] * tokens]
        return calls

    assert calls_for(2047) == calls_for(10) < 200


def test_events_are_made_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read holds what has been made, and what a batch has of the rest."""
    made = 0

    def counted(*fields: Any) -> Token:
        nonlocal made
        made += 1
        return Token(*fields)

    monkeypatch.setattr(inbox_module, "Token", counted)
    marks = [("started", 0, 2), ("evicted", 40, 1)]
    inbox, whole = make_inbox(), make_inbox()
    for one in (inbox, whole):
        one.receive(batch("a" * 50 + "b", *[1] * 50, marks=marks))
    found: list[Event] = []
    while (events := inbox.next_events(16)) is not PENDING:
        assert len(events) <= 16
        found += events
        assert inbox.has_events == (len(found) < 52)
        assert made <= len(found) + 1
    assert found == whole.next_events()
    assert inbox.next_text() == whole.next_text() == "b"


def test_text_after_some_of_the_events_is_the_rest() -> None:
    inbox = make_inbox()
    inbox.receive(batch("abcdef", *[1] * 5))
    assert inbox.next_events(2) != []
    assert inbox.next_text() == "cdef"
