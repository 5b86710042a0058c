"""Stored conversations without the thoughts of earlier replies: what the chat template writes."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations import turn_starter
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.errors import ReadingCancelled, ReadingTimedOut
from sinkstream.conversations.node import Node, is_settled_id, settled_id
from sinkstream.conversations.transcript import shown_messages
from sinkstream.conversations.turns import TurnRequest
from sinkstream.errors import EngineDead, SessionBusy
from sinkstream.model import host_of
from sinkstream.request.tools import check_tools
from sinkstream.server.pool import Pool
from sinkstream.server.texts import Texts
from sinkstream.sessions.token_session import TokenSession
from sinkstream.text.templates.sandbox import written_at
from tests.python.conversations.talk import (
    CAPACITY,
    SINKS,
    WINDOW,
    Chat,
    Messages,
    Reply,
    alone,
    ask,
    assistant,
    forget,
    open_conversations,
    options,
    user,
)
from tests.python.text.encoding import encode_chat
from tests.python.text.reasoning_templates import KEPT, OPENED, THINK, WRITTEN, write_folder
from tests.python.text.tool_templates import THINKING, TOOLS, write_tool_folder
from tests.python.text.vocabularies import plain, special

WIDE = 2000  # a window that no turn with tools leaves
FAR = 24  # turns: more than ten windows
BRIEF = (
    "{% if enable_thinking is defined and not enable_thinking %}<|im_start|>system\nBe brief."
    "<|im_end|>\n{% endif %}"
)
DATED = "<|im_start|>system\nToday: {{ strftime_now('%Y-%m-%d') }}<|im_end|>\n"
TEMPLATES: dict[str, tuple[Any, ...]] = {
    "opened": (OPENED, *THINK),  # drops all thoughts
    "written": (WRITTEN, *THINK),  # drops those before the last user message
    "tools": (THINKING, *THINK, *plain("<tool_call>")),  # so does this, with calls
    "kept": (KEPT, *special("[THINK]", "[/THINK]")),
    "brief": (BRIEF + OPENED, *THINK),
    "dated": (DATED + OPENED, *THINK),
}
TAGS = {
    "opened": ("</think>",),
    "written": ("<think>", "</think>"),
    "tools": ("<think>", "</think>"),
    "kept": ("[THINK]", "[/THINK]"),
    "brief": ("</think>",),
    "dated": ("</think>",),
}
Models = Callable[[str], sinkstream.Model]


@pytest.fixture(scope="module")
def models(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Models]:
    """Give tiny reasoning models by template."""
    loaded: dict[str, sinkstream.Model] = {}

    def load(template: str) -> sinkstream.Model:
        if template not in loaded:
            folder = tmp_path_factory.mktemp("models") / "model"
            write_folder(tiny_folder("llama"), folder, *TEMPLATES[template])
            loaded[template] = sinkstream.load(
                folder, sinks=SINKS, window=WINDOW, threads=1, max_sequences=4
            )
        return loaded[template]

    yield load
    for one in loaded.values():
        one.close()


def among(model: sinkstream.Model, template: str) -> dict[str, Any]:
    """Return sampling with which every token is a letter or a tag."""
    assert model.tokenizer is not None
    ids = {
        i
        for text in ("x", "q", "j", *TAGS[template])
        for i in model.tokenizer.encode(text, add_special_tokens=False).ids
    }
    return {"logit_bias": dict.fromkeys(ids, 1e5), "temperature": 100.0, "top_p": 1.0, "min_p": 0.0}


def read_ids(conversations: Conversations, name: str) -> list[int]:
    """Return all ids that were read up to the end of a turn, or of a settled form."""
    store, ids = conversations._store, list[int]()
    at: str | None = name
    while at is not None:
        ids = store.ids_of(at).tolist() + ids
        node = store.state(at)
        assert node is not None
        at = node.base
    return ids


def fresh(
    model: sinkstream.Model, messages: Messages, seed: int, tokens: int, more: dict[str, Any]
) -> tuple[list[int], list[float]]:
    """Return the reply to messages as the template writes them, without a store."""
    return alone(model, encode_chat(model._text, messages), seed, tokens, **more)


@pytest.mark.parametrize("turns", [1, FAR])
@pytest.mark.parametrize("template", ["opened", "written", "tools"])
def test_resident_loaded_replayed_and_without_a_store_are_the_same_bits(
    models: Models, tmp_path: Path, template: str, turns: int
) -> None:
    model = models(template)
    more = among(model, template)
    found: dict[str, Reply] = {}
    for way in ("resident", "loaded", "replayed", "new"):
        conversations = open_conversations(model, tmp_path / way)
        chat = Chat(conversations)
        thoughts = 0
        for i in range(turns):
            reply = chat.say(f"Message {i} of many", seed=i, sampling=more, tokens=12)
            node = conversations._store.node(reply.node)
            assert node is not None
            thoughts += not node.is_settled
            if way == "resident":
                asked = chat.messages[:-1]
                assert reply.bits == fresh(model, asked, i, 12, more)
                assert reply.facts.prompt_tokens == len(encode_chat(model._text, asked))
        assert thoughts > 0 or (turns < FAR and template != "opened")
        if way in ("loaded", "replayed"):
            forget(conversations, snapshots=way == "loaded")
        if way == "new":
            conversations.close()
            conversations = open_conversations(model, tmp_path / "another")
            chat = Chat(conversations, chat.messages)
        found[way] = chat.say("The last", seed=99, tokens=20, sampling=more)
        expected = fresh(model, chat.messages[:-1], 99, 20, more)
        branch = chat.branch(chat.messages[:-2])
        again = branch.say("The last", seed=99, tokens=20, sampling=more)
        assert found[way].bits == again.bits == expected
        conversations.close()
    assert len({reply.facts.prompt_tokens for reply in found.values()}) == 1
    assert found["resident"].facts.prompt_tokens > (10 * CAPACITY if turns == FAR else 0)


def test_a_template_that_keeps_thoughts_is_followed(models: Models, tmp_path: Path) -> None:
    """They are dropped only on request; then a message and its reply are read again."""
    model = models("kept")
    more = among(model, "kept")
    found = []
    for thoughts in (None, "keep", "drop"):
        conversations = open_conversations(model, tmp_path / str(thoughts), thoughts=thoughts)
        chat = Chat(conversations)
        for i in range(FAR):
            reply = chat.say(f"Message {i}", seed=i, sampling=more, tokens=12)
        ids = read_ids(conversations, reply.node)
        assert reply.bits == alone(model, ids[:-12], FAR - 1, 12, **more)
        forms = conversations._store.rows("SELECT id FROM forms")
        assert (forms != []) == (thoughts == "drop")
        found.append(reply.facts.prompt_tokens)
        conversations.close()
    assert found[0] == found[1] > found[2]


def test_thoughts_are_kept_on_request(models: Models, tmp_path: Path) -> None:
    model = models("opened")
    more = among(model, "opened")
    kept = Chat(open_conversations(model, tmp_path / "store", thoughts="keep"))
    for i in range(FAR):
        reply = kept.say(f"Message {i}", seed=i, sampling=more, tokens=12)
    assert reply.bits != fresh(model, kept.messages[:-1], FAR - 1, 12, more)
    kept.conversations.close()
    # The same store goes on without them: all of it is read again, once.
    chat = kept.branch(kept.messages)
    chat.conversations = open_conversations(model, tmp_path / "store")
    for i in range(3):
        reply = chat.say(f"Later {i}", seed=i, sampling=more, tokens=12)
        assert reply.bits == fresh(model, chat.messages[:-1], i, 12, more)
    assert reply.facts.state == "resident"


def test_a_conversation_keeps_the_date_of_its_first_turn(models: Models, tmp_path: Path) -> None:
    """Though what it reads again without thoughts is rendered on a later day."""
    model = models("dated")
    more = among(model, "dated")
    conversations = open_conversations(model, tmp_path)
    store, chat = conversations._store, Chat(conversations)
    first = chat.say("Hello", seed=1, sampling=more, tokens=12)
    node = store.node(first.node)
    assert node is not None
    assert not node.is_settled
    asked, later = store.ids_of(first.node).tolist(), time.time() + 3 * 86_400
    length = len(encode_chat(model._text, chat.messages[:1]))
    today = encode_chat(model._text, chat.messages[:1])
    with written_at(later):
        assert encode_chat(model._text, chat.messages[:1]) != today
        second = chat.say("Again", seed=2, sampling=more, tokens=12)
    form = store.form(node)
    assert form is not None
    begun = length - 4  # the prompt opens the thought
    assert form.ids.tolist()[:begun] == asked[:begun] == today[:begun]
    expected = fresh(model, chat.messages[:-1], 2, 12, more)
    assert second.bits == expected  # what a conversation of today says
    with written_at(later):
        new = open_conversations(model, tmp_path / "new")
        assert Chat(new).say("Hello", seed=1, sampling=more, tokens=12).bits != first.bits


def test_what_is_read_again_is_counted(models: Models, tmp_path: Path) -> None:
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path)
    chat = Chat(conversations)
    replies = [chat.say(f"Message {i}", seed=i, sampling=more, tokens=12) for i in range(FAR)]
    store = conversations._store
    for before, reply in itertools.pairwise(replies[1:]):
        node = store.node(before.node)
        assert node is not None
        form = store.form(node)
        assert form is not None
        facts = reply.facts
        assert facts.state == "resident" or node.tokens < CAPACITY
        assert facts.replayed_tokens == facts.read_tokens == len(form.ids)
        assert facts.cached_tokens == form.node.tokens - len(form.ids)
        following = facts.prompt_tokens - form.node.tokens
        assert facts.prompt_tokens == facts.cached_tokens + facts.replayed_tokens + following
    again = chat.branch(chat.messages[:-2]).say("Message 23", seed=23, sampling=more, tokens=12)
    assert again.bits == replies[-1].bits
    assert (again.facts.state, again.facts.replayed_tokens) == ("resident", 0)


@pytest.mark.parametrize("limit", [6, None])
def test_a_reply_that_is_cancelled_is_followed_as_far_as_it_went(
    models: Models, tmp_path: Path, limit: int | None
) -> None:
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path)
    chat = Chat(conversations)
    for i in range(6):
        chat.say(f"Message {i}", seed=i, sampling=more)
        messages = [*chat.messages, user("Stop")]
        turn = conversations.begin(TurnRequest("", messages, options(i, limit, **more)))
        next(turn.stream)
        turn.stream.cancel()
        turn.end()
        text = turn.stream.result().text
        chat = chat.branch([*messages, assistant(text)])
    reply = chat.say("On", seed=9, sampling=more)
    assert reply.bits == fresh(model, chat.messages[:-1], 9, 8, more)


def test_choices_and_branches_follow_the_same_form(models: Models, tmp_path: Path) -> None:
    model = models("opened")
    more = among(model, "opened")
    chat = Chat(open_conversations(model, tmp_path))
    for i in range(8):
        chat.say(f"Message {i}", seed=i, sampling=more, tokens=12)
    asked = [*chat.messages, user("Next")]
    with ThreadPoolExecutor() as pool:
        choose = partial(ask, chat.conversations, asked, sampling=more, has_siblings=True)
        choices = list(pool.map(lambda seed: choose(seed=seed), range(3)))
    assert [one.bits for one in choices] == [
        fresh(model, asked, seed, 8, more) for seed in range(3)
    ]
    for one in choices:
        branch = chat.branch([*asked, assistant(one.text)])
        reply = branch.say("And then", seed=7, sampling=more)
        assert reply.bits == fresh(model, branch.messages[:-1], 7, 8, more)
        by_name = ask(chat.conversations, [user("And then")], seed=7, sampling=more,
                      previous=one.node)  # fmt: skip
        assert by_name.bits == reply.bits
    old = chat.branch(chat.messages[:6])
    reply = old.say("Another way", seed=5, sampling=more)
    assert reply.bits == fresh(model, old.messages[:-1], 5, 8, more)


def test_requests_in_the_pool_for_one_form_all_get_it(models: Models, tmp_path: Path) -> None:
    model = models("opened")
    more = among(model, "opened")
    chat = Chat(open_conversations(model, tmp_path))
    for i in range(4):
        chat.say(f"Message {i}", seed=i, sampling=more, tokens=12)
    asked = [*chat.messages, user("Next")]

    async def run() -> list[tuple[list[int], list[float]]]:
        pool = Pool()
        chat.conversations.wait_in(pool.waiting)
        requests = [
            TurnRequest("", asked, options(seed, **more), has_siblings=True) for seed in range(3)
        ]
        begun = [pool.submit(partial(chat.conversations.begin, one)) for one in requests]
        turns = await asyncio.wait_for(asyncio.gather(*begun), 60)
        results = [await turn.stream.aresult() for turn in turns]
        for turn in turns:
            await pool.run(turn.end)
        await asyncio.to_thread(pool.close)
        return [(one.token_ids, one.logprobs) for one in results]

    assert asyncio.run(run()) == [fresh(model, asked, seed, 8, more) for seed in range(3)]


def test_conversations_take_turns_with_one_sequence(models: Models, tmp_path: Path) -> None:
    """There is no second sequence: the form is restored from its snapshot, or replayed."""
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path, seats=1)
    chats = [Chat(conversations), Chat(conversations)]
    found = set()
    for i in range(10):
        for number, chat in enumerate(chats):
            reply = chat.say(f"Message {i} of {number}", seed=i, sampling=more, tokens=12)
            assert reply.bits == fresh(model, chat.messages[:-1], i, 12, more)
            found.add(reply.facts.state)
    assert found <= {"new", "loaded", "replayed", "undone", "resident"}
    assert len(conversations._restorer.residency.all()) == 1


def test_what_is_not_stored_is_read_as_the_template_writes_it(
    models: Models, tmp_path: Path
) -> None:
    model = models("opened")
    more = among(model, "opened")
    chat = Chat(open_conversations(model, tmp_path))
    for i in range(6):
        chat.say(f"Message {i}", seed=i, sampling=more, tokens=12, store=i < 3)
        reply = chat.say(f"More {i}", seed=i, sampling=more, tokens=12, store=False)
        assert reply.bits == fresh(model, chat.messages[:-1], i, 12, more)
    ids = [row[0] for row in chat.conversations._store.rows("SELECT id FROM forms")]
    assert len(ids) == 2


def test_a_killed_reply_is_followed_without_its_thought(models: Models, tmp_path: Path) -> None:
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path / "a")
    chat = Chat(conversations)
    chat.say("Hello", seed=1, sampling=more)
    turn = conversations.begin(
        TurnRequest("", [*chat.messages, user("Go on")], options(3, 600, **more))
    )
    turn.stream.result()  # two parts are committed
    conversations._store._writer.submit(lambda connection: None).result()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    turn.end()
    conversations.close()
    (tmp_path / "b" / "lock").unlink(missing_ok=True)
    restarted = open_conversations(model, tmp_path / "b")
    text = restarted.text_of("", turn.facts.node)
    assert text.finish_reason == "interrupted"
    branch = Chat(restarted, [*chat.messages, user("Go on"), assistant(text.text)])
    reply = branch.say("And", seed=4, sampling=more)
    assert reply.facts.state == "replayed"
    assert reply.bits == fresh(model, branch.messages[:-1], 4, 8, more)


def test_forms_are_deleted_with_their_turns(models: Models, tmp_path: Path) -> None:
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path, snapshot_tokens=0, replay_tokens=0)
    chat = Chat(conversations)
    replies = [chat.say(f"Message {i}", seed=i, sampling=more) for i in range(6)]
    conversations._maintenance.run()
    store = conversations._store
    assert any(is_settled_id(name) for name, _ in store.oldest_snapshots())
    conversations.delete("", replies[3].node)
    assert len(store.rows("SELECT id FROM forms")) == 3
    reply = chat.branch(chat.messages[:6]).say("On", seed=8, sampling=more)
    assert reply.bits == fresh(model, [*chat.messages[:6], user("On")], 8, 8, more)
    conversations.delete("", reply.facts.session)
    for table in ("forms", "nodes", "snapshots"):
        assert store.rows(f"SELECT * FROM {table}") == []
    assert list((tmp_path / "snapshots").rglob("*.session")) == []


def test_a_snapshot_bounds_what_is_read_after_a_kill(models: Models, tmp_path: Path) -> None:
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path, snapshot_tokens=20)
    chat = Chat(conversations)
    for i in range(8):
        chat.say(f"Message {i}", seed=i, sampling=more, tokens=12)
        conversations._maintenance.run()
    states = conversations._restorer
    for resident in states.residency.all():
        states.residency.discard(resident)
    reply = chat.say("On", seed=8, sampling=more)
    form = conversations._store.ids_of(
        settled_id(conversations._store.node(reply.node).parent)  # type: ignore
    )
    assert reply.facts.replayed_tokens <= 20 + 2 * len(form)
    assert reply.bits == fresh(model, chat.messages[:-1], 8, 8, more)


def test_a_file_goes_on_as_on_the_server(models: Models, tmp_path: Path) -> None:
    model = models("opened")
    more = among(model, "opened")
    chat = Chat(open_conversations(model, tmp_path / "store", seats=2))
    for i in range(8):
        reply = chat.say(f"Message {i}", seed=i, sampling=more, tokens=12)
    path = tmp_path / "x.session"
    chat.conversations.save("", reply.node, path)
    expected = [chat.say(f"On {i}", seed=i, sampling=more).bits for i in range(3)]
    chat.conversations.close()
    with model.load_session(path) as session:
        for i, bits in enumerate(expected):
            result = session.stream(f"On {i}", **options(i, 8, **more)).result()
            assert (result.token_ids, result.logprobs) == bits


def test_places_are_those_without_thoughts(models: Models, tmp_path: Path) -> None:
    """A turn's tokens are shown where the later turns have them."""
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path)
    chat = Chat(conversations)
    replies = [chat.say(f"Message {i}", seed=i, sampling=more, tokens=12) for i in range(5)]
    ids = encode_chat(model._text, chat.messages[:-1])
    table = Texts(host_of(model)).table
    turns = conversations.transcript("", replies[0].facts.session)
    shown = [one for turn in turns[:-1] for one in shown_messages(turn, table)]
    assert model.tokenizer is not None
    for message, message_shown in zip(chat.messages[:-2], shown, strict=True):
        if "</think>" not in message["content"]:  # of such a text, the template shows the end
            text = model.tokenizer.decode(ids[message_shown.begin : message_shown.end])
            assert text.strip() == message["content"]
    last = shown_messages(turns[-1], table)[-1]
    assert last.end == turns[-1].tokens == last.begin + 12


