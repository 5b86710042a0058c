"""Opens sessions: with a conversation to continue, or from a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.host import Host
from sinkstream.request.options import SessionOptions
from sinkstream.request.template_variables import check_thinking, thinking_of_text, with_variables
from sinkstream.request.tools import Tools, check_tools
from sinkstream.sessions import saved
from sinkstream.sessions.history import Remembered, decode_history
from sinkstream.sessions.pinned import (
    Sinks,
    as_sinks,
    check_room,
    check_sinks,
    leading,
    pinned_ids,
)
from sinkstream.sessions.session import Session
from sinkstream.sessions.session_tools import fields_of, tools_of, tools_of_fields
from sinkstream.sessions.thoughts import Thoughts, check_thoughts
from sinkstream.sessions.token_session import ConversationState, TokenSession
from sinkstream.streams.worker import Check, in_thread, wanted
from sinkstream.text.messages import Message, check_history
from sinkstream.text.turn_format import TurnFormat, difference_of


@dataclass(frozen=True, slots=True)
class SessionStart:
    """A conversation to open: the arguments of `Model.session`."""

    system: str | None
    """If None, the template's default, if it has one."""
    messages: Sequence[Any] | None
    """What it continues; it may begin with the system prompt."""
    sinks: Sinks
    """S, "system" for all that comes before the first user message, or None for the model's S."""
    thoughts: Thoughts
    tools: Tools | None = None


def start_of(host: Host, system: str | None, given: SessionOptions) -> SessionStart:
    """Check the arguments of `Model.session`.

    Raises:
        InvalidArgument: A value is not allowed.
        TypeError: A value has the wrong type.
        EngineDead: The model is closed.
    """
    host.lifetime.check_open("session")
    tools = check_tools(given.get("tools"), call="session")
    plain = check_thinking(given.get("thinking"), "session")
    thinking = with_variables(plain, given.get("chat_template_kwargs"), "session")
    tags = host.formats.tags(thinking)
    drops = check_thoughts(given.get("thoughts"), tags)
    sinks = check_sinks(given.get("sinks"), "session")
    thoughts = Thoughts(tags, thinking, drops)
    return SessionStart(system, given.get("messages"), sinks, thoughts, tools)


def open_session(host: Host, start: SessionStart) -> Session:
    """Open a session and process the conversation that it continues."""
    turns = _turns_of(host, start)
    warn_of_difference(turns, start.thoughts)
    session, tokens, unread = _open(host, turns, start)
    try:
        if unread:
            tokens.read(unread, tokens.state)
            tokens.turn = tokens.before = None  # the opening is not a turn
    except BaseException:
        session.close()
        raise
    return session


async def aopen_session(host: Host, start: SessionStart) -> Session:
    """Open a session as `open_session` does, without blocking the event loop."""
    turns = await in_thread(lambda _: _turns_of(host, start), lambda _: None)
    warn_of_difference(turns, start.thoughts)
    session, tokens, unread = await in_thread(
        lambda _: _open(host, turns, start), lambda opened: opened[0].close()
    )
    try:
        if unread:
            await tokens.aread(unread, tokens.state)
            tokens.turn = tokens.before = None
    except BaseException:
        session.close()
        raise
    return session


def _turns_of(host: Host, start: SessionStart) -> TurnFormat:
    return host.session_turns("session", start.thoughts.thinking, start.tools)


def warn_of_difference(turns: TurnFormat, thoughts: Thoughts) -> None:
    """Warn of a chat template whose conversations a session cannot reproduce exactly."""
    difference = difference_of(turns, drops_thoughts=thoughts.drops)
    if difference:
        warn_caller(difference)


def _open(
    host: Host, turns: TurnFormat, start: SessionStart
) -> tuple[Session, TokenSession, list[int]]:
    """Open a session; return it, what lies below it, and the tokens that it has yet to read.

    All that renders the template is here: it may take long, or fail before anything is open.
    """
    system, history = check_history(start.system, start.messages)
    opening = turns.opening(system)
    ids = turns.history(history) if history else opening
    if ids[: len(opening)] != opening:
        opening = []  # the template writes the system prompt elsewhere
    count = _count_sinks(host, start, turns, history, opening)
    tools = tools_of(start.tools, turns)
    native = host.native.open_session(count, opening)
    state = ConversationState(history[-1]["role"] if history else system and "system")
    system_tokens = 0 if system is None else len(opening)
    tokens = TokenSession(
        native,
        host,
        state,
        system_tokens=system_tokens,
        fields=fields_of(start.thoughts, start.tools),
    )
    said = [] if system is None else [{"role": "system", "content": system}]
    session = Session(
        tokens,
        turns,
        thoughts=start.thoughts,
        tools=tools,
        remembered=Remembered(tuple(history or said)),
    )
    return session, tokens, ids[native.stats()["tokens"] :]


def load_session(host: Host, path: str | os.PathLike[str], check: Check = wanted) -> Session:
    """Open a session from a file that `Session.save` wrote."""
    native, record = saved.load(path, host, check)
    fields = record.fields
    state = ConversationState(
        str(fields.get("after", "")) or None, bool(fields.get("reply_is_open", 0))
    )
    thinking = thinking_of_text(str(fields.get("thinking", "")))
    try:
        tokens_there = record.state.length + len(record.pending_ids)
        remembered = decode_history(
            record.conversation, Path(path).name, tokens_there, host.spec.vocab_size
        )
        tools = tools_of_fields(fields, Path(path).name)
        turns = host.session_turns("load_session", thinking, tools)
        tags, of_session = host.formats.tags(thinking), tools_of(tools, turns)
    except BaseException:
        native.close()
        raise
    thoughts = Thoughts(tags, thinking, drops=bool(fields.get("drops_thoughts", 0)))
    tokens = TokenSession(
        native,
        host,
        state,
        system_tokens=record.state.system_tokens,
        fields=fields_of(thoughts, tools),
    )
    return Session(tokens, turns, thoughts=thoughts, tools=of_session, remembered=remembered)


async def aload_session(host: Host, path: str | os.PathLike[str]) -> Session:
    """Open a session from a file as `load_session` does, without blocking the event loop."""
    await asyncio.to_thread(host.native.fingerprint)  # reads all weights the first time
    return await in_thread(lambda check: load_session(host, path, check), Session.close)


def _count_sinks(
    host: Host,
    start: SessionStart,
    turns: TurnFormat,
    history: Sequence[Message],
    opening: list[int],
) -> int | None:
    """Return S of a session; None for the model's."""
    if not isinstance(start.sinks, str):
        return start.sinks
    if not opening:
        raise InvalidArgument(
            'session: `sinks` must be an integer if there is no system prompt, but is "system".',
            param="sinks",
        )
    pinned = len(pinned_ids(turns, leading(history))) if history else len(opening)
    check_room(host, pinned, "session", "sinks", "pin")
    return as_sinks(host, pinned)
