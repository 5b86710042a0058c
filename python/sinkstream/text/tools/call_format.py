r"""How a checkpoint's chat template writes tool calls: as plain data, and as a grammar.

    <tool_call>\n{"name": "  f  ", "arguments":   {…}   }\n</tool_call>
    begin                   name middle        arguments  end

Between two calls, `between` takes the place of `end` and of a second `begin`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sinkstream.request.tools import Tools
from sinkstream.text.channels import Channels
from sinkstream.text.marked_text import ThoughtFormat

NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")

# Note: [Marked calls]
# As in the tags of thoughts, each control token is one character, its marker: a lone surrogate,
# which no decoded text contains. Other added tokens are text: a model may also spell them in
# letters, and for the grammar that is the same. One marker stands for the id of a call, where the
# template writes it.
FIRST_MARKER = 0xD900
ID_MARK = "\udfff"
ID_LENGTH = 9
"""The length of ids that a template writes: Mistral's have nine letters and digits."""
_MARKERS = re.compile(f"[{chr(FIRST_MARKER)}-\udaff]")

# Of the grammar.
_ANY = "/(?s:.*)/"
_SPACES = "/[ \\t\\r\\n]{0,16}/"


@dataclass(frozen=True, slots=True)
class CallFormat:
    """What is written around the names and the arguments of calls. See Note: [Marked calls]."""

    trigger: str
    """What the first call begins with, so that it cannot be taken for text."""
    is_bare: bool
    """Whether a call has no tag of its own, and is one only at the beginning of a reply."""
    begin: str
    """Up to the name of the first call, including the trigger."""
    middle: str
    """Between a name and its arguments."""
    between: str | None
    """Between arguments and the name of the next call; None if a reply has one call."""
    end: str
    """After the last arguments."""
    markers: Mapping[int, str]
    """The marker of each control token."""
    has_short_ids: bool
    """Whether the template accepts only ids of nine letters and digits."""
    channels: Channels | None = None
    """If calls are messages on a channel: then `begin` is what precedes the name of a tool in a
    header, and `middle` the rest of that header."""

    @property
    def only_begins(self) -> bool:
        """Return whether a call cannot follow text that the reply continues."""
        return self.is_bare or self.channels is not None

    @property
    def token_ids(self) -> dict[str, int]:
        """Return the control token of each marker."""
        return {marker: token_id for token_id, marker in self.markers.items()}

    def shown(self, marked: str) -> str:
        """Return marked text as a stream shows it: control tokens have no text."""
        return _MARKERS.sub("", marked)


def call_grammar(
    form: CallFormat,
    tools: Tools,
    schemas: Mapping[str, str],
    thoughts: ThoughtFormat | None = None,
    answer: str | None = None,
) -> str:
    """Return the grammar of replies that may, must or must not call tools, in llguidance's Lark.

    Until a call begins, a reply is free. From there on, it has the template's own form, with the
    name of a tool and arguments that match its schema. The grammar's lexer distinguishes calls from
    text: among the alternatives, a `lazy` rule wins as soon as it matches.

    `schemas` has the schema of the arguments of each tool that may be called. Tags of `thoughts`
    must have markers only for control tokens. A reply that calls no tool matches the JSON schema
    `answer`; None for any text.
    """
    writer = _Writer if form.channels is None else _ChannelWriter
    return "\n".join(writer(form, tools, schemas, thoughts, answer).lines()) + "\n"


