"""Items, the messages of the Responses API, to and from the messages of chats."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any

from sinkstream.server.errors import ApiError, invalid, not_supported

_ENCODED_PREFIX = "sinkstream-1."
_ROLES = ("assistant", "developer", "system", "user")
_TEXTS = ("input_text", "output_text", "reasoning_text", "summary_text", "text")
_MEDIA = ("input_audio", "input_file", "input_image", "input_video", "computer_screenshot")


def encode_thought(thought: str) -> str:
    """Return `encrypted_content` of a reasoning item: its thought, for clients to send back.

    The thought is readable in the same item, so there is nothing to hide: it is not encrypted.
    """
    return _ENCODED_PREFIX + base64.urlsafe_b64encode(thought.encode()).decode()


def decode_thought(given: str) -> str | None:
    """Return the thought; None if this server did not encode it."""
    if not given.startswith(_ENCODED_PREFIX):
        return None
    try:
        return base64.b64decode(given[len(_ENCODED_PREFIX) :], b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        return None


def messages_of(given: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an input as messages; consecutive function calls become one message.

    A thought becomes part of the assistant's message that follows it; the chat template decides
    whether it is read.

    Raises:
        ApiError: An item is malformed, or of a type that this server does not read.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    thought = ""
    for index, item in enumerate(given):
        where = f"input[{index}]"
        kind = item.get("type", "message")
        if kind == "reasoning":
            thought = _thought(item, where)
            continue
        count = len(messages)
        if kind == "message":
            messages.append(_message(item, where))
        elif kind == "function_call":
            _add_call(messages, item, where)
        elif kind == "function_call_output":
            content = _text(item.get("output"), f"{where}.output")
            call = _string(item, "call_id", where)
            messages.append({"role": "tool", "tool_call_id": call, "content": content})
        else:
            raise _unknown("an item", kind, f"{where}.type")
        if thought and len(messages) > count and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = thought
        thought = ""
    return messages


def _thought(item: dict[str, Any], where: str) -> str:
    """Return what a reasoning item says: its content, the encoded form of it, or a summary."""
    if item.get("content"):
        return _text(item["content"], f"{where}.content")
    encoded = item.get("encrypted_content")
    if encoded is not None:
        thought = decode_thought(encoded) if isinstance(encoded, str) else None
        if thought is None:
            raise invalid(
                f"body: `{where}.encrypted_content` must be exactly what this server sent, but "
                "is not. Leave the item out.",
                f"{where}.encrypted_content",
                "invalid_encrypted_content",
            )
        return thought
    return _text(item.get("summary", []), f"{where}.summary")


def _message(item: dict[str, Any], where: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in _ROLES:
        raise invalid(f"body: `{where}.role` must be one of {', '.join(_ROLES)}.", f"{where}.role")
    return {"role": role, "content": _text(item.get("content"), f"{where}.content")}


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    function = {name: _string(item, name, where) for name in ("name", "arguments")}
    call = {"id": _string(item, "call_id", where), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"body: `{where}` must be a string or an array.", where)
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise invalid(f"body: `{where}` must be an object.", where)
    kind = part.get("type")
    if kind == "refusal":
        return _string(part, "refusal", where)
    if kind not in _TEXTS:
        raise _unknown("a part of a message", kind, where)
    return _string(part, "text", where)


def _string(value: dict[str, Any], name: str, where: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise invalid(f"body: `{where}.{name}` must be a string.", f"{where}.{name}")
    return found


def _unknown(what: str, kind: Any, where: str) -> ApiError:
    if kind in _MEDIA:
        return not_supported(f'"{kind}"', where)
    shown = f'"{kind[:40]}"' if isinstance(kind, str) else "not a string"
    return invalid(
        f"body: the type of {what} must be one that this server supports, but is {shown}.",
        where,
        "unsupported",
    )


def items_of(messages: Sequence[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """Yield canonical messages as items, with ids made from `name`."""
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            yield {
                "id": f"fco_{name}_{number}",
                "type": "function_call_output",
                "status": "completed",
                "call_id": message.get("tool_call_id", ""),
                "output": message["content"],
            }
            continue
        if message["content"] or "tool_calls" not in message:
            yield _message_item(message, f"msg_{name}_{number}")
        for index, call in enumerate(message.get("tool_calls", ())):
            yield {
                "id": f"fc_{name}_{number}_{index}",
                "type": "function_call",
                "status": "completed",
                "call_id": call.get("id", ""),
                **call["function"],
            }


def _message_item(message: dict[str, Any], name: str) -> dict[str, Any]:
    kind = "output_text" if message["role"] == "assistant" else "input_text"
    part: dict[str, Any] = {"type": kind, "text": message["content"]}
    if kind == "output_text":
        part["annotations"] = []
    return {
        "id": name,
        "type": "message",
        "role": message["role"],
        "status": "completed",
        "content": [part],
    }
