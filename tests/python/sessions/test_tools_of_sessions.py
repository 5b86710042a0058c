"""Sessions with tools hold what the chat template writes, and the tokens that the model wrote."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import CheckpointError, InvalidArgument, Result, Session
from sinkstream.request.tools import check_tools
from tests.python.text.encoding import detect_turn_format, encode_chat
from tests.python.text.tool_templates import (
    HERMES,
    TOOLS,
    function,
    tool_format,
    write_tool_folder,
)

pytest.importorskip("llguidance", reason="needs the extra `structured`")
Open = Callable[..., sinkstream.Model]
PING = [function("ping", description="Answer.")]  # its arguments can only be {}
CALL: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
# Templates that write earlier messages as they were, with and without a message for tools; two have
# no place for tools.
FORMATS = ("hermes", "function", "deepseek", "llama", "chatml", "strict")


@pytest.fixture(scope="module")
def open_model(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Open]:
    """Give tiny models by the form of their calls, and by size."""
    loaded: dict[Any, sinkstream.Model] = {}

    def load(name: str, window: int = 1500, sequences: int = 3) -> sinkstream.Model:
        key = name, window, sequences
        if key not in loaded:
            folder = tmp_path_factory.mktemp("models") / "model"
            write_tool_folder(tiny_folder("llama"), folder, name)
            loaded[key] = sinkstream.load(
                folder, window=window, max_sequences=sequences, threads=1, prefill_chunk=64
            )
        return loaded[key]

    yield load
    for one in loaded.values():
        one.close()


def letters(model: sinkstream.Model, seed: int, *more: str, **options: Any) -> Any:
    """Return options with which free text is a few letters, or one of `more`."""
    assert model.tokenizer is not None
    texts = ("x", "q", "}", *more)  # a brace ends arguments
    ids = [model.tokenizer.encode(text, add_special_tokens=False).ids[0] for text in texts]
    drawn = {"temperature": 100.0, "top_p": 1.0, "min_p": 0.0, "seed": seed, "max_tokens": 6}
    return {"logit_bias": dict.fromkeys(ids, 1e5), **drawn, **options}


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def reply_of(result: Result) -> dict[str, Any]:
    """Return a reply as a message."""
    calls = [call.as_message() for call in result.tool_calls]
    return {**said("assistant", result.text), **({"tool_calls": calls} if calls else {})}


def results_of(result: Result, text: str = "pong") -> list[dict[str, Any]]:
    return [{**said("tool", text), "tool_call_id": call.id} for call in result.tool_calls]


def bits(result: Result) -> tuple[list[int], list[float]]:
    return result.token_ids, result.logprobs


class Talk:
    """A session, and the same conversation as messages and as ids."""

    def __init__(self, model: sinkstream.Model, session: Session, tools: Any = None) -> None:
        self.model, self.session = model, session
        self.tools = check_tools(tools or PING).definitions  # type: ignore[union-attr]
        self.messages: list[dict[str, Any]] = []
        self.ids: list[int] = []

    def whole(self, messages: list[dict[str, Any]], *, asks: bool = True) -> list[int]:
        """Return what the chat template writes for a conversation."""
        return encode_chat(
            self.model._text, messages, add_generation_prompt=asks, tools=self.tools, timeout_s=60
        )

    def say(self, content: Any, options: Any, **choice: Any) -> Result:
        """Send a message or results; the session then holds the conversation and the reply."""
        reply = self.session.stream(content, **choice, **options).result()
        ends = self.model.end_token_ids
        said_now = [said("user", content)] if isinstance(content, str) else content
        whole = self.whole([*self.messages, *said_now])
        if self.messages:  # the model's own tokens stay; the template's follow them
            start = len(self.whole(self.messages[:-1]))
            before = self.whole(self.messages, asks=False)
            assert whole[: len(before)] == before
            end = next(i for i in range(start, len(before)) if before[i] in ends)
            self.ids += whole[end:]
        else:
            self.ids = whole
        self.ids += [token for token in reply.token_ids if token not in ends]
        self.messages += [*said_now, reply_of(reply)]
        self.check()
        return reply

    def check(self) -> None:
        stats, sinks = self.session.stats, self.session.sinks
        live = self.session.token_ids
        assert live == self.ids[:sinks] + self.ids[len(self.ids) - len(live) + sinks :]
        assert stats.tokens + len(live) - stats.live_tokens == len(self.ids)

    def turn(self, number: int) -> None:
        """Ask, answer two calls, and get a reply in letters."""
        reply = self.say(f"the sea {number}", letters(self.model, number, max_tokens=300), **CALL)
        for is_last in (False, True):
            assert reply.finish_reason == "stop"
            assert [(call.name, call.arguments) for call in reply.tool_calls] == [("ping", "{}")]
            options = letters(self.model, number, max_tokens=6 if is_last else 300)
            choice = {"tool_choice": "none"} if is_last else CALL
            reply = self.say(results_of(reply), options, **choice)
        assert reply.tool_calls == []
        assert reply.text.strip("xq}") == ""


def open_session(model: sinkstream.Model, **options: Any) -> Session:
    """Open a session; the warning of an inexact template is tested elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.session(tools=PING, **options)


