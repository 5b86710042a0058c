"""Which tokens at the start of a conversation stay for good: its system prompt and its tools.

A session and a request pin them in the same way: S becomes their number. It knows nothing about
stores or HTTP.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, Literal

from sinkstream.errors import ContextExceeded, InvalidArgument
from sinkstream.host import Host
from sinkstream.request.checks import as_native_int
from sinkstream.request.template_variables import Thinking
from sinkstream.request.tools import Tools
from sinkstream.structured.lru_cache import LruCache
from sinkstream.text.messages import text_of_parts
from sinkstream.text.turn_format import TurnFormat

SYSTEM: Final = "system"
Sinks = int | Literal["system"] | None
"""What stays: a number of tokens, "system" for the system prompt and the tools, or None for the
model's S."""
_AUTHORS = ("developer", "system")
_PARTS = 2  # a pinned part takes at most one of them: the rest is the window
_MOST_KNOWN = 32


def check_sinks(sinks: object, call: str) -> Sinks:
    """Return a value of `sinks` that is "system", an integer or None.

    Raises:
        InvalidArgument: It is another string, or an integer out of range.
        TypeError: It has another type.
    """
    if sinks is None:
        return None
    if not isinstance(sinks, str):
        return as_native_int(call, "sinks", sinks)
    if sinks != SYSTEM:
        raise InvalidArgument(
            f'{call}: `sinks` must be an integer or "system", but is {sinks[:40]!r}.',
            param="sinks",
        )
    return SYSTEM


def leading(messages: Sequence[Any]) -> list[Any]:
    """Return the messages before the first one that is not the system's or the developer's."""
    count = next(
        (i for i, one in enumerate(messages) if one.get("role") not in _AUTHORS), len(messages)
    )
    return list(messages[:count])


def pinned_ids(turns: TurnFormat, first: Sequence[Any]) -> list[int]:
    """Return what a template writes before the first message of the user, tools included.

    Args:
        turns: The parts of its conversations.
        first: What `leading` returns.

    Raises:
        InvalidArgument: The template does not accept such a message.
    """
    after: str | None = None
    rest = list(first)
    system = None
    if rest and rest[0]["role"] == "system":
        content, after = rest.pop(0)["content"], "system"
        system = content if isinstance(content, str) else text_of_parts(content)
    ids = turns.opening(system)
    for message in rest:
        ids = ids + turns.read(message, after=after)
        after = message["role"]
    return ids


def room_for(host: Host) -> int:
    """Return how many tokens may be pinned: half of what the model sees."""
    return sum(host.window) // _PARTS


def check_room(host: Host, pinned: int, call: str, name: str, rule: str) -> None:
    """Refuse a part that leaves no useful window.

    Args:
        host: The model.
        pinned: The tokens of the part.
        call: What pins it, for the error.
        name: The argument that has it.
        rule: What the argument must do with at most half of the capacity.

    Raises:
        ContextExceeded: It takes more than half of the capacity.
    """
    most, (sinks, window) = room_for(host), host.window
    if pinned > most:
        raise ContextExceeded(
            f"{call}: `{name}` must {rule} at most {most:,} tokens, but there are {pinned:,}, "
            f"{pinned - most:,} too many: they stay in the window for good, and may take half of "
            f"the {sinks + window:,} that the model sees. Send fewer, use a `window` of at least "
            f"{_PARTS * pinned - sinks:,}, or set `sinks` to a number N: what comes after N tokens "
            "may then leave the window.",
            param=name,
        )


def as_sinks(host: Host, pinned: int) -> int | None:
    """Return S that keeps a number of tokens; None if the model's S does."""
    return pinned if pinned > host.window[0] else None


class Pinning:
    """Chooses S for requests with messages. Any thread may call it."""

    def __init__(self, host: Host, default: Sinks) -> None:
        """Use `default` for requests that set no `sinks`."""
        self._host = host
        self._default = default
        self._known: LruCache[bytes, array[int]] = LruCache(_MOST_KNOWN)

    def sinks_for(
        self,
        sinks: Sinks,
        messages: Sequence[Any],
        thinking: Thinking,
        tools: Tools | None,
        ids: Sequence[int] | None = None,
    ) -> int | None:
        """Return S of a conversation that begins with some messages; None for the model's.

        Args:
            sinks: The request's.
            messages: As `check_messages` returns them.
            thinking: As `check_thinking` returns it.
            tools: What the model may call.
            ids: The conversation's tokens if they were rendered as a whole: a template may write
                tools before a later message then, and only what they begin with is pinned.

        Raises:
            ContextExceeded: The system prompt and the tools take more than half of the capacity.
            InvalidArgument: The template does not accept one of the messages.
        """
        sinks = self._default if sinks is None else sinks
        if not isinstance(sinks, str):
            return None if sinks == self._host.window[0] else sinks
        first = leading(messages)
        self._host.check_texts(first)
        pinned = self._pinned(first, thinking, tools)
        count = len(pinned) if ids is None else _count_equal(pinned, ids)
        return as_sinks(self._host, count)

    def sinks_for_text(self, sinks: Sinks) -> int | None:
        """Return S for plain text, which has no system prompt; None for the model's."""
        sinks = self._default if sinks is None else sinks
        return None if isinstance(sinks, str) else sinks

    def _pinned(self, first: list[Any], thinking: Thinking, tools: Tools | None) -> Sequence[int]:
        today = self._host.formats.date_in(thinking)
        key = json.dumps([first, repr(thinking), "" if tools is None else tools.key, today])
        digest = blake2b(key.encode(), digest_size=16).digest()  # the texts may be long
        return self._known.get(digest, lambda: self._encoded(first, thinking, tools))

    def _encoded(self, first: list[Any], thinking: Thinking, tools: Tools | None) -> array[int]:
        ids = self._ids(first, thinking, tools)
        if not first and tools is None:  # the template's own words, which no client can shorten
            return array("i", ids if len(ids) <= room_for(self._host) else [])
        if tools is None:
            name, rule = "messages", "begin with a system prompt of"
        else:
            name, rule = "tools", "have, with the system prompt,"
        check_room(self._host, len(ids), "stream", name, rule)
        return array("i", ids)

    def _ids(self, first: list[Any], thinking: Thinking, tools: Tools | None) -> list[int]:
        formats = self._host.formats
        try:
            turns = formats.turns(thinking, tools)
        except InvalidArgument:  # the template cannot be split, so that every prompt is a whole
            one, other = (
                formats.encode_chat([*first, {"role": "user", "content": letter}], thinking, tools)
                for letter in "ab"
            )
            return one[: _count_equal(one, other)]
        return pinned_ids(turns, first)


def _count_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two sequences both begin with."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
