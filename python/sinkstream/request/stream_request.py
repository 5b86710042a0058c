"""One request as the native side reads it: its types checked, its options complete."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sinkstream import _core
from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.request.checks import as_native_int
from sinkstream.request.options import GRAMMARS, OPTIONS, SAMPLING, Sampling
from sinkstream.request.signature import no_option
from sinkstream.request.template_variables import TemplateVariables
from sinkstream.request.tools import Tools
from sinkstream.structured.grammars import Grammars


@dataclass(frozen=True, slots=True)
class Origin:
    """For whom requests are made: those with the same name are a share, and shares take turns."""

    share: str = ""
    weight: float = 1.0
    """A share with the weight 2 gets twice as much as one with 1."""
    called_at: float | None = None
    """When the caller asked for them, by `time.monotonic`; None for now."""


_NO_ORIGIN = Origin()
_ORIGIN: ContextVar[Origin] = ContextVar("origin", default=_NO_ORIGIN)


@contextmanager
def originating(origin: Origin) -> Iterator[None]:
    """Set the origin of all requests that the block makes: a reply may need several."""
    token = _ORIGIN.set(origin)
    try:
        yield
    finally:
        _ORIGIN.reset(token)


def called_at() -> float:
    """Return when the caller asked for what is requested now."""
    given = _ORIGIN.get().called_at
    return time.monotonic() if given is None else given


@dataclass(frozen=True, slots=True)
class CallTags:
    """Where a reply's tool calls begin: in them, stop strings are not looked for.

    Tags are UTF-8, in which each control token is its marker. csrc/sampling/call_finder.h says what
    each field means.
    """

    begin: bytes
    is_first: bool
    thought_begin: bytes
    thought_end: bytes
    is_in_thought: bool
    markers: Mapping[int, bytes]
    tokens: frozenset[int]
    """The control tokens of calls. A stop string that is one of them does not match, either."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """One request; csrc/bindings/stream.cc reads its fields by name."""

    prompt: list[int]
    options: dict[str, Any]
    """The value of every option by name: `_core.request_options()` lists them."""
    grammar: _core.CompiledGrammar | None = None
    """What the reply follows."""
    sinks: int | None = None
    continues_text: bool = False
    """Whether the reply's text continues the prompt's."""
    is_chat: bool = False
    """Whether the prompt is messages: then a reasoning model's thoughts are split from its text."""
    thinking: bool | str | TemplateVariables | None = None
    """The `thinking` with which the prompt was rendered, and further variables."""
    tools: Tools | None = None
    """What the reply may call: `grammar` then says how."""
    calls: CallTags | None = None
    """Where its calls begin, if it has stop strings."""
    given: str | None = None
    """The beginning of the reply, if the prompt ends with it instead of a generation prompt."""
    cache_salt: str = ""
    """The request shares a cached beginning only with sessions that have this salt."""
    origin: Origin = field(default_factory=_ORIGIN.get, compare=False)
    called_at: float = field(default_factory=time.monotonic, compare=False)
    """When the caller made the request, by `time.monotonic`: `timeout_s` counts from here."""

    @property
    def sampling(self) -> Sampling:
        """Return the options that choose tokens."""
        return Sampling(**{name: self.options[name] for name in SAMPLING})

    @property
    def seed(self) -> int:
        """Return the seed: given, or drawn."""
        seed: int = self.options["seed"]
        return seed

    @property
    def max_tokens(self) -> int | None:
        """Return the maximum number of tokens; None for no limit."""
        max_tokens: int | None = self.options["max_tokens"]
        return max_tokens


