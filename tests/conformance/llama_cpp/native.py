"""llama.cpp's own `/completion` in terms of OpenAI's completions. Pure.

Our server has no such route: this translation lets llama.cpp's tests reach the one that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Encode = Callable[[str], list[int]]
"""Returns the ids of a text."""
Bytes = Callable[[int], bytes]
"""Returns the bytes of a token."""
_STOPS = {"length": "limit", "timeout": "limit", "stop": "eos", "stop_string": "word"}
# Without --n-predict, llama.cpp generates until the model ends its text.
UNLIMITED = 1024
# Settings of samplers that only llama.cpp has: off.
_NEUTRAL = {"adaptive_target": -1.0, "adaptive_decay": 0.0}
_COPIED = (
    "seed", "temperature", "top_p", "top_k", "min_p", "stop", "stream", "ignore_eos",
    "return_progress",
)  # fmt: skip


class Refused(Exception):
    """A request that only llama.cpp can answer."""


@dataclass(slots=True)
class Asked:
    """A request, and what of it shapes the answer."""

    body: dict[str, Any]
    """For our route."""
    is_list: bool
    """Whether the answer is an array."""
    returns_tokens: bool
    fields: list[str]
    settings: dict[str, Any]
    """`generation_settings`."""
    prompt: Any


def to_openai(body: dict[str, Any], defaults: dict[str, Any], encode: Encode) -> Asked:
    """Translate a request.

    Raises:
        Refused: It has images, or probabilities after sampling.
    """
    if body.get("post_sampling_probs") or "backend_sampling" in body:
        raise Refused("probabilities after sampling")
    prompts, is_list = _prompts(body.get("prompt", ""), encode)
    given = {name: body[name] for name in _COPIED if name in body}
    limit = body.get("n_predict", body.get("max_tokens", defaults.get("max_tokens", -1)))
    sent = {
        **{name: value for name, value in defaults.items() if name != "max_tokens"},
        **given,
        "prompt": prompts if is_list else prompts[0],
        "max_tokens": UNLIMITED if limit < 0 else limit,
        "logprobs": body.get("n_probs") or None,
        "logit_bias": _bias(body.get("logit_bias"), encode),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "timings_per_token": True,
    }
    if sent.get("stream"):
        sent["stream_options"] = {"include_usage": True}
    settings = {**_NEUTRAL, "n_predict": limit, "seed": sent["seed"]}
    return Asked(
        body=sent,
        is_list=is_list,
        returns_tokens=bool(body.get("return_tokens")),
        fields=body.get("response_fields") or [],
        settings=settings,
        prompt=body.get("prompt", ""),
    )


def _prompts(prompt: Any, encode: Encode) -> tuple[list[Any], bool]:
    """Return the prompts, and whether there were several."""
    if not isinstance(prompt, list) or all(isinstance(part, int) for part in prompt):
        return [_plain(prompt)], False
    if any(isinstance(part, int) for part in prompt):  # ids and texts of one prompt
        ids: list[int] = []
        for part in prompt:
            ids += [part] if isinstance(part, int) else encode(part)
        return [ids], False
    plain = [_plain(part) for part in prompt]
    if all(isinstance(part, str) for part in plain):
        return plain, True
    return [encode(part) if isinstance(part, str) else part for part in plain], True


def _plain(prompt: Any) -> Any:
    if not isinstance(prompt, dict):
        return prompt
    if prompt.get("multimodal_data"):
        raise Refused("images")
    return prompt["prompt_string"]


def _bias(bias: Any, encode: Encode) -> dict[str, float] | None:
    """Return a bias by id; each token of a text gets that of the text."""
    if not bias:
        return None
    pairs = bias.items() if isinstance(bias, dict) else bias
    by_id: dict[str, float] = {}
    for token, value in pairs:
        is_id = isinstance(token, int) or token.isdigit()
        for token_id in [token] if is_id else encode(token):
            by_id[str(token_id)] = value
    return by_id


def whole(answer: dict[str, Any], asked: Asked, bytes_of: Bytes) -> Any:
    """Translate a whole answer."""
    results = []
    for index, choice in enumerate(answer["choices"]):
        result = {
            "index": index,
            "content": choice["text"],
            "tokens": choice["token_ids"] if asked.returns_tokens else [],
            "stop": True,
            "prompt": asked.prompt,
            "has_new_line": "\n" in choice["text"],
            **_end(answer, answer["usage"]["sinkstream"], asked),
        }
        if asked.body["logprobs"]:
            result["completion_probabilities"] = list(probabilities(choice, bytes_of))
        results.append(_chosen(result, asked.fields))
    return results if asked.is_list else results[0]


def _end(answer: dict[str, Any], own: dict[str, Any], asked: Asked) -> dict[str, Any]:
    return {
        "generation_settings": asked.settings,
        "truncated": own["evicted_tokens"] > 0,
        "stop_type": _STOPS[own["finish_reason"]],
        "timings": answer["timings"],
    }


def _chosen(result: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """Return the fields that are asked for; a slash leads into an object."""
    if not fields:
        return result
    chosen = {}
    for path in fields:
        value: Any = result
        for part in path.split("/"):
            value = value[part]
        chosen[path] = value
    return chosen


def probabilities(choice: dict[str, Any], bytes_of: Bytes) -> Iterator[dict[str, Any]]:
    """Yield the log-probabilities of each token of a choice."""
    logprobs = choice["logprobs"]
    rows = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    for name, logprob, others in rows:
        top = [_token(other, value, bytes_of) for other, value in others.items()]
        yield {**_token(name, logprob, bytes_of), "top_logprobs": top}


def _token(name: str, logprob: float, bytes_of: Bytes) -> dict[str, Any]:
    token_id = int(name.removeprefix("token_id:"))
    raw = bytes_of(token_id)
    text = raw.decode("utf-8", "replace")
    return {"id": token_id, "token": text, "bytes": list(raw), "logprob": logprob}


class Chunks:
    """Translates the chunks of a stream, one after the other."""

    def __init__(self, asked: Asked, bytes_of: Bytes) -> None:
        self._asked = asked
        self._bytes = bytes_of
        self._own: dict[str, Any] = {}
        self._text = ""

    def next(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what stands for a chunk: one event for each token if they have probabilities."""
        if "prompt_progress" in chunk:
            progress = chunk["prompt_progress"]
            return [{"content": "", "tokens": [], "stop": False, "prompt_progress": progress}]
        if "timings" in chunk:
            end = _end(chunk, self._own, self._asked)
            line = "\n" in self._text
            return [{"content": "", "tokens": [], "stop": True, "has_new_line": line, **end}]
        self._own = chunk.get("sinkstream", self._own)
        (choice,) = chunk["choices"]
        if not choice.get("token_ids"):
            return []
        self._text += choice["text"]
        said = {"content": choice["text"], "tokens": choice["token_ids"], "stop": False}
        if not self._asked.body["logprobs"]:
            return [said]
        rows = list(probabilities(choice, self._bytes))
        return [
            {**said, "content": row["token"], "tokens": [row["id"]]}
            | {"completion_probabilities": [row]}
            for row in rows
        ]
