"""Reads the lines of a batch, turns each into a prompt and options, and a reply into a line."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sinkstream.checkpoint.quoting import quoted
from sinkstream.cli.generate import as_messages
from sinkstream.errors import InvalidArgument
from sinkstream.request.options import OPTIONS, StreamOptions
from sinkstream.streams.events import Result

MAX_LINE_BYTES = 64 << 20
"""A longer line is an error: only this much is ever kept of one."""

_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that is not blank."""

    number: int
    """Counted from 1, including blank lines."""
    content: bytes
    is_too_long: bool = False
    """Whether `content` is only the beginning."""

    @property
    def digest(self) -> str:
        """Return 16 hexadecimal digits that identify the content of the line."""
        return hashlib.sha256(self.content.strip()).hexdigest()[:16]


async def read_lines(descriptor: int) -> AsyncIterator[InputLine]:
    """Yield the lines of a file or pipe; other tasks run while a pipe has none."""
    number, kept, is_too_long = 1, b"", False
    while piece := await _read(descriptor):
        *ended, rest = piece.split(b"\n")
        for end in ended:
            kept, is_too_long = _add(kept, end, is_too_long)
            if kept.strip():
                yield InputLine(number, kept, is_too_long)
            number, kept, is_too_long = number + 1, b"", False
        kept, is_too_long = _add(kept, rest, is_too_long)
    if kept.strip():
        yield InputLine(number, kept, is_too_long)


def _add(kept: bytes, more: bytes, is_too_long: bool) -> tuple[bytes, bool]:
    room = MAX_LINE_BYTES - len(kept)
    return kept + more[:room], is_too_long or len(more) > room


async def _read(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, _set, ready)
    except PermissionError:  # a file is always ready
        return os.read(descriptor, _PIECE)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, _PIECE)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def count_lines(path: str) -> int:
    """Return the number of lines of a file that are not blank, give or take long ones."""
    with open(path, "rb") as file:  # noqa: PTH123  # the path may be /dev/stdin
        return sum(bool(line.strip()) for line in iter(lambda: file.readline(MAX_LINE_BYTES), b""))


_OWN = ("id", "messages", "prompt")


@dataclass(frozen=True, slots=True)
class Rules:
    """What applies to every line."""

    options: StreamOptions
    """For what a line does not set."""
    sends_messages: bool
    """Whether a prompt is sent as a message."""
    system: str | None = None


def fields_of(line: InputLine) -> dict[str, Any]:
    """Return the object on a line; refuse anything else."""
    where = f"batch: line {line.number}"
    if line.is_too_long:
        most = f"{MAX_LINE_BYTES:,}"
        raise InvalidArgument(f"{where} must have at most {most} bytes, but has more.")
    try:
        fields = json.loads(line.content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{where} must be UTF-8, but byte {error.start} is not.") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{where} must be a JSON object, but is not: {error}.") from None
    if not isinstance(fields, dict):
        raise InvalidArgument(
            f"{where} must be a JSON object, but is of type {type(fields).__name__}."
        )
    return fields


def head_of(line: InputLine, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a result begins with: number and digest of its line, and its id if it has one."""
    head = {"line": line.number, "digest": line.digest}
    if "id" not in fields:
        return head
    if isinstance(fields["id"], bool) or not isinstance(fields["id"], str | int):
        raise InvalidArgument(
            f"batch: the id of line {line.number} must be a string or an integer, but is of type "
            f"{type(fields['id']).__name__}."
        )
    return {**head, "id": fields["id"]}


def request_of(
    line: InputLine, fields: Mapping[str, Any], rules: Rules
) -> tuple[Any, StreamOptions]:
    """Return the prompt and the options of a line; `Model.stream` checks their values."""
    own: dict[str, Any] = {name: value for name, value in fields.items() if name not in _OWN}
    for name in own:
        if name not in OPTIONS:
            meant = difflib.get_close_matches(name, OPTIONS, n=1)
            raise InvalidArgument(
                f"batch: line {line.number} must have only known options, but has "
                f"{quoted(name)}." + (f" Did you mean {meant[0]}?" if meant else "")
            )
    if isinstance(own.get("logit_bias"), dict):
        own["logit_bias"] = _with_ids(line, own["logit_bias"])
    given = {
        name: value for name, value in own.items() if value is not None or name == "max_tokens"
    }
    options: StreamOptions = {**rules.options, **given}  # type: ignore[typeddict-item]
    return _prompt_of(line, fields, rules), options


def _prompt_of(line: InputLine, fields: Mapping[str, Any], rules: Rules) -> Any:
    if ("prompt" in fields) == ("messages" in fields):
        found = "both" if "prompt" in fields else "neither"
        raise InvalidArgument(
            f"batch: line {line.number} must have a prompt or messages, but has {found}."
        )
    if "messages" in fields:
        messages = fields["messages"]
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise InvalidArgument(
                f"batch: the messages of line {line.number} must be a list of objects, but are of "
                f"type {type(messages).__name__}."
            )
        return messages
    prompt = fields["prompt"]
    if not (rules.sends_messages and isinstance(prompt, str)):
        return prompt
    if not prompt.strip():
        raise InvalidArgument(
            f"batch: the prompt of line {line.number} must not be empty, because it is sent as a "
            "message."
        )
    return as_messages(prompt, rules.system)


def _with_ids(line: InputLine, bias: Mapping[str, Any]) -> dict[int, Any]:
    """Return a bias with ids instead of JSON's keys, which are strings."""
    try:
        return {int(key): value for key, value in bias.items()}
    except ValueError:
        raise InvalidArgument(
            f"batch: a key of `logit_bias` in line {line.number} must be a token id, but is not an "
            "integer."
        ) from None


def fields_of_result(result: Result, options: StreamOptions) -> dict[str, Any]:
    """Return what a line of results says about a reply."""
    fields: dict[str, Any] = {
        "text": result.text,
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.stats.prompt_tokens,
        "generated_tokens": result.stats.generated_tokens,
        "seed": result.seed,
    }
    if options.get("logprobs"):
        fields["token_ids"] = result.token_ids
        fields["logprobs"] = result.logprobs
        fields["alternatives"] = result.alternatives
    if result.prompt_logprobs:
        fields["prompt_logprobs"] = [asdict(token) for token in result.prompt_logprobs]
    if result.dropped_tokens:  # max_tokens was null or above 65,536
        fields["dropped_tokens"] = result.dropped_tokens
        fields["dropped_characters"] = result.dropped_characters
    return fields