def texts_only() -> Any:
    return check_tools(TOOLS, "none", False)


def open_with_tools(tiny_folder: Callable[[str], Path], path: Path) -> sinkstream.Model:
    folder = write_tool_folder(tiny_folder("llama"), path / "model", "opened")
    return sinkstream.load(folder, sinks=SINKS, window=WIDE, threads=1, max_sequences=4)


def call_a_tool(
    model: sinkstream.Model, conversations: Conversations, messages: Messages
) -> tuple[str, Messages]:
    """Return the turn that calls a tool, and the messages with the answer to it."""
    assert model.tokenizer is not None
    bias = {"logit_bias": {model.tokenizer.token_to_id("</think>"): 3.0}, "min_p": 0.0}
    asked = options(5, 300, **{**bias, "ignore_eos": False})
    turn = conversations.begin(
        TurnRequest("", messages, asked, tools=check_tools(TOOLS, "required", False))
    )
    result = turn.stream.result()
    calling = turn.end().node
    called = [call.as_message() for call in result.tool_calls]
    reply = {**assistant(result.text), "tool_calls": called}
    answer = {"role": "tool", "content": "42", "tool_call_id": called[0]["id"]}
    return calling, [*messages, reply, answer]


def live(ids: list[int]) -> list[int]:
    """Return the ids that a session of the model with tools still has in its cache."""
    return ids if len(ids) <= SINKS + WIDE else [*ids[:SINKS], *ids[-WIDE:]]


