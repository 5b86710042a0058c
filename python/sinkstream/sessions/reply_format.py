"""How the reply of a turn is generated and read: with tools, thoughts, both or neither."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from sinkstream.request.options import StreamOptions, has_grammar
from sinkstream.request.tools import Tools
from sinkstream.sessions.thoughts import SplitReply, Thoughts
from sinkstream.text.thoughts.thought_reader import ThoughtReader
from sinkstream.text.tools.tool_replies import ToolReplies, read_tools


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """The format of one turn's reply."""

    options: StreamOptions
    """The options, including the grammar of the tools."""
    reader: ThoughtReader | None
    """For the stream; None if all is text."""
    split: SplitReply | None
    """For the whole reply, later; None if all is text."""


def reply_format(
    replies: ToolReplies, thoughts: Thoughts, tools: Tools | None, options: StreamOptions
) -> ReplyFormat:
    """Return the format of a reply to a message.

    Args:
        replies: What the checkpoint's replies with tools need.
        thoughts: How the session treats thoughts.
        tools: What the reply may call.
        options: The options that the caller gave.

    Raises:
        InvalidArgument: The options set a grammar that tools exclude.
    """
    read, thinking = read_tools(tools, options), thoughts.thinking
    given = options
    if tools is not None:
        with_grammar: Any = replies.options(given, tools, thinking)
        options = with_grammar
    if read is not None:
        split = partial(replies.split, tools=read, thinking=thinking)
        return ReplyFormat(options, replies.reader(read, thinking), split)
    tags = thoughts.tags
    if tags is None:
        return ReplyFormat(options, None, None)
    if has_grammar(given):
        tags = tags.all_text()
    return ReplyFormat(options, tags.reader(), tags.split)