@dataclass(frozen=True, slots=True)
class _Writer:
    form: CallFormat
    tools: Tools
    schemas: Mapping[str, str]
    thoughts: ThoughtFormat | None
    answer: str | None

    def lines(self) -> Iterator[str]:
        yield f"ANY: {_ANY}"
        yield f"SPACES: {_SPACES}"
        yield f"ID: /[A-Za-z0-9]{{{ID_LENGTH}}}/"
        yield from self._thought()
        if self.tools.choice != "none":
            yield from self._calls()

    # ---- thoughts --------------------------------------------------------------------------------

    def _thought(self) -> Iterator[str]:
        """Yield the rules of the start, with or without a thought before the rest of the reply."""
        thoughts = self.thoughts
        if thoughts is None or thoughts.start == "text":
            yield "start: body"
            yield from self._body("body")
            return
        begin, end = self._items(thoughts.begin), self._items(thoughts.end)
        if _is_text(begin) and _is_text(end):
            yield from self._written_thought(thoughts, begin, end)
        else:
            yield f"thought[lazy]: ANY {end}" if _is_text(end) else f"thought: inside {end}"
            yield "inside: ANY"
            is_open = thoughts.start == "thought"
            yield "start: thought body" if is_open else f"start: (SPACES {begin} thought)? body"
            yield from self._body("body")

    def _written_thought(self, thoughts: ThoughtFormat, begin: str, end: str) -> Iterator[str]:
        yield from self._body("body")
        # A reply may end within a thought, unless it must call a tool.
        is_free = self.tools.choice != "required" and self.answer is None
        alone = " | unfinished" if is_free else ""
        if is_free:
            before = "" if thoughts.start == "thought" else f"SPACES {begin} "
            yield "unfinished: UNFINISHED"
            yield f"UNFINISHED: {before}ANY"
        if thoughts.start == "thought":
            yield f"start: thought body{alone}"
            yield f"thought[lazy]: ANY {end}"
            return
        yield f"start: thought body | first{alone}"
        yield f"thought[lazy]: SPACES {begin} ANY {end}"
        yield from self._body("first", f"~(SPACES {begin} ANY)")

    # ---- text and calls --------------------------------------------------------------------------

    def _body(self, name: str, rule: str = "") -> Iterator[str]:
        """Yield the rules of a reply after its thought; its text follows a `rule`, if there is one.

        Rules about text concern terminals, whose names are in capitals.
        """
        form, choice, upper = self.form, self.tools.choice, name.upper()
        trigger = self._items(form.trigger)
        before = "SPACES" if form.is_bare else "ANY"
        is_token = form.trigger in form.token_ids
        also = f" & {rule}" if rule else ""
        is_first = choice == "required" or self.answer is not None
        answer = "" if self.answer is None else f" | SPACES {name}_answer"
        if answer:
            yield f"{name}_answer: %json {self.answer}"
        if is_first and is_token:
            yield f"{name}: SPACES {trigger} calls{answer}"
        elif is_first:
            yield f"{name}: {name}_begin calls{answer}"
            yield f"{name}_begin[lazy]: SPACES {trigger}"
        elif choice == "none":
            without = "" if is_token else f" & ~({before} {trigger} ANY)"
            yield f"{name}: {upper}_TEXT"
            yield f"{upper}_TEXT: ANY{without}{also}"
        elif is_token:
            yield f"{name}: {upper}_TEXT ({trigger} calls)?"
            yield f"{upper}_TEXT: ANY{also}"
        else:
            yield f"{name}: {name}_begin calls | {upper}_TEXT"
            yield f"{name}_begin[lazy]: {upper}_BEGIN"
            yield f"{upper}_BEGIN: ({before} {trigger}){also}"
            yield f"{upper}_TEXT: ANY{also}"

    def _calls(self) -> Iterator[str]:
        form = self.form
        rest = self._items(form.begin[len(form.trigger) :])
        following = ""
        if form.between is not None and self.tools.is_parallel:
            following = f" ({self._items(form.between)} call)*"
        end = self._items(form.end)
        yield f"calls: {rest} call{following} {end}"
        yield "call: " + " | ".join(f"call_{i}" for i in range(len(self.tools.allowed)))
        for i, name in enumerate(self.tools.allowed):
            yield f"call_{i}: {self._items(name + form.middle)} arguments_{i}"
            yield f"arguments_{i}: %json {self.schemas[name]}"

    def _items(self, marked: str) -> str:
        """Return marked text as items of a rule: strings, and control tokens by their ids."""
        tokens = {**self.form.token_ids, **self._thought_tokens()}
        items: list[str] = []
        plain = ""
        for letter in marked:
            if letter not in tokens and letter != ID_MARK:
                plain += letter
                continue
            if plain:
                items.append(_quoted(plain))
            items.append("ID" if letter == ID_MARK else f"<[{tokens[letter]}]>")
            plain = ""
        if plain:
            items.append(_quoted(plain))
        return " ".join(items)

    def _thought_tokens(self) -> dict[str, int]:
        markers = {} if self.thoughts is None else self.thoughts.markers
        return {marker: token_id for token_id, marker in markers.items()}


class _ChannelWriter(_Writer):
    """For replies of messages on channels: any before the last are thoughts, or text."""

    def lines(self) -> Iterator[str]:
        form, thoughts = self.form, self.thoughts
        assert form.channels is not None
        assert thoughts is not None  # where there are channels, there is one for them
        channels, is_free = form.channels, self.tools.choice != "required"
        items = self._items
        following = items(channels.end + channels.start)
        begins = [items(thoughts.begin)]
        if is_free and self.answer is None:
            begins.append(items(channels.name + self._call_channel + channels.body))
        last = ["call"] if self.tools.choice != "none" else []
        if is_free:
            last.append(f"{items(thoughts.answer)} text")
        yield f"ANY: {_ANY}"
        yield f"SPACES: {_SPACES}"
        yield "inside: ANY"
        yield "text: ANY" if self.answer is None else f"text: SPACES %json {self.answer}"
        yield f"message: ({' | '.join(begins)}) inside {following}"
        yield f"last: {' | '.join(last)}"
        is_open = thoughts.start == "thought"
        yield f"start: {f'inside {following} ' if is_open else ''}message* last"
        if "call" in last:
            yield from self._calls()

    @property
    def _call_channel(self) -> str:
        """Return the name of the channel for calls."""
        channels = self.form.channels
        assert channels is not None
        return self.form.middle.partition(channels.name)[2].split()[0]

    def _calls(self) -> Iterator[str]:
        """Yield the rules of a call, whose header names the tool in either of two places."""
        form, channels = self.form, self.form.channels
        assert channels is not None
        items, on = self._items, channels.name + self._call_channel
        kinds = [form.middle.removeprefix(on).removesuffix(channels.body)]
        kinds += [f" {marker}{kinds[0].strip()}" for marker in form.token_ids]
        yield "kind: " + " | ".join(map(items, kinds))
        yield "call: " + " | ".join(f"call_{i}" for i in range(len(self.tools.allowed)))
        for i, name in enumerate(self.tools.allowed):
            to = f" {form.begin}{name}"
            headers = f"{items(to + on)} kind | {items(on + to)} kind"
            yield f"call_{i}: ({headers}) {items(channels.body)} arguments_{i}"
            yield f"arguments_{i}: %json {self.schemas[name]}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_text(items: str) -> bool:
    return items.startswith('"') and "<[" not in items