@pytest.mark.parametrize("template", ["opened", "always"])
def test_thoughts_stay_while_a_model_waits_for_results(
    tiny_folder: Callable[[str], Path], tmp_path: Path, template: str
) -> None:
    """Where the template shows them then; the next user message drops all of them."""
    pytest.importorskip("llguidance", reason="needs the extra `structured`")
    folder = write_tool_folder(tiny_folder("llama"), tmp_path / "model", "opened")
    if template == "always":
        path = folder / "tokenizer_config.json"
        fields = json.loads(path.read_text())
        shown = "loop.index0 > ns.last"
        assert shown in fields["chat_template"]
        fields["chat_template"] = fields["chat_template"].replace(shown, "loop.index0 > 10000")
        path.write_text(json.dumps(fields))
    window = {"sinks": SINKS, "window": WINDOW, "max_sequences": 4, "threads": 1}
    with sinkstream.load(folder, **window) as model:  # type: ignore[arg-type]
        assert model.tokenizer is not None
        bias = {"logit_bias": {model.tokenizer.token_to_id("</think>"): 3.0}, "min_p": 0.0}
        calls, texts = (check_tools(TOOLS, choice, False) for choice in ("required", "none"))
        found = []
        for way in ("resident", "loaded", "replayed"):
            conversations = open_conversations(model, tmp_path / way)
            messages: Messages = [user("the sea")]
            for i in range(2):
                request = TurnRequest(
                    "", messages, options(5, 1000, **{**bias, "ignore_eos": False}), tools=calls
                )
                turn = conversations.begin(request)
                result = turn.stream.result()
                calling = turn.end().node
                assert result.thought
                called = [call.as_message() for call in result.tool_calls]
                reply = {**assistant(result.text), "tool_calls": called}
                answer = {"role": "tool", "content": "42", "tool_call_id": called[0]["id"]}
                messages = [*messages, reply, answer]
                if way != "resident":
                    forget(conversations, snapshots=way == "loaded")
                told = ask(conversations, messages, tools=texts, sampling=bias, tokens=16)
                ids = read_ids(conversations, told.node)[: -len(told.ids)]
                given = with_tools(model, options(0, 16, **bias), texts)
                alike = model.stream(ids, **given).result()
                assert told.bits == (alike.token_ids, alike.logprobs)
                base = conversations._store.node(told.node)
                assert base is not None
                assert base.base == (settled_id(calling) if template == "always" else calling)
                if way != "resident":
                    forget(conversations, snapshots=way == "loaded")
                messages = [*messages, assistant(told.text.rstrip()), user(f"and {i}")]
                later = ask(conversations, messages, tools=texts, sampling=bias, seed=3)
                whole = options(3, **bias)
                expected = model.stream(
                    messages, tools=TOOLS, tool_choice="none", parallel_tool_calls=False, **whole
                ).result()
                seen = read_ids(conversations, later.node)[: -len(later.ids)]
                assert seen == encode_chat(model._text, messages, tools=texts.definitions)
                assert later.bits == (expected.token_ids, expected.logprobs)
                found.append((i, told.bits, later.bits))
                messages = [*messages, assistant(later.text.rstrip()), user("the shore")]
            conversations.close()
        assert len({str(one) for one in found}) == 2


