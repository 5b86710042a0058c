"""Writes the pages of python_api/ from signatures and docstrings."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import json
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from docstring import as_markdown, first_line_of, with_backticks

WIDTH = 92


@dataclass(frozen=True)
class Page:
    """The objects of a page."""

    title: str
    text: str
    module: str
    names: tuple[str, ...]


# What has no docstring of its own.
ALIASES = {
    "Event": "`Started`, `PromptToken`, `Prefill`, `Token`, `Evicted` or `Finished`.",
    "FinishReason": '`"stop"`, `"stop_string"`, `"length"`, `"timeout"`, `"cancelled"` or '
    '`"error"`.',
    "METHODS": "The methods of `perplexity`, with what a token sees under each.",
    "Message": 'A mapping such as `{"role": "user", "content": "Hi"}`.',
    "Prompt": "A string, token ids (a list, a NumPy array or a torch tensor), or a list of "
    "messages.",
    "StreamOptions": "The options of `Model.stream` as a `TypedDict`, for functions that pass them "
    "on: `def ask(question: str, **options: Unpack[StreamOptions])`.",
}

# Classes that a user makes; all others come from a function or a method.
MADE_BY_USERS = {"GenParams", "SinkLayer", "StartRecentKVCache", "StreamingCache"}

PAGES = {
    "loading": Page(
        "Loading",
        "`sinkstream.load` opens a model and allocates its memory.",
        "sinkstream",
        (
            "load",
            "list_models",
            "ListedModel",
            "Capacity",
            "DecoderSpec",
            "Block",
            "Attention",
            "Recurrent",
            "Dense",
            "Experts",
            "Norm",
            "RopeSpec",
            "LongRope",
        ),
    ),
    "model": Page(
        "Model",
        "A loaded model generates text in streams, sessions and complete replies.",
        "sinkstream",
        ("Model", "Message", "Prompt"),
    ),
    "streams": Page(
        "Streams and events",
        "A stream is a running generation. Read it as text, as events, or as one result.",
        "sinkstream",
        (
            *("Stream", "Replies", "StreamOptions", "Sampling", "Event", "FinishReason"),
            *("Started", "PromptToken", "Prefill", "Token", "ToolCall", "Evicted", "Finished"),
            *("Result", "Stats"),
        ),
    ),
    "sessions": Page(
        "Sessions",
        "A session is a conversation that keeps its cache, so each turn processes only its new "
        "tokens, unless thoughts are dropped.",
        "sinkstream",
        ("Session", "SessionStats"),
    ),
    "caches": Page(
        "Caches",
        "A cache is for loops of your own: `Model.forward` reads and extends it.",
        "sinkstream",
        ("Cache",),
    ),
    "monitoring": Page(
        "Monitoring",
        "Metrics for Prometheus and timelines for Perfetto. [Monitoring](../monitoring.md) says "
        "what each one means.",
        "sinkstream",
        ("prometheus_text", "trace"),
    ),
    "errors": Page(
        "Errors",
        "The package's own errors are `SinkstreamError`s. Each also derives from the standard "
        "exception that fits, such as ValueError. Wrong types raise TypeError.",
        "sinkstream",
        (
            *("SinkstreamError", "CapacityError", "CheckpointError", "DeviceError", "EngineDead"),
            *("ForkError", "InvalidArgument", "NonFiniteLogits", "SessionBusy"),
        ),
    ),
    "evaluate": Page(
        "sinkstream.evaluate",
        "Perplexity over long texts, and what a model recalls from them.",
        "sinkstream.evaluate",
        (
            *("perplexity", "METHODS", "compare", "needle", "stream_eval", "stream_eval_lines"),
            *("plot_perplexity", "plot_cost", "plot_recall", "PerplexityResult", "Difference"),
            *("AtDistance", "RecallResult", "Recall", "Line", "Question", "Answer"),
        ),
    ),
    "streaming_llm": Page(
        "sinkstream.streaming_llm",
        "The original StreamingLLM API for transformers models. "
        "[The guide](../../guides/from_streamingllm.md) shows old and new code.",
        "sinkstream.streaming_llm",
        (
            *("enable_streaming_llm", "disable_streaming_llm", "StartRecentKVCache"),
            *("StreamingCache", "SinkLayer"),
        ),
    ),
    "tinychat": Page(
        "sinkstream.tinychat",
        "TinyChat's generator protocol, over a session. "
        "[The guide](../../guides/from_tinychat.md) shows old and new code, and what differs.",
        "sinkstream.tinychat",
        ("StreamGenerator", "GenParams", "Output", "Usage", "Timing"),
    ),
    "basic": Page(
        "sinkstream.basic",
        "The simplest loops with and without a cache: the reference for what a cache saves.",
        "sinkstream.basic",
        ("ForwardModel", "generate_text_basic", "generate_text_basic_cache"),
    ),
}


def pages() -> dict[str, Callable[[], str]]:
    """Return the function that makes each page, by its path in docs/reference."""
    return {
        f"python_api/{name}.md": functools.partial(page, found) for name, found in PAGES.items()
    }


def page(described: Page) -> str:
    """Return a page.

    Raises:
        ValueError: A public name of the module is on no page.
    """
    module = importlib.import_module(described.module)
    listed = {
        name for one in PAGES.values() if one.module == described.module for name in one.names
    }
    if missing := sorted(set(module.__all__) - listed):
        raise ValueError(f"docs/reference/python_api.py lacks {', '.join(missing)}.")
    lines = [f"# {described.title}\n", described.text]
    if len(described.names) > 1:
        lines.append("")
        lines += [
            f"- [`{name}`](#{name.lower()}): {summary_of(name, getattr(module, name))}"
            for name in described.names
        ]
    for name in described.names:
        lines += ["", f"## {name}", "", *parts_of(name, getattr(module, name))]
    return "\n".join([*lines, ""])


def summary_of(name: str, thing: Any) -> str:
    """Return one sentence."""
    return ALIASES.get(name) or first_line_of(inspect.getdoc(thing) or "")


def parts_of(name: str, thing: Any) -> Iterator[str]:
    """Yield the lines about a public name."""
    if name in ALIASES:
        yield ALIASES[name]
    elif inspect.isclass(thing):
        yield from class_of(name, thing)
    else:
        yield from function_of(name, thing)


def function_of(name: str, function: Callable[..., Any], *, skip: int = 0) -> Iterator[str]:
    """Yield the lines about a function or a method without its first `skip` parameters."""
    yield fenced(signature_of(name, function, skip=skip))
    yield ""
    yield as_markdown(inspect.getdoc(function) or "")


def class_of(name: str, kind: type) -> Iterator[str]:
    """Yield the lines about a class and its public members."""
    if name in MADE_BY_USERS:
        yield fenced(signature_of(name, kind.__init__, skip=1))
        yield ""
    elif issubclass(kind, Exception):
        yield f"Bases: {', '.join(f'`{base.__name__}`' for base in kind.__bases__)}.\n"
    yield as_markdown(inspect.getdoc(kind) or "")
    if is_dataclass(kind) or typing.is_typeddict(kind):
        yield ""
        yield from map(field_of, field_rows(kind))
    for member, value in members_of(kind):
        yield ""
        yield f"### {name}.{member}"
        yield ""
        if isinstance(value, property):
            getter = typing.cast(Any, value.fget)
            yield fenced(f"{name}.{member}: {getter.__annotations__['return']}")
            yield ""
            yield as_markdown(inspect.getdoc(value) or "")
        else:
            bound = isinstance(value, classmethod | staticmethod)
            function = value.__func__ if bound else value
            yield from function_of(
                f"{name}.{member}", function, skip=not isinstance(value, staticmethod)
            )


def members_of(kind: type) -> list[tuple[str, Any]]:
    """Return the public members of a class itself: methods, then properties."""
    found = [(name, value) for name, value in vars(kind).items() if not name.startswith("_")]
    methods = [
        (name, value)
        for name, value in found
        if inspect.isfunction(value) or isinstance(value, classmethod | staticmethod)
    ]
    return methods + [(name, value) for name, value in found if isinstance(value, property)]


@dataclass(frozen=True)
class Row:
    """A field of a dataclass."""

    name: str
    kind: str
    default: str
    text: str


def field_rows(kind: type) -> list[Row]:
    """Return the fields of a dataclass or TypedDict, with the strings after them in the source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    body = typing.cast(ast.ClassDef, tree).body
    texts = {
        node.target.id: inspect.cleandoc(after.value.value)
        for node, after in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }
    if typing.is_typeddict(kind):
        return [
            Row(name, written(hint.__forward_arg__), "", " ".join(texts.get(name, "").split()))
            for name, hint in kind.__annotations__.items()
        ]
    return [
        Row(
            entry.name,
            written(entry.type),
            "" if entry.default is MISSING else f" = {shown(entry.default)}",
            " ".join(texts.get(entry.name, "").split()),
        )
        for entry in fields(typing.cast(Any, kind))
        if not entry.name.startswith("_")
    ]