def make_request(
    prompt: list[int],
    options: Mapping[str, Any],
    *,
    defaults: Sampling,
    vocab_size: int,
    sinks: int | None = None,
    continues_text: bool = False,
    is_chat: bool = False,
    thinking: bool | str | TemplateVariables | None = None,
    tools: Tools | None = None,
    calls: CallTags | None = None,
    cache_salt: str = "",
    called_at: float | None = None,
    control_tokens: Mapping[str, int] | None = None,
    grammars: Grammars | None = None,
) -> StreamRequest:
    """Check the options of a request and complete them.

    Args:
        prompt: Token ids.
        options: The options that the caller gave, by name.
        defaults: Replace sampling options that are None.
        vocab_size: The bound of the ids.
        sinks: S of this sequence. If None, the model's.
        continues_text: Whether the prompt is a string that the reply continues.
        is_chat: Whether the prompt is messages.
        thinking: The `thinking` with which the prompt was rendered.
        tools: What the reply may call; their grammar is the option `grammar`.
        calls: Where its calls begin; None if it cannot have both text and calls.
        cache_salt: The request shares a cached beginning only with sessions that have this salt.
        called_at: When the caller made the request, by `time.monotonic`. If None, now.
        control_tokens: Ids of the tokens that a stream never shows, by their text.
        grammars: Compiles the grammar that a reply follows. If None, there may be none.

    Raises:
        TypeError: There is no such option, or a value has the wrong type.
        InvalidArgument: An integer is out of range, a string is not Unicode, or a grammar is not
            valid. The ranges of other numbers are checked when the request is submitted.
    """
    check_names(options)
    complete = {
        name: _complete(name, options.get(name, option.default), defaults, vocab_size)
        for name, option in OPTIONS.items()
        if name not in GRAMMARS
    }
    grammar = grammar_of(options, tools, grammars)
    if complete["stop"] and control_tokens:
        of_calls = frozenset() if calls is None else calls.tokens
        found = _tokens_to_stop_at(complete["stop"], control_tokens, of_calls)
        complete["stop_token_ids"] = [*complete["stop_token_ids"], *found]
    return StreamRequest(
        prompt=prompt,
        options=complete,
        grammar=grammar,
        sinks=None if sinks is None else as_native_int("stream", "sinks", sinks),
        continues_text=continues_text,
        is_chat=is_chat,
        thinking=thinking,
        tools=tools,
        calls=calls if complete["stop"] else None,
        cache_salt=cache_salt,
        called_at=time.monotonic() if called_at is None else called_at,
    )


def grammar_of(
    options: Mapping[str, Any], tools: Tools | None, grammars: Grammars | None
) -> _core.CompiledGrammar | None:
    """Return what a reply with these options follows; None if it is free.

    Args:
        options: The options; with tools, their grammar is the option `grammar`.
        tools: What the reply may call.
        grammars: Compiles it.

    Raises:
        TypeError: A value has the wrong type.
        InvalidArgument: There are several grammars, or one is not valid.
    """
    set_names = [name for name in GRAMMARS if options.get(name) is not None]
    given = [(name, OPTIONS[name].kind.check(name, options[name], 0)) for name in set_names]
    if not given:
        return None
    if len(given) > 1:
        names = " and ".join(f"`{name}`" for name, _ in given)
        raise InvalidArgument(
            "stream: at most one of `schema`, `regex` and `grammar` may be given, but "
            f"{names} are.",
            param=given[1][0],
        )
    assert grammars is not None
    name, text = given[0]
    if name == "grammar" and tools is not None:
        name = "tools"  # what the caller has set
    return grammars.compile(name, text)


def _tokens_to_stop_at(
    stops: list[str], control_tokens: Mapping[str, int], of_calls: frozenset[int]
) -> list[int]:
    """Return the control tokens that are stop strings; warn of one within a stop string."""
    for stop in stops:
        inside = next((token for token in control_tokens if token in stop), None)
        if inside is not None and stop not in control_tokens:
            warn_caller(
                f"stream: `stop` has {stop!r}, but a stream never shows {inside!r}, a control "
                "token. To stop at the token, pass its text alone."
            )
    found = [control_tokens[stop] for stop in stops if stop in control_tokens]
    return [token_id for token_id in found if token_id not in of_calls]


def check_names(options: Mapping[str, Any]) -> None:
    """Check that options with these names exist.

    Raises:
        TypeError: One does not exist; the message suggests one with a similar name.
    """
    for name in options:
        if name not in OPTIONS:
            raise no_option("stream", name, OPTIONS)


def _complete(name: str, value: Any, defaults: Sampling, vocab_size: int) -> Any:
    option = OPTIONS[name]
    if value is not None or option.default is not None:
        return option.kind.check(name, value, vocab_size)
    if name in SAMPLING:
        return getattr(defaults, name)
    return None if option.fill is None else option.fill()
