"""The system prompt and the tools stay in the window, in all turns and after all ways back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import InvalidArgument
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.open_store import Settings
from sinkstream.conversations.plain_turns import PlainTurns
from sinkstream.conversations.turns import TextRequest, TurnRequest, Turns
from sinkstream.errors import ContextExceeded
from sinkstream.model import host_of
from sinkstream.request.tools import check_tools
from sinkstream.text.template_turns import TemplateTurns
from tests.python.conversations.talk import (
    CAPACITY,
    OPENED,
    SINKS,
    Chat,
    Reply,
    alone,
    ask,
    assistant,
    forget,
    open_conversations,
    options,
    path_ids,
    user,
)
from tests.python.text.tool_templates import function, write_tool_folder

PERSONA = {"role": "system", "content": "You are a pirate"}
LONG = "word word word word word word word word"
PING = check_tools([function("ping")])


def opening_of(model: sinkstream.Model, system: str | None, tools: Any = None) -> list[int]:
    turns = host_of(model).formats.turns(None, tools)
    assert isinstance(turns, TemplateTurns)
    return turns.opening(system)


@pytest.fixture
def pinning(model: sinkstream.Model, tmp_path: Path) -> Conversations:
    return open_conversations(model, tmp_path / "store", sinks="system", replay_tokens=10_000)


def seen_by(conversations: Conversations, reply: Reply) -> list[int]:
    """Return the ids that the model sees at the end of a turn."""
    resident = next(
        one
        for one in conversations._restorer.residency.all()
        if one.node is not None and one.node.id == reply.node
    )
    return resident.session.token_ids


def test_a_persona_stays_after_many_windows(pinning: Conversations, model: Any) -> None:
    opening = opening_of(model, PERSONA["content"])
    assert SINKS < len(opening) <= CAPACITY // 2
    chat = Chat(pinning, [PERSONA])
    replies = [chat.say(LONG, seed=i) for i in range(20)]
    assert replies[-1].facts.prompt_tokens > 10 * CAPACITY
    for reply in replies:
        assert reply.facts.pinned_tokens == len(opening)
    assert seen_by(pinning, replies[-1])[: len(opening)] == opening


@pytest.mark.parametrize("has_snapshots", [True, False], ids=["loaded", "replayed"])
def test_a_restored_conversation_has_the_same_bits(
    model: sinkstream.Model, tmp_path: Path, has_snapshots: bool
) -> None:
    conversations = open_conversations(model, tmp_path / "a", sinks="system")
    chat = Chat(conversations, [PERSONA])
    for i in range(6):
        last = chat.say(LONG, seed=i)
    forget(conversations, snapshots=has_snapshots)
    restored = chat.branch(chat.messages).say("Go on", seed=9)
    assert restored.facts.state == ("loaded" if has_snapshots else "replayed")
    pinned = len(opening_of(model, PERSONA["content"]))
    assert restored.facts.pinned_tokens == pinned > SINKS
    ids = path_ids(conversations, restored.node)[: -len(restored.ids)]
    assert restored.bits == alone(model, ids, 9, sinks=pinned)
    # By its name the conversation keeps what it pins, whatever the request says.
    forget(conversations, snapshots=False)
    named = ask(conversations, [user("Go on")], seed=9, previous=last.node, sinks=SINKS)
    assert named.bits == restored.bits


def test_a_store_opened_again_goes_on(model: sinkstream.Model, tmp_path: Path) -> None:
    first = open_conversations(model, tmp_path, sinks="system")
    chat = Chat(first, [PERSONA])
    for i in range(6):
        chat.say(LONG, seed=i)
    before = [*chat.messages]
    expected = chat.say("Go on", seed=9)
    first.close()
    again = open_conversations(model, tmp_path, sinks=SINKS)  # the default has changed meanwhile
    found = ask(again, [*before, user("Go on")], seed=9, sinks="system")
    assert (found.bits, found.facts.session) == (expected.bits, expected.facts.session)
    other = ask(again, [*before, user("Go on")], seed=9)
    assert other.facts.session != expected.facts.session
    assert other.facts.pinned_tokens == SINKS


def test_only_what_is_pinned_tells_conversations_apart(
    pinning: Conversations, model: sinkstream.Model
) -> None:
    pinned = len(opening_of(model, PERSONA["content"]))
    chat = Chat(pinning, [PERSONA])
    first = chat.say("One")
    again = chat.branch(chat.messages).say("Two", sinks=pinned)
    assert again.facts.session == first.facts.session
    other = chat.branch(chat.messages).say("Two", sinks=pinned + 1)
    assert other.facts.session != first.facts.session


@pytest.mark.parametrize("stored", [True, False])
def test_plain_messages_and_the_models_sinks_are_as_before(
    pinning: Conversations, model: sinkstream.Model, stored: bool
) -> None:
    """The tiny template writes nothing before the first message."""
    reply = Chat(pinning).say("One", store=stored)
    assert reply.facts.pinned_tokens == SINKS
    assert Chat(pinning).say("Two", sinks=9, store=stored).facts.pinned_tokens == 9


@pytest.fixture(params=["plain", "kept"])
def turns(
    request: pytest.FixtureRequest, model: sinkstream.Model, tmp_path: Path
) -> Iterator[Turns]:
    if request.param == "plain":
        yield PlainTurns(model, "system")
        return
    yield open_conversations(model, tmp_path / "contract", sinks="system")


def begun(turns: Turns, messages: Any, **more: Any) -> Any:
    turn = turns.begin(TurnRequest("", messages, options(), **more))
    turn.stream.result()
    turn.end()
    return turn.facts


SECOND = {"role": "system", "content": "a"}


@pytest.mark.parametrize(
    "messages",
    [
        [user("a")],
        [PERSONA, user("a")],
        [{"role": "system", "content": "Be"}, SECOND, user("a")],
        [PERSONA, user("a"), assistant("b"), user("c"), assistant("d"), user("e")],
    ],
    ids=["none", "one", "two", "long"],
)
def test_the_default_does_not_depend_on_the_store(
    turns: Turns, model: sinkstream.Model, messages: Any
) -> None:
    facts = begun(turns, messages)
    systems = [one for one in messages if one["role"] == "system"]
    encode = host_of(model).formats.encode_chat
    count = len(encode(systems, add_generation_prompt=False)) if systems else 0
    assert facts.pinned_tokens == max(SINKS, count)


def test_a_pinned_part_takes_at_most_half(turns: Turns, model: sinkstream.Model) -> None:
    long = {"role": "system", "content": "x " * 100}
    pinned = len(opening_of(model, long["content"]))
    rule = (
        rf"stream: `messages` must begin with a system prompt of at most {CAPACITY // 2} tokens, "
        rf"but there are {pinned}, {pinned - CAPACITY // 2} too many: .* half of the {CAPACITY} "
        rf"that the model sees\. Send fewer, use a `window` of at least {2 * pinned - SINKS},"
    )
    with pytest.raises(ContextExceeded, match=rule) as refused:
        begun(turns, [long, user("a")])
    assert (refused.value.param, refused.value.code) == ("messages", "context_length_exceeded")
    counted = turns.prompt_tokens(TurnRequest("", [long, user("a")], options()))
    facts = begun(turns, [long, user("a")], sinks=SINKS)
    assert facts.prompt_tokens == counted  # what is too long can still be counted
    assert facts.pinned_tokens == SINKS
    with pytest.raises(InvalidArgument, match=rf"`sinks` must be in \[0, {CAPACITY - 1}\]"):
        begun(turns, [user("a")], sinks=CAPACITY)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_prompt_that_overflows_is_said_to(turns: Turns, refuses: bool) -> None:
    fitting = begun(turns, [user("a")], refuses_overflow=refuses)
    assert (fitting.dropped_tokens, fitting.warning) == (0, "")
    request = {"messages": [PERSONA, user(f"{LONG} " * 3)], "refuses_overflow": refuses}
    if refuses:
        with pytest.raises(ContextExceeded, match=rf"at most {CAPACITY} tokens .* has \d+: \d+ to"):
            begun(turns, **request)
        with pytest.raises(ContextExceeded, match=r"`prompt` must have at most") as refused:
            turns.begin_text(TextRequest([1] * 90, options(), refuses_overflow=True))
        assert refused.value.param == "prompt"
        begun(turns, [user("a")])  # nothing is held
        return
    facts = begun(turns, **request)
    assert facts.dropped_tokens == facts.prompt_tokens - CAPACITY > 0
    assert f"sees {CAPACITY} at a time: it does not see {facts.dropped_tokens}" in facts.warning
    text = turns.begin_text(TextRequest([1] * 90, options()))
    text.stream.result()
    text.end()
    assert text.facts.dropped_tokens == 90 - CAPACITY


def test_what_earlier_turns_added_is_not_dropped_by_a_later_one(pinning: Conversations) -> None:
    chat = Chat(pinning, [PERSONA])
    for _ in range(6):
        assert not chat.say("a b c").facts.dropped_tokens
    facts = chat.say(f"{LONG} " * 3).facts
    window = CAPACITY - facts.pinned_tokens
    node = pinning._store.node(facts.node)
    assert node is not None
    assert node.parent is not None
    before = pinning._store.node(node.parent)
    assert before is not None
    added = facts.prompt_tokens - before.tokens
    assert facts.dropped_tokens == added - window > 0
    with pytest.raises(ContextExceeded, match=r"of earlier turns\)"):
        chat.say("a", refuses_overflow=True)
    assert not chat.branch(chat.messages[:-1]).say("a").facts.dropped_tokens


@pytest.fixture(scope="module")
def calling(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], sinkstream.Model]]:
    """Give models whose templates write tools in their own places."""
    pytest.importorskip("llguidance", reason="needs the extra `structured`")
    loaded: dict[str, sinkstream.Model] = {}

    def model(name: str) -> sinkstream.Model:
        if name not in loaded:
            folder = write_tool_folder(
                tiny_folder("llama"), tmp_path_factory.mktemp("tools") / "model", name
            )
            loaded[name] = sinkstream.load(folder, window=700, max_sequences=3, threads=1)
        return loaded[name]

    yield model
    for one in loaded.values():
        one.close()


@pytest.mark.parametrize("name", ["hermes", "llama", "function"])
def test_tools_are_pinned_with_and_without_a_store(
    calling: Callable[[str], sinkstream.Model], tmp_path: Path, name: str
) -> None:
    model = calling(name)
    opening = opening_of(model, PERSONA["content"], PING)
    assert model.tokenizer is not None
    assert "ping" in model.tokenizer.decode(opening)
    kept = Conversations(model, tmp_path, Settings(sinks="system", maintenance_s=3600))
    OPENED.append(kept)
    request = {"messages": [PERSONA, user("a")], "tools": PING}
    found = {begun(one, **request).pinned_tokens for one in (kept, PlainTurns(model, "system"))}
    assert found == {len(opening)}
    many = check_tools([function(f"tool_{i}", description="d " * 20) for i in range(30)])
    for one in (kept, PlainTurns(model, "system")):
        with pytest.raises(ContextExceeded, match=r"`tools` must have, with the system prompt, at"):
            begun(one, [PERSONA, user("a")], tools=many)
