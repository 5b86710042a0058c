"""What the rest of the package uses of a loaded model. `Model` is what its users see.

Sessions, conversations, the server and evaluation get a `Host` (`model.host_of`). It knows how a
prompt becomes a request, and a request a stream; it does not know who requested it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from sinkstream import _core
from sinkstream.checkpoint.checkpoint import Checkpoint, TextFormat
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import engine_dead
from sinkstream.observe import logs
from sinkstream.observe.activities import ACTIVITIES
from sinkstream.request.cancellation import check_wanted
from sinkstream.request.options import PromptOptions, Sampling, StreamOptions
from sinkstream.request.stream_request import CallTags, StreamRequest, grammar_of, make_request
from sinkstream.request.template_variables import Thinking, check_thinking, with_variables
from sinkstream.request.tools import Tools, check_tools
from sinkstream.streams.stream import Stream
from sinkstream.structured.grammars import Grammars
from sinkstream.text.conversation_formats import ConversationFormats
from sinkstream.text.messages import Message
from sinkstream.text.prompt import (
    EncodedText,
    check_not_chat,
    encode_prediction,
    encode_prompt,
    is_chat,
)
from sinkstream.text.thought_reader import ThoughtReader
from sinkstream.text.tokenizers.control_tokens import control_tokens
from sinkstream.text.tokenizers.encoding_limit import check_texts
from sinkstream.text.tokenizers.token_bytes import TokenBytes
from sinkstream.text.tools.tool_replies import ToolReplies, read_tools

if TYPE_CHECKING:
    from sinkstream.text.turn_format import TurnFormat

_S = TypeVar("_S", bound=Stream)


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
    speculation: int | None
    threads: int
    kernels: str
    device: str
    cuda_library: str

    def with_window(self, window: int) -> ModelOptions:
        """Return the same options with a window of W tokens."""
        return replace(self, window=window)


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """What a caller asks of a reply: the keyword arguments of `Model.stream`."""

    options: StreamOptions
    sinks: int | None = None
    """S of the reply's sequence; None for the model's."""
    thinking: Thinking = None
    tools: Tools | None = None
    given: str | None = None
    """The beginning of the reply, if the prompt ends with it instead of a generation prompt."""
    cache_salt: str = ""
    """The request shares a cached beginning only with sessions that have this salt."""
    called_at: float = field(default_factory=time.monotonic)
    """When the caller made the request: `timeout_s` counts from here."""

    @classmethod
    def of(cls, given: PromptOptions) -> ReplyOptions:
        """Return the keyword arguments of a call, with tools checked; takes them out of `given`.

        Raises:
            TypeError: A value of the tools has the wrong type.
            InvalidArgument: The tools are not valid.
        """
        called_at = time.monotonic()
        sinks = given.pop("sinks", None)
        plain = check_thinking(given.pop("thinking", None), "stream")
        thinking = with_variables(plain, given.pop("chat_template_kwargs", None), "stream")
        choice, parallel = given.pop("tool_choice", None), given.pop("parallel_tool_calls", None)
        tools = check_tools(given.pop("tools", None), choice, parallel)
        return cls(given, sinks, thinking, tools, called_at=called_at)


@dataclass(slots=True)
class Lifetime:
    """Whether a model is open; shared by the model and its hosts."""

    is_closed: bool = False

    def check_open(self, where: str) -> None:
        """Refuse a call of a closed model.

        Raises:
            EngineDead: The model is closed.
        """
        if self.is_closed:
            raise engine_dead(f"{where}: the model is closed. Load it again.")


@dataclass(frozen=True, slots=True)
class Host:
    """A loaded model. Any thread may call it."""

    model: object
    """The `Model`, kept alive; None in the model's own host, which would otherwise hold itself."""
    native: _core.Model
    spec: DecoderSpec
    text: TextFormat
    table: TokenBytes | None
    """The bytes of each token; None without a tokenizer. Then there is no text."""
    options: ModelOptions
    defaults: Sampling
    """Replace sampling options that are None."""
    control_tokens: Mapping[str, int]
    """Ids of the tokens that a stream never shows, by their text."""
    grammars: Grammars
    """Makes the grammars that replies follow."""
    formats: ConversationFormats
    tool_replies: ToolReplies
    """What replies with tools need."""
    lifetime: Lifetime = field(default_factory=Lifetime)

    @property
    def window(self) -> tuple[int, int]:
        """Return S and W of sequences that set no `sinks`."""
        return self.options.sinks, self.options.window

    # ---- requests --------------------------------------------------------------------------------

    def request_for(self, prompt: Any, wanted: ReplyOptions) -> StreamRequest:
        """Return the request of a prompt: its ids, and the complete options.

        Raises:
            Exception: Any error of a value that `Model.stream` raises.
        """
        if is_chat(prompt):
            return self.request_for_chat(prompt, wanted)
        self.lifetime.check_open("stream")
        check_not_chat(wanted.thinking, wanted.tools)
        with ACTIVITIES.during("encoding"):
            ids = encode_prompt(self.text, self.spec.vocab_size, prompt)
        request = self.complete(wanted, ids, is_chat=False)
        return replace(request, continues_text=isinstance(prompt, str | EncodedText))

    def request_for_chat(self, messages: Sequence[Any], wanted: ReplyOptions) -> StreamRequest:
        """Return the request of chat messages; see `request_for`."""
        self.lifetime.check_open("stream")
        with ACTIVITIES.during("encoding"):
            ids = self.formats.encode_chat(messages, wanted.thinking, wanted.tools)
        return self.complete(wanted, ids)

    def check_texts(self, messages: Sequence[Message]) -> None:
        """Refuse messages that are longer than the caller may encode, before they are rendered."""
        if self.text.tokenizer is not None:
            check_texts(self.text.tokenizer, messages)

    def complete(
        self, wanted: ReplyOptions, prompt: Sequence[int] = (), *, is_chat: bool = True
    ) -> StreamRequest:
        """Return a request with complete options.

        Args:
            wanted: What the caller asks for.
            prompt: Token ids, unless they are set later.
            is_chat: Whether the prompt is messages, so that thoughts and calls are looked for.
        """
        tools = read_tools(wanted.tools, wanted.options)
        options = self._with_grammar_of_tools(wanted)
        if isinstance(prediction := options.get("prediction"), str):
            options = {**options, "prediction": encode_prediction(self.text, prediction)}
        request = make_request(
            list(prompt),
            options,
            defaults=self.defaults,
            vocab_size=self.spec.vocab_size,
            sinks=wanted.sinks,
            continues_text=self.text.chat_template is None,
            is_chat=is_chat,
            thinking=wanted.thinking,
            tools=tools,
            calls=self._call_tags(wanted, tools),
            cache_salt=wanted.cache_salt,
            called_at=wanted.called_at,
            control_tokens=self.control_tokens,
            grammars=self.grammars,
        )
        return replace(request, given=wanted.given)

    def check_options(self, wanted: ReplyOptions) -> None:
        """Refuse the options that no prompt can have."""
        options: Mapping[str, Any] = wanted.options
        if isinstance(options.get("prediction"), str):
            options = {**options, "prediction": ()}  # encoded with the request
        make_request(
            [],
            options,
            defaults=self.defaults,
            vocab_size=self.spec.vocab_size,
            sinks=wanted.sinks,
            grammars=self.grammars,
        )

    def compile_grammar(self, wanted: ReplyOptions) -> None:
        """Compile the grammar of a request, which then finds it compiled. Blocks.

        Raises:
            InvalidArgument: It is not valid, or there is no chat template for tools.
        """
        read = read_tools(wanted.tools, wanted.options)
        grammar_of(self._with_grammar_of_tools(wanted), read, self.grammars)

    def _with_grammar_of_tools(self, wanted: ReplyOptions) -> Mapping[str, Any]:
        if wanted.tools is None:
            return wanted.options
        return self.tool_replies.options(
            wanted.options, wanted.tools, wanted.thinking, wanted.given
        )

    def _call_tags(self, wanted: ReplyOptions, tools: Tools | None) -> CallTags | None:
        if tools is None or not wanted.options.get("stop"):
            return None
        return self.tool_replies.call_tags(tools, wanted.thinking, wanted.given)

    # ---- streams ---------------------------------------------------------------------------------

    def start_stream(self, kind: Callable[..., _S], request: StreamRequest) -> _S:
        """Start a stream whose caller expects it to begin now; log it if it has to wait.

        Args:
            kind: The class of the stream.
            request: What it replies to.
        """
        before = logs.stats_before(self.native)
        stream = self.submit_stream(kind, request)
        if before is not None:
            whole = before["pages"] // self.options.max_sequences
            needed = whole if request.max_tokens is None else 1  # at least
            logs.request_waits(stream.request_id, before, needed)
        return stream

    def submit_stream(self, kind: Callable[..., _S], request: StreamRequest) -> _S:
        """Start a stream, which may wait for others; see `start_stream`."""
        options = self.options
        sinks = options.sinks if request.sinks is None else request.sinks
        has_template = self.text.tokenizer is not None and self.text.chat_template is not None
        return kind(
            self.native.submit(request),
            request,
            self.model,
            has_text=self.text.tokenizer is not None,
            window=(sinks, options.sinks + options.window - sinks),
            expects_messages=request.continues_text and has_template,
            reader=self.reader(request),
        )

    def reader(self, request: StreamRequest) -> ThoughtReader | None:
        """Return what tells thoughts and calls from text in a reply; None if all of it is text.

        With a grammar other than that of tools, everything is text.
        """
        if not request.is_chat:
            return None
        if request.tools is not None:
            return self.tool_replies.reader(request.tools, request.thinking, request.given)
        tags = None if request.grammar is not None else self.formats.tags(request.thinking)
        return None if tags is None else tags.reader(request.given)

    # ---- conversations ---------------------------------------------------------------------------

    def session_turns(self, call: str, thinking: Thinking, tools: Tools | None) -> TurnFormat:
        """Return the parts of a session's conversation; `call` opens it.

        Raises:
            InvalidArgument: The template fails or cannot be split, or there is none for tools.
        """
        if tools is not None:
            self.tool_replies.check(tools, thinking, call)
        return self.formats.turns(thinking, tools)


def make_host(
    builder: _core.ModelBuilder,
    checkpoint: Checkpoint,
    options: ModelOptions,
    table: TokenBytes | None,
) -> Host:
    """Make a model of what has been read, and start its engine."""
    spec, text = checkpoint.spec, checkpoint.text
    tokens = None
    if table is not None:
        tokens = _core.TokenTable(
            list(table.pieces), sorted(table.special), table.strip_leading_space
        )
    control = {} if text.tokenizer is None else control_tokens(text.tokenizer)
    formats = ConversationFormats(text, table)
    grammars = Grammars(tokens, spec.vocab_size, text.end_token_ids, check_wanted)
    return Host(
        model=None,
        native=_core.Model(builder, asdict(options), tokens, sorted(text.end_token_ids)),
        spec=spec,
        text=text,
        table=table,
        options=options,
        defaults=Sampling.from_checkpoint(checkpoint.generation),
        control_tokens={token.content: i for i, token in control.items() if i < spec.vocab_size},
        grammars=grammars,
        formats=formats,
        tool_replies=ToolReplies(formats, table, grammars),
    )
