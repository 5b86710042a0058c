"""`Model`: streams, sessions, results and logits of a loaded checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack, overload

from sinkstream import _core
from sinkstream.cache import Cache, Capacity
from sinkstream.checkpoint.checkpoint import Checkpoint
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import (
    CapacityError,
    EngineDead,
    InvalidArgument,
    NonFiniteLogits,
    SinkstreamError,
    engine_dead,
)
from sinkstream.observe import logs, open_models
from sinkstream.observe.notebook import summary
from sinkstream.request.checks import as_int, as_native_int
from sinkstream.request.keywords import suggests_keywords
from sinkstream.request.options import REPLY_TOKENS, Sampling, StreamOptions
from sinkstream.request.signature import shows_options
from sinkstream.request.stream_request import StreamRequest, make_request
from sinkstream.request.tools import Tools, check_tools
from sinkstream.streams.closing import ClosesOnExit
from sinkstream.streams.live import Progress, progress_function
from sinkstream.streams.stream import Result, Stream
from sinkstream.structured.grammars import Grammars
from sinkstream.text.conversation_formats import ConversationFormats
from sinkstream.text.prompt import EncodedText, encode_prompt, is_chat
from sinkstream.text.thinking import Thinking, check_thinking
from sinkstream.text.thoughts.thought_reader import ThoughtReader, ThoughtTags
from sinkstream.text.tokenizers.control_tokens import control_tokens
from sinkstream.text.tokenizers.token_bytes import TokenBytes
from sinkstream.text.tools.tool_replies import ToolReplies, read_tools

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

    from sinkstream.sessions.opening import SessionStart
    from sinkstream.sessions.session import Host, Session
    from sinkstream.streams.replies import Replies
    from sinkstream.text.turns.turn_format import TurnFormat

# Sessions, and replies to many prompts, are imported where they begin: a single stream does not
# need them, nor the 3 MB that they take.

Message = Mapping[str, Any]


class IdArray(Protocol):
    """Token ids in a NumPy array or a torch tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return [tokens], or [prompts, tokens]."""
        ...

    def __iter__(self) -> Iterator[Any]: ...

    def tolist(self) -> Any:
        """Return the ids as a list."""
        ...


Prompt = str | Sequence[int] | Sequence[Message] | IdArray


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The checked arguments of `load`; the native side resolves "auto"."""

    dtype: str
    kv_dtype: str
    quantize: str | None
    """The block format to which 16-bit and 32-bit matrices are quantized."""
    sinks: int
    window: int
    max_sequences: int
    prefill_chunk: int
    threads: int
    kernels: str
    device: str
    cuda_library: str

    def with_window(self, window: int) -> ModelOptions:
        """Return the same options with a window of W tokens."""
        return replace(self, window=window)


