"""`Model`: streams, sessions, results and logits of a loaded checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from sinkstream import _core
from sinkstream.cache import Cache, Capacity, forward, new_cache
from sinkstream.checkpoint.checkpoint import Checkpoint
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import SinkstreamError
from sinkstream.host import Host, ModelOptions, ReplyOptions, make_host
from sinkstream.observe import open_models
from sinkstream.observe.notebook import summary
from sinkstream.request.options import REPLY_TOKENS, PromptOptions, SessionOptions
from sinkstream.request.signature import shows_options, suggests_keywords
from sinkstream.request.stream_request import StreamRequest
from sinkstream.request.template_variables import check_thinking
from sinkstream.streams.all_replies import name_prompt, results_of_all
from sinkstream.streams.closing import ClosesOnExit
from sinkstream.streams.live import Progress, progress_function
from sinkstream.streams.stream import Result, Stream
from sinkstream.text.messages import Message
from sinkstream.text.prompt import IdArray, Prompt, check_prompts, is_list_of_prompts
from sinkstream.text.tokenizers.token_bytes import TokenBytes

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

    from sinkstream.sessions.session import Session
    from sinkstream.streams.replies import Replies

# Sessions, and replies to many prompts, are imported where they begin: a single stream does not
# need them, nor the 3 MB that they take.


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
        self._host = make_host(builder, checkpoint, options, table)
        self._native = self._host.native
        self._spec = self._host.spec
        self._text = self._host.text
        self._path = checkpoint.path
        open_models.add(self, self._native)

    def __repr__(self) -> str:
        capacity = self.capacity
        return (
            f"<sinkstream.Model {self._spec.family}, {self._spec.layers} layers, "
            f"{capacity.sinks} sinks + {capacity.window} window, {self._native.kernels} kernels"
            f"{', closed' if self._host.lifetime.is_closed else ''}>"
        )

    def _repr_html_(self) -> str:
        spec, state = (
            self._spec,
            "closed" if self._host.lifetime.is_closed else self._native.kernels + " kernels",
        )
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
        sinks, window = self._spec.kept(*self._host.window)
        return Capacity(
            sinks=sinks,
            window=window,
            max_sequences=self._host.options.max_sequences,
            bytes_per_token=native.bytes_per_token,
            bytes_per_sequence=native.bytes_per_sequence,
            cache_bytes=native.cache_bytes,
            weight_bytes=native.weight_bytes,
            scratch_bytes=native.scratch_bytes,
            state_bytes_per_sequence=native.state_bytes_per_sequence,
            weight_bytes_per_token=native.weight_bytes_per_token,
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
            "quantize": self._host.options.quantize,
            "threads": native.threads,
            "prefill_chunk": native.prefill_chunk,
        }

    @shows_options(PromptOptions)
    def stream(self, prompt: Prompt, **options: Unpack[PromptOptions]) -> Stream:
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
        wanted = ReplyOptions.of(options)
        host = host_of(self)
        return host.start_stream(Stream, host.request_for(prompt, wanted))

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a Sequence[str], and one prompt
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        *,
        progress: Progress | bool | None = ...,
        **options: Unpack[PromptOptions],
    ) -> Result: ...
    @overload
    def generate(
        self,
        prompt: Sequence[str]
        | Sequence[Sequence[int]]
        | Sequence[Sequence[Message]]
        | Sequence[Prompt],
        *,
        progress: Progress | bool | None = ...,
        **options: Unpack[PromptOptions],
    ) -> list[Result]: ...
    @overload
    def generate(
        self,
        prompt: IdArray,
        *,
        progress: Progress | bool | None = ...,
        **options: Unpack[PromptOptions],
    ) -> Result | list[Result]: ...

    @shows_options(PromptOptions, max_tokens=REPLY_TOKENS)
    def generate(
        self,
        prompt: Any,
        *,
        progress: Progress | bool | None = None,
        **options: Unpack[PromptOptions],
    ) -> Result | list[Result]:
        """Generate to the end and return the whole reply.

        Args:
            prompt: As for `stream`, or a list of prompts, or a 2-D array of ids with one prompt per
                row.
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
        options.setdefault("max_tokens", REPLY_TOKENS)
        report = progress_function("generate", progress, "Replies")
        host, wanted = host_of(self), ReplyOptions.of(options)
        host.check_options(wanted)
        is_list = is_list_of_prompts(prompt)
        requests: list[StreamRequest] = []
        for index, one in enumerate(prompt if is_list else [prompt]):
            try:
                requests.append(host.request_for(one, wanted))
            except (SinkstreamError, TypeError) as error:
                if is_list:
                    name_prompt(error, index)
                raise
        start = host.start_stream if len(requests) == 1 else host.submit_stream
        results = results_of_all((start(Stream, request) for request in requests), report)
        return results if is_list else results[0]

    @shows_options(PromptOptions, max_tokens=REPLY_TOKENS)
    def generate_many(self, prompts: Iterable[Prompt], **options: Unpack[PromptOptions]) -> Replies:
        """Generate for many prompts, and yield each reply as soon as it is complete.

        A prompt that fails does not affect the others: its error takes the place of its reply. The
        replies come in the order in which they are completed, each with the index of its prompt.

        Args:
            prompts: Any iterable of prompts as for `stream`, even an endless one: prompts are taken
                from it as room becomes available; at most `2 * max_sequences` are in progress at a
                time.
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
            Exception: What the iterable raises, after the replies to the prompts before it.

        Example:
            >>> for index, reply in model.generate_many(["The sea", "A clock"], max_tokens=20):
            ...     print(index, reply.text if isinstance(reply, Result) else f"failed: {reply}")
        """
        host = host_of(self)
        host.lifetime.check_open("generate_many")
        check_prompts(prompts)
        check_thinking(options.get("thinking"), "generate_many")
        options.setdefault("max_tokens", REPLY_TOKENS)
        wanted = ReplyOptions.of(options)
        host.check_options(wanted)

        def start(prompt: Prompt) -> Stream:
            now = replace(wanted, called_at=time.monotonic())
            return host.submit_stream(Stream, host.request_for(prompt, now))

        from sinkstream.streams.replies import Replies

        return Replies(start, prompts, 2 * host.options.max_sequences)

    @suggests_keywords
    @shows_options(SessionOptions)
    def session(self, system: str | None = None, **options: Unpack[SessionOptions]) -> Session:
        """Open a conversation that keeps its cache between turns.

        The session holds the memory of one stream for as long as it is open. It reads the system
        prompt immediately, or shares the pages of an open session that has the same one.

        Args:
            system: The system prompt. If None, the chat template's default, if there is one.
            **options: The conversation; `request/options.py` declares them.

        Raises:
            CapacityError: There is no free memory for another session.
            InvalidArgument: The chat template does not allow a system prompt or one of the
                messages, or S is not below the capacity.
            TypeError: A value has the wrong type.
            EngineDead: The model is closed, or its engine has failed.
        """
        from sinkstream.sessions.open_session import open_session, start_of

        host = host_of(self)
        return open_session(host, start_of(host, system, options))

    @suggests_keywords
    @shows_options(SessionOptions)
    async def asession(
        self, system: str | None = None, **options: Unpack[SessionOptions]
    ) -> Session:
        """Open a conversation as `session` does, without blocking the event loop.

        If the task is cancelled, no session stays open. Arguments are those of `session`.

        Raises:
            OSError: The process cannot open another file descriptor; each event loop needs one.
            Exception: Any error that `session` raises.
        """
        from sinkstream.sessions.open_session import aopen_session, start_of

        host = host_of(self)
        return await aopen_session(host, start_of(host, system, options))

    def load_session(self, path: str | os.PathLike[str]) -> Session:
        """Open a session saved by `Session.save`; it continues bit for bit like the saved one.

        Raises:
            CheckpointError: The file is missing or damaged, has another format version, or was
                written for a different model, cache type or capacity (sinks + window). If a setting
                differs, the message shows its value in the file and in the model.
            CapacityError: There is no free memory for another session.
            EngineDead: The model is closed, or its engine has failed.
        """
        from sinkstream.sessions.open_session import load_session

        self._host.lifetime.check_open("load_session")
        return load_session(host_of(self), path)

    async def aload_session(self, path: str | os.PathLike[str]) -> Session:
        """Open a saved session as `load_session` does, without blocking the event loop.

        If the task is cancelled, no session stays open.

        Raises:
            Exception: Any error that `load_session` raises.
        """
        from sinkstream.sessions.open_session import aload_session

        self._host.lifetime.check_open("load_session")
        return await aload_session(host_of(self), path)

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
        self._host.lifetime.check_open("new_cache")
        return new_cache(self._native, batch, self._host.window, sinks, window)

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
        self._host.lifetime.check_open("forward")
        return forward(self._native, self._spec.vocab_size, ids, cache)

    def bytes_read_per_token(self, live: int) -> int:
        """Return the bytes of weights, keys and values that one stream's decode step reads.

        The memory bandwidth divided by this number is an upper bound on the tokens per second of
        one stream. The number assumes that every layer keeps `live` tokens; layers with a shorter
        window of their own keep fewer. Of experts, it counts as many as a token chooses; streams
        that run together read more of them.

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

    def close(self) -> None:
        """End all streams and the generation thread, and free the model's memory.

        May be called more than once.
        """
        self._host.lifetime.is_closed = True
        self._native.close()
        open_models.discard(self)


def host_of(model: Model) -> Host:
    """Return what the rest of the package uses of a model, which it keeps alive."""
    return replace(model._host, model=model)
