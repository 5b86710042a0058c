"""The options of a request. Each is declared once here, and once in csrc/sampling/params.h.

The options in GRAMMARS are declared only here: a request holds what they compile to. Keyword
arguments, defaults, checks and documentation of `Model.stream` and `Session.stream` are derived
from `StreamOptions`; the other arguments that calls share are declared at the end.
docs/contributing/add_a_request_option.md shows how to add an option.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

from sinkstream.request.value_kinds import (
    Flag,
    GrammarText,
    Integer,
    JsonSchema,
    Kind,
    Number,
    Predicted,
    Strings,
    TokenBias,
    TokenIds,
)

# The default length of `generate`: a long paragraph, which takes seconds.
REPLY_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Option:
    """What an option declares in addition to its name and type."""

    default: Any
    kind: Kind
    doc: str
    """What the option does; the documentation adds its range."""
    fill: Callable[[], Any] | None = None
    """Creates the value that replaces None. Without it, None stays None."""


class StreamOptions(TypedDict, total=False):
    """How to generate: the keyword arguments of `Model.stream` and `Session.stream`.

    If an option accepts None, None selects its default (`generate` has its own default of
    `max_tokens`).
    """

    max_tokens: Annotated[
        int | None,
        Option(
            None, Integer(0, 1 << 53), "Maximum number of tokens to generate; None sets no limit."
        ),
    ]
    stop: Annotated[
        str | Sequence[str],
        Option(
            (),
            Strings(),
            "Strings that end the stream; the text stops before them. A string that is the text of "
            "a control token ends the stream at that token.",
        ),
    ]
    stop_token_ids: Annotated[
        Sequence[int], Option((), TokenIds(), "Tokens at which the stream ends.")
    ]
    ignore_eos: Annotated[bool, Option(False, Flag(), "Continues past the model's end tokens.")]
    temperature: Annotated[
        float | None,
        Option(None, Number(0, 100), "Divides the logits; 0 takes the most probable token."),
    ]
    top_k: Annotated[
        int | None,
        Option(None, Integer(0, 2**31 - 1), "Keeps the k most probable tokens; 0 keeps all."),
    ]
    top_p: Annotated[
        float | None,
        Option(
            None,
            Number(0, 1, is_open=True),
            "Keeps the smallest set of most probable tokens whose total probability is at least "
            "this.",
        ),
    ]
    min_p: Annotated[
        float | None,
        Option(
            None, Number(0, 1), "Keeps tokens with at least this share of the highest probability."
        ),
    ]
    repetition_penalty: Annotated[
        float | None,
        Option(
            None,
            Number(0.01, 100),
            "Values above 1 make tokens that are live in the cache less likely.",
        ),
    ]
    presence_penalty: Annotated[
        float | None,
        Option(None, Number(-100, 100), "Subtracted from the logit of each live token."),
    ]
    frequency_penalty: Annotated[
        float | None,
        Option(
            None,
            Number(-100, 100),
            "Subtracted from a token's logit once for each of its live occurrences.",
        ),
    ]
    logit_bias: Annotated[
        Mapping[int, float] | None,
        Option(
            None,
            TokenBias(),
            "Numbers to add to the logits of some token ids; minus infinity forbids a token.",
            fill=dict,
        ),
    ]
    logprobs: Annotated[
        int,
        Option(0, Integer(0, 20), "How many of the most probable tokens to report for each token."),
    ]
    prompt_logprobs: Annotated[
        int | None,
        Option(
            None,
            Integer(0, 20),
            "Reports the log-probability of each token of the prompt, and this many of the most "
            "probable tokens with it; None reports nothing. Unless it is None, the whole prompt is "
            "processed, even if an open session already holds its beginning. In a session, it must "
            "be None: a session does not process its earlier tokens again.",
        ),
    ]
    seed: Annotated[
        int | None,
        Option(
            None,
            Integer(0, 2**64 - 1),
            "Makes the draws repeatable; None draws a seed, which `Started` reports.",
            fill=lambda: int.from_bytes(os.urandom(8), "little"),  # `secrets` loads OpenSSL
        ),
    ]
    stream_interval: Annotated[
        int, Option(1, Integer(1, 1 << 20), "Number of tokens delivered at a time.")
    ]
    speculation: Annotated[
        int | None,
        Option(
            None,
            Integer(0, 63),
            "The most guessed tokens that a step verifies: 0 for none; None sets no limit of its "
            "own. It changes how fast the reply is, and no token of it.",
        ),
    ]
    prediction: Annotated[
        str | Sequence[int],
        Option(
            (),
            Predicted(),
            "What the reply probably says, such as a file that it changes in places: guesses are "
            "learned from it. Text, or token ids. It changes no token of the reply.",
        ),
    ]
    timeout_s: Annotated[
        float | None,
        Option(
            None,
            Number(0, 1e9, is_open=True),
            "Ends the stream this many seconds after the call, to within one step, even while it "
            "waits for memory or for its reader; None sets no limit. The reply is the text "
            'generated by then, its finish reason is "timeout", and no error is raised.',
        ),
    ]
    priority: Annotated[
        int,
        Option(
            0,
            Integer(1 - 2**31, 2**31 - 1),
            "Of the requests that wait, those with lower numbers begin first. It changes no text.",
        ),
    ]
    schema: Annotated[
        Mapping[str, Any] | str | type | None,
        Option(
            None,
            JsonSchema(),
            "A JSON schema that the reply must match: a dict, a JSON string, or a pydantic class. "
            '`{"type": "object"}` matches any object.',
        ),
    ]
    regex: Annotated[
        str | None,
        Option(None, GrammarText(), "A regular expression that must match the whole reply."),
    ]
    grammar: Annotated[
        str | None,
        Option(
            None,
            GrammarText(),
            "A grammar for the reply, in llguidance's variant of Lark, whose start rule is named "
            "`start`, or in GBNF, whose start rule is named `root`.",
        ),
    ]


_HINTS = get_type_hints(StreamOptions, include_extras=True)
OPTIONS: dict[str, Option] = {name: hint.__metadata__[0] for name, hint in _HINTS.items()}
GRAMMARS = ("schema", "regex", "grammar")
"""Options that a reply follows; a request has at most one of them."""


def has_grammar(options: Mapping[str, Any]) -> bool:
    """Return whether a reply with these options follows a grammar."""
    return any(options.get(name) is not None for name in GRAMMARS)


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling options, named as in `StreamOptions`.

    A checkpoint may have its own defaults. The defaults here are neutral: they have no effect.
    `help(Model.stream)` lists meanings and ranges.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @classmethod
    def from_checkpoint(cls, generation: Mapping[str, float | int]) -> Sampling:
        """Return the defaults of a checkpoint.

        Args:
            generation: The values in its generation config. If it sets none of temperature, top_k,
                top_p and min_p, temperature 0.7, top_p 0.95 and min_p 0.05 apply.
        """
        values: dict[str, Any] = {"temperature": 0.7, "top_p": 0.95, "min_p": 0.05}
        if any(name in generation for name in _CHOOSING):
            values = {}
        values.update((name, generation[name]) for name in SAMPLING if name in generation)
        return cls(**values)


SAME_AS: dict[str, dict[float, float]] = {"top_k": {-1: 0}, "top_p": {0: 1e-6}}
"""What other engines' clients, and checkpoints, write for a value: -1 keeps all tokens, and 0 only
the most probable one."""
SAMPLING = tuple(entry.name for entry in fields(Sampling))
# Any of these in a checkpoint says how its authors want it sampled.
_CHOOSING = ("temperature", "top_k", "top_p", "min_p")


class TurnOptions(StreamOptions, total=False):
    """The keyword arguments of `Session.stream`: the options, and which tools the reply may call.

    What is not in `StreamOptions` has the default None, and the text of its entry in docstrings.
    """

    tool_choice: Annotated[
        str | Mapping[str, Any] | None,
        '"auto" (default), "none", "required", a function that must be called, or `allowed_tools`, '
        'in OpenAI\'s form. With "none", the model still sees the tools.',
    ]
    parallel_tool_calls: Annotated[
        bool | None,
        "Whether a reply may make several calls. If None, it may, but it calls a function once "
        "that it must call and that is the only one allowed.",
    ]


class PromptOptions(TurnOptions, total=False):
    """The keyword arguments of `Model.stream`: those of a turn, and what belongs to its prompt."""

    sinks: Annotated[
        int | None,
        "Number of sinks of this stream; if None, the model's. The capacity stays the same, so the "
        "window shrinks or grows.",
    ]
    thinking: Annotated[
        bool | str | None,
        "For messages to a reasoning model: whether it thinks before it replies, or an effort such "
        'as "low". If None, the chat template\'s default.',
    ]
    chat_template_kwargs: Annotated[
        Mapping[str, Any] | None,
        "For messages: variables of the chat template by name, such as `documents`. The template "
        "must read them.",
    ]
    tools: Annotated[
        Sequence[Mapping[str, Any]] | None,
        "For messages: functions that the reply may call, in OpenAI's form. `Stream.tool_calls` "
        'has the calls. A message with the role "tool" carries the result of a call. Needs '
        "llguidance and a chat template; one without a place for tools gets the generic form.",
    ]


class SessionOptions(TypedDict, total=False):
    """The keyword arguments of `Model.session`; all have the default None."""

    messages: Annotated[
        Sequence[Mapping[str, Any]] | None,
        "A conversation to continue, in the form that `stream` takes. It is read immediately; the "
        "next turn adds a user message. It may begin with the system prompt.",
    ]
    sinks: Annotated[
        int | Literal["system"] | None,
        "Number of tokens at the start of the conversation that the session always keeps (S); if "
        'None, the model\'s. "system" keeps the whole system prompt and the tools, which may take '
        "half of the capacity. The capacity stays the same, so the window shrinks or grows.",
    ]
    thinking: Annotated[
        bool | str | None,
        "For a reasoning model: whether it thinks before it replies, or an effort such as "
        '"low". If None, the chat template\'s default.',
    ]
    chat_template_kwargs: Annotated[
        Mapping[str, Any] | None,
        "Variables of the chat template by name, such as `documents` or `date_string`, as for "
        "transformers' `apply_chat_template`. The template must read them.",
    ]
    thoughts: Annotated[
        Literal["drop", "keep"] | None,
        'Whether the conversation keeps the thoughts of earlier replies. "drop" leaves them out '
        "exactly as the chat template does. Each message and reply with thoughts is then read "
        "twice. If a turn may evict tokens, the session also holds a second sequence's memory "
        "until the next turn begins. If no such memory is free and tokens are evicted, the "
        "thoughts stay, and a warning says so. If None, the session does what the template does; "
        "most templates drop them.",
    ]
    tools: Annotated[
        Sequence[Mapping[str, Any]] | None,
        "Functions that replies may call, in OpenAI's form, as for `stream`. They are part of the "
        "beginning of the conversation, so they cannot change later.",
    ]
