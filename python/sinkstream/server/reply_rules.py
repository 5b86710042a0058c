"""What a reply must follow, from the fields of a request: OpenAI's, vLLM's and llama.cpp's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sinkstream.host import Host, ReplyOptions
from sinkstream.request.cancellation import checking
from sinkstream.request.options import StreamOptions, has_grammar
from sinkstream.request.template_variables import Thinking
from sinkstream.request.tools import Tools
from sinkstream.server.admission import CALLER, KeyShares, Weights, refusal
from sinkstream.server.errors import from_exception, invalid, not_supported
from sinkstream.server.pool import Cancellation, Pool
from sinkstream.server.request_bodies import Generation
from sinkstream.structured.schemas import lenient

Rule = tuple[str, Any]
"""An option of GRAMMARS and its value."""
_ANY_OBJECT: Rule = ("schema", {"type": "object"})
_MOST_GRAMMARS = 64


def rule_of_format(given: Mapping[str, Any], param: str) -> Rule | None:
    """Return what OpenAI's `response_format`, or `text.format` of its Responses API, asks for.

    Without `strict`, what cannot be enforced of a schema is dropped. "json_object" may have a
    `schema`, as for llama.cpp. Errors name the field `param`.
    """
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return (
            _schema(given["schema"], f"{param}.schema", param) if "schema" in given else _ANY_OBJECT
        )
    if kind != "json_schema":
        raise invalid(
            f'body: `{param}.type` must be "text", "json_object" or "json_schema".', param
        )
    inner = given.get("json_schema", given)
    path = f"{param}.json_schema" if "json_schema" in given else param
    if not isinstance(inner, Mapping):
        raise invalid(f"body: `{path}` must be an object.", param)
    option, schema = _schema(inner.get("schema"), f"{path}.schema", param)
    return option, schema if inner.get("strict") is True else lenient(schema)


def rule_of(body: Generation) -> tuple[str, Rule] | None:
    """Return the field that says what a reply must follow, and its rule; refuse two fields."""
    found: list[tuple[str, Rule]] = []
    if body.response_format is not None:
        rule = rule_of_format(body.response_format, "response_format")
        found += [("response_format", rule)] if rule else []
    if body.structured_outputs is not None:
        found.append(("structured_outputs", _of_vllm(body.structured_outputs)))
    if body.json_schema is not None:
        found.append(("json_schema", ("schema", body.json_schema)))
    if body.grammar:
        found.append(("grammar", ("grammar", body.grammar)))
    if len(found) > 1:
        first, second = found[0][0], found[1][0]
        raise invalid(f"body: `{first}` and `{second}` may not be given together.", second)
    return found[0] if found else None


def _of_vllm(given: Mapping[str, Any]) -> Rule:
    param = "structured_outputs"
    if given.get("structural_tag") is not None:
        raise not_supported("`structural_tag`", param)
    names = [
        name
        for name in ("json", "regex", "choice", "grammar", "json_object")
        if given.get(name) not in (None, False)
    ]
    if len(names) != 1:
        raise invalid(
            f"body: `{param}` must have exactly one of `json`, `regex`, `choice`, `grammar` and "
            f"`json_object`, but has {len(names)}.",
            param,
        )
    (name,) = names
    value, path = given[name], f"{param}.{name}"
    if name == "json_object":
        return _ANY_OBJECT
    if name == "json":
        return ("schema", value) if isinstance(value, str) else _schema(value, path, param)
    if name == "choice":
        return _choice(value, path, param)
    if not isinstance(value, str):
        raise invalid(f"body: `{path}` must be a string.", param)
    return name, value


def _schema(value: Any, path: str, param: str) -> Rule:
    if not isinstance(value, dict):
        raise invalid(f"body: `{path}` must be an object.", param)
    return "schema", value


def _choice(value: Any, path: str, param: str) -> Rule:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise invalid(f"body: `{path}` must be an array of at least 1 string.", param)
    return "grammar", "start: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in value)


class GrammarQueue:
    """Compiles grammars outside the pool of other calls, which would wait for a slow one."""

    def __init__(self, weights: Weights | None = None) -> None:
        self._pool = Pool(weights)
        self._shares = KeyShares(_MOST_GRAMMARS, weights or {})

    async def compile(
        self,
        host: Host,
        options: StreamOptions,
        names: Mapping[str, str],
        tools: Tools | None = None,
        thinking: Thinking = None,
        given: str | None = None,
    ) -> None:
        """Compile the grammar of a request, if it has one; its replies then find it compiled.

        What is not valid is refused, and so are requests while too many wait. If this is cancelled,
        the compilation ends with the part that has begun. `names` maps arguments of `Model.stream`
        to the request's fields.
        """
        if tools is None and not has_grammar(options):
            return
        tenant = CALLER.get()
        if not self._shares.has_room(tenant):
            rule = f"at most {_MOST_GRAMMARS} grammars can be compiled or wait"
            raise refusal(self._shares, tenant, 1, rule, "and this request needs one more")
        self._shares.take(tenant)
        wanted = ReplyOptions(options, thinking=thinking, tools=tools, given=given)
        cancellation = Cancellation()

        def run() -> None:
            with checking(cancellation.check):
                host.compile_grammar(wanted)

        try:
            await self._pool.submit(run)
        except Exception as error:
            raise from_exception(error, names) or error from None
        finally:
            cancellation.is_set = True
            self._shares.give_back(tenant)

    def close(self) -> None:
        """End the threads after the grammars that have begun."""
        self._pool.close()
