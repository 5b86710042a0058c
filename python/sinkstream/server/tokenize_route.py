"""Tokens and the chat template: `/tokenize` and others, with llama.cpp's fields and vLLM's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request

from sinkstream.server.body_options import check_ending, thinking_of_chat, tools_of
from sinkstream.server.errors import invalid
from sinkstream.server.parsing import parse
from sinkstream.server.request_bodies import DetokenizeRequest, TemplateRequest, TokenizeRequest
from sinkstream.server.request_log import request_log_of
from sinkstream.server.service import Service, ready_service
from sinkstream.server.texts import Texts
from sinkstream.text.messages import without_unknown

_T = TypeVar("_T")


async def tokenize(request: Request) -> dict[str, Any]:
    """Return the token ids of text or of a conversation."""
    service = ready_service(request)
    body = await parse(request_log_of(request.scope), service.pool, TokenizeRequest)
    given = [name for name in ("content", "prompt", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise invalid(
            "body: exactly one of `content`, `prompt` and `messages` must be given, but "
            f"{len(given)} are."
        )
    if body.content is not None:
        return await service.pool.run(partial(_as_llama_cpp, service.texts, body))
    return await service.pool.run(partial(_as_vllm, service, body))


def _as_llama_cpp(texts: Texts, body: TokenizeRequest) -> dict[str, Any]:
    ids = texts.encode(
        body.content or "",
        add_special=bool(body.add_special),
        parse_special=bool(body.parse_special),
    )
    if not body.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": i, "piece": _piece(texts.piece(i))} for i in ids]}


def _piece(raw: bytes) -> str | list[int]:
    """Return a token's text, or its bytes if they are not whole characters."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def _as_vllm(service: Service, body: TokenizeRequest) -> dict[str, Any]:
    texts = service.texts
    if body.messages is not None:
        ids = _of_conversation(service, body, texts.encode_messages)()
    else:
        add_special = body.add_special_tokens is not False
        ids = texts.encode(body.prompt or "", add_special=add_special, parse_special=False)
    pieces = [texts.piece(i).decode("utf-8", "replace") for i in ids]
    return {
        "count": len(ids),
        "max_model_len": service.max_model_len,
        "tokens": ids,
        "token_strs": pieces if body.return_token_strs else None,
    }


async def count_tokens(request: Request) -> dict[str, Any]:
    """Return how many tokens a conversation has."""
    service = ready_service(request)
    body = await parse(request_log_of(request.scope), service.pool, TemplateRequest)
    count = _of_conversation(service, body, service.texts.encode_messages)
    return {"input_tokens": len(await service.pool.run(count))}


async def tokenizer_info(request: Request) -> dict[str, Any]:
    """Return the control tokens and the chat template, with vLLM's names."""
    service = ready_service(request)
    return await service.pool.run(service.texts.tokenizer_info)


async def detokenize(request: Request) -> dict[str, Any]:
    """Return the text of token ids, as both `content` and `prompt`."""
    service = ready_service(request)
    body = await parse(request_log_of(request.scope), service.pool, DetokenizeRequest)
    text = await service.pool.run(partial(service.texts.decode, body.tokens))
    return {"content": text, "prompt": text}


async def apply_template(request: Request) -> dict[str, Any]:
    """Return what the chat template writes."""
    service = ready_service(request)
    body = await parse(request_log_of(request.scope), service.pool, TemplateRequest)
    render = _of_conversation(service, body, service.texts.render)
    return {"prompt": await service.pool.run(render)}


def _of_conversation(
    service: Service, body: TokenizeRequest | TemplateRequest, call: Callable[..., _T]
) -> Callable[[], _T]:
    """Return a call with what a body says about a conversation, as a chat completion reads it."""
    check_ending(body)
    return partial(
        call,
        without_unknown(body.messages or []),
        thinking_of_chat(service.host, body.chat_template_kwargs),
        tools_of(body.tools, None, None),
        add_generation_prompt=body.add_generation_prompt is not False,
        is_open=bool(body.continue_final_message),
    )
