"""The bodies of requests, and what each field means, for the OpenAPI document.

Unknown fields are ignored, as OpenAI's clients expect, and named in the response. Types are checked
here; ranges of request options are checked by `Model.stream`, as for all callers.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, islice
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    ModelWrapValidatorHandler,
    WithJsonSchema,
    model_validator,
)

SMALL_BYTES = 1 << 16
"""What is done with a longer body takes more than a millisecond: it moves to the pool."""
_MOST_IGNORED = 16  # unknown fields that are named
_SHOWN = 64  # characters of such a name

# Not copied, as a mapping would be: in a list of many, that takes as long as parsing them.
Object = Annotated[
    InstanceOf[dict[str, Any]], WithJsonSchema({"type": "object", "additionalProperties": True})
]
# The first wrong item ends the check: each error takes a hundred times the memory of its item.
Messages = Annotated[list[Object], Field(min_length=1, fail_fast=True)]
Objects = Annotated[list[Object], Field(fail_fast=True)]
Ids = Annotated[list[int], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]
Salt = Annotated[str, Field(max_length=512)]


class Body(BaseModel):
    """A JSON object. Neither a string nor true is accepted as a number."""

    model_config = ConfigDict(strict=True, extra="ignore")
    _bytes: int = 0
    _ignored: tuple[str, ...] = ()

    @property
    def is_long(self) -> bool:
        """Return whether what is done with all of it belongs on the pool."""
        return self._bytes > SMALL_BYTES

    @property
    def ignored(self) -> tuple[str, ...]:
        """Return the first fields of the JSON object that are unknown, for people to read."""
        return self._ignored

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        body = read(given)
        if isinstance(given, dict):
            body._note_ignored(given)
        return body

    def _note_ignored(self, given: Mapping[str, Any]) -> None:
        """Remember which fields of the JSON object, and of bodies in it, are unknown.

        Null asks for nothing.
        """
        names = (name for name, value in given.items() if value is not None)
        unknown = (name for name in names if name not in type(self).model_fields)
        within = (
            f"{name}.{inner}"
            for name, part in self
            if isinstance(part, Body)
            for inner in part.ignored
        )
        found = islice(chain(unknown, within), _MOST_IGNORED)
        self._ignored = tuple(map(_printable, found))

    def note_size(self, text: bytes | bytearray | str) -> None:
        """Remember how long the body was as JSON."""
        self._bytes = len(text)


def _printable(name: str) -> str:
    """Return a name without what would be harmful in a log or in a header."""
    return ascii(name[:_SHOWN])[1:-1]


class StreamSettings(Body):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Prediction(Body):
    """`prediction`: what the reply probably says, as text or as parts with text."""

    type: str
    content: str | Objects


class Generation(Body):
    """What chat completions and completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamSettings | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    max_tokens: int | None = None
    stop: str | Strings | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    # Not OpenAI's; the names of vLLM and of `Model.stream`.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Ids | None = None
    timeout_s: float | None = None
    # This server's: what stays in the window, and whether the rest may leave it.
    sinks: int | str | None = None
    on_overflow: str | None = None
    priority: int | None = None
    speculation: int | None = None
    # What the reply follows: vLLM's field, and two of llama.cpp's.
    structured_outputs: dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    # Further facts in the response: the first two are llama.cpp's, the others vLLM's.
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: Salt | None = None