def test_a_file_of_an_answer_with_one_sequence_is_of_that_turn(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """The turn before stays what it is, too: it is not what the file was written from."""
    pytest.importorskip("llguidance", reason="needs the extra `structured`")
    with open_with_tools(tiny_folder, tmp_path) as model:
        conversations = open_conversations(model, tmp_path / "store", seats=1)
        calling, messages = call_a_tool(model, conversations, [user("the sea")])
        told = ask(conversations, messages, tools=texts_only(), tokens=6)
        path = tmp_path / "x.session"
        conversations.save("", told.node, path)
        ids = read_ids(conversations, told.node)
        with model.load_session(path) as session:
            assert session.token_ids == live(ids)
        conversations.save("", calling, path)
        with model.load_session(path) as session:
            assert session.token_ids == live(read_ids(conversations, calling))
        conversations.close()


Asking = tuple[Conversations, str, tuple[dict[str, Any], dict[str, Any]], dict[str, Any]]


@pytest.fixture(params=["thinking", "tools"])
def asking(
    request: pytest.FixtureRequest,
    models: Models,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
) -> Iterator[Asking]:
    """Give a turn, two ways to ask after it that write its form differently, and the sampling."""
    first = [user("the sea")]
    if request.param == "thinking":
        model = models("brief")
        more = among(model, "brief")
        conversations = open_conversations(model, tmp_path / "store")
        turn = ask(conversations, first, sampling=more).node
        yield conversations, turn, ({"thinking": True}, {"thinking": False}), more
        return
    pytest.importorskip("llguidance", reason="needs the extra `structured`")
    with open_with_tools(tiny_folder, tmp_path) as model:
        conversations = open_conversations(model, tmp_path / "store")
        turn = ask(conversations, first).node
        yield conversations, turn, ({"tools": None}, {"tools": texts_only()}), {}
        conversations.close()


def with_tools(model: sinkstream.Model, given: Any, tools: Any, thinking: Any = None) -> Any:
    """Return the options of a reply to ids that follows the grammar of tools."""
    if tools is None:
        return given
    return host_of(model).tool_replies.options(given, tools, thinking)


def check_bits(
    conversations: Conversations, reply: Reply, given: dict[str, Any], more: dict[str, Any]
) -> list[int]:
    """Check that a reply is what follows the ids that are stored before it, and return these."""
    model: Any = conversations._host.model
    ids = read_ids(conversations, reply.node)[: -len(reply.ids)]
    thinking = given.get("thinking")
    checked = with_tools(model, options(0, 8, **more), given.get("tools"), thinking)
    alike = model.stream(ids, **checked).result()
    assert reply.bits == (alike.token_ids, alike.logprobs)
    assert reply.facts.prompt_tokens == len(ids)
    return ids


def test_a_form_that_is_not_stored_is_of_its_request_alone(asking: Asking) -> None:
    conversations, turn, ways, more = asking
    for way in ways[::-1]:
        ask(conversations, [user("and")], previous=turn, store=False, sampling=more, **way)
    found = []
    for way in ways:
        reply = ask(conversations, [user("and")], previous=turn, sampling=more, **way)
        found.append(check_bits(conversations, reply, way, more))
    form = conversations._store.ids_of(settled_id(turn)).tolist()
    assert found[0][: len(form)] == found[1][: len(form)] == form


def test_two_requests_that_write_a_form_differently_follow_one(asking: Asking) -> None:
    conversations, turn, ways, more = asking
    barrier = threading.Barrier(2)
    found = conversations._starter._found

    def together(*arguments: Any) -> Any:
        barrier.wait(30)  # neither has stored its form
        return found(*arguments)

    conversations._starter._found = together  # type: ignore[method-assign]
    with ThreadPoolExecutor() as pool:
        begin = partial(ask, conversations, [user("and")], previous=turn, sampling=more)
        replies = [one.result() for one in [pool.submit(begin, **way) for way in ways]]
    for reply, way in zip(replies, ways, strict=True):
        check_bits(conversations, reply, way, more)


def test_the_form_before_a_call_of_tools_stays(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """The next message of the user follows it: not all of the conversation is read again."""
    pytest.importorskip("llguidance", reason="needs the extra `structured`")
    with open_with_tools(tiny_folder, tmp_path) as model:
        conversations = open_conversations(model, tmp_path / "store", replay_tokens=50)
        messages: Messages = [user("the sea " * 100)]
        for text in ("and", "more", "then"):
            told = ask(conversations, messages, tools=texts_only(), tokens=6)
            messages = [*messages, assistant(told.text.rstrip()), user(text)]
        calling, messages = call_a_tool(model, conversations, messages)
        told = ask(conversations, messages, tools=texts_only(), tokens=6)
        messages = [*messages, assistant(told.text.rstrip()), user("at last")]
        later = ask(conversations, messages, tools=texts_only(), tokens=6)
        store = conversations._store
        lacking = [store.ids_of(settled_id(turn)) for turn in (calling, told.node)]
        assert later.facts.replayed_tokens == sum(map(len, lacking)) > 0
        conversations.close()


def test_a_form_is_no_longer_read_once_its_client_has_left(models: Models, tmp_path: Path) -> None:
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path)
    chat = Chat(conversations)
    chat.say("x " * 20_000, seed=1, sampling=more)
    chat.say("Short", seed=2, sampling=more)
    forget(conversations, snapshots=False)
    asked = [*chat.messages, user("Next")]

    async def run() -> None:
        pool = Pool()
        begin = partial(conversations.begin, TurnRequest("", asked, options(3, **more)))

        @contextmanager
        def waiting(cancel: Any = None) -> Iterator[None]:
            with pool.waiting(cancel):
                if cancel is not None:
                    loop.call_soon_threadsafe(task.cancel)
                yield

        loop = asyncio.get_running_loop()
        conversations.wait_in(waiting)
        task = asyncio.create_task(pool.run(begin))
        await asyncio.wait([task])
        assert task.cancelled()
        conversations.wait_in(pool.waiting)
        reading = pool.submit(begin)
        while pool._waiting == 0 and not reading.done():
            await asyncio.sleep(0.001)
        await asyncio.to_thread(pool.close)
        with pytest.raises(ReadingCancelled):
            await reading

    asyncio.run(run())
    assert conversations._running.all() == []
    reply = ask(conversations, asked, seed=3, sampling=more)
    assert reply.bits == fresh(model, asked, 3, 8, more)


def test_a_form_whose_reading_was_ended_is_read_further(models: Models, tmp_path: Path) -> None:
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path)
    chat = Chat(conversations)
    for i in range(8):
        chat.say(f"Message {i}", seed=i, sampling=more, tokens=12)
    chat.say("x " * 60_000, seed=9, sampling=more)
    asked = [*chat.messages, user("Next")]
    real, to_read = conversations._session_at._read, []

    def noted(session: TokenSession, ids: array[int], node: Node, deadline: Any) -> None:
        to_read.append(len(ids))
        real(session, ids, node, deadline)

    def cancel_after_some_steps(cancel: Callable[[], object]) -> None:
        steps = model.stats()["steps"]
        while model.stats()["steps"] < steps + 4:
            time.sleep(0.001)
        cancel()

    @contextmanager
    def waiting(cancel: Callable[[], object] | None = None) -> Iterator[None]:
        if cancel is not None:
            threading.Thread(target=cancel_after_some_steps, args=(cancel,)).start()
        yield

    conversations._session_at._read = noted  # type: ignore[method-assign]
    conversations.wait_in(waiting)
    for _ in range(3):
        with pytest.raises(ReadingCancelled):
            conversations.begin(TurnRequest("", asked, options(3, **more)))
    conversations.wait_in(nullcontext)
    reply = ask(conversations, asked, seed=3, sampling=more)
    assert to_read[0] > to_read[1] > to_read[2] > to_read[3]
    assert reply.bits == fresh(model, asked, 3, 8, more)