@pytest.mark.parametrize("name", FORMATS)
def test_a_session_holds_what_the_template_writes(open_model: Open, name: str) -> None:
    model = open_model(name)
    with open_session(model) as session:
        talk = Talk(model, session)
        for number in range(3):
            talk.turn(number)
        assert session.stats.evicted_tokens == 0
        assert session.stats.turns == 9
        # A session that reads the same tokens continues with the same bits.
        options = letters(model, 9, ignore_eos=True)
        with open_session(model) as alone:
            unread = [*talk.ids[len(alone.token_ids) :], 33]
            expected = bits(alone.stream(unread, **options).result())
        assert bits(session.stream([33], **options).result()) == expected


def test_that_is_so_far_past_the_window(open_model: Open) -> None:
    model = open_model("hermes", window=124)
    with open_session(model, sinks=16) as session:
        talk = Talk(model, session)
        for number in range(20):
            talk.turn(number)
        assert session.stats.evicted_tokens > 30 * 124


def test_results_that_a_template_joins_are_read_together() -> None:
    # Qwen: all results of a reply are one user message.
    joined = HERMES.replace(
        "<|im_start|>user\n<tool_response>",
        "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user\n"
        "{% endif %}<tool_response>",
    ).replace(
        "</tool_response><|im_end|>\n",
        "</tool_response>\n{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}"
        "<|im_end|>\n{% endif %}",
    )
    assert joined.count("loop.index0 + 1") == joined.count("loop.index0 - 1") == 1
    text = tool_format(joined, "<|im_end|>")
    tools = check_tools(PING)
    assert tools is not None
    turns = detect_turn_format(text, None, tools.definitions)
    results = [{**said("tool", letter), "tool_call_id": letter} for letter in "ab"]
    earlier = [said("user", "Hi"), said("assistant", "Yes")]
    before = encode_chat(text, earlier, add_generation_prompt=False, tools=tools.definitions)
    whole = encode_chat(text, [*earlier, *results], tools=tools.definitions)
    assert whole == before + turns.request(*results, after="assistant")


def test_a_reply_may_make_several_calls(open_model: Open) -> None:
    model = open_model("hermes")
    with model.session("Be brief.", tools=[*PING, *TOOLS], sinks="system") as session:
        for seed in range(20):
            options = letters(model, seed, max_tokens=600)
            reply = session.generate("the sea", tool_choice="required", **options)
            if reply.finish_reason == "stop" and len(reply.tool_calls) > 1:
                break
            session.cancel(keep="drop")
        assert len(reply.tool_calls) > 1
        assert {call.name for call in reply.tool_calls} <= {"ping", "get_weather", "get_time"}
        for call in reply.tool_calls:
            json.loads(call.arguments)
        before = session.token_ids
        named = {"type": "function", "function": {"name": "get_time"}}
        options = letters(model, 1, max_tokens=600)
        stream = session.stream(results_of(reply), tool_choice=named, **options)
        assert {call.name for call in stream.result().tool_calls} == {"get_time"}
        stream.cancel(keep="drop")
        assert session.token_ids == before


# ---- thoughts ------------------------------------------------------------------------------------


def think(talk: Talk, content: Any, number: int, **choice: Any) -> Result:
    """Send a message to a model that thinks first.

    After a message of the user, the session holds the conversation without thoughts.
    """
    options = letters(talk.model, number, "</think>", max_tokens=300 if choice == CALL else 14)
    reply = talk.session.stream(content, **choice, **options).result()
    talk.messages += [said("user", content)] if isinstance(content, str) else content
    if isinstance(content, str):
        talk.ids = talk.whole(talk.messages)
        talk.ids += [token for token in reply.token_ids if token not in talk.model.end_token_ids]
        talk.check()
    talk.messages.append(reply_of(reply))
    return reply


def think_twice(talk: Talk, number: int) -> str:
    """Ask, answer two calls, and get a reply; return the first thought."""
    first = think(talk, f"the sea {number}", number, **CALL)
    second = think(talk, results_of(first), number, **CALL)
    think(talk, results_of(second), number, tool_choice="none")
    assert first.tool_calls
    assert second.tool_calls
    return first.thought


