"""What makes two conversations the same: canonical messages, and a chain of hashes over them.

Knows nothing about tokens, templates or stores. Equal chains mean equal messages, from one tenant,
with one salt, for one model. Nothing is compared by similarity.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from json.encoder import encode_basestring
from typing import Any

from sinkstream.request.cancellation import check_wanted
from sinkstream.request.checks import ArgumentName
from sinkstream.text.messages import Message, check_messages, text_of, without_unknown

MESSAGES = ArgumentName("stream", "messages")

# Clients send all of a long history with each turn: messages with just these keys take a short way.
_PLAIN = {"content", "role"}
# Other keys that a message may have are empty.
_REASONING = ("reasoning", "reasoning_content", "thinking")
_KEPT = ("content", "name", "role", "tool_call_id", "tool_calls", *_REASONING)
_SIZE = 32  # bytes of a hash: 256 bits
_SLICE = 1 << 20
"""Characters of a text that are changed in one call, which holds the GIL."""
# Of replies, clients keep what they can show: no control characters except tabs and line feeds, no
# marks of direction or width, no byte order mark, no replacement, private or missing characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ud800-\uf8ff\ufe00-\ufe0f\ufeff\ufff0-\uffff\U000e0000-\U0010ffff]"
)


def canonical_messages(
    messages: Sequence[Mapping[str, Any]], *, continue_final: bool = False
) -> list[Message]:
    """Return the parts of messages that are read: joined text, without unknown and empty keys.

    White space at the end of the assistant's text is left out, too, but is kept in a last message
    that the reply continues.

    Raises:
        TypeError: A value has the wrong type.
        InvalidArgument: There are no messages, or one is malformed.
    """
    checked = check_messages(without_unknown(messages), MESSAGES)
    last = len(checked) - 1 if continue_final else -1
    return [_canonical(message, trims=i != last) for i, message in enumerate(checked)]


def _canonical(message: Message, *, trims: bool) -> Message:
    text = text_of(message)
    if trims and message["role"] == "assistant":
        text = text.rstrip()
    if message.keys() == _PLAIN:
        return {"content": text, "role": message["role"]}
    known = {key: message[key] for key in _KEPT if message.get(key) is not None}
    return dict(sorted({**known, "content": text}.items()))


def without_reasoning(message: Message) -> Message:
    """Return the parts of a canonical message that distinguish conversations.

    Many clients do not send a reply's thoughts back. A template still reads those that are sent.
    """
    return {key: value for key, value in message.items() if key not in _REASONING}


def has_reasoning(message: Message) -> bool:
    """Return whether a canonical message has a thought."""
    return any(message.get(key) for key in _REASONING)


def identifying(message: Message) -> Message:
    """Return the parts of a canonical message that distinguish conversations, in one form.

    Many clients trim replies and remove invisible characters. They parse the arguments of
    tool calls and write them again, with different spaces.
    """
    if message["role"] == "assistant" and isinstance(message.get("content"), str):
        message = {**message, "content": _seen(message["content"]).strip()}
    if message.keys() == _PLAIN:
        return message
    kept = dict(without_reasoning(message))
    calls = kept.pop("tool_calls", None)
    if calls:
        kept["tool_calls"] = [_identifying_call(call) for call in calls]
    return kept


def _identifying_call(call: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in call.items() if key not in ("index", "type")}
    function = call.get("function")
    if isinstance(function, Mapping):
        arguments = function.get("arguments")
        if isinstance(arguments, str) and len(arguments) <= _SLICE:  # longer ones are text
            with suppress(ValueError, RecursionError):
                kept["function"] = {**function, "arguments": encode(json.loads(arguments))}
    return kept


def encode(value: Any) -> str:
    """Return the unique JSON text of a canonical message, with sorted keys."""
    if isinstance(value, dict) and value.keys() == _PLAIN and isinstance(value["content"], str):
        return f'{{"content":{_quoted(value["content"])},"role":"{value["role"]}"}}'
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def encode_all(messages: Iterable[Message]) -> str:
    """Return the JSON text of a list of messages; one call for all would hold the GIL."""
    return f"[{','.join(map(encode, messages))}]"


def beginning(secret: bytes, tenant: str, salt: str, identity: str) -> bytes:
    """Return the hash of an empty conversation of a tenant with a model.

    Args:
        secret: The store's secret, which makes hashes useless outside it.
        tenant: The tenant that the conversation belongs to.
        salt: The client's `cache_salt`.
        identity: Describes the model, its S and W, and its chat template.
    """
    content = encode([tenant, salt, identity]).encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=_SIZE, key=secret).digest()


def follow(before: bytes, messages: Sequence[Message]) -> Iterator[bytes]:
    """Yield the hash after each canonical message."""
    for message in messages:
        check_wanted()
        content = encode(identifying(message)).encode("utf-8", "surrogatepass")
        before = blake2b(before + content, digest_size=_SIZE).digest()
        yield before


def hash_after(before: bytes, messages: Sequence[Message]) -> bytes:
    """Return the hash after a list of canonical messages."""
    return deque(follow(before, messages), maxlen=1).pop() if messages else before


class ReplyHash:
    """The hash after a reply whose text arrives in pieces; does not keep the text.

    It equals what `follow` yields for the reply as a message.
    """

    def __init__(self, before: bytes) -> None:
        self._whole = blake2b(before + b'{"content":"', digest_size=_SIZE)
        self._trimmed = self._whole.copy()  # without the final white space
        self._has_begun = False

    def add(self, text: str) -> None:
        """Add a piece of the reply's text."""
        text = _seen(text)
        if not self._has_begun:
            text = text.lstrip()
        self._has_begun |= bool(text)
        body = text.rstrip()
        if body:
            self._whole.update(_escaped(body))
            self._trimmed = self._whole.copy()
        self._whole.update(_escaped(text[len(body) :]))

    def digest(self, calls: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """Return the hash of the conversation that ends with the reply as it is now.

        Args:
            calls: The `tool_calls` of the reply.
        """
        ended = self._trimmed.copy()
        rest = encode(identifying({"role": "assistant", "tool_calls": list(calls)}))
        ended.update(b'",' + rest[1:].encode("utf-8", "surrogatepass"))
        return ended.digest()


def _seen(text: str) -> str:
    """Return a text without the characters that clients remove."""
    return _in_slices(partial(_UNSEEN.sub, ""), text)


def _quoted(text: str) -> str:
    """Return a text as a JSON string."""
    if len(text) <= _SLICE:
        return encode_basestring(text)
    return f'"{_in_slices(lambda part: encode_basestring(part)[1:-1], text)}"'


def _in_slices(change: Callable[[str], str], text: str) -> str:
    """Return what `change` makes of a text, each of whose characters it changes by itself."""
    if len(text) <= _SLICE:
        return change(text)
    return "".join(change(text[begin : begin + _SLICE]) for begin in range(0, len(text), _SLICE))


def _escaped(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()
