"""The events of a stream as plain values, its statistics and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sinkstream.observe.notebook import counted, quotation, summary
from sinkstream.request.options import Sampling
from sinkstream.text.marked_text import Kind
from sinkstream.text.messages import ToolCall

FinishReason = Literal["stop", "stop_string", "length", "timeout", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Started:
    """The sequence has received its memory. Carries the seed and the sampling options in use."""

    prompt_tokens: int
    seed: int
    sampling: Sampling
    request_id: int
    """Counts from 1 for each model; used in logs, traces and errors."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """`done` of `total` prompt tokens have been processed."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Token:
    """One token."""

    text: str
    """The characters that it completes: may be empty, or include parts of earlier tokens."""
    id: int
    logprob: float
    """From the model's own distribution, before bias, penalties, temperature and filters."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """(id, logprob) of the `logprobs` most probable tokens, best first."""
    kind: Kind = "text"
    """"thought" if it belongs to a thought of a reasoning model, or to the tags around one;
    "tool_call" if it belongs to a tool call; `Stream.tool_calls` gives its name and arguments."""


@dataclass(frozen=True, slots=True)
class PromptToken:
    """One token of the prompt, if the request has `prompt_logprobs`."""

    id: int
    logprob: float | None
    """From the model's own distribution after the tokens before it; None for the first token."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """(id, logprob) of the `prompt_logprobs` most probable tokens, best first."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """`count` more tokens have left the cache."""

    count: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event."""

    reason: FinishReason
    text: str = ""
    """Text that was held back and belongs to no new token."""
    thought: str = ""
    """Text of a thought that was held back and belongs to no new token."""


Event = Started | PromptToken | Prefill | Token | Evicted | Finished


def text_of(event: Event) -> str:
    """Return the text of an event; thoughts and tool calls have none."""
    if isinstance(event, Token):
        return event.text if event.kind == "text" else ""
    return event.text if isinstance(event, Finished) else ""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts and times, measured in the generation thread, independently of the consumer."""

    request_id: int
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    """Tokens that were in the cache when the request received its memory: a prefix shared with an
    open session, or all that a session holds."""
    evicted_tokens: int
    """Tokens of prompt and reply that have left the cache: the model no longer sees them."""
    live_tokens: int
    """Tokens in the cache; for a finished stream, when it ended."""
    cache_bytes: int
    """Memory of the stream's pages; for a finished stream, when it ended."""
    time_to_first_token_s: float | None
    """From the request to the first token. None before the first token."""
    tokens_per_s: float | None
    """Decode rate, without pauses caused by the consumer. None before the second token."""
    token_p50_s: float | None
    """Median time between tokens, accurate to 3 %."""
    token_p99_s: float | None
    consumer_lag: int
    """Tokens that are ready but have not been read."""
    replayed_tokens: int = 0
    """Tokens of a session that were read again before the prompt, after an undo."""
    draft_tokens: int = 0
    """Guessed tokens that steps have verified. Guesses change no token."""
    accepted_tokens: int = 0
    """Those of them that were right: they had no step of their own."""


# A result's text is shown up to here.
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """The complete output of a stream.

    A stream without `max_tokens`, or with more than 65,536, keeps only the last 4,096 tokens and
    the last 32,768 characters, and counts what it dropped.
    """

    text: str
    """Without the thoughts of a reasoning model, and without tool calls."""
    token_ids: list[int]
    logprobs: list[float]
    """The log-probability of each token, from the model's own distribution."""
    finish_reason: FinishReason
    stats: Stats
    seed: int
    """The seed in use: given or drawn."""
    alternatives: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    """For each token, (id, logprob) of the `logprobs` most probable ones, best first; empty without
    that option."""
    dropped_characters: int = 0
    dropped_tokens: int = 0
    thought: str = ""
    """What a reasoning model thought before it replied to messages."""
    thought_tokens: int = 0
    """How many of the generated tokens were thoughts and the tags around them."""
    prompt_logprobs: list[PromptToken] = field(default_factory=list)
    """Each token of the prompt; empty without that option."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    """The tool calls in the reply. If the reply did not end with "stop", the last call may be
    incomplete."""

    def __repr__(self) -> str:
        """Return reason, speed and the beginning of the text: ids would fill the screen."""
        text = self.text
        if len(text) > _SHOWN_CHARACTERS:
            text = text[:_SHOWN_CHARACTERS] + "…"
        return f"<sinkstream.Result {', '.join(self._facts())}: {text!r}>"

    def _repr_html_(self) -> str:
        return summary("Result", self._facts(), quotation(self.text))

    def _facts(self) -> list[str]:
        rate = self.stats.tokens_per_s
        speed = [] if rate is None else [f"{rate:.1f} tokens/s"]
        return [self.finish_reason, counted(self.stats.generated_tokens, "token"), *speed]
