"""Sessions: a turn processes only its new tokens, and equals one long request."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import (
    CapacityError,
    EngineDead,
    InvalidArgument,
    Prefill,
    SessionBusy,
    Started,
)
from tests.python.waiting import wait_until, wait_until_idle

SINKS, WINDOW = 4, 60
CAPACITY = SINKS + WINDOW


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(
        tiny_folder("llama"), sinks=SINKS, window=WINDOW, threads=1, max_sequences=4
    ) as loaded:
        yield loaded


def ids_of_length(count: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, 290) for _ in range(count)]


def reply(stream: sinkstream.Stream) -> tuple[list[int], list[float]]:
    result = stream.result()
    return result.token_ids, result.logprobs


@pytest.mark.parametrize("turns", [60, pytest.param(200, marks=pytest.mark.full)])
def test_many_turns_are_bit_for_bit_one_long_request(model: sinkstream.Model, turns: int) -> None:
    source = random.Random(3)
    history: list[int] = []
    session = model.session()
    history += session.token_ids
    for turn in range(turns):
        new = ids_of_length(source.randrange(1, 25), turn)
        options = {"max_tokens": source.randrange(1, 8), "temperature": 1.0, "seed": turn}
        if turn % 20 == 10:  # the conversation continues in a fork
            fork = session.fork()
            session.close()
            session = fork
        got = reply(session.stream(new, ignore_eos=True, **options))
        history += new
        # The same max_tokens, so that both draw at the same indices with the same cache.
        alone = reply(model.stream(history, ignore_eos=True, **options))
        assert got == alone, f"turn {turn}"
        history += got[0]
        live = session.token_ids  # the reply's last token follows a full window
        assert len(live) == min(len(history), CAPACITY + 1)
        assert live == history[:SINKS] + history[SINKS - len(live) :]
    assert session.stats.turns == turns
    assert session.stats.evicted_tokens > turns / 10 * CAPACITY
    session.close()
    wait_until_idle(model)


def test_a_turn_costs_its_new_tokens_only(model: sinkstream.Model) -> None:
    with model.session() as session:
        session.append(ids_of_length(500, 0))
        before = model.stats()["prompt_tokens"]
        stream = session.stream([5, 6, 7], max_tokens=4, ignore_eos=True)
        stream.result()
        assert model.stats()["prompt_tokens"] - before == 3
        assert stream.stats.cached_tokens == CAPACITY


def test_a_whole_reply_is_that_of_its_stream(model: sinkstream.Model) -> None:
    with model.session() as one, model.session() as other:
        for content in ([5, 6, 7], [8]):
            streamed = other.stream(content, max_tokens=7, temperature=0, ignore_eos=True).result()
            whole = one.generate(content, max_tokens=7, temperature=0, ignore_eos=True)
            assert (whole.token_ids, whole.text) == (streamed.token_ids, streamed.text)
        assert one.token_ids == other.token_ids
        reply = one.generate([9], temperature=0, ignore_eos=True)
        assert (len(reply.token_ids), reply.finish_reason) == (256, "length")
        with pytest.raises(TypeError, match="there is no option `max_token`"):
            one.generate([9], max_token=3)  # type: ignore[call-arg]


def test_a_turn_that_is_left_leaves_cache_and_transcript_agreeing(model: sinkstream.Model) -> None:
    with model.session() as session:
        for _ in session.stream([5, 6, 7], max_tokens=30, temperature=1.0, ignore_eos=True):
            break
        turn = session.stream([9], max_tokens=6, temperature=0, ignore_eos=True)
        got = reply(turn)
        ids = session.token_ids[: -len(got[0])]
        assert got == reply(model.stream(ids, max_tokens=6, temperature=0, ignore_eos=True))


def test_a_dropped_turn_has_never_been(model: sinkstream.Model) -> None:
    with model.session() as session:
        session.stream([5, 6, 7], max_tokens=5, temperature=0, ignore_eos=True).result()
        before, stats = session.token_ids, session.stats
        ended = session.stream([8, 9], max_tokens=5, temperature=0, ignore_eos=True)
        first = reply(ended)
        ended.cancel(keep="drop")
        assert (session.token_ids, session.stats) == (before, stats)
        running = session.stream([10], max_tokens=30, temperature=0, ignore_eos=True)
        next(iter(running.events()))
        running.cancel(keep="drop")
        assert (session.token_ids, session.stats) == (before, stats)
        assert reply(session.stream([8, 9], max_tokens=5, temperature=0, ignore_eos=True)) == first


def test_a_reply_that_evicted_is_dropped_unless_the_session_has_continued(
    model: sinkstream.Model,
) -> None:
    with model.session() as session:
        stream = session.stream([5, 6], max_tokens=100, ignore_eos=True)
        stream.result()
        session.stream([5], max_tokens=1).result()
        must = r"cancel: `keep` must be \"partial\", but is \"drop\": .*has continued since.*stays"
        with pytest.raises(InvalidArgument, match=must):
            stream.cancel(keep="drop")
        assert session.stats.turns == 2
        session.undo()
        stream.cancel(keep="drop")
        assert session.stats.turns == 0
        with pytest.raises(InvalidArgument, match="already been undone"):
            stream.cancel(keep="drop")


def test_only_a_sessions_stream_can_be_dropped(model: sinkstream.Model) -> None:
    with model.stream([5], max_tokens=1) as stream:
        with pytest.raises(InvalidArgument, match="belongs to no session"):
            stream.cancel(keep="drop")
        with pytest.raises(InvalidArgument, match="`keep`"):
            stream.cancel(keep="all")  # type: ignore[arg-type]  # the point of the test


def test_a_turn_that_read_nothing_has_never_been(model: sinkstream.Model) -> None:
    with model.session() as session:
        session.stream([5, 6], max_tokens=3, temperature=0, ignore_eos=True).result()
        before, stats = session.token_ids, session.stats
        late = session.stream([7], timeout_s=1e-9)
        assert late.result().finish_reason == "timeout"
        assert (session.token_ids, session.stats) == (before, stats)


def test_events_of_a_turn_count_what_it_reads(model: sinkstream.Model) -> None:
    with model.session() as session:
        for _ in range(2):
            stream = session.stream([5] * 30, max_tokens=3, ignore_eos=True)
            events = list(stream.events())
            started = events[0]
            assert isinstance(started, Started)
            assert started.prompt_tokens == stream.stats.prompt_tokens
            read = [event for event in events if isinstance(event, Prefill)]
            assert (read[-1].done, read[-1].total) == (started.prompt_tokens,) * 2
        assert stream.stats.prompt_tokens == 31, "the last token of the reply before comes first"


def test_a_turn_is_cancelled_by_its_session(model: sinkstream.Model) -> None:
    with model.session() as session:
        session.cancel()
        stream = session.stream([5], ignore_eos=True)
        with pytest.raises(SessionBusy, match=r"session\.cancel"):
            session.stream([6])
        session.cancel()
        session.stream([6], max_tokens=1).result()
        assert stream.result().finish_reason == "cancelled"


def test_the_last_turn_can_be_undone_without_its_stream(model: sinkstream.Model) -> None:
    options = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
    with model.session() as session:
        session.stream([5, 6, 7], **options).result()
        before, stats = session.token_ids, session.stats
        for undone in (
            lambda: session.stream([8, 9], **options).result(),
            lambda: next(session.stream([8, 9], temperature=0, ignore_eos=True)),
            lambda: session.append([8, 9]),
            lambda: asyncio.run(session.aappend([8, 9])),
        ):
            undone()
            session.cancel("drop")
            assert (session.token_ids, session.stats) == (before, stats)
            with pytest.raises(InvalidArgument, match="already been undone"):
                session.cancel(keep="drop")
        result = session.stream([8, 9], **options).result()
        assert result.token_ids == model.generate([*before, 8, 9], **options).token_ids


def test_a_session_whose_last_turn_it_does_not_know_undoes_nothing(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    no_turn = r"cancel: `keep` must be \"partial\", but is \"drop\": there is no last turn to undo"
    with model.session() as session:
        with pytest.raises(InvalidArgument, match=no_turn):
            session.cancel("drop")
        session.stream([5], max_tokens=3).result()
        session.save(tmp_path / "x.session")
        with model.load_session(tmp_path / "x.session") as loaded, session.fork() as fork:
            for other in (loaded, fork):
                before = other.token_ids
                with pytest.raises(InvalidArgument, match=no_turn):
                    other.cancel("drop")
                assert other.token_ids == before
                other.stream([6], max_tokens=2).result()
                other.cancel("drop")
                assert other.token_ids == before
        with pytest.raises(InvalidArgument, match="`keep` must be"):
            session.cancel("all")  # type: ignore[arg-type]  # the point of the test


def test_a_dropped_stream_of_a_turn_still_ends_it(model: sinkstream.Model) -> None:
    with model.session() as session:
        stream: sinkstream.Stream | None = session.stream([5], ignore_eos=True)
        assert stream is not None
        next(stream)
        stream = None
        wait_until(lambda: model.stats()["running"] == 0)
        session.append([6])


def test_a_turn_does_not_wait_for_streams_that_wait_until_idle(
    tiny_folder: Callable[[str], Path],
) -> None:
    with sinkstream.load(
        tiny_folder("llama"), sinks=SINKS, window=WINDOW, threads=1, max_sequences=1
    ) as model:
        session = model.session()
        waiting = model.stream([5], ignore_eos=True)
        assert session.stream([5], max_tokens=2, ignore_eos=True).result().token_ids
        assert model.stats()["finished"]["error"] == 0, "it has waited for the stream's refusal"
        with pytest.raises(CapacityError, match="close a session"):
            waiting.result()


def test_one_turn_at_a_time(model: sinkstream.Model) -> None:
    with model.session() as session:
        running = session.stream([5], ignore_eos=True)
        for use in (lambda: session.stream([6]), lambda: session.append([6]), session.fork):
            with pytest.raises(SessionBusy, match="only one turn can run at a time"):
                use()
        running.close()
        session.stream([6], max_tokens=1).result()


def test_of_64_threads_on_one_session_each_has_its_turn_or_is_told(
    model: sinkstream.Model,
) -> None:
    outcomes: list[str] = []
    with model.session() as session:
        opening = session.stats.tokens

        def use(mark: int) -> None:
            try:
                session.append([mark] * 3)
                outcomes.append("read")
            except SessionBusy:
                outcomes.append("busy")

        threads = [threading.Thread(target=use, args=(10 + i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 64
        assert outcomes.count("read") >= 1
        read = outcomes.count("read")
        assert session.stats.tokens == opening + 3 * read
        tail = session.token_ids[-min(3 * read, WINDOW - WINDOW % 3) :]
        assert all(tail[i] == tail[i + 1] == tail[i + 2] for i in range(0, len(tail), 3))


def test_a_session_that_does_not_fit_says_so_at_once(model: sinkstream.Model) -> None:
    sessions = [model.session()]
    for make in (model.session, sessions[0].fork):
        sentence = (
            r"session: a new session needs \d+\.\d kB of cache, but only "
            r"\d+(\.\d k| )[Bb]\w* is free\. The cache has room for \d+ sequences "
            r"\(open sessions: [1-9]\d*, running requests: 0\)\. Close a session or a stream, or"
        )
        with pytest.raises(CapacityError, match=sentence):
            sessions.extend(make() for _ in range(100))
    assert 4 <= len(sessions) < 100
    for session in sessions:
        session.close()
    wait_until_idle(model)
    with model.session() as again:
        assert again.stream([5], max_tokens=1).result().token_ids


def test_a_closed_session_is_refused_everywhere(model: sinkstream.Model) -> None:
    session = model.session()
    session.close()
    session.close()
    uses = (
        lambda: session.stream([5]),
        lambda: session.append([5]),
        session.fork,
        lambda: session.token_ids,
    )
    for use in uses:
        with pytest.raises(InvalidArgument, match="closed"):
            use()
    assert "closed" in repr(session)


def test_a_session_of_a_closed_model_says_so(tiny_folder: Callable[[str], Path]) -> None:
    model = sinkstream.load(tiny_folder("llama"), sinks=4, window=60, threads=1)
    session = model.session()
    stream = session.stream([5], ignore_eos=True)
    model.close()
    assert stream.result().finish_reason == "cancelled"
    for use in (
        lambda: session.stream([5]),
        session.fork,
        model.session,
        lambda: session.token_ids,
    ):
        with pytest.raises(EngineDead, match="closed"):
            use()
    session.close()


def test_closing_a_session_ends_its_turn(model: sinkstream.Model) -> None:
    session = model.session()
    stream = session.stream([5], ignore_eos=True)
    session.close()
    assert stream.result().finish_reason == "cancelled"
    wait_until_idle(model)


def test_a_forgotten_session_gives_its_memory_back(model: sinkstream.Model) -> None:
    session: sinkstream.Session | None = model.session()
    assert session is not None
    session.append([5, 6, 7])
    session = None
    wait_until_idle(model)


def test_a_message_is_read_in_asyncio_while_other_tasks_run(model: sinkstream.Model) -> None:
    ids = ids_of_length(5_000, 3)
    with model.session() as expected, model.session() as session:
        expected.append(ids)

        async def main() -> None:
            reading = asyncio.create_task(session.aappend(ids))
            turns = 0
            while not reading.done():
                turns += 1
                await asyncio.sleep(0.001)
            assert (await reading).prompt_tokens == len(ids)
            assert turns > 1, "the event loop stood still while the session read"

        asyncio.run(main())
        assert session.token_ids == expected.token_ids
        options = {"max_tokens": 20, "temperature": 1.0, "seed": 1}
        assert reply(session.stream([5], **options)) == reply(expected.stream([5], **options))


def test_a_cancelled_task_leaves_in_the_session_what_it_had_read(model: sinkstream.Model) -> None:
    ids = ids_of_length(5_000, 3)
    with model.session() as session:
        before = session.stats.tokens

        async def main() -> None:
            reading = asyncio.create_task(session.aappend(ids))
            while session.stats.tokens == before:
                await asyncio.sleep(0)
            with pytest.raises(SessionBusy):
                await session.aappend([6])
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

        asyncio.run(main())
        result = session.stream([5, 6], max_tokens=3, ignore_eos=True).result()
        assert len(result.token_ids) == 3
        assert before < session.stats.tokens < before + len(ids)


@pytest.mark.parametrize("sinks", [True, 1.5, "all"])
def test_refuses_sinks_that_cannot_be(model: sinkstream.Model, sinks: object) -> None:
    with pytest.raises((InvalidArgument, TypeError), match=r"session: `sinks` must"):
        model.session(sinks=sinks)  # type: ignore[arg-type]  # the point of the test
    wait_until_idle(model)


@pytest.mark.parametrize("sinks", [-1, CAPACITY, 1 << 60])
def test_refuses_sinks_out_of_range(model: sinkstream.Model, sinks: int) -> None:
    rule = rf"session: `sinks` must be in \[0, {CAPACITY - 1}\]"
    with pytest.raises(InvalidArgument, match=rule):
        model.session(sinks=sinks)
    wait_until_idle(model)


@pytest.mark.parametrize(
    "options",
    [{"max_tokens": -1}, {"max_tokens": "3"}, {"temperature": 101}, {"stop": 5}, {"temprature": 1}],
)
def test_every_error_of_an_option_begins_alike(
    model: sinkstream.Model, options: dict[str, Any]
) -> None:
    with model.session() as session:
        for use in (session.stream, model.stream, model.generate):
            with pytest.raises((InvalidArgument, TypeError), match=r"^stream: "):
                use([5], **options)  # type: ignore[operator]


def test_refuses_an_option_that_does_not_exist(model: sinkstream.Model) -> None:
    with model.session() as session, pytest.raises(TypeError, match="no option `sinks`"):
        session.stream([5], sinks=3)  # type: ignore[call-arg]  # the point of the test


@pytest.mark.parametrize("content", [b"abc", None, 5, [1.5], [[1]], [-1], [10**6], ["a"]])
def test_refuses_what_is_neither_a_string_nor_ids(model: sinkstream.Model, content: object) -> None:
    with model.session() as session:
        before = session.token_ids
        with pytest.raises((InvalidArgument, TypeError), match="session"):
            session.stream(content)  # type: ignore[arg-type]  # the point of the test
        assert session.token_ids == before


@pytest.mark.parametrize(
    ("content", "found", "remedy"),
    [
        ([{"role": "user", "content": "Hi"}], "a list of messages", True),
        ({"role": "user", "content": "Hi"}, "a message", True),
        (({"role": "user", "content": "Hi"},), "a list of messages", True),
        (None, "None", False),
        (5, "of type int", False),
        (b"abc", "of type bytes", False),
        (object(), "of type object", False),
    ],
)
def test_says_where_messages_go(
    model: sinkstream.Model, content: Any, found: str, remedy: bool
) -> None:
    with model.session() as session:
        for use in (session.stream, session.append, lambda c: asyncio.run(session.aappend(c))):
            with pytest.raises(TypeError) as refused:
                use(content)
            assert str(refused.value) == (
                f"session: `content` must be a string or token ids, but is {found}."
                + " Send the text of one message; earlier messages go to "
                "`model.session(messages=…)`." * remedy
            )


def test_shares_a_beginning_only_while_every_token_is_equal(
    tiny_folder: Callable[[str], Path],
) -> None:
    with sinkstream.load(
        tiny_folder("llama"), sinks=4, window=400, threads=1, max_sequences=4
    ) as model:
        ids = ids_of_length(150, 5)
        options = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
        alone = reply(model.stream([*ids, 7], **options))
        with model.session() as session:
            opening = session.token_ids
            session.append(ids)
            hit = model.stream([*opening, *ids, 7], **options)
            assert hit.result().stats.cached_tokens == len(opening) + len(ids)
            if not opening:
                assert reply(hit) == alone
            miss = model.stream([*opening, *ids[:80], 7, *ids[81:]], **options)
            assert miss.result().stats.cached_tokens == len(opening) + 80
            other = model.stream([*opening, *ids, 7], sinks=5, **options)
            assert other.result().stats.cached_tokens == 0


@pytest.fixture(scope="module")
def real(smollm2: Path, threads: int) -> Iterator[sinkstream.Model]:
    with sinkstream.load(smollm2, window=252, threads=threads, max_sequences=3) as loaded:
        yield loaded


class TestSmolLM2:
    """Conversations with the real model."""

    def test_its_turns_are_those_of_the_whole_conversation(self, real: sinkstream.Model) -> None:
        messages = [{"role": "system", "content": "You are brief."}]
        with real.session("You are brief.") as session:
            for text in ("Name a colour.", "Another one, please.", "<|im_end|> is no end."):
                messages.append({"role": "user", "content": text})
                got = session.stream(text, temperature=0, max_tokens=12)
                whole = real.stream(messages, temperature=0, max_tokens=12)
                assert reply(got) == reply(whole)
                assert got.stats.prompt_tokens < whole.stats.prompt_tokens
                messages.append({"role": "assistant", "content": got.result().text})
            assert session.transcript.startswith("<|im_start|>system\nYou are brief.<|im_end|>\n")

    def test_a_turn_that_read_nothing_leaves_no_trace_in_the_next(
        self, real: sinkstream.Model
    ) -> None:
        messages = [
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": "Name a colour."},
        ]
        with real.session("You are brief.") as session:
            for lost in ("One.", "Two."):
                assert not session.stream(lost, timeout_s=1e-9).result().token_ids
            dropped = session.stream("Three.", max_tokens=4)
            next(dropped)
            dropped.cancel(keep="drop")
            got = session.stream("Name a colour.", temperature=0, max_tokens=8)
            assert reply(got) == reply(real.stream(messages, temperature=0, max_tokens=8))

    def test_a_pinned_system_prompt_stays_forever(self, real: sinkstream.Model) -> None:
        system = "The secret word is heron. " * 4
        with real.session(system, sinks="system") as session:
            assert session.sinks + session.window == 256
            for _ in range(3):
                session.append("Nothing happens for a long while. " * 20)
            assert session.stats.evicted_tokens > 200
            assert session.transcript.startswith(f"<|im_start|>system\n{system.strip()}")
            with real.session(system, sinks="system") as second:
                assert second.stats.tokens == session.sinks, "its pages are shared"

    def test_a_system_prompt_longer_than_the_cache_cannot_be_pinned(
        self, real: sinkstream.Model
    ) -> None:
        with pytest.raises(InvalidArgument, match=r"session: `sinks` must pin at most 128 tokens"):
            real.session("word " * 400, sinks="system")
