"""Tokens and the chat template: `/tokenize` and others, with llama.cpp's fields and vLLM's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from sinkstream.server.answer import json_array, json_response
from sinkstream.server.body_options import continues_final, thinking_of_chat, tools_of
from sinkstream.server.errors import invalid
from sinkstream.server.parsing import parse
from sinkstream.server.request_bodies import DetokenizeRequest, TemplateRequest, TokenizeRequest
from sinkstream.server.request_log import request_log_of
from sinkstream.server.service import Service, ready_service
from sinkstream.server.texts import Texts
from sinkstream.text.messages import without_unknown

_T = TypeVar("_T")


async def tokenize(request: Request) -> Response:
    """Return the token ids of text or of a conversation."""
    service = ready_service(request)
    log = request_log_of(request.scope)
    body = await parse(log, service.pool, TokenizeRequest)
    given = [name for name in ("content", "prompt", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise invalid(
            "body: exactly one of `content`, `prompt` and `messages` must be given, but "
            f"{len(given)} are."
        )
    if body.content is not None:
        return json_response(service, log, partial(_as_llama_cpp, service.texts, body))
    return json_response(service, log, partial(_as_vllm, service, body))


def _as_llama_cpp(texts: Texts, body: TokenizeRequest) -> dict[str, Any]:
    ids = texts.encode(
        body.content or "",
        add_special=bool(body.add_special),
        parse_special=bool(body.parse_special),
    )
    if not body.with_pieces:
        return {"tokens": json_array(ids)}
    return {"tokens": json_array(ids, lambda i: {"id": i, "piece": _piece(texts.piece(i))})}


def _piece(raw: bytes) -> str | list[int]:
    """Return a token's text, or its bytes if they are not whole characters."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _as_vllm(service: Service, body: TokenizeRequest) -> dict[str, Any]:
    texts = service.texts
    if body.messages is not None:
        ids = _of_conversation(service, body, texts.encode_messages)()
    else:
        add_special = body.add_special_tokens is not False
        ids = texts.encode(body.prompt or "", add_special=add_special, parse_special=False)
    pieces = json_array(ids, lambda i: _text(texts.piece(i))) if body.return_token_strs else None
    return {
        "count": len(ids),
        "max_model_len": service.max_model_len,
        "tokens": json_array(ids),
        "token_strs": pieces,
    }


async def count_tokens(request: Request) -> Response:
    """Return how many tokens a conversation has."""
    service = ready_service(request)
    log = request_log_of(request.scope)
    body = await parse(log, service.pool, TemplateRequest)
    count = _of_conversation(service, body, service.texts.encode_messages)
    return json_response(service, log, lambda: {"input_tokens": len(count())})


async def tokenizer_info(request: Request) -> Response:
    """Return the control tokens and the chat template, with vLLM's names."""
    service, log = ready_service(request), request_log_of(request.scope)
    return json_response(service, log, service.texts.tokenizer_info)


async def detokenize(request: Request) -> Response:
    """Return the text of token ids, as both `content` and `prompt`."""
    service = ready_service(request)
    log = request_log_of(request.scope)
    body = await parse(log, service.pool, DetokenizeRequest)
    return json_response(service, log, partial(_detokenized, service.texts, body.tokens))


def _detokenized(texts: Texts, ids: list[int]) -> dict[str, Any]:
    text = texts.decode(ids)
    return {"content": text, "prompt": text}


async def apply_template(request: Request) -> Response:
    """Return what the chat template writes."""
    service = ready_service(request)
    log = request_log_of(request.scope)
    body = await parse(log, service.pool, TemplateRequest)
    render = _of_conversation(service, body, service.texts.render)
    return json_response(service, log, lambda: {"prompt": render()})


def _of_conversation(
    service: Service, body: TokenizeRequest | TemplateRequest, call: Callable[..., _T]
) -> Callable[[], _T]:
    """Return a call with what a body says about a conversation, as a chat completion reads it."""
    is_open = continues_final(
        body.messages,
        body.continue_final_message,
        body.add_generation_prompt,
        by_default=service.config.continue_final_message,
    )
    return lambda: call(
        without_unknown(body.messages or []),
        thinking_of_chat(service.host, body.chat_template_kwargs),
        tools_of(body.tools, None, None, service.config.tools),
        add_generation_prompt=body.add_generation_prompt is not False,
        is_open=is_open,
    )
