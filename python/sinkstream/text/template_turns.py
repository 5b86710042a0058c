"""Splits what a chat template writes into the parts that a session feeds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import count, takewhile
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import PROMPT, ArgumentName
from sinkstream.structured.lru_cache import LruCache
from sinkstream.text.chat_format import ChatFormat, strings_of
from sinkstream.text.messages import MESSAGES, SYSTEM, TEXT, Message, check_role, check_text
from sinkstream.text.templates.chat_template import Passage, Piece, common_prefix, join_pieces
from sinkstream.text.templates.sandbox import written_at

# Note: [Parts of a conversation]
# A message is rendered after the shortest conversation that ends with a message of the same role as
# the one before it, with placeholders for contents. Its part is what follows the last placeholder,
# without what always follows it: the end of the previous message. So the template itself sees the
# message's content, and treats it (trims it, for example) as in a whole conversation.
Calls = Sequence[Mapping[str, Any]]
"""The `tool_calls` of a reply."""

_EARLIER: dict[str | None, tuple[str, ...]] = {
    None: (),
    "system": ("system",),
    "user": ("user",),
    "assistant": ("user", "assistant"),
    "tool": ("user", "assistant", "tool"),
}
# With these as first messages, the end of the opening shows: a template may trim a content, and
# with it the template's own text before it.
_FIRST_CONTENTS = ("x", "", " x", "\nx")
_MOST_KNOWN = 32


@dataclass(frozen=True)
class TemplateTurns:
    """Parts of conversations in a template's format. See `TurnFormat`."""

    chat: ChatFormat
    ends: Mapping[str | None, tuple[Piece, ...]]
    """What always follows the content of a message, by role; under None, the opening without a
    system text. A role that the template refuses is missing."""
    last_ends: Mapping[str, tuple[Piece, ...]]
    """What follows the content of a conversation's last message, if that can be rendered."""
    closings: Mapping[int | None, tuple[int, ...]]
    """What must follow a reply, by the reply's last token; under None, for any other token."""
    reply_start: Passage
    """What comes between the generation prompt and a reply: nothing, or white space."""
    difference: str = ""
    _known: LruCache[tuple[str | None, ...], Passage] = field(
        default_factory=partial(LruCache, _MOST_KNOWN), compare=False, repr=False
    )
    """Parts of placeholders."""

    @property
    def is_exact(self) -> bool:
        """Whether the parts, concatenated, equal the ids of the whole conversation."""
        return not self.difference

    def with_difference(self, difference: str) -> TemplateTurns:
        """Return the same parts, with a sentence saying how they differ from the whole."""
        return dataclasses.replace(self, difference=difference)

    @written_at()
    def opening(self, system: str | None) -> list[int]:
        """Return the ids before the first message."""
        if system is None:
            return self.chat.encode_part(Passage(self._opening()), TEXT)
        # The template may write the system text into the first user message. Everything before that
        # message's content then belongs to the opening.
        word = placeholders(self.chat, system := check_text(system, SYSTEM))[0]
        user = as_message("user", word)
        rendering = self.chat.render([as_message("system", system), user], True, argument=SYSTEM)
        if "system" in self.ends:
            header = self.part(user, "system", True).pieces_before(word)
            opening = Passage(rendering.pieces_before(word)).without_end(header)
            if opening is not None:
                return self.chat.encode_part(Passage(opening), SYSTEM)
        raise _refusal("system prompt", SYSTEM)

    def _opening(self) -> tuple[Piece, ...]:
        """Return what precedes the first message, with today's date if the template writes one."""
        if not self.chat.template.may_write_date:
            return self.ends[None]
        user = as_message("user", _question(self.chat))
        rendering = self.chat.render([user], True, argument=TEXT)
        part = self.part(user, "assistant", True)
        opening = rendering.without_end(part.pieces)
        return self.ends[None] if opening is None else opening

    def whole(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a whole conversation and the generation prompt."""
        return self.chat.encode_whole(messages, True)

    def history(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation that the next user message follows.

        It is rendered with that message, so that it looks as it will in the later conversation.
        """
        if omitted := self.chat.omitted(messages):
            raise InvalidArgument(
                f"{MESSAGES.call}: the checkpoint's chat template omits messages with the role "
                f'"{omitted}".',
                param=MESSAGES.name,
            )
        word = placeholders(self.chat, "".join(strings_of(list(messages))))[0]
        user = as_message("user", word)
        rendering = self.chat.render([*messages, user], True, argument=MESSAGES)
        part = self.part(user, messages[-1]["role"], True)
        history = rendering.without_end(part.pieces)
        if history is None:
            raise _refusal("user message", MESSAGES)
        return self.chat.encode_part(Passage(history), MESSAGES)

    def user(self, content: str, *, after: str | None) -> list[int]:
        """Return the ids of a user message and of the generation prompt."""
        return self.request(as_message("user", check_text(content, TEXT)), after=after)

    def message(self, role: str, content: str, *, after: str | None) -> list[int]:
        """Return the ids of a message that needs no reply, including its end."""
        return self.read(as_message(check_role(role), check_text(content, TEXT)), after=after)

    def request(
        self, said: Message, *more: Message, after: str | None, calls: Calls = ()
    ) -> list[int]:
        """Return the ids of messages of any role and of the generation prompt."""
        return self.chat.encode_part(self.part(said, after, True, more, calls=calls), TEXT)

    def read(self, said: Message, *, after: str | None, calls: Calls = ()) -> list[int]:
        """Return the ids of a message that needs no reply, including its end."""
        role, content = said["role"], said.get("content")
        if (
            not self._needs_calls(said)
            and isinstance(content, str)
            and not self._shows(role, after)
        ):
            raise _refusal(f'message with the role "{role}"', TEXT)  # it omits the message
        passage = self.part(said, after, False, calls=calls)
        if role in self.last_ends:
            body = passage.without_end(self.last_ends[role])
            if body is not None:
                pieces = join_pieces(body, self.ends[role])
                passage = dataclasses.replace(passage, pieces=pieces)
        return self.chat.encode_part(passage, TEXT)

    def _shows(self, role: str, after: str | None) -> bool:
        """Return whether the template writes the content of a message of a role there."""
        word = placeholders(self.chat, "")[0]
        part = partial(self.part, as_message(role, word), after, False)
        return self._known.get((role, after), part).after(word) is not None

    def reply(self, content: str) -> list[int]:
        """Return the ids of a reply that is given as text, after a generation prompt."""
        start = self.reply_start
        space = "".join(map(str, start.pieces))
        text = check_text(content, TEXT)
        if not text.startswith(space):
            text = space + text
        pieces = (text,) if text else ()
        return self.chat.encode_part(dataclasses.replace(start, pieces=pieces), TEXT)

    def open_reply(
        self, said: Message, *more: Message, after: str | None, calls: Calls = ()
    ) -> list[int]:
        """Return the ids of messages up to the text of the last one, which the reply continues."""
        passage = self.part(said, after, False, more, is_open=True, calls=calls)
        return self.chat.encode_part(passage, PROMPT)

    def exchange(
        self,
        said: Message,
        reply: Message,
        *,
        after: str | None,
        is_earlier: bool = False,
        calls: Calls = (),
    ) -> list[int]:
        """Return the ids of a message and the reply to it, as earlier turns are written."""
        # What follows calls are results: a template may leave out thoughts once the user replies.
        results = ("tool", "user") if is_earlier else ("tool",)
        before = results if reply.get("tool_calls") else ("user",)
        return self.earlier_turn([said, reply], after=after, before=before, calls=calls)

    def earlier_turn(
        self,
        messages: Sequence[Message],
        *,
        after: str | None,
        before: tuple[str, ...],
        calls: Calls = (),
    ) -> list[int]:
        """Return the ids of messages, the last one a reply, as earlier turns are written."""
        for roles in dict.fromkeys((before, ("user",))):
            passage = self._earlier_turn(messages, after, roles, calls)
            if passage is not None:
                return self.chat.encode_part(passage, TEXT)
        raise _refusal("second turn", TEXT)

    def _earlier_turn(
        self, messages: Sequence[Message], after: str | None, roles: tuple[str, ...], before: Calls
    ) -> Passage | None:
        """Return what messages look like before messages of these roles, if known."""
        texts = "".join(strings_of([dict(message) for message in messages]))
        words = placeholders(self.chat, texts)[-len(roles) :]
        first, *rest = (as_message(*pair) for pair in zip(roles, words, strict=True))
        calls = messages[-1].get("tool_calls") or ()
        key = json.dumps(list(calls)) if self._needs_calls(first) else ""
        try:
            part = partial(self.part, first, "assistant", True, rest, calls=calls)
            following = self._known.get((*roles, *words, key), part)
            passage = self.part(
                messages[0], after, True, [*messages[1:], first, *rest], calls=before
            )
        except InvalidArgument:
            if roles == ("user",):
                raise
            return None  # the template refuses results there
        pieces = passage.without_end(following.pieces)
        return None if pieces is None else dataclasses.replace(passage, pieces=pieces)

    def closing(self, last_id: int | None, calls: Calls = ()) -> list[int]:
        """Return the ids between a reply of the model and the next message."""
        if calls and "tool" not in self.ends:
            end = self._call_end(self._with_calls(calls)[1])
            return end[end.index(last_id) + 1 :] if last_id in end else end
        return list(self.closings.get(last_id, self.closings[None]))

    @written_at()
    def part(
        self,
        said: Message,
        after: str | None,
        add_generation_prompt: bool,
        following: Sequence[Message] = (),
        *,
        is_open: bool = False,
        calls: Calls = (),
    ) -> Passage:
        """Return what the template writes for a message, with or without a generation prompt.

        With further messages `following`, it includes what the template writes for these. If it
        `is_open`, it ends with the text of the last one. `calls`: those of the reply before.

        See Note: [Parts of a conversation].

        Raises:
            InvalidArgument: The template refuses such a message there, or cannot continue with it.
        """
        if self._needs_calls(said):
            return self._result(said, following, add_generation_prompt, is_open, calls)
        # The fallback keeps apart messages that the template would join, such as tool results.
        for role in dict.fromkeys((after, after and "assistant")):
            end = self._opening() if role is None else self.ends.get(role)
            if end is None:
                continue
            text = "".join(strings_of([dict(message) for message in (said, *following)]))
            words = placeholders(self.chat, text)[: len(_EARLIER[role])]
            earlier = [as_message(*pair) for pair in zip(_EARLIER[role], words, strict=True)]
            conversation = [*earlier, said, *following]
            rendering = self.chat.render(
                conversation,
                add_generation_prompt,
                is_open=is_open,
                argument=PROMPT if is_open else TEXT,
            )
            tail = rendering.after(words[-1]) if words else rendering
            passage = tail.without_start(end) if tail is not None else None
            if passage is not None:
                return passage
        raise _refusal(f'message with the role "{said["role"]}"', TEXT)

    def _needs_calls(self, said: Message) -> bool:
        """Return whether the template writes a result only after the call itself."""
        return said["role"] == "tool" and "tool" not in self.ends

    def _result(
        self,
        said: Message,
        following: Sequence[Message],
        add_generation_prompt: bool,
        is_open: bool,
        calls: Calls,
    ) -> Passage:
        """Return what the template writes for a result after a reply with the call."""
        if calls:
            earlier, before = self._with_calls(calls)
            whole = self.chat.render(
                [*earlier, said, *following], add_generation_prompt, is_open=is_open, argument=TEXT
            )
            passage = whole.without_start(before)
            if passage is not None:
                return passage
        raise _refusal(f'message with the role "{said["role"]}"', TEXT)

    def _with_calls(self, calls: Calls) -> tuple[list[Message], tuple[Piece, ...]]:
        """Return a conversation that ends with calls, and what the template writes for it."""
        reply = {**as_message("assistant", ""), "tool_calls": [dict(call) for call in calls]}
        earlier = [as_message("user", placeholders(self.chat, "")[0]), reply]
        return earlier, self.chat.render(earlier, False, argument=TEXT).pieces

    def _call_end(self, pieces: tuple[Piece, ...]) -> list[int]:
        """Return the tokens after the arguments, with which a conversation ends."""
        end = [*takewhile(lambda piece: isinstance(piece, int), reversed(pieces))][::-1]
        text = pieces[-1 - len(end)] if len(end) < len(pieces) else ""
        if not str(text).rstrip().endswith("}"):
            raise _refusal("call", TEXT)
        return [piece for piece in end if isinstance(piece, int)]


def as_message(role: str, content: str) -> Message:
    """Return a message in the form that templates expect."""
    return {"role": role, "content": content}


def placeholders(chat: ChatFormat, content: str) -> list[str]:
    """Return four words that occur neither in any content nor in the template."""
    stems = (f"Placeholder{i}" for i in count())
    stem = next(stem for stem in stems if stem not in content and stem not in chat.source)
    return [stem + letter for letter in "abcd"]


def _refusal(what: str, argument: ArgumentName) -> InvalidArgument:
    return InvalidArgument(
        f"{argument.call}: the checkpoint's chat template does not accept a {what} here.",
        param=argument.name,
    )


def split_template(chat: ChatFormat, end_token_ids: frozenset[int]) -> TemplateTurns:
    """Find what a template writes around the content of messages.

    Raises:
        InvalidArgument: It fails, refuses a conversation of two turns, or omits earlier messages.
    """
    last = _tail(chat, "assistant")
    later = _tail(chat, "assistant", _question(chat))
    if last is None or later is None:
        raise _refusal("second turn", TEXT)
    reply_end = _reply_end(last, later, _question(chat), end_token_ids)
    ends: dict[str | None, tuple[Piece, ...]] = {"assistant": reply_end}
    last_ends: dict[str, tuple[Piece, ...]] = {"assistant": last.pieces}
    ends[None] = _opening(chat, later, reply_end)
    # What ends every conversation, such as an end token.
    finale = last.without_start(reply_end) or Passage(())
    for role in ("user", "tool", "system"):
        tail = _maybe_tail(chat, role)
        if tail is not None:
            end = tail.without_end(finale.pieces)
            last_ends[role] = tail.pieces
            ends[role] = tail.pieces if end is None else end
    _set_system_end(chat, ends, last_ends)
    ends = {role: _before_spaces(end) for role, end in ends.items()}
    closings = _closings(chat, dataclasses.replace(later, pieces=ends["assistant"]), end_token_ids)
    return TemplateTurns(chat, ends, last_ends, closings, _reply_start(chat))


def _reply_start(chat: ChatFormat) -> Passage:
    """Return the white space between the generation prompt and a reply, and the text before it."""
    word, reply = placeholders(chat, "")[:2]
    user = as_message("user", word)
    asked = chat.render([user], True, argument=TEXT)
    said = chat.render([user, as_message("assistant", reply)], False, argument=TEXT)
    start = said.without_start(asked.pieces)
    first = start.pieces[0] if start is not None and start.pieces else 0
    if start is not None and isinstance(first, str) and first.lstrip().startswith(reply):
        space = first.partition(reply)[0]
        return dataclasses.replace(start, pieces=(space,) if space else ())
    # The template writes something else before a finished reply; the model continues the prompt.
    last = asked.pieces[-1] if asked.pieces else 0
    return Passage((), last if isinstance(last, str) else "", at_start=not asked.pieces)


def _before_spaces(end: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Strip trailing spaces from an end: a word's token includes the space before it."""
    if not end or isinstance(end[-1], int):
        return end
    plain = end[-1].rstrip(" ")
    return (*end[:-1], plain) if plain else end[:-1]


def _question(chat: ChatFormat) -> str:
    return placeholders(chat, "")[-1]


def _tail(chat: ChatFormat, role: str, question: str | None = None) -> Passage | None:
    """Return what follows a message of a role, with or without a further user message."""
    roles = _EARLIER[role]
    words = placeholders(chat, "")[: len(roles)]
    messages = [as_message(*pair) for pair in zip(roles, words, strict=True)]
    if question is not None:
        messages.append(as_message("user", question))
    return chat.render(messages, question is not None, argument=TEXT).after(words[-1])


def _maybe_tail(chat: ChatFormat, role: str, question: str | None = None) -> Passage | None:
    try:
        return _tail(chat, role, question)
    except InvalidArgument:
        return None  # the template refuses the role there


def _reply_end(
    last: Passage, later: Passage, question: str, end_token_ids: frozenset[int]
) -> tuple[Piece, ...]:
    """Return what follows every reply, including its end token, even if nothing else follows."""
    end = common_prefix(last.pieces, later.pieces)
    if not end_token_ids.isdisjoint(end):
        return end
    # Some templates write the end token only between messages.
    for i, piece in enumerate(later.pieces):
        if piece in end_token_ids:
            return later.pieces[: i + 1]
        if isinstance(piece, str) and question in piece:
            break
    return end


def _opening(chat: ChatFormat, later: Passage, reply_end: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Return what precedes the first message but no later one."""
    messages = [as_message("user", _question(chat))]
    first = chat.render(messages, True, argument=TEXT)
    user = later.without_start(reply_end)
    opening = first.without_end(user.pieces) if user is not None else None
    if opening is not None:
        return opening
    whole = (
        chat.render([as_message("user", content)], True, argument=TEXT)
        for content in _FIRST_CONTENTS
    )
    return reduce(common_prefix, (rendering.pieces for rendering in whole))


def _set_system_end(
    chat: ChatFormat,
    ends: dict[str | None, tuple[Piece, ...]],
    last_ends: dict[str, tuple[Piece, ...]],
) -> None:
    """Correct what follows a system text if it depends on the next user message."""
    tails = [_maybe_tail(chat, "system", content) for content in _FIRST_CONTENTS]
    starts = [tail.pieces for tail in tails if tail is not None]
    if len(starts) < len(tails):
        ends.pop("system", None)
        last_ends.pop("system", None)
        return
    end = reduce(common_prefix, starts)
    alone = ends.get("system")
    if alone is None or common_prefix(alone, end) != alone:
        ends["system"] = end
        last_ends.pop("system", None)


def _closings(
    chat: ChatFormat, end: Passage, end_token_ids: frozenset[int]
) -> dict[int | None, tuple[int, ...]]:
    """Return the ids that must follow a reply, by the reply's last token."""
    closings: dict[int | None, tuple[int, ...]] = {None: tuple(chat.encode_part(end, TEXT))}
    control = [piece for piece in end.pieces if isinstance(piece, int)]
    tokens = [token for token in control if token in end_token_ids] or control
    if not tokens:  # the model ends replies with a token that the template does not write
        rest = tuple(chat.encode_part(Passage(end.pieces, at_start=False), TEXT))
        return closings | dict.fromkeys(end_token_ids, rest)
    rest_of_end = end.pieces[end.pieces.index(tokens[0]) + 1 :]
    closings[tokens[0]] = tuple(chat.encode_part(Passage(rest_of_end, at_start=False), TEXT))
    return closings