def test_the_time_of_a_request_bounds_the_reading_of_a_form(models: Models, tmp_path: Path) -> None:
    """What has been read stays: the request can be repeated until it succeeds."""
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path)
    chat = Chat(conversations)
    for i in range(8):
        chat.say(f"Message {i}", seed=i, sampling=more, tokens=12)
    chat.say("x " * 60_000, seed=9, sampling=more)
    asked = [*chat.messages, user("Next")]
    request = TurnRequest("", asked, options(3, **more, timeout_s=0.02))
    generated = model.stats()["generated_tokens"]
    began = time.monotonic()
    with pytest.raises(ReadingTimedOut, match=r"within 0\.02 s"):
        conversations.begin(request)
    assert time.monotonic() - began < 20
    assert model.stats()["generated_tokens"] == generated
    reply = ask(conversations, asked, seed=3, sampling=more)
    assert reply.bits == fresh(model, asked, 3, 8, more)


def test_the_time_of_a_request_counts_from_its_arrival(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path)
    chat = Chat(conversations)
    chat.say("One", seed=1, sampling=more)
    monkeypatch.setattr(turn_starter, "called_at", lambda: time.monotonic() - 3600)
    asked = [*chat.messages, user("Next")]
    request = TurnRequest("", asked, options(3, 1 << 30, **more, timeout_s=3600.5))
    turn = conversations.begin(request)
    assert turn.stream.result().finish_reason == "timeout"
    turn.end()


