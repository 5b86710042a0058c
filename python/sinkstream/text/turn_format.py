"""What a session feeds for each turn of a conversation whose cache it keeps.

A session never renders its history again: it appends what the template writes for one more message
to its cache. Rendering short conversations shows how a checkpoint's template splits into such
parts; no template is known by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sinkstream.errors import InvalidArgument
from sinkstream.text.chat_format import ChatFormat
from sinkstream.text.messages import TEXT, Message
from sinkstream.text.template_turns import (
    Calls,
    TemplateTurns,
    as_message,
    placeholders,
    split_template,
)
from sinkstream.text.templates.chat_template import Passage, Piece


class TurnFormat(Protocol):
    """The token ids of each part of a conversation.

    The parts follow each other: an opening, then messages in any order, and after each reply of the
    model its closing. `after` says what precedes a message: the role of the previous message,
    "system" directly after an opening with a system text, None directly after one without.

    All errors are `InvalidArgument`, or `TypeError` for a value that is not a string, and begin
    with "session".
    """

    @property
    def is_exact(self) -> bool:
        """Whether the parts and the replies, concatenated, equal the whole conversation's ids.

        The whole is what `encode_chat` gives at each request for a reply. Three cases are excluded:
        white space at the ends of replies, which a template may add or trim while the model writes
        what it learned; blank system texts; and replies whose tokens are not the tokenizer's
        encoding of their text. Detected with short conversations, before the first turn.
        """

    @property
    def difference(self) -> str:
        """A sentence saying how the parts differ from the whole; empty if `is_exact`."""

    def opening(self, system: str | None) -> list[int]:
        """Return the ids before the first message.

        Args:
            system: The system text, or None for the template's default, if it has one.
        """

    def whole(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a whole conversation and the generation prompt."""

    def history(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation, from its beginning to where a user message follows.

        Args:
            messages: At least one message, as `check_messages` returns them.
        """

    def user(self, content: str, *, after: str | None) -> list[int]:
        """Return the ids of a user message and of the generation prompt."""

    def message(self, role: str, content: str, *, after: str | None) -> list[int]:
        """Return the ids of a message that needs no reply, including its end."""

    def request(
        self, said: Message, *more: Message, after: str | None, calls: Calls = ()
    ) -> list[int]:
        """Return the ids of messages, as `check_messages` returns them, and the generation prompt.

        They may be of any role. Several are results of calls, which a template may join. `calls`
        are those of the last reply, if they are known: a template may write them with the results.
        """

    def read(self, said: Message, *, after: str | None, calls: Calls = ()) -> list[int]:
        """Return the ids of such a message if it needs no reply, including its end."""

    def reply(self, content: str) -> list[int]:
        """Return the ids of a reply that is given as text, between generation prompt and closing.

        They are the tokenizer's encoding; the model may have written the same text in other tokens.
        """

    def open_reply(
        self, said: Message, *more: Message, after: str | None, calls: Calls = ()
    ) -> list[int]:
        """Return the ids of messages, the last one a reply, up to its text, which is continued."""

    def exchange(
        self,
        said: Message,
        reply: Message,
        *,
        after: str | None,
        is_earlier: bool = False,
        calls: Calls = (),
    ) -> list[int]:
        """Return the ids of a message and the reply to it, as earlier turns are written.

        Both are as `check_messages` returns them. The ids include the reply's end. A generation
        prompt may differ from how earlier replies begin.

        Args:
            said: The message.
            reply: The reply.
            after: What precedes the message.
            is_earlier: Whether a user message follows, too, if the reply calls tools: not only the
                results.
            calls: As for `request`.
        """

    def earlier_turn(
        self,
        messages: Sequence[Message],
        *,
        after: str | None,
        before: tuple[str, ...],
        calls: Calls = (),
    ) -> list[int]:
        """Return the ids of messages, the last one a reply, as earlier turns are written.

        Args:
            messages: As `check_messages` returns them: a question, and a reply to it; or with calls
                and results between these.
            after: What precedes them.
            before: The roles of the messages that follow, "user" or "tool". Results are taken for
                a user message if the template does not allow them there.
            calls: As for `request`.
        """

    def closing(self, last_id: int | None, calls: Calls = ()) -> list[int]:
        """Return the ids between a reply of the model and the next message.

        Args:
            last_id: The reply's last token; None if the reply is empty.
            calls: Those of the reply, if their results follow.
        """


def turn_format_of(chat: ChatFormat, end_token_ids: frozenset[int]) -> TurnFormat:
    """Detect the parts of conversations in a template's format.

    Raises:
        InvalidArgument: The template fails, refuses a conversation of two turns, or omits earlier
            messages.
    """
    turns = split_template(chat, end_token_ids)
    return turns.with_difference(_difference(turns))


def difference_of(turns: TurnFormat, *, drops_thoughts: bool) -> str:
    """Return how a session's parts differ from the whole, as a sentence; "" if they do not."""
    if drops_thoughts and isinstance(turns, TemplateTurns):
        return _difference_without_thoughts(turns)
    return turns.difference


# Contents that may merge with the template's own text into a token, or that it may trim.
_EDGES = ("word", "", " ", "\n", " 1 ", "\n\nx\n", ".", "é🎉")
# What a template changes that escapes replies, quotes them, or tidies them up.
_REWRITTEN = frozenset({"\n", "  ", '"', "&", "<", "\\"})
_TURN = ("user", "assistant")
_MOST_UNSETTLED = 16  # tokens that are tried; each takes as long as a short conversation


@dataclass(frozen=True)
class Conversation:
    """A conversation that awaits a reply, to be encoded part by part and as a whole."""

    system: str | None
    users: Sequence[str]
    replies: Sequence[str]
    """One for each user message except the last."""

    def whole(self, turns: TemplateTurns) -> list[int]:
        """Return the ids of the whole rendering."""
        messages = [] if self.system is None else [as_message("system", self.system)]
        for i, content in enumerate(self.users):
            messages.append(as_message("user", content))
            messages += [as_message("assistant", reply) for reply in self.replies[i : i + 1]]
        return turns.chat.encode_whole(messages, True, argument=TEXT)

    def parts(self, turns: TemplateTurns, request: Passage) -> list[int]:
        """Return the ids that a session feeds, with the model's replies after each request."""
        ids = turns.opening(self.system)
        after = None if self.system is None else "system"
        for i, content in enumerate(self.users):
            ids += turns.user(content, after=after)
            for reply in self.replies[i : i + 1]:
                written = dataclasses.replace(request, pieces=(_space(request) + reply,))
                ids += turns.chat.encode_part(written, TEXT) + turns.closing(None)
            after = "assistant"
        return ids

    def is_the_same(self, turns: TemplateTurns, request: Passage) -> bool:
        """Return whether both agree, or the template refuses the whole conversation."""
        try:
            expected = self.whole(turns)
        except InvalidArgument:
            return True
        try:
            return self.parts(turns, request) == expected
        except InvalidArgument:
            return False


def _difference(turns: TemplateTurns) -> str:
    """Return a sentence saying how the parts differ from the whole, or "" if they do not."""
    checks = (
        _date, _rewriting, _moving_system, _counting, _framed_replies, _changed_replies
    )  # fmt: skip
    reasons = [reason for check in checks for reason in check(turns)] or list(_other(turns))
    return _sentence(reasons)


def _difference_without_thoughts(turns: TemplateTurns) -> str:
    """Do the same for a session that drops the thoughts of its replies."""
    reasons = [reason for check in (_date, _moving_system, _counting) for reason in check(turns)]
    return _sentence(reasons or list(_other_exchanges(turns)))


def _sentence(reasons: Sequence[str]) -> str:
    return f"The checkpoint's chat template {'; it '.join(reasons)}." if reasons else ""


def _unsplit(content: str) -> str:
    shown = repr(content[:40])
    return f"yields token ids that cannot be split between messages, for example around {shown}"


def _other_exchanges(turns: TemplateTurns) -> Iterator[str]:
    """Compare the ids of two turns, the first of which is read again without its thought."""
    for content in _EDGES:
        first, second = as_message("user", content), as_message("user", content)
        said = [first, as_message("assistant", content or "word"), second]
        try:
            expected = turns.chat.encode_whole(said, True, argument=TEXT)
        except InvalidArgument:
            continue
        parts = turns.opening(None) + turns.exchange(*said[:2], after=None)
        if parts + turns.user(content, after="assistant") != expected:
            yield _unsplit(content)
            return


def _request(turns: TemplateTurns) -> Passage | None:
    """Return a reply's passage after the generation prompt, or None if it does not follow one."""
    user, reply = _messages(turns, ("user", "assistant"))
    asked = turns.chat.render([user], True, argument=TEXT)
    return turns.chat.render([user, reply], False, argument=TEXT).without_start(asked.pieces)


def _space(request: Passage) -> str:
    """Return the white space that the template puts before replies."""
    first = request.pieces[0]
    assert isinstance(first, str)  # checked by `_framed_replies`
    return first[: len(first) - len(first.lstrip())]


def _date(turns: TemplateTurns) -> Iterator[str]:
    if turns.chat.template.may_write_date:
        yield "may write the date, but a session keeps the date of its start"


def _rewriting(turns: TemplateTurns) -> Iterator[str]:
    """Check whether a user message leaves everything up to the last reply unchanged."""
    for roles in (_TURN, _TURN * 2):
        earlier = _messages(turns, roles)
        body = turns.chat.render(earlier, False, argument=TEXT)
        start = body.without_end(turns.last_ends["assistant"])
        later = [*earlier, as_message("user", "word")]
        if (
            start is None
            or turns.chat.render(later, True, argument=TEXT).without_start(start) is None
        ):
            yield "rewrites earlier messages when more follow, but a session keeps them unchanged"
            return


def _moving_system(turns: TemplateTurns) -> Iterator[str]:
    """Check whether a system text changes a later turn."""
    if "system" in turns.ends and _later(turns, ("system", *_TURN)) != _later(turns, _TURN):
        yield "writes system texts into later turns, but a session writes them only at its start"


def _counting(turns: TemplateTurns) -> Iterator[str]:
    """Check whether all turns except the first are alike."""
    if _later(turns, _TURN) != _later(turns, _TURN * 2):
        yield (
            "writes later turns differently from the second, but a session writes them all in the "
            "same way"
        )


def _later(turns: TemplateTurns, roles: tuple[str, ...]) -> tuple[Piece, ...] | None:
    """Return what follows the last of some messages when a user message comes next."""
    earlier = _messages(turns, roles)
    rendering = turns.chat.render([*earlier, as_message("user", "word")], True, argument=TEXT)
    tail = rendering.after(earlier[-1]["content"])
    return None if tail is None else tail.pieces


def _framed_replies(turns: TemplateTurns) -> Iterator[str]:
    """Look for text that the template puts between the generation prompt and the reply."""
    request = _request(turns)
    _, reply = _messages(turns, ("user", "assistant"))
    if request is None:
        yield "begins replies differently from its generation prompt"
    elif not (isinstance(first := request.pieces[0], str) and reply["content"] in first):
        yield "writes control tokens before replies, but a session leaves them to the model"
    elif frame := first.partition(reply["content"])[0].strip():
        yield f"writes {frame!r} before replies, but a session leaves this to the model"


def _changed_replies(turns: TemplateTurns) -> Iterator[str]:
    """Look for strings that make the template change a reply containing them."""
    a, b, *_ = placeholders(turns.chat, "")
    changed = []
    for text in sorted(turns.chat.template.constants | _REWRITTEN):
        reply = f"{a}{text}{b}"
        messages = [*_messages(turns, ("user",)), as_message("assistant", reply)]
        messages.append(as_message("user", "word"))
        try:
            rendering = turns.chat.render(messages, True, argument=TEXT)
        except InvalidArgument:
            continue  # there is no whole rendering to differ from
        if rendering.after(reply) is None:
            changed.append(text)
    # A string that contains another one is redundant: the shorter one already changes the reply.
    shortest = [text for text in changed if not any(o in text for o in changed if o != text)]
    if shortest:
        shown = " or ".join(repr(text[:40]) for text in shortest[:3])
        yield f"changes replies that contain {shown}, but a session keeps them unchanged"


def _other(turns: TemplateTurns) -> Iterator[str]:
    """Compare ids, with content that may merge with the template's text or be searched for."""
    request = _request(turns)
    assert request is not None  # checked by `_framed_replies`
    sought = [text for text in sorted(turns.chat.template.constants) if not text.isidentifier()]
    unsettled = turns.chat.control.unsettled()[:_MOST_UNSETTLED]
    for content in [*_EDGES, *(f"{text}word{text}" for text in sought), *unsettled]:
        has_system = content.strip() and "system" in turns.ends
        systems = (None, content) if has_system else (None,)
        for system in systems:
            if not Conversation(system, [content] * 2, ["Hello there"]).is_the_same(turns, request):
                yield _unsplit(content)
                return


def _messages(turns: TemplateTurns, roles: Sequence[str]) -> list[Message]:
    words = placeholders(turns.chat, "")
    return [as_message(role, words[i % 4] + str(i)) for i, role in enumerate(roles)]
