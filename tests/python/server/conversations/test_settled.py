"""Stored conversations without the thoughts of earlier replies: what the chat template writes."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.request.tools import check_tools
from sinkstream.server.conversations.conversations import Conversations
from sinkstream.server.conversations.node import is_settled_id, settled_id
from sinkstream.server.conversations.transcript import shown_messages
from sinkstream.server.texts import Texts
from sinkstream.server.turns import TurnRequest
from sinkstream.text.chat import encode_chat
from tests.python.server.conversations.talk import (
    CAPACITY,
    SINKS,
    WINDOW,
    Chat,
    Messages,
    Reply,
    alone,
    ask,
    assistant,
    open_conversations,
    options,
    user,
)
from tests.python.text.reasoning_templates import KEPT, OPENED, THINK, WRITTEN, write_folder
from tests.python.text.tool_templates import THINKING, TOOLS, write_tool_folder
from tests.python.text.vocabularies import plain, special

FAR = 24  # turns: more than ten windows
TEMPLATES: dict[str, tuple[Any, ...]] = {
    "opened": (OPENED, *THINK),  # drops all thoughts
    "written": (WRITTEN, *THINK),  # drops those before the last user message
    "tools": (THINKING, *THINK, *plain("<tool_call>")),  # so does this, with calls
    "kept": (KEPT, *special("[THINK]", "[/THINK]")),
}
TAGS = {
    "opened": ("</think>",),
    "written": ("<think>", "</think>"),
    "tools": ("<think>", "</think>"),
    "kept": ("[THINK]", "[/THINK]"),
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


def forget(conversations: Conversations, *, snapshots: bool) -> None:
    """Close all sessions, after writing their snapshots or deleting all that there are."""
    states = conversations._states
    for resident in states.residency.all():
        if snapshots and states.unsaved(resident) > 0:
            states.save(resident)
        states.residency.discard(resident)
    if not snapshots:
        for state_id, _ in list(conversations._store.oldest_snapshots()):
            states.drop_snapshot(state_id)


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
        forms = conversations._store._rows("SELECT id FROM forms")
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
    assert len(conversations._states.residency.all()) == 1


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
    ids = [row[0] for row in chat.conversations._store._rows("SELECT id FROM forms")]
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
    conversations._upkeep.run()
    store = conversations._store
    assert any(is_settled_id(name) for name, _ in store.oldest_snapshots())
    conversations.delete("", replies[3].node)
    assert len(store._rows("SELECT id FROM forms")) == 3
    reply = chat.branch(chat.messages[:6]).say("On", seed=8, sampling=more)
    assert reply.bits == fresh(model, [*chat.messages[:6], user("On")], 8, 8, more)
    conversations.delete("", reply.facts.session)
    for table in ("forms", "nodes", "snapshots"):
        assert store._rows(f"SELECT * FROM {table}") == []
    assert list((tmp_path / "snapshots").rglob("*.session")) == []


def test_a_snapshot_bounds_what_is_read_after_a_kill(models: Models, tmp_path: Path) -> None:
    model = models("opened")
    more = among(model, "opened")
    conversations = open_conversations(model, tmp_path, snapshot_tokens=20)
    chat = Chat(conversations)
    for i in range(8):
        chat.say(f"Message {i}", seed=i, sampling=more, tokens=12)
        conversations._upkeep.run()
    states = conversations._states
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
    table = Texts(model).table
    turns = conversations.transcript("", replies[0].facts.session)
    shown = [one for turn in turns[:-1] for one in shown_messages(turn, table)]
    assert model.tokenizer is not None
    for message, place in zip(chat.messages[:-2], shown, strict=True):
        if "</think>" not in message["content"]:  # of such a text, the template shows the end
            text = model.tokenizer.decode(ids[place.begin : place.end])
            assert text.strip() == message["content"]
    last = shown_messages(turns[-1], table)[-1]
    assert last.end == turns[-1].tokens == last.begin + 12


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
                given = model._checked_options(options(0, 16, **bias), texts, None)
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