def test_the_time_of_a_request_bounds_its_wait_for_another_that_reads(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path)
    chat = Chat(conversations)
    chat.say("One", seed=1, sampling=more)
    asked = [*chat.messages, user("Next")]
    real, is_reading, go_on = conversations._session_at._read, threading.Event(), threading.Event()

    def late(*arguments: Any) -> None:
        is_reading.set()
        assert go_on.wait(30)
        real(*arguments)

    monkeypatch.setattr(conversations._session_at, "_read", late)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, conversations, asked, seed=3, sampling=more)
        assert is_reading.wait(30)
        with pytest.raises(ReadingTimedOut, match=r"within 0\.05 s"):
            conversations.begin(TurnRequest("", asked, options(3, **more, timeout_s=0.05)))
        go_on.set()
        assert first.result().bits == fresh(model, asked, 3, 8, more)


def test_a_session_that_cannot_go_back_is_closed(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep its sequence forever."""
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path)
    chat = Chat(conversations)
    for i in range(2):
        chat.say(f"Message {i}", seed=i, sampling=more)
    asked = [*chat.messages, user("Next")]

    def fail(*_: Any) -> None:
        raise EngineDead("no")

    def leave(*_: Any) -> None:
        monkeypatch.setattr(TokenSession, "conclude_last_turn", fail)
        raise ReadingCancelled("no")

    monkeypatch.setattr(conversations._session_at, "_read", leave)
    with pytest.raises(EngineDead, match="no"):
        conversations.begin(TurnRequest("", asked, options(3, **more)))
    monkeypatch.undo()
    assert all(one.state == "idle" for one in conversations._restorer.residency.all())
    reply = ask(conversations, asked, seed=3, sampling=more)
    assert reply.bits == fresh(model, asked, 3, 8, more)


@pytest.mark.parametrize("by", ["client", "upkeep"])
def test_a_conversation_is_not_deleted_while_its_form_is_read(
    models: Models, tmp_path: Path, by: str
) -> None:
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path, max_conversations=2)
    chat = Chat(conversations)
    chat.say("One", seed=1, sampling=more)
    reply = chat.say("Two", seed=2, sampling=more)
    for i in range(2):
        Chat(conversations).say(f"Another {i}", seed=i, sampling=more)
    forget(conversations, snapshots=False)
    real = conversations._session_at._read

    def deleting(session: TokenSession, ids: array[int], node: Node, deadline: Any) -> None:
        if by == "upkeep":
            conversations._maintenance.run()
        else:
            with pytest.raises(SessionBusy):
                conversations.delete("", reply.facts.session)
        real(session, ids, node, deadline)

    conversations._session_at._read = deleting  # type: ignore[method-assign]
    assert chat.say("Three", seed=3, sampling=more).node


@pytest.mark.parametrize("aside", ["nothing", "a request that is not stored", "a file"])
def test_the_state_of_a_stored_conversation_stays(
    models: Models, tmp_path: Path, aside: str
) -> None:
    model = models("opened")
    more = among(model, "opened")
    settings = {"replay_tokens": 8, "snapshot_tokens": 10**6}
    conversations = open_conversations(model, tmp_path / "store", **settings)
    chat = Chat(conversations)
    for i in range(12):
        reply = chat.say(f"Message {i}", seed=i, sampling=more, tokens=12)
    if aside == "a file":
        conversations.save("", reply.node, tmp_path / "file.session")
    elif aside != "nothing":
        ask(conversations, [*chat.messages, user("Title?")], store=False, sampling=more)
    while conversations._restorer.residency.park_idle():
        pass
    again = chat.say("On", seed=99, sampling=more)
    assert again.facts.replayed_tokens < reply.facts.prompt_tokens / 2
    assert again.bits == fresh(model, chat.messages[:-1], 99, 8, more)