def field_of(row: Row) -> str:
    """Return the entry of a field."""
    text = f": {with_backticks(row.text)}" if row.text else ""
    return f"- `{row.name}: {row.kind}{row.default}`{text}"


def signature_of(name: str, function: Callable[..., Any], *, skip: int = 0) -> str:
    """Return a signature; one parameter per line if it does not fit into one line."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[skip:]
    words, has_star = [], False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            has_star = True
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            words.append("*")
            has_star = True
        words.append(parameter_of(parameter))
    returns = signature.return_annotation
    name = f"async {name}" if inspect.iscoroutinefunction(function) else name
    end = "" if returns in (inspect.Signature.empty, "None") else f" -> {written(returns)}"
    line = f"{name}({', '.join(words)}){end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){end}"])


def parameter_of(parameter: inspect.Parameter) -> str:
    """Return a parameter as in the source."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    word = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        word += f": {written(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        typed = parameter.annotation is not parameter.empty
        word += f"{' = ' if typed else '='}{shown(parameter.default)}"
    return word


def shown(value: Any) -> str:
    """Return a default as the source writes it."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def written(kind: Any) -> str:
    """Return a type as the source writes it."""
    text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    text = re.sub(r"\b(?:collections\.abc|typing|sinkstream(?:\.\w+)*)\.", "", text)
    return text.replace("'", '"')


def fenced(signature: str) -> str:
    """Return a signature as code; not as a block that the tests of the pages run."""
    return f"```py\n{signature}\n```"
