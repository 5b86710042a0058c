"""The bodies of requests. Unknown fields are ignored, as OpenAI's clients expect.

Types are checked here; ranges of request options are checked by `Model.stream`, as for all callers.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

# The first wrong item ends the check: each error takes a hundred times the memory of its item.
Messages = Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Ids = Annotated[list[int], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]


class Body(BaseModel):
    """A JSON object. Neither a string nor true is accepted as a number."""

    model_config = ConfigDict(strict=True, extra="ignore")


class StreamSettings(Body):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


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
    # What the reply follows: vLLM's field, and two of llama.cpp's.
    structured_outputs: dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    # Further facts in the response: the first two are llama.cpp's, the others vLLM's.
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: str | None = None


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
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """The body of `POST /detokenize`."""

    tokens: Ids


class TemplateRequest(Body):
    """The body of `POST /apply-template`."""

    messages: Messages
    tools: Objects | None = None
    add_generation_prompt: bool | None = None
