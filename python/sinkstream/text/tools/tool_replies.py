"""What replies with tools need from a checkpoint: the form of calls, a grammar, and a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.request.json_schema import as_schema_text
from sinkstream.request.options import GRAMMARS, has_grammar
from sinkstream.request.tools import Tools
from sinkstream.structured.lru_cache import LruCache
from sinkstream.text.thinking import Thinking
from sinkstream.text.thoughts.thought_reader import Split, ThoughtReader, ThoughtTags
from sinkstream.text.tokenizers.token_bytes import TokenBytes
from sinkstream.text.tools.call_format import CallFormat, call_grammar
from sinkstream.text.tools.call_reader import NO_THOUGHTS, CallReader

_MOST = 16  # values of `thinking`, which clients of a server choose


def read_tools(tools: Tools | None, options: Mapping[str, Any]) -> Tools | None:
    """Return the tools whose calls are looked for in a reply with these options.

    If the text has a grammar of its own, the reply cannot have calls.
    """
    if tools is None or not has_grammar(options):
        return tools
    return None if tools.choice == "none" else replace(tools, choice="required")


def _reader(tags: ThoughtTags, form: CallFormat, tools: Tools) -> CallReader:
    return CallReader(tags, form, is_first=form.is_bare or tools.choice == "required")


class ToolReplies:
    """Serves one checkpoint. Any thread may call it."""

    def __init__(
        self,
        text: TextFormat,
        table: TokenBytes | None,
        thought_tags: Callable[[Thinking], ThoughtTags | None],
    ) -> None:
        """Remember a checkpoint; the form of its calls is found with the first request.

        `table` is None if it has no tokenizer. `thought_tags` returns the tags around its thoughts.
        """
        self._text = text
        self._table = table
        self._thought_tags = thought_tags
        self._known: LruCache[Thinking, tuple[CallFormat, ThoughtTags] | InvalidArgument]
        self._known = LruCache(_MOST)

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
            InvalidArgument: The template has no place for tools, or the options set another
                grammar.
        """
        form, tags = self._found(thinking)
        tags = tags.continuing(given)
        rules = {name: options[name] for name in GRAMMARS if options.get(name) is not None}
        if rules and tools.choice == "none":
            return dict(options)
        if form.is_bare and given and given.strip():
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
        rest = {name: value for name, value in options.items() if name not in GRAMMARS}
        return {**rest, "grammar": call_grammar(form, tools, tags.form, answer)}

    def reader(self, tools: Tools, thinking: Thinking, given: str | None = None) -> ThoughtReader:
        """Return a reader of a reply with tools, which `read_tools` returns; see `options`."""
        form, tags = self._found(thinking)
        tags = tags.continuing(given)
        if form.is_bare and given and given.strip():
            return ThoughtReader(tags)
        return _reader(tags, form, tools)

    def split(
        self, ids: Iterable[int], *, tools: Tools, thinking: Thinking, is_whole: bool = True
    ) -> Split:
        """Split a reply with tools, which `read_tools` returns, as `ThoughtTags.split` does."""
        form, tags = self._found(thinking)
        if not is_whole:
            tags = tags.inside_thought()
        return tags.split_with(_reader(tags, form, tools), ids)

    def check(self, thinking: Thinking, call: str) -> None:
        """Refuse tools if the template has no place for them; the error begins with `call`."""
        try:
            self._found(thinking)
        except InvalidArgument as error:
            fault = str(error).removeprefix("stream: ")
            raise InvalidArgument(f"{call}: {fault}", param=error.param) from None

    def _found(self, thinking: Thinking) -> tuple[CallFormat, ThoughtTags]:
        found = self._known.get(thinking, partial(self._find, thinking))
        if isinstance(found, InvalidArgument):
            raise InvalidArgument(str(found), param=found.param)
        return found

    def _find(self, thinking: Thinking) -> tuple[CallFormat, ThoughtTags] | InvalidArgument:
        from sinkstream.text.tools.find_calls import find_calls  # with Jinja, 2 MB

        tags = self._thought_tags(thinking)
        thoughts = None if tags is None else tags.form.spelled()
        try:
            form = find_calls(self._text, thinking, thoughts)
        except InvalidArgument as error:
            return error
        assert self._table is not None  # there is a tokenizer
        table, hidden = self._table, self._text.end_token_ids
        return form, ThoughtTags(thoughts or NO_THOUGHTS, table, hidden)
