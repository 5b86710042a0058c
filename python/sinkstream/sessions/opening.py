"""Opens sessions: with a conversation to continue, or from a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.request.tools import Tools
from sinkstream.sessions import saved
from sinkstream.sessions.conversation_state import ConversationState
from sinkstream.sessions.session import Host, Session
from sinkstream.sessions.thoughts import Thoughts, thinking_of_field
from sinkstream.sessions.tools import tools_of, tools_of_fields
from sinkstream.streams.worker import Check, in_thread, wanted
from sinkstream.text.thinking import Thinking
from sinkstream.text.thoughts.thought_reader import ThoughtTags
from sinkstream.text.turns.turn_arguments import check_history
from sinkstream.text.turns.turn_format import TurnFormat, difference_of


@dataclass(frozen=True, slots=True)
class SessionStart:
    """A conversation to open: the arguments of `Model.session`."""

    system: str | None
    """If None, the template's default, if it has one."""
    messages: Sequence[Any] | None
    """What it continues; it may begin with the system prompt."""
    sinks: int | str | None
    """S, "system" for the entire opening, or None for the model's S."""
    thoughts: Thoughts
    tools: Tools | None = None


def open_session(host: Host, turns: TurnFormat, start: SessionStart) -> Session:
    """Open a session and process the conversation that it continues."""
    warn_of_difference(turns, start.thoughts)
    session, unread = _open(host, turns, start)
    try:
        if unread:
            session._read(unread, session._state)
            session._turn = None  # the opening is not a turn
    except BaseException:
        session.close()
        raise
    return session


async def aopen_session(
    host: Host, find_turns: Callable[[], TurnFormat], start: SessionStart
) -> Session:
    """Open a session as `open_session` does, without blocking the event loop."""
    turns = await in_thread(lambda _: find_turns(), lambda _: None)
    warn_of_difference(turns, start.thoughts)
    session, unread = await in_thread(
        lambda _: _open(host, turns, start), lambda opened: opened[0].close()
    )
    try:
        if unread:
            await session._aread(unread, session._state)
            session._turn = None
    except BaseException:
        session.close()
        raise
    return session


def warn_of_difference(turns: TurnFormat, thoughts: Thoughts) -> None:
    """Warn of a chat template whose conversations a session cannot reproduce exactly."""
    difference = difference_of(turns, drops_thoughts=thoughts.drops)
    if difference:
        warn_caller(difference)


def _open(host: Host, turns: TurnFormat, start: SessionStart) -> tuple[Session, list[int]]:
    """Open a session; return it and the tokens that it has yet to read."""
    system, history = check_history(start.system, start.messages)
    opening = turns.opening(system)
    ids = turns.history(history) if history else opening
    if ids[: len(opening)] != opening:
        opening = []  # the template writes the system prompt elsewhere
    count = _count_sinks(start.sinks, len(opening))
    native = host.native.open_session(count, opening)
    state = ConversationState(history[-1]["role"] if history else system and "system")
    system_tokens = 0 if system is None else len(opening)
    session = Session(
        native,
        host,
        turns,
        state,
        system_tokens=system_tokens,
        thoughts=start.thoughts,
        tools=tools_of(start.tools, turns),
    )
    return session, ids[native.stats()["tokens"] :]


FindFormat = Callable[[Thinking, Tools | None], tuple[TurnFormat, ThoughtTags | None]]
"""Returns the parts of conversations and the tags around thoughts; may refuse the tools."""


def load_session(
    host: Host,
    find_format: FindFormat,
    path: str | os.PathLike[str],
    check: Check = wanted,
) -> Session:
    """Open a session from a file that `Session.save` wrote."""
    native, record = saved.load(path, host.native, host.spec, host.window, check)
    fields = record.fields
    state = ConversationState(
        str(fields.get("after", "")) or None, bool(fields.get("reply_is_open", 0))
    )
    thinking = thinking_of_field(str(fields.get("thinking", "")))
    try:
        tools = tools_of_fields(fields, Path(path).name)
        turns, tags = find_format(thinking, tools)
    except BaseException:
        native.close()
        raise
    thoughts = Thoughts(tags, thinking, drops=bool(fields.get("drops_thoughts", 0)))
    return Session(
        native,
        host,
        turns,
        state,
        system_tokens=record.state.system_tokens,
        thoughts=thoughts if tags is not None else Thoughts(),
        tools=tools_of(tools, turns),
    )


async def aload_session(
    host: Host,
    find_format: FindFormat,
    path: str | os.PathLike[str],
) -> Session:
    """Open a session from a file as `load_session` does, without blocking the event loop."""
    await asyncio.to_thread(host.native.fingerprint)  # reads all weights the first time
    return await in_thread(
        lambda check: load_session(host, find_format, path, check), Session.close
    )


def _count_sinks(sinks: int | str | None, opening: int) -> int | None:
    if isinstance(sinks, str):
        if sinks != "system":
            raise InvalidArgument(
                f'session: `sinks` must be an integer or "system", but is {sinks[:40]!r}.',
                param="sinks",
            )
        if opening == 0:
            raise InvalidArgument(
                "session: `sinks` must be an integer if there is no system prompt, but is "
                '"system".',
                param="sinks",
            )
        return opening
    return sinks
