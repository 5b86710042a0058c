"""What replies with tools need from a checkpoint: the form of calls, a grammar, and a reader."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.request.json_schema import as_schema_text
from sinkstream.request.options import GRAMMARS, has_grammar
from sinkstream.request.stream_request import CallTags
from sinkstream.request.template_variables import Thinking
from sinkstream.request.tools import Tools
from sinkstream.structured.grammars import Grammars
from sinkstream.structured.schemas import lenient
from sinkstream.text.conversation_formats import ConversationFormats
from sinkstream.text.thought_reader import Split, ThoughtReader, ThoughtTags
from sinkstream.text.tokenizers.token_bytes import TokenBytes
from sinkstream.text.tools.call_format import CallFormat, call_grammar
from sinkstream.text.tools.call_reader import NO_THOUGHTS, CallReader


def read_tools(tools: Tools | None, options: Mapping[str, Any]) -> Tools | None:
    """Return the tools whose calls are looked for in a reply with these options.

    If the text has a grammar of its own, the reply cannot have calls.
    """
    if tools is None or not has_grammar(options):
        return tools
    return None if tools.choice == "none" else replace(tools, choice="required")


def _reader(tags: ThoughtTags, form: CallFormat, tools: Tools) -> ThoughtReader:
    if form.channels is not None:
        return ThoughtReader(tags, form.begin)
    return CallReader(tags, form, is_first=_is_first(form, tools))


def _is_first(form: CallFormat, tools: Tools) -> bool:
    return form.is_bare or tools.choice == "required"


def _marked_bytes(marked: str) -> bytes:
    return marked.encode("utf-8", "surrogatepass")


class ToolReplies:
    """Serves one checkpoint. Any thread may call it."""

    def __init__(
        self, formats: ConversationFormats, table: TokenBytes | None, grammars: Grammars
    ) -> None:
        """Serve the model of these formats; `table` is None if it has no tokenizer."""
        self._formats = formats
        self._table = table
        self._grammars = grammars

    def options(
        self,
        options: Mapping[str, Any],
        tools: Tools,
        thinking: Thinking,
        given: str | None = None,
    ) -> dict[str, Any]:
        """Return the options of a reply with tools, whose grammar they set.

        With a `schema`, the text of the reply matches it if no tool is called. The reply may
        continue text that was `given`.

        Raises:
            InvalidArgument: There is no chat template, or the options set another grammar.
        """
        form, tags = self._found(tools, thinking)
        tags = tags.continuing(given)
        rules = {name: options[name] for name in GRAMMARS if options.get(name) is not None}
        if rules and tools.choice == "none":
            return dict(options)
        if form.only_begins and given and given.strip():
            if tools.choice == "required":
                raise InvalidArgument(
                    "stream: `tool_choice` must not require a call in a reply that continues text, "
                    "because this model's calls only begin replies.",
                    param="tool_choice",
                )
            return dict(options)
        for name in rules:
            if name != "schema":
                raise InvalidArgument(
                    f'stream: `{name}` must be None with `tools`, unless `tool_choice` is "none".',
                    param=name,
                )
        answer = None
        if rules and tools.choice == "auto":
            if form.is_bare:
                raise InvalidArgument(
                    "stream: `schema` must be None with `tools`, because this model writes its "
                    "calls as JSON, too.",
                    param="schema",
                )
            answer = as_schema_text("stream", "schema", rules["schema"])
            answer = self._grammars.followed_schema(answer, option="schema", what="`schema`")
        rest = {name: value for name, value in options.items() if name not in GRAMMARS}
        if tools.choice == "required":
            rest["stop"] = []  # there is no text that they could end, only calls
        called = () if tools.choice == "none" else tools.allowed
        schemas = {name: self._schema(tools, name) for name in called}
        return {**rest, "grammar": call_grammar(form, tools, schemas, tags.form, answer)}

    def call_tags(
        self, tools: Tools, thinking: Thinking, given: str | None = None
    ) -> CallTags | None:
        """Return where calls begin in a reply with tools, which `read_tools` returns.

        None if the reply cannot have calls; see `options`.
        """
        form, tags = self._found(tools, thinking)
        if tools.choice == "none" or (form.only_begins and given and given.strip()):
            return None
        thoughts = tags.continuing(given).form
        if form.channels is not None:  # a call follows where the next message begins
            thoughts = replace(thoughts, end=form.channels.end + form.channels.start)
        has_thoughts = thoughts.start != "text"
        shown = (form.trigger, thoughts.begin, thoughts.end)
        markers = {**form.markers, **thoughts.markers}
        return CallTags(
            begin=_marked_bytes(form.trigger),
            is_first=_is_first(form, tools),
            thought_begin=_marked_bytes(thoughts.begin if thoughts.start == "before" else ""),
            thought_end=_marked_bytes(thoughts.end if has_thoughts else ""),
            is_in_thought=thoughts.start == "thought",
            markers={
                token_id: _marked_bytes(marker)
                for token_id, marker in markers.items()
                if any(marker in tag for tag in shown)
            },
            tokens=frozenset(form.markers),
        )

    def _schema(self, tools: Tools, name: str) -> str:
        """Return the schema that a tool's arguments follow."""
        schema = tools.schema_of(name)
        text = json.dumps(schema if name in tools.strict else lenient(schema), ensure_ascii=False)
        what = f"tool `{name}` of `tools`"
        return self._grammars.followed_schema(text, option="tools", what=what)

    def reader(self, tools: Tools, thinking: Thinking, given: str | None = None) -> ThoughtReader:
        """Return a reader of a reply with tools, which `read_tools` returns; see `options`."""
        form, tags = self._found(tools, thinking)
        tags = tags.continuing(given)
        if form.only_begins and given and given.strip():
            return ThoughtReader(tags)
        return _reader(tags, form, tools)

    def split(
        self, ids: Iterable[int], *, tools: Tools, thinking: Thinking, is_whole: bool = True
    ) -> Split:
        """Split a reply with tools, which `read_tools` returns, as `ThoughtTags.split` does."""
        form, tags = self._found(tools, thinking)
        if not is_whole:
            tags = tags.inside_thought()
        return tags.split_with(_reader(tags, form, tools), ids)

    def check(self, tools: Tools, thinking: Thinking, call: str) -> None:
        """Refuse tools that no reply can call; the error begins with `call`."""
        try:
            self._found(tools, thinking)
        except InvalidArgument as error:
            fault = str(error).removeprefix("stream: ")
            raise InvalidArgument(f"{call}: {fault}", param=error.param) from None

    def _found(self, tools: Tools, thinking: Thinking) -> tuple[CallFormat, ThoughtTags]:
        form = self._formats.calls(thinking, tools)
        tags = self._formats.tags(thinking)
        thoughts = NO_THOUGHTS if tags is None else tags.form.spelled()
        assert self._table is not None  # there is a tokenizer
        return form, ThoughtTags(thoughts, self._table, self._formats.text.end_token_ids)