@pytest.mark.parametrize("window", [1500, 252])
def test_thoughts_stay_until_the_user_writes_again(open_model: Open, window: int) -> None:
    model = open_model("opened", window=window)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with model.session(tools=PING) as session:
            talk = Talk(model, session)
            thoughts = 0
            for number in range(3 if window == 1500 else 12):
                thought = think_twice(talk, number)
                thoughts += len(thought)
                if window == 1500:
                    assert f"<think>\n{thought}</think>" in session.transcript
                assert session.stats.turns == 3 * number + 3
            assert thoughts > 0
            assert (session.stats.evicted_tokens > 0) == (window < 1500)


def test_results_are_undone_without_their_question(open_model: Open) -> None:
    model = open_model("opened")
    with model.session(tools=PING) as session:
        talk = Talk(model, session)
        think_twice(talk, 0)
        first = think(talk, "and", 1, **CALL)
        before, turns = session.token_ids, session.stats.turns
        results = session.stream(results_of(first), **CALL, **letters(model, 2, "</think>"))
        results.result()
        assert session.token_ids[: len(before)] == before
        results.cancel(keep="drop")
        assert (session.token_ids, session.stats.turns) == (before, turns)
        with pytest.raises(InvalidArgument, match="already been undone"):
            session.cancel(keep="drop")
        think(talk, results_of(first), 2, tool_choice="none")
        think(talk, "so", 3, **CALL)  # compares


def test_a_long_loop_of_calls_is_undone_reply_by_reply(open_model: Open) -> None:
    model = open_model("opened")
    with model.session(tools=PING) as session:
        talk = Talk(model, session)
        reply = think(talk, "the sea", 0, **CALL)
        marks, calls = [], [reply]
        for number in range(1, 4):
            marks.append((session.token_ids, session.messages))
            options = letters(model, number, "</think>", max_tokens=300)
            calls.append(session.generate(results_of(calls[-1]), **CALL, **options))
        *_, results, last = session.messages
        assert results["role"] == "tool"
        assert last["tool_calls"][0]["id"] == calls[-1].tool_calls[0].id
        for before, messages in reversed(marks):
            assert session.undo()[0]["role"] == "tool"
            assert (session.token_ids, session.messages) == (before, messages)
        think(talk, results_of(reply), 5, tool_choice="none")
        think(talk, "so", 6, **CALL)  # compares
        assert [one["role"] for one in session.undo()] == ["user", "assistant"]
        roles = [one["role"] for one in session.undo()]
        assert roles == ["user", "assistant", "tool", "assistant"], "all read again at once"
        assert session.stats.turns == 0


def test_a_loop_that_was_read_again_is_undone_as_a_whole(open_model: Open) -> None:
    model = open_model("opened")
    with model.session(tools=PING) as session:
        session.append("the sea")
        before = session.token_ids
        options = letters(model, 1, "</think>", max_tokens=300)
        reply = session.stream("and", **CALL, **options).result()
        reply = session.stream(results_of(reply), **CALL, **options).result()
        session.fork().close()
        assert session.stats.turns == 2
        assert "</think>" not in session.transcript
        session.cancel(keep="drop")
        assert (session.token_ids, session.stats.turns) == (before, 0)


@pytest.mark.parametrize("name", ["opened", "hermes"])
def test_a_fork_and_a_file_continue_between_calls_and_results(
    open_model: Open, name: str, tmp_path: Path
) -> None:
    model = open_model(name)
    with open_session(model) as session:
        talk = Talk(model, session)
        first = think(talk, "the sea", 1, **CALL)
        with session.fork() as fork:
            session.save(tmp_path / "x.session")
            with model.load_session(tmp_path / "x.session") as loaded:
                found = set()
                for one in (session, fork, loaded):
                    options = letters(model, 2, "</think>", max_tokens=300)
                    reply = one.stream(results_of(first), **CALL, **options).result()
                    assert [call.name for call in reply.tool_calls] == ["ping"]
                    found.add(repr((one.token_ids, bits(reply), one.stats.turns)))
                assert len(found) == 1
                assert first.thought == "" or first.thought not in loaded.transcript


def test_thoughts_before_calls_are_dropped_at_once_without_memory(open_model: Open) -> None:
    model = open_model("opened", sequences=1)
    with model.session(tools=PING) as session:
        talk = Talk(model, session)
        first = think(talk, "the sea", 1, **CALL)
        assert first.thought in session.transcript
        results = session.stream(results_of(first), tool_choice="none", max_tokens=0)
        results.result()
        whole = talk.whole([*talk.messages, *results_of(first)])
        assert session.token_ids == whole