class ChatRequest(Generation):
    """The body of `POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: Objects | None = None
    function_call: str | dict[str, Any] | None = None
    audio: Any = None
    modalities: Strings | None = None
    web_search_options: Any = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    prompt_cache_key: str | None = None
    prediction: Prediction | None = None
    store: bool | None = None


class CompletionRequest(Generation):
    """The body of `POST /v1/completions`."""

    prompt: str | Ids | Strings | Annotated[list[Ids], Field(fail_fast=True)]
    logprobs: int | None = None
    echo: bool | None = None
    prompt_logprobs: int | None = None  # vLLM's
    suffix: str | None = None
    best_of: int | None = None


class TokenizeRequest(Body):
    """The body of `POST /tokenize`: llama.cpp's fields, or vLLM's."""

    content: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Objects | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """The body of `POST /detokenize`."""

    tokens: Ids


class TemplateRequest(Body):
    """The body of `POST /apply-template`."""

    messages: Messages
    tools: Objects | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TitleRequest(Body):
    """The body of `POST /v1/sessions/{name}`."""

    title: str


# By name; "Model.name" where the same name means something else.
FIELDS = {
    "add_generation_prompt": "Whether the generation prompt follows the messages. Default: true.",
    "add_special": "Whether the beginning-of-text token comes first. Default: false.",
    "add_special_tokens": "Whether the beginning-of-text token comes first. Default: true.",
    "audio": "Refused: audio is not supported.",
    "background": "Whether the reply continues without its client; the response is read later by "
    "its id.",
    "best_of": "Refused unless it equals `n`.",
    "cache_salt": "Only requests with the same salt continue a conversation, share a cached prefix "
    "or learn guesses from each other. At most 512 characters.",
    "chat_template_kwargs": "Variables of the chat template by name, such as "
    "`enable_thinking`; those that it does not read are ignored.",
    "content": "The text, with llama.cpp's names for the other fields.",
    "Prediction.content": "The text: a string, or a list of text parts, which are lines of it.",
    "continue_final_message": "Whether the reply continues the text of the last message, which "
    "must be the assistant's.",
    "continuous_usage_stats": "Whether every chunk with text has `usage`.",
    "conversation": "Refused: continue with `previous_response_id`.",
    "echo": "Whether the prompt comes before the text; with `logprobs`, its tokens have their "
    "log-probabilities as well.",
    "frequency_penalty": "Subtracted from a token's logit for each of its occurrences in the "
    "cache.",
    "function_call": "The old form of `tool_choice`; a forced call is refused.",
    "functions": "Refused: the old form of `tools`.",
    "grammar": "A grammar that the reply must follow, as in llama.cpp.",
    "ignore_eos": "Whether the reply continues after an end token.",
    "include": "Further parts of the response: `message.output_text.logprobs` asks for "
    "log-probabilities, `reasoning.encrypted_content` for thoughts that can be sent back.",
    "include_usage": "Whether a final chunk with `usage` is sent.",
    "input": "A user's message, or a list of items: messages, function calls and their outputs.",
    "instructions": "A system message for this response only.",
    "json_schema": "A JSON schema that the reply must follow, as in llama.cpp.",
    "logit_bias": 'Numbers added to the logits of token ids, such as `{"42": -100}`.',
    "logprobs": "Whether each token comes with its log-probability.",
    "CompletionRequest.logprobs": "How many of the most probable tokens to return for each token; "
    "0: its own "
    "log-probability only.",
    "max_completion_tokens": "Maximum number of tokens to generate; takes precedence over "
    "`max_tokens`.",
    "max_output_tokens": "Maximum number of tokens to generate. Default: the server's "
    "`--max-tokens`.",
    "max_tokens": "Maximum number of tokens to generate. Default: the server's `--max-tokens`; 16 "
    "for "
    "completions. At most 65,536 without `stream`.",
    "ResponseRequest.max_tokens": "Has no effect; `max_output_tokens` limits a response.",
    "max_tool_calls": "Accepted, but has no effect.",
    "messages": "The conversation: objects with `role` and `content`, a string or text parts.",
    "metadata": "Up to 16 strings that are returned with the response.",
    "min_p": "Drops tokens less probable than this share of the most probable one.",
    "modalities": 'Only `["text"]` is allowed.',
    "model": "The model's name; any name is accepted unless the server was started with "
    "`--strict-model`.",
    "n": "How many replies to generate. With a `seed`, reply *i* uses the seed plus *i*.",
    "ResponseRequest.n": "Has no effect: a response has one reply.",
    "on_overflow": "What happens to a prompt that is longer than sinks and window together: "
    "`evict` lets its oldest tokens leave the window, `refuse` refuses it. Default: the server's "
    "`--on-overflow`.",
    "parallel_tool_calls": "Whether a reply may call several tools. Default: true.",
    "parse_special": "Whether text that spells a control token becomes that token. Default: false.",
    "prediction": "What the reply probably says, such as a file that it changes in places. Where "
    "it is right, the reply comes faster; it changes no token of it.",
    "presence_penalty": "Subtracted from the logit of each token in the cache.",
    "previous_response_id": "The response to continue; the input then holds only what is new.",
    "priority": "Of the waiting requests of the same key, those with lower numbers begin first, as "
    "in vLLM. Default: 0; 1 with `background`.",
    "prompt": "A string or token ids, or a list of either.",
    "ReadRequest.prompt": "Refused: there are no stored prompts.",
    "ResponseRequest.prompt": "Refused: there are no stored prompts.",
    "TokenizeRequest.prompt": "The text, with vLLM's names for the other fields.",
    "prompt_cache_key": "The client's name for the conversation; distinguishes conversations with "
    "equal texts.",
    "prompt_logprobs": "Asks for the log-probability of each token of the prompt, as in vLLM, and "
    "for this many of the most probable ones.",
    "reasoning": "`effort`: how much a reasoning model thinks, where its chat template has levels; "
    "`none` asks it not to.",
    "reasoning_effort": "How much a reasoning model thinks, where its chat template has levels.",
    "repetition_penalty": "For tokens in the cache: divides positive logits by this number, and "
    "multiplies negative ones.",
    "response_format": "What the reply must follow: `text`, `json_object`, or `json_schema` with a "
    "schema.",
    "return_progress": "Whether chunks report how much of the prompt has been read.",
    "return_token_ids": "Whether the ids of tokens are returned as well.",
    "return_tokens_as_token_ids": "Whether log-probabilities name tokens by their ids, such as "
    "`token_id:42`.",
    "return_token_strs": "Whether the text of each token is returned as well.",
    "safety_identifier": "Accepted, but has no effect.",
    "seed": "Makes the reply reproducible; a 64-bit integer. Default, and with -1: random.",
    "sinks": "What stays in the window for good: `system`, the system prompt and the tools, or a "
    "number of tokens at the start of the conversation. Default: the server's `--sinks`.",
    "speculation": "The most guessed tokens that a step verifies: 0 for none. It changes no token "
    "of the reply. Default: no limit but the server's `--speculation`.",
    "stop": "A string, or a list of up to 64, that ends the reply and is not part of it.",
    "stop_token_ids": "Further tokens that end the reply.",
    "store": "Whether the conversation is kept on disk. Default: true.",
    "stream": "Whether the reply is sent as server-sent events while it is generated.",
    "stream_options": "Options of a streamed reply: `include_usage`, `continuous_usage_stats`.",
    "structured_outputs": "What the reply must follow, as in vLLM: `json`, `regex`, `choice` "
    "or `grammar`.",
    "suffix": "Refused: text after the completion is not supported.",
    "temperature": "Divides the logits; 0 takes the most probable token. Default: the "
    "checkpoint's.",
    "text": "What the text must follow: `format` has the type `text`, `json_object`, or "
    "`json_schema` with a schema.",
    "timeout_s": "Ends the reply after this number of seconds.",
    "timings_per_token": "Whether the response has `timings`, in llama.cpp's format.",
    "title": "Another title, of at most 200 characters.",
    "tokens": "Token ids.",
    "tool_choice": "Whether tools are called: `none`, `auto`, `required`, or a function that must "
    "be called.",
    "tools": "Functions that the model may call; at most 128.",
    "type": 'Must be `"content"`.',
    "top_k": "Keeps this many of the most probable tokens; 0 keeps all.",
    "top_logprobs": "How many of the most probable tokens to return for each token; needs "
    "`logprobs`.",
    "ResponseRequest.top_logprobs": "How many of the most probable tokens to return for each "
    "token.",
    "top_p": "Keeps the most probable tokens whose probabilities add up to this number.",
    "truncation": "OpenAI's form of `on_overflow`: `auto` is `evict`, and `disabled` is `refuse`. "
    "Takes precedence.",
    "user": "Accepted, but has no effect; returned with a response.",
    "web_search_options": "Refused: web search is not supported.",
    "with_pieces": "Whether each id comes with its text.",
}


def description(kind: str, name: str) -> str | None:
    """Return what a field of a body means; None if it has no description."""
    return FIELDS.get(f"{kind}.{name}", FIELDS.get(name))


def schema_of(body: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a body, with descriptions."""
    schema = body.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        for name, field in part.get("properties", {}).items():
            field.pop("title", None)
            if (text := description(part["title"], name)) is not None:
                field["description"] = text
    return schema
