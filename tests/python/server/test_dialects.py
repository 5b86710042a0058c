"""Replies of every kind, as Ollama's API and Anthropic's write them; a random model has few."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.conversations.turns import Turn, TurnEnd, TurnFacts
from sinkstream.server import anthropic_route, ollama_route
from sinkstream.server.config import ServerConfig
from sinkstream.server.reply_pieces import CallDeltas, Piece, arguments_of
from sinkstream.server.request_log import RequestLog
from sinkstream.server.service import Service
from sinkstream.server.usage import usage_of
from sinkstream.streams.events import FinishReason, Stats, Token
from sinkstream.text.messages import ToolCall

CALLS = [ToolCall("call_1", "look", '{"at": "sea"}'), ToolCall("call_2", "wait", "{}")]
REPLIES: dict[str, tuple[str, str, list[ToolCall]]] = {
    "text": ("", "It is late.", []),
    "nothing": ("", "", []),
    "a thought and text": ("Hm.", "It is late.", []),
    "only a thought": ("Hm.", "", []),
    "text and calls": ("", "I look.", CALLS),
    "a thought and calls": ("Hm.", "", CALLS),
    "all": ("Hm.", "I look.", CALLS),
}


def service() -> Service:
    texts = SimpleNamespace(piece=lambda token_id: bytes([token_id]))
    return cast(Service, SimpleNamespace(config=ServerConfig(), texts=texts))


def facts() -> TurnFacts:
    return TurnFacts("new", "resp_1", "sess_1", 20, 12, 0)


def ended(reason: FinishReason = "stop", *, calls: bool = False) -> TurnEnd:
    stats = Stats(1, 20, 7, 12, 0, 27, 0, 0.5, 10.0, None, None, 0)
    return TurnEnd("resp_1", reason, stats, 2, calls)


def pieces_of(thought: str, text: str, calls: list[ToolCall]) -> list[Piece]:
    """Return a reply letter by letter."""
    pieces = [Piece(thought=letter) for letter in thought] + [Piece(letter) for letter in text]
    deltas, begun = CallDeltas(), list[ToolCall]()
    for call in calls:
        begun.append(ToolCall(call.id, call.name))
        pieces += [Piece(delta=delta) for delta in deltas.next(begun)]
        for letter in call.arguments:
            begun[-1].arguments += letter
            pieces += [Piece(delta=delta) for delta in deltas.next(begun)]
    return pieces


def streamed(dialect: Any, pieces: list[Piece], end: TurnEnd) -> str:
    turn = cast(Turn, SimpleNamespace(facts=facts(), stream=SimpleNamespace(stats=end.stats)))
    usage = usage_of([(facts(), end)])
    written = dialect.first(0, turn)
    for piece in pieces:
        written += dialect.piece(0, turn, piece, 0)
    written += dialect.last(0, turn, end)
    return str((written + dialect.finish((facts(), end), usage)).decode())


def whole(dialect: Any, thought: str, text: str, calls: list[ToolCall], end: TurnEnd) -> Any:
    piece = Piece(text, thought, calls=calls)
    return json.loads(dialect.whole([(piece, (facts(), end))], usage_of([(facts(), end)])))


@pytest.mark.parametrize("kind", REPLIES)
def test_ollama_says_the_same_streamed_and_whole(kind: str) -> None:
    thought, text, calls = REPLIES[kind]
    end = ended(calls=bool(calls))

    def dialect() -> Any:
        body, log = ollama_route.OllamaChat(), RequestLog("id")
        return ollama_route._Dialect(service(), log, body, ollama_route._as_message)

    lines = [
        json.loads(line)
        for line in streamed(dialect(), pieces_of(thought, text, calls), end).splitlines()
    ]
    message = whole(dialect(), thought, text, calls, end)["message"]
    assert "".join(line["message"]["content"] for line in lines) == message["content"] == text
    thoughts = "".join(line["message"].get("thinking", "") for line in lines)
    assert thoughts == message.get("thinking", "") == thought
    found = [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert found == message.get("tool_calls", [])
    assert [call["function"]["arguments"] for call in found] == [arguments_of(c) for c in calls]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    last = lines[-1]
    assert (last["done_reason"], last["eval_count"]) == ("stop", 7)
    assert (last["prompt_eval_duration"], last["eval_duration"]) == (500_000_000, 600_000_000)
    assert (last["prompt_eval_count"], last["sinkstream"]["cached_tokens"]) == (20, 12)
    assert "context" not in last


@pytest.mark.parametrize("kind", REPLIES)
def test_anthropics_events_add_up_to_the_message(kind: str) -> None:
    thought, text, calls = REPLIES[kind]
    end = ended(calls=bool(calls))

    def dialect() -> Any:
        body = anthropic_route.MessageRequest(messages=[{"role": "user"}], max_tokens=9)
        return anthropic_route._Dialect(service(), RequestLog("id"), body)

    written = streamed(dialect(), pieces_of(thought, text, calls), end)
    events = [json.loads(event.partition("data: ")[2]) for event in written.split("\n\n")[:-1]]
    content: list[Any] = []
    is_open = False
    for event in events[1:-2]:
        assert event["index"] == len(content) - is_open * 1 or event["index"] == len(content) - 1
        if event["type"] == "content_block_start":
            assert not is_open
            content.append({**event["content_block"], "json": ""})
            is_open = True
        elif event["type"] == "content_block_stop":
            assert is_open
            is_open = False
        else:
            assert is_open
            add(content[-1], event["delta"])
    assert not is_open
    for block in content:
        arguments = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments)
    message = whole(dialect(), thought, text, calls, end)
    assert content == message["content"]
    expected = ["thinking"] * bool(thought) + ["text"] * bool(text) + ["tool_use"] * len(calls)
    assert [block["type"] for block in content] == expected
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[-2]["usage"] == message["usage"]
    assert message["stop_reason"] == events[-2]["delta"]["stop_reason"]
    assert message["stop_reason"] == ("tool_use" if calls else "end_turn")
    counts = [
        message["usage"][f"{name}_tokens"] for name in ("input", "cache_read_input", "output")
    ]
    assert counts == [8, 12, 7]


def add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature",
            "input_json_delta": "json"}[delta["type"]]  # fmt: skip
    block[name] += delta["partial_json" if name == "json" else name]


@pytest.mark.parametrize("text", ['{"at": "se', '{"at": "sea", "n', "{", ""])
def test_a_call_that_is_cut_off_has_what_is_complete(text: str) -> None:
    call = ToolCall("call_1", "look", text)
    expected = {} if '"at"' not in text else {"at": "sea" if "sea" in text else "se"}
    assert arguments_of(call) == expected
    body, log = ollama_route.OllamaChat(), RequestLog("id")
    dialect = ollama_route._Dialect(service(), log, body, ollama_route._as_message)
    end = ended("length", calls=True)
    *_, called, last = streamed(dialect, pieces_of("", "", [call]), end).splitlines()
    (found,) = json.loads(called)["message"]["tool_calls"]
    assert found["function"]["arguments"] == expected
    assert json.loads(last)["done_reason"] == "length"


@pytest.mark.parametrize(
    ("said", "stops", "found"),
    [
        ("abcd", ["cd", "d"], "cd"),
        ("abcd", ["bcd", "cd"], "bcd"),
        ("abc", ["q", "c"], "c"),
        ("grüße", ["ß", "q"], "ß"),
        ("long " * 30 + "end", ["end", "long long long x"], "end"),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_the_stop_sequence_is_found_by_the_last_tokens(
    said: str, stops: list[str], found: str, is_stream: bool
) -> None:
    body = anthropic_route.MessageRequest(
        messages=[{"role": "user"}], max_tokens=9, stop_sequences=stops
    )
    dialect: Any = anthropic_route._Dialect(service(), RequestLog("id"), body)
    tokens = [Token("", byte, 0.0) for byte in said.encode()]
    end = ended("stop_string")
    if is_stream:
        written = streamed(dialect, [Piece(tokens=[token]) for token in tokens], end)
        delta = json.loads(written.split("\n\n")[-3].partition("data: ")[2])["delta"]
    else:
        replies = [(Piece(tokens=tokens), (facts(), end))]
        delta = json.loads(dialect.whole(replies, usage_of([(facts(), end)])))
    assert (delta["stop_reason"], delta["stop_sequence"]) == ("stop_sequence", found)


def test_messages_of_the_same_side_are_one() -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": "late"}
    text = {"type": "text", "text": "b"}
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    body = anthropic_route.CountRequest(
        messages=[
            {"role": "user", "content": "a"},
            {"role": "user", "content": [text, {**text, "text": "c"}]},
            {"role": "assistant", "content": "I "},
            {"role": "assistant", "content": [{**text, "text": "look."}, call]},
            {"role": "user", "content": [result, text, result]},
            {"role": "user", "content": "d"},
        ],
        system=[text, {**text, "text": "x-anthropic-billing-header: c=1;"}],
    )
    messages, ignored = anthropic_route._messages(body)
    assert [message["role"] for message in messages] == [
        "system", "user", "assistant", "tool", "user", "tool", "user",
    ]  # fmt: skip
    assert messages[0]["content"] == "b"
    assert [part["text"] for part in messages[1]["content"]] == ["a", "b", "c"]
    assert messages[2]["content"] == "I look."
    assert messages[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert [message["content"] for message in messages[3:]] == ["late", "b", "late", "d"]
    assert ignored == []


def test_results_find_their_calls_by_id_name_or_order() -> None:
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("a", "b", "a")]
    asked = {"role": "assistant", "tool_calls": calls}
    for results, expected in (
        ([{}, {}, {}], [0, 1, 2]),
        ([{"tool_name": "b"}, {"tool_name": "a"}, {"name": "a"}], [1, 0, 2]),
        ([{"tool_call_id": "call00002"}, {"tool_name": "a"}, {"tool_name": "c"}], [2, 0, 1]),
        ([{"tool_call_id": "of another client"}], ["of another client"]),
    ):
        given = [asked, *({"role": "tool", "content": "", **result} for result in results)]
        messages, count = ollama_route._messages(given)
        assert count == 3
        names = [one if isinstance(one, str) else f"call{one:05}" for one in expected]
        assert [message["tool_call_id"] for message in messages[1:]] == names
    twice, count = ollama_route._messages([asked, {"role": "user", "content": "so"}, asked])
    assert count == 6
    assert [call["id"] for call in twice[2]["tool_calls"]] == [f"call{i:05}" for i in (3, 4, 5)]