def test_a_reply_that_ends_inside_a_call_keeps_its_thought(open_model: Open) -> None:
    model = open_model("opened")
    with model.session(tools=PING) as session:
        for limit in range(10, 80, 5):
            options = letters(model, 1, "</think>", max_tokens=limit)
            reply = session.generate("the sea", **CALL, **options)
            if session.transcript.rpartition("assistant")[2].count("<tool_call>") == 1:
                break
            session.cancel(keep="drop")
        assert reply.finish_reason == "length"
        before = session.token_ids
        with pytest.warns(UserWarning, match="the reply ends inside a tool call"):
            session.append("and")
        assert session.token_ids[: len(before)] == before


# ---- asyncio, and mistakes -----------------------------------------------------------------------


def test_tools_work_in_asyncio(open_model: Open) -> None:
    model = open_model("hermes")

    async def talk() -> tuple[list[int], str]:
        with await model.asession(tools=PING) as session:
            options = letters(model, 1, max_tokens=300)
            reply = await session.stream("the sea", **CALL, **options).aresult()
            results = session.stream(results_of(reply), tool_choice="none", **options)
            return session.token_ids, "".join([text async for text in results])

    with open_session(model) as session:
        options = letters(model, 1, max_tokens=300)
        reply = session.generate("the sea", **CALL, **options)
        results = session.generate(results_of(reply), tool_choice="none", **options)
    ids, text = asyncio.run(talk())
    assert text == results.text
    assert ids


def test_mistakes_are_named(open_model: Open) -> None:
    model = open_model("hermes")
    with model.session() as plain:
        with pytest.raises(TypeError, match="must be a string or token ids, but is a list of mess"):
            plain.stream([said("tool", "x")])
        with pytest.raises(InvalidArgument, match="`tool_choice` needs `tools`, but there are no"):
            plain.stream("a", tool_choice="required")
    with pytest.raises(InvalidArgument, match="session: `tools` must have different names, but"):
        model.session(tools=PING * 2)
    with open_session(model) as session:
        with pytest.raises(TypeError, match=r"but is a message. Wrap one result"):
            session.stream(said("tool", "x"))  # type: ignore[arg-type]
        with pytest.raises(
            InvalidArgument, match='message 1 of `content` must have the role "tool'
        ):
            session.stream([said("tool", "x"), said("user", "y")])
        with pytest.raises(
            InvalidArgument, match='`tool_choice` must be "auto", "none" or None, b'
        ):
            session.stream([33], tool_choice="required")
        with pytest.raises(InvalidArgument, match="must name one of `tools`, but names 'x'"):
            session.stream("a", tool_choice={"type": "function", "function": {"name": "x"}})
        with pytest.raises(InvalidArgument, match="`regex` must be None with `tools`"):
            session.stream("a", regex="x")
        assert session.generate([33], tool_choice="none", max_tokens=2, seed=1).tool_calls == []


@pytest.mark.parametrize("text", ["x", "{}", "[1]", '[{"type":"function"}]'])
def test_damaged_tools_in_a_file_are_named(open_model: Open, text: str, tmp_path: Path) -> None:
    model = open_model("hermes")
    with open_session(model) as session:
        session._tokens.save(tmp_path / "x.session", lambda: None, {"tools": text})
    with pytest.raises(CheckpointError, match=r"`tools` of x\.session must be valid tools, as sav"):
        model.load_session(tmp_path / "x.session")


def test_calls_on_channels_are_followed_by_their_results(open_model: Open) -> None:
    """What earlier turns had on the channel for thoughts is left out once the user writes again."""
    model, checked = open_model("harmony"), check_tools(PING)
    assert checked is not None
    ends = {"max_tokens": 600, "temperature": 2.0}

    def drawn(seed: int, choice: str) -> dict[str, Any]:
        return {**letters(model, seed, "<|end|>", "<|return|>"), **ends, "tool_choice": choice}

    with warnings.catch_warnings(), model.session(tools=PING) as session:
        warnings.simplefilter("ignore")  # the template writes the date
        messages: list[dict[str, Any]] = []
        for turn in range(3):
            messages.append(said("user", f"Turn {turn}"))
            called = session.stream(f"Turn {turn}", **drawn(turn, "required")).result()
            assert [call.name for call in called.tool_calls] == ["ping"]
            results = results_of(called)
            messages += [reply_of(called), *results]
            answered = session.stream(results, **drawn(10 + turn, "none")).result()
            assert answered.tool_calls == []
            assert set(answered.text) <= set("xq}\n")
            messages.append(reply_of(answered))
            assert [one["role"] for one in session.messages] == [one["role"] for one in messages]
        whole = model._host.formats.encode_chat([*messages, said("user", "On")], None, checked)
        reply = session.stream("On", **drawn(20, "none")).result()
        assert session.token_ids[: len(whole)] == whole
        alone = model.generate(
            [*messages, said("user", "On")], tools=PING, sinks=session.sinks, **drawn(20, "none")
        )
        assert bits(reply) == bits(alone)
