"""Finds the tags around thoughts by rendering short conversations with a chat template.

What the template writes before and after a message's `reasoning_content` are the tags. Some
templates only open a thought in the generation prompt, or remove thoughts from earlier replies; if
such a template names the closing tag of a known pair, that pair is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer

from sinkstream.errors import InvalidArgument
from sinkstream.text.channels import channels_of
from sinkstream.text.chat_format import ChatFormat
from sinkstream.text.marked_text import Start, ThoughtFormat, marker
from sinkstream.text.messages import TEXT, Message
from sinkstream.text.template_turns import as_message, placeholders
from sinkstream.text.templates.chat_template import Passage, common_prefix

_KNOWN = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
)


# Templates that check ids want Mistral's: nine letters and digits.
_IDS = ("call_placeholder0", "plchldr00")


@dataclass(frozen=True, slots=True)
class _Written:
    """What a template writes after the text of a user message, with control tokens as text."""

    prompt: str
    """The generation prompt."""
    header: str
    """What the generation prompt and the reply of an earlier turn begin with."""
    plain: str
    """Up to the text of a last reply without a thought."""
    thought: tuple[str, str] | None
    """After the header: up to the thought of a last reply, and between that and its text."""
    is_kept: bool
    """Whether an earlier reply has its thought."""


def find_thoughts(chat: ChatFormat, tokenizer: Tokenizer) -> ThoughtFormat | None:
    """Return a template's thought format; None if it has no thoughts."""
    try:
        written = _write(chat)
    except InvalidArgument:
        return None  # it refuses such conversations
    tags = None if written is None else _tags(chat, written)
    if written is None or tags is None:
        return None
    begin, end = tags
    answer = written.plain.removeprefix(written.header).strip()
    is_thought = begin in answer or end in answer  # an empty one
    if is_thought or not written.plain.startswith(written.header):
        answer = ""
    start: Start = "before"
    if written.prompt.rfind(begin) > written.prompt.rfind(end):
        start = "thought"
    continued: Start = "text" if end in written.plain else "before"
    if written.plain.rfind(begin) > written.plain.rfind(end):
        continued = "thought"
    is_prompted = begin in written.prompt or end in written.prompt
    bare = ThoughtFormat(begin, end, answer, start, continued, is_prompted, written.is_kept, {}, {})
    form = _marked(bare, tokenizer)
    return form if channels_of(form) is None else replace(form, is_prompted=True)


def _write(chat: ChatFormat) -> _Written | None:
    question, thought, reply, later = placeholders(chat, "")
    user = as_message("user", question)
    plain = as_message("assistant", reply)
    thinking = {**plain, "reasoning_content": thought, "thinking": thought}
    following = as_message("user", later)

    def after_question(messages: Sequence[Message], *, asks: bool = False) -> Passage | None:
        return chat.render([user, *messages], asks, argument=TEXT).after(question)

    found = [
        after_question([], asks=True),
        after_question([plain]),
        after_question([thinking]),
        after_question([plain, following], asks=True),
        after_question([thinking, following], asks=True),
    ]
    passages = [passage for passage in found if passage is not None]
    if len(passages) < len(found):
        return None  # it omits messages
    prompt, last, last_thinking, earlier, earlier_thinking = passages
    header = _literal(chat, Passage(common_prefix(prompt.pieces, earlier.pieces)))
    whole = _literal(chat, last_thinking)
    around = None
    before, _, rest = whole.partition(thought)
    if reply in rest and before.startswith(header):
        around = (before.removeprefix(header), rest.partition(reply)[0])
    return _Written(
        _literal(chat, prompt),
        header,
        _literal(chat, last).partition(reply)[0],
        around,
        thought in _literal(chat, earlier_thinking),
    )


def _literal(chat: ChatFormat, passage: Passage) -> str:
    return "".join(
        piece if isinstance(piece, str) else chat.control.literal(piece) for piece in passage.pieces
    )


def _tags(chat: ChatFormat, written: _Written) -> tuple[str, str] | None:
    if written.thought is not None:
        begin, end = (tag.strip() for tag in written.thought)
        if begin and end:
            return begin, end
        known = next((pair for pair in _KNOWN if pair[1] == end), None)
        if known is not None:  # an earlier reply has the tag of the prompt, too
            return known
    return next((pair for pair in _KNOWN if pair[1] in chat.source), None)


def _marked(form: ThoughtFormat, tokenizer: Tokenizer) -> ThoughtFormat:
    """Replace the added tokens in tags with markers."""
    added = tokenizer.get_added_tokens_decoder()
    markers: dict[int, str] = {}
    literals: dict[str, str] = {}
    tags = [form.begin, form.end, form.answer]
    # The longest first: one may contain another.
    for token_id, token in sorted(added.items(), key=lambda item: -len(item[1].content)):
        if token.content and any(token.content in tag for tag in tags):
            symbol = marker(len(markers))
            markers[token_id] = symbol
            literals[symbol] = "" if token.special else token.content
            tags = [tag.replace(token.content, symbol) for tag in tags]
    begin, end, answer = tags
    return replace(form, begin=begin, end=end, answer=answer, markers=markers, literals=literals)


def shows_thoughts_of_calls(chat: ChatFormat) -> bool:
    """Return whether a template shows the thought before a tool call while results are awaited.

    Some templates leave out thoughts only once the user writes again. Thoughts are then part of how
    a model uses its tools. False if the template refuses calls, results or thoughts.
    """
    question, thought, answer, _ = placeholders(chat, "")
    for call_id in _IDS:
        function = {"name": "placeholder", "arguments": "{}"}
        call: dict[str, Any] = {"id": call_id, "type": "function", "function": function}
        reply: Message = {
            **as_message("assistant", ""),
            "reasoning_content": thought,
            "thinking": thought,
            "tool_calls": [call],
        }
        result = {**as_message("tool", answer), "tool_call_id": call_id, "name": "placeholder"}
        said = [as_message("user", question), reply, result]
        try:
            written = chat.render(said, True, argument=TEXT)
        except InvalidArgument:
            continue
        return written.after(thought) is not None
    return False