class Model(ClosesOnExit):
    """A model that is ready to stream; created by `sinkstream.load`.

    Any thread may call its methods. One native thread generates for all streams.

    Example:
        >>> with sinkstream.load() as model:
        ...     print(model.generate("Once upon a time", max_tokens=40).text)
    """

    _instead = "Load the model in the process that uses it."

    def __init__(
        self,
        builder: _core.ModelBuilder,
        checkpoint: Checkpoint,
        options: ModelOptions,
        table: TokenBytes | None,
    ) -> None:
        self._spec = checkpoint.spec
        self._text = checkpoint.text
        self._path = checkpoint.path
        self._defaults = Sampling.from_checkpoint(checkpoint.generation)
        self._options = options
        tokens = (
            None
            if table is None
            else _core.TokenTable(
                list(table.pieces), sorted(table.special), table.strip_leading_space
            )
        )
        self._native = _core.Model(
            builder, asdict(options), tokens, sorted(checkpoint.text.end_token_ids)
        )
        self._grammars = Grammars(tokens, self._spec.vocab_size, checkpoint.text.end_token_ids)
        self._control_tokens: dict[str, int] = {}
        if checkpoint.text.tokenizer is not None:
            control = control_tokens(checkpoint.text.tokenizer)
            self._control_tokens = {
                token.content: i for i, token in control.items() if i < self._spec.vocab_size
            }
        self._table = table
        self._formats = ConversationFormats(checkpoint.text, table)
        self._tool_replies = ToolReplies(self._text, table, self._thought_tags)
        self._closed = False
        self._number = open_models.add(self)

    def __repr__(self) -> str:
        capacity = self.capacity
        return (
            f"<sinkstream.Model {self._spec.family}, {self._spec.layers} layers, "
            f"{capacity.sinks} sinks + {capacity.window} window, {self._native.kernels} kernels"
            f"{', closed' if self._closed else ''}>"
        )

    def _repr_html_(self) -> str:
        spec, state = self._spec, "closed" if self._closed else self._native.kernels + " kernels"
        facts = [Path(self._path).name, f"{spec.layers} layers", state, str(self.capacity)]
        return summary(f"Model {spec.family}", facts)

    @property
    def spec(self) -> DecoderSpec:
        """Return the model's description."""
        return self._spec

    @property
    def path(self) -> str:
        """Return where the checkpoint was found."""
        return self._path

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Return the checkpoint's tokenizer, or None if it has none."""
        return self._text.tokenizer

    @property
    def has_chat_template(self) -> bool:
        """Return whether prompts can be chat messages."""
        return self._text.tokenizer is not None and self._text.chat_template is not None

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Return the ids of the tokens that end a reply, unless `ignore_eos` is set."""
        return self._text.end_token_ids

    @property
    def capacity(self) -> Capacity:
        """Return the memory that the model holds, and how many sequences fit."""
        native = self._native
        sinks, window = self._spec.kept(self._options.sinks, self._options.window)
        return Capacity(
            sinks=sinks,
            window=window,
            max_sequences=self._options.max_sequences,
            bytes_per_token=native.bytes_per_token,
            bytes_per_sequence=native.bytes_per_sequence,
            cache_bytes=native.cache_bytes,
            weight_bytes=native.weight_bytes,
            scratch_bytes=native.scratch_bytes,
            state_bytes_per_sequence=native.state_bytes_per_sequence,
        )

    @property
    def spare_cache_bytes(self) -> int:
        """Return the GPU memory of freed caches that is kept for the next cache; 0 on a CPU.

        `new_cache`, `Cache.copy` and `forward` without a cache reuse it, because allocating memory
        would stop all streams. It is at most `capacity.cache_bytes`, and not part of `capacity`. If
        another GPU allocation by this package would fail, this memory is freed first.
        """
        return self._native.spare_cache_bytes

    @property
    def runtime(self) -> dict[str, Any]:
        """Return the kernel tables, types and threads in use, as `sinkstream info` shows them."""
        native = self._native
        return {
            "device": "cuda" if native.is_on_gpu else "cpu",
            "kernels": native.kernels,
            "served_by": dict(native.served_by),
            "dtype": native.dtype,
            "kv_dtype": native.kv_dtype,
            "quantize": self._options.quantize,
            "threads": native.threads,
            "prefill_chunk": native.prefill_chunk,
        }

    def bytes_read_per_token(self, live: int) -> int:
        """Return the bytes of weights, keys and values that one stream's decode step reads.

        The memory bandwidth divided by this number is an upper bound on the tokens per second of
        one stream. The number assumes that every layer keeps `live` tokens; layers with a shorter
        window of their own keep fewer.

        Args:
            live: Tokens in the cache.
        """
        return self._native.weight_bytes_per_token + live * self._native.bytes_per_token

    def stats(self) -> dict[str, Any]:
        """Return the engine's counters, gauges and histograms as a plain dictionary.

        All values except `queue_lag` and the two quantiles are from the same moment, so sums agree.
        `docs/reference/monitoring.md` lists them with units.

        Returns:
            A dictionary with the current values of

            - `is_dead`: whether the engine has failed;
            - `waiting`, `running`: requests that wait for memory, and requests that hold some;
            - `parked`: running requests that wait for their consumers;
            - `pages`: the pages of the cache, of which `used_pages` are used, `free_pages` are
              free, and `shared_pages` have several owners;
            - `queue_lag`: tokens that consumers have not taken yet;

            and with totals since load:

            - `requests`: accepted requests, the sum of `waiting`, `running` and all values of
              `finished`;
            - `finished`: ended requests, by finish reason;
            - `steps`: steps of the engine;
            - `prompt_tokens`, `generated_tokens`, `evicted_tokens`: tokens that were processed,
              sampled and evicted;
            - `step_s`: the time of all steps, with the quantiles `step_p50_s` and `step_p99_s`;
            - `step_times`, `first_token_times`: histograms, each with `count`, `sum_s`, `bounds_s`
              and `cumulative`: for each bound, the number of values that do not exceed it.

        Raises:
            ForkError: The model was loaded before this process was forked.
        """
        return self._native.stats()

    @shows_options()
    def stream(
        self,
        prompt: Prompt,
        *,
        sinks: int | None = None,
        thinking: bool | str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        **options: Unpack[StreamOptions],
    ) -> Stream:
        """Start generating, and return a stream of the text.

        Generation starts immediately and runs in a native thread; a consumer that falls behind
        gets fewer, larger pieces of text. `close()`, the end of a `with` block and Ctrl-C end the
        generation; so does leaving a loop over a stream that has no other reference. Read the
        stream with `for`, or with `async for` in asyncio.

        Args:
            prompt: A string, token ids, or chat messages (`{"role": …, "content": …}`, as OpenAI
                and transformers take them; only text is supported). A string is plain text. Control
                tokens come only from ids, or from the chat template that messages go through. A
                model with a chat template often returns an empty reply to a plain string; a warning
                then says so. Any length is allowed: tokens that no longer fit into the cache are
                evicted.
            sinks: Number of sinks of this stream; if None, the model's. The capacity stays the
                same, so the window shrinks or grows.
            thinking: For messages to a reasoning model: whether it thinks before it replies, or
                an effort such as "low". If None, the chat template's default.
            tools: For messages: functions that the reply may call, in OpenAI's form.
                `Stream.tool_calls` has the calls. A message with the role "tool" carries the result
                of a call. Needs llguidance, and a chat template with a place for tools.
            tool_choice: "auto" (default), "none", "required", a function that must be called, or
                `allowed_tools`, in OpenAI's form. With "none", the model still sees the tools.
            parallel_tool_calls: Whether a reply may make several calls. If None, it may.
            **options: How to generate; `request/options.py` declares them.

        If a sampling argument is None, the checkpoint's default applies. A checkpoint without
        defaults gets temperature 0.7, top_p 0.95 and min_p 0.05; one whose generation config
        explicitly says `do_sample: false` gets temperature 0. `Started` has the values in use.

        Raises:
            InvalidArgument: A value is out of range.
            TypeError: A value has the wrong type.
            CapacityError: The request can never fit into the memory reserved at load.
            EngineDead: The model is closed, or its engine has failed.
        """
        called_at = time.monotonic()
        checked = check_tools(tools, tool_choice, parallel_tool_calls)
        request = self._request(prompt, sinks, options, called_at, thinking, checked)
        return self._submit_now(request)

    def _stream(
        self,
        prompt: Prompt,
        options: StreamOptions,
        *,
        thinking: Thinking = None,
        tools: Tools | None = None,
        cache_salt: str = "",
    ) -> Stream:
        """Do the same with tools that have been checked."""
        called_at = time.monotonic()
        request = self._request(prompt, None, options, called_at, thinking, tools, cache_salt)
        return self._submit_now(request)

    def _continue(
        self,
        ids: list[int],
        given: str,
        thinking: Thinking,
        options: StreamOptions,
        cache_salt: str,
    ) -> Stream:
        """Continue a reply to messages that begins with `given`, after the ids of all of these."""
        request = self._request(ids, None, options, time.monotonic(), cache_salt=cache_salt)
        has_rule = request.grammar is not None
        return self._submit_now(request, self._reader(thinking, None, given, has_rule=has_rule))

    def _request(
        self,
        prompt: Any,
        sinks: int | None,
        options: StreamOptions,
        called_at: float,
        thinking: Any = None,
        tools: Tools | None = None,
        cache_salt: str = "",
    ) -> StreamRequest:
        self._check_open("stream")
        thinking = check_thinking(thinking, "stream")
        ids = encode_prompt(self._text, self._spec.vocab_size, prompt, thinking, tools)
        read = read_tools(tools, options)
        return make_request(
            ids,
            self._options_with(options, tools, thinking),
            defaults=self._defaults,
            vocab_size=self._spec.vocab_size,
            sinks=sinks,
            continues_text=isinstance(prompt, str | EncodedText),
            is_chat=is_chat(prompt),
            thinking=thinking,
            tools=read,
            cache_salt=cache_salt,
            grammar_name="grammar" if read is None else "tools",
            called_at=called_at,
            control_tokens=self._control_tokens,
            grammars=self._grammars,
        )

    def _options_with(
        self, options: StreamOptions, tools: Tools | None, thinking: Thinking
    ) -> StreamOptions:
        """Return the options of a reply with tools, one of which is the tools' grammar."""
        if tools is None:
            return options
        with_grammar: Any = self._tool_replies.options(options, tools, thinking)
        checked: StreamOptions = with_grammar
        return checked

    def _check_options(
        self, options: StreamOptions, sinks: int | None, grammar_name: str = "grammar"
    ) -> None:
        """Refuse the options that no prompt can have."""
        make_request(
            [0],
            options,
            defaults=self._defaults,
            vocab_size=self._spec.vocab_size,
            sinks=sinks,
            grammar_name=grammar_name,
            grammars=self._grammars,
        )

    def _checked_options(
        self, options: StreamOptions, tools: Tools | None, thinking: Thinking
    ) -> StreamOptions:
        """Return the options of a reply with tools; refuse those that no prompt can have."""
        name = "grammar" if read_tools(tools, options) is None else "tools"
        checked = self._options_with(options, tools, thinking)
        self._check_options(checked, None, name)
        return checked

    def _submit_now(self, request: StreamRequest, reader: ThoughtReader | None = None) -> Stream:
        """Submit a request whose caller expects it to start; log it if it has to wait."""
        before = logs.stats_before(self._native)
        stream = self._submit(request, reader)
        if before is not None:
            whole = before["pages"] // self._options.max_sequences
            needed = whole if request.max_tokens is None else 1  # at least
            logs.request_waits(stream.request_id, before, needed)
        return stream

    def _submit(self, request: StreamRequest, reader: ThoughtReader | None = None) -> Stream:
        options = self._options
        sinks = options.sinks if request.sinks is None else request.sinks
        if request.is_chat:
            has_rule = request.grammar is not None
            reader = self._reader(request.thinking, request.tools, has_rule=has_rule)
        return Stream(
            self._native.submit(request),
            request,
            self,
            has_text=self._text.tokenizer is not None,
            window=(sinks, options.sinks + options.window - sinks),
            expects_messages=request.continues_text and self.has_chat_template,
            reader=reader,
        )

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a Sequence[str], and one prompt
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        *,
        sinks: int | None = ...,
        thinking: bool | str | None = ...,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        tool_choice: str | Mapping[str, Any] | None = ...,
        parallel_tool_calls: bool | None = ...,
        progress: Progress | bool | None = ...,
        **options: Unpack[StreamOptions],
    ) -> Result: ...
    @overload
    def generate(
        self,
        prompt: Sequence[str]
        | Sequence[Sequence[int]]
        | Sequence[Sequence[Message]]
        | Sequence[Prompt],
        *,
        sinks: int | None = ...,
        thinking: bool | str | None = ...,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        tool_choice: str | Mapping[str, Any] | None = ...,
        parallel_tool_calls: bool | None = ...,
        progress: Progress | bool | None = ...,
        **options: Unpack[StreamOptions],
    ) -> list[Result]: ...
    @overload
    def generate(
        self,
        prompt: IdArray,
        *,
        sinks: int | None = ...,
        thinking: bool | str | None = ...,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        tool_choice: str | Mapping[str, Any] | None = ...,
        parallel_tool_calls: bool | None = ...,
        progress: Progress | bool | None = ...,
        **options: Unpack[StreamOptions],
    ) -> Result | list[Result]: ...

    @shows_options(max_tokens=REPLY_TOKENS)
    def generate(
        self,
        prompt: Any,
        *,
        sinks: int | None = None,
        thinking: bool | str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        progress: Progress | bool | None = None,
        **options: Unpack[StreamOptions],
    ) -> Result | list[Result]:
        """Generate to the end and return the whole reply.

        Args:
            prompt: As for `stream`, or a list of prompts, or a 2-D array of ids with one prompt per
                row.
            sinks: As for `stream`.
            thinking: As for `stream`.
            tools: As for `stream`.
            tool_choice: As for `stream`.
            parallel_tool_calls: As for `stream`.
            progress: Called with (finished replies, total replies) at the start and after each
                reply. True shows a bar in a notebook, and a line on a terminal.
            **options: How to generate; `request/options.py` declares them.

        The default of `max_tokens` is 256. None sets no limit: pass stop strings or `timeout_s` as
        well, because many models never end their text. All prompts are submitted together, and
        those that do not fit wait, so `timeout_s` limits the whole call. A `seed` applies to every
        prompt: equal prompts then get equal replies. To read each reply as soon as it is complete,
        use `generate_many`.

        Returns:
            A result; for a list of prompts, a list of results in the same order.

        Raises:
            InvalidArgument: A value is out of range; no generation has started. If one of several
                prompts is at fault, the message gives its index, from 0. Also raised if
                `logit_bias` or the grammar leaves no token to sample, or if the grammar exceeds
                llguidance's limits; all other generation then ends.
            TypeError: A value has the wrong type.
            CapacityError: A reply failed for lack of memory. With several prompts, the others are
                completed first; the error carries them in `results`. Also raised if a request can
                never fit into the memory reserved at load.
            NonFiniteLogits: The model returned NaN or infinity; `results` is set as above.
            EngineDead: The model is closed, or its engine has failed.
        """
        called_at = time.monotonic()
        options.setdefault("max_tokens", REPLY_TOKENS)
        report = progress_function("generate", progress, "Replies")
        checked = check_tools(tools, tool_choice, parallel_tool_calls)
        self._check_options(options, sinks)
        is_list = _is_list_of_prompts(prompt)
        requests: list[StreamRequest] = []
        for index, one in enumerate(prompt if is_list else [prompt]):
            try:
                requests.append(self._request(one, sinks, options, called_at, thinking, checked))
            except (SinkstreamError, TypeError) as error:
                if is_list:
                    _name_prompt(error, index)
                raise
        results = self._generate_all(requests, report)
        return results if is_list else results[0]

    def _generate_all(
        self, requests: list[StreamRequest], progress: Progress | None
    ) -> list[Result]:
        streams: list[Stream] = []
        results: list[Result | SinkstreamError] = []
        try:
            submit = self._submit_now if len(requests) == 1 else self._submit
            streams.extend(submit(request) for request in requests)
            for stream in streams:
                if progress is not None:
                    progress(len(results), len(streams))
                try:
                    results.append(stream.result())
                except (CapacityError, NonFiniteLogits) as error:
                    results.append(error)
            if progress is not None:
                progress(len(results), len(streams))
        finally:
            for stream in streams:
                stream.close()
        return _all_or_error(results)

    @shows_options(max_tokens=REPLY_TOKENS)
    def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        sinks: int | None = None,
        thinking: bool | str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        **options: Unpack[StreamOptions],
    ) -> Replies:
        """Generate for many prompts, and yield each reply as soon as it is complete.

        A prompt that fails does not affect the others: its error takes the place of its reply. The
        replies come in the order in which they are completed, each with the index of its prompt.

        Args:
            prompts: Any iterable of prompts as for `stream`, even an endless one: prompts are taken
                from it as room becomes available; at most `2 * max_sequences` are in progress at a
                time.
            sinks: As for `stream`.
            thinking: As for `stream`.
            tools: As for `stream`.
            tool_choice: As for `stream`.
            parallel_tool_calls: As for `stream`.
            **options: How to generate; `request/options.py` declares them.

        The default of `max_tokens` is 256. For each prompt, `timeout_s` starts when the prompt is
        taken. If a `seed` is given, it applies to every prompt, so each reply equals that of
        `generate` for the same prompt, and equal prompts get equal replies. Without a `seed`, each
        prompt gets its own (`Result.seed`).

        Returns:
            An iterator of (index, reply) pairs, where a reply is a `Result` or an exception. Read
            it with `for`, or with `async for` in asyncio.

        Raises:
            InvalidArgument: An option is out of range.
            TypeError: An option does not exist or has the wrong type, or `prompts` is one prompt.
            EngineDead: The model is closed.

        Example:
            >>> for index, reply in model.generate_many(["The sea", "A clock"], max_tokens=20):
            ...     print(index, reply.text if isinstance(reply, Result) else f"failed: {reply}")
        """
        self._check_open("generate_many")
        _refuse_one_prompt(prompts)
        check_thinking(thinking, "generate_many")
        checked = check_tools(tools, tool_choice, parallel_tool_calls)
        options.setdefault("max_tokens", REPLY_TOKENS)
        self._check_options(options, sinks)

        def start(prompt: Prompt) -> Stream:
            called_at = time.monotonic()
            return self._submit(self._request(prompt, sinks, options, called_at, thinking, checked))

        from sinkstream.streams.replies import Replies

        return Replies(start, prompts, 2 * self._options.max_sequences)

    @suggests_keywords
    def session(
        self,
        system: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        sinks: int | Literal["system"] | None = None,
        thinking: bool | str | None = None,
        thoughts: Literal["drop", "keep"] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Session:
        """Open a conversation that keeps its cache between turns.

        The session holds the memory of one stream for as long as it is open. It reads the system
        prompt immediately, or shares the pages of an open session that has the same one.

        Args:
            system: The system prompt. If None, the chat template's default, if there is one.
            messages: A conversation to continue, in the form that `stream` takes. It is read
                immediately; the next turn adds a user message. It may begin with the system prompt.
            sinks: Number of tokens at the start of the conversation that the session always keeps
                (S); if None, the model's. "system" keeps the whole system prompt. The capacity
                stays the same, so the window shrinks or grows.
            thinking: For a reasoning model: whether it thinks before it replies, or an effort such
                as "low". If None, the chat template's default.
            thoughts: Whether the conversation keeps the thoughts of earlier replies. "drop" leaves
                them out exactly as the chat template does. Each message and reply with
                thoughts is then read twice. If a turn may evict tokens, the session also holds a
                second sequence's memory until the next turn begins. If no such memory is free and
                tokens are evicted, the thoughts stay, and a warning says so. If None, the session
                does what the template does; most templates drop them.
            tools: Functions that replies may call, in OpenAI's form, as for `stream`. They are
                part of the beginning of the conversation, so they cannot change later.

        Raises:
            CapacityError: There is no free memory for another session.
            InvalidArgument: The chat template does not allow a system prompt or one of the
                messages, or S is not below the capacity.
            TypeError: A value has the wrong type.
            EngineDead: The model is closed, or its engine has failed.
        """
        from sinkstream.sessions.opening import open_session

        start = self._session_start(system, messages, sinks, thinking, thoughts, tools)
        return open_session(self._host(), self._turns_of(start), start)

    @suggests_keywords
    async def asession(
        self,
        system: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        sinks: int | Literal["system"] | None = None,
        thinking: bool | str | None = None,
        thoughts: Literal["drop", "keep"] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Session:
        """Open a conversation as `session` does, without blocking the event loop.

        If the task is cancelled, no session stays open. Arguments are those of `session`.

        Raises:
            OSError: The process cannot open another file descriptor; each event loop needs one.
            Exception: Any error that `session` raises.
        """
        from sinkstream.sessions.opening import aopen_session

        start = self._session_start(system, messages, sinks, thinking, thoughts, tools)
        return await aopen_session(self._host(), lambda: self._turns_of(start), start)

    def _session_start(
        self,
        system: str | None,
        messages: Sequence[Mapping[str, Any]] | None,
        sinks: int | str | None,
        thinking: Any,
        thoughts: str | None,
        tools: Any,
    ) -> SessionStart:
        from sinkstream.sessions.opening import SessionStart
        from sinkstream.sessions.thoughts import Thoughts, check_thoughts

        self._check_open("session")
        checked = check_tools(tools, call="session")
        thinking = check_thinking(thinking, "session")
        tags = self._thought_tags(thinking)
        drops = check_thoughts(thoughts, tags)
        if sinks is not None and not isinstance(sinks, str):
            sinks = as_native_int("session", "sinks", sinks)
        return SessionStart(system, messages, sinks, Thoughts(tags, thinking, drops), checked)

    def _turns_of(self, start: SessionStart) -> TurnFormat:
        """Return the parts of a conversation; refuse tools if they have no place for them."""
        thinking, tools = start.thoughts.thinking, start.tools
        if tools is not None:
            self._tool_replies.check(thinking, "session")
        return self._turn_format(thinking, tools)

    def load_session(self, path: str | os.PathLike[str]) -> Session:
        """Open a session saved by `Session.save`; it continues bit for bit like the saved one.

        Raises:
            CheckpointError: The file is missing or damaged, has another format version, or was
                written for a different model, cache type or capacity (sinks + window). If a setting
                differs, the message shows its value in the file and in the model.
            CapacityError: There is no free memory for another session.
            EngineDead: The model is closed, or its engine has failed.
        """
        from sinkstream.sessions.opening import load_session

        self._check_open("load_session")
        return load_session(self._host(), self._conversation_format, path)

    async def aload_session(self, path: str | os.PathLike[str]) -> Session:
        """Open a saved session as `load_session` does, without blocking the event loop.

        If the task is cancelled, no session stays open.

        Raises:
            Exception: Any error that `load_session` raises.
        """
        from sinkstream.sessions.opening import aload_session

        self._check_open("load_session")
        return await aload_session(self._host(), self._conversation_format, path)

    def _turn_format(self, thinking: Thinking = None, tools: Tools | None = None) -> TurnFormat:
        if tools is None:
            return self._formats.turns(thinking)
        return self._formats.turns(thinking, tools.definitions, tools.key)

    def _conversation_format(
        self, thinking: Thinking, tools: Tools | None
    ) -> tuple[TurnFormat, ThoughtTags | None]:
        if tools is not None:
            self._tool_replies.check(thinking, "load_session")
        return self._turn_format(thinking, tools), self._thought_tags(thinking)

    def _reader(
        self,
        thinking: Thinking,
        tools: Tools | None = None,
        given: str = "",
        *,
        has_rule: bool = False,
    ) -> ThoughtReader | None:
        """Return what tells thoughts and calls from text in a reply to messages, if anything does.

        With a grammar other than that of tools, everything is text.
        """
        if tools is not None:
            return self._tool_replies.reader(tools, thinking)
        tags = None if has_rule else self._thought_tags(thinking)
        return None if tags is None else tags.reader(given)

    def _thought_tags(self, thinking: Thinking = None) -> ThoughtTags | None:
        """Return how to tell thoughts from text in replies to messages; None if there are none."""
        return self._formats.tags(thinking)

    def _host(self) -> Host:
        from sinkstream.sessions.session import Host

        return Host(
            model=self,
            native=self._native,
            tokenizer=self._text.tokenizer,
            spec=self._spec,
            window=(self._options.sinks, self._options.window),
            defaults=self._defaults,
            continues_text=self._text.chat_template is None,
            control_tokens=self._control_tokens,
            grammars=self._grammars,
            tool_replies=self._tool_replies,
        )

    def new_cache(
        self, batch: int = 1, *, sinks: int | None = None, window: int | None = None
    ) -> Cache:
        """Return an empty cache for `forward`.

        Args:
            batch: Number of rows, at least 1.
            sinks: Number of sinks; if None, the model's.
            window: Window in tokens; if None, the model's. With a window longer than the text,
                nothing is evicted.

        Raises:
            InvalidArgument: A value is out of range.
            TypeError: A value has the wrong type.
            CapacityError: The system cannot provide the memory.
            EngineDead: The model is closed.
        """
        self._check_open("new_cache")
        most = 1 << 28
        options = self._options
        s = options.sinks if sinks is None else as_int("new_cache", "sinks", sinks, 0, most)
        w = options.window if window is None else as_int("new_cache", "window", window, 1, most)
        native = self._native.new_cache(as_int("new_cache", "batch", batch, 1, 1 << 16), s, w)
        return Cache(native, self._native, s, w)

    def forward(self, ids: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """Compute the logits of all given tokens.

        Args:
            ids: int64 [batch, tokens].
            cache: The cache to append to. The tokens get the indices from `cache.length` on, and
                each attends to exactly what it would if they were given one at a time. If None,
                attention is dense over the given tokens.

        Returns:
            float32 [batch, tokens, vocab].

        Raises:
            InvalidArgument: `ids` does not have the shape [batch, tokens], an id is not in the
                vocabulary, or `cache` has a different batch size or belongs to a different model.
            TypeError: `ids` is not an int64 tensor on the CPU.
            CapacityError: `cache` is None, and the system cannot provide the memory for a new one.
            SessionBusy: Another forward pass is using the cache.
            EngineDead: The model is closed, or its engine has failed.
        """
        self._check_open("forward")
        import torch  # takes a second; streaming does not need it

        if not isinstance(ids, torch.Tensor):
            raise TypeError(
                f"forward: `ids` must be a torch.Tensor, but is of type {type(ids).__name__}."
            )
        if ids.dtype != torch.int64 or ids.device.type != "cpu":
            raise TypeError(
                "forward: `ids` must be an int64 tensor on the CPU, but is of type "
                f"{ids.dtype} on {ids.device}."
            )
        if ids.ndim != 2 or len(ids) < 1:
            raise InvalidArgument(
                "forward: `ids` must have shape [batch, tokens] with a batch of at least 1, but "
                f"has {list(ids.shape)}.",
                param="ids",
            )
        # The core reads and writes the tensors' own memory.
        lent, native = ids.contiguous().numpy(), None if cache is None else cache._native
        self._native.check_forward(lent, native)  # before the logits are allocated
        logits = torch.empty(*ids.shape, self._spec.vocab_size, dtype=torch.float32, device="cpu")
        self._native.forward(lent, logits.numpy(), native)
        return logits

    def close(self) -> None:
        """End all streams and the generation thread, and free the model's memory.

        May be called more than once.
        """
        self._closed = True
        self._native.close()
        open_models.discard(self._number)

    def _check_open(self, where: str) -> None:
        if self._closed:
            raise engine_dead(f"{where}: the model is closed. Load it again.")


def _is_list_of_prompts(prompt: Any) -> bool:
    """Return whether `prompt` is a list of strings, rows of ids or lists of messages, or empty."""
    if hasattr(prompt, "ndim"):  # an array or a tensor
        return bool(prompt.ndim == 2)
    if isinstance(prompt, str | bytes) or not isinstance(prompt, Sequence):
        return False
    if not prompt:
        return True
    first = prompt[0]
    if hasattr(first, "ndim"):
        return bool(first.ndim > 0)  # a row; a number has none
    return isinstance(first, Sequence) and not isinstance(first, bytes)


def _refuse_one_prompt(prompts: Any) -> None:
    first = prompts[0] if isinstance(prompts, Sequence) and prompts else None
    is_one = isinstance(prompts, str | bytes | Mapping) or getattr(prompts, "ndim", 2) != 2
    if is_one or isinstance(first, int | Mapping) or not isinstance(prompts, Iterable):
        raise TypeError(
            "generate_many: `prompts` must be an iterable of prompts, as in `[prompt]`, but is of "
            f"type {type(prompts).__name__}."
        )


def _name_prompt(error: Exception, index: int) -> None:
    """Say in an error at which of several prompts it occurred, unless an option is at fault."""
    from sinkstream.streams.replies import is_of_option

    if is_of_option(error) or isinstance(error, EngineDead):
        return
    error.args = (f"generate: prompt {index}: {str(error).removeprefix('stream: ')}",)
    if isinstance(error, SinkstreamError):
        error.prompt_index = index


def _all_or_error(results: list[Result | SinkstreamError]) -> list[Result]:
    """Return the results; raise the first error if there is one, with everything else."""
    for index, result in enumerate(results):
        if isinstance(result, SinkstreamError):
            if len(results) > 1:
                _name_prompt(result, index)
                result.results = results
            raise result
    return [result for result in results if isinstance(result, Result)]
