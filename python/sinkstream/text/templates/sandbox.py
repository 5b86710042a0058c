"""Runs a checkpoint's Jinja templates, which may be hostile.

Jinja's own sandbox keeps a template away from Python's internals. This one exposes even less, and
bounds the cost: every loop, call and filter checks the time, and every operation that makes a
larger value out of smaller ones is checked before it runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from sys import getsizeof
from typing import Any, cast

from jinja2 import Environment, Template, nodes, pass_environment
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from sinkstream.text.templates.limits import (
    MAX_BITS,
    Limits,
    check_amplifiers,
    check_braces,
    check_date_layout,
    check_numbers,
    check_percent,
    checked,
    current_limits,
    size_of,
)


class _Namespace(Namespace):
    """Holds variables. Templates can change only this, so it must never be written out."""

    def __repr__(self) -> str:
        return "<Namespace>"


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as transformers does; Jinja's own filter escapes HTML."""
    if indent is not None and indent > 16:
        raise TemplateError("it indents too far")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@pass_environment
def _join(
    environment: Environment,
    value: Iterable[Any],
    separator: str = "",
    attribute: str | int | None = None,
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    parts = [str(part) for part in value]
    current_limits.get().admit(size_of(parts) + len(parts) * len(separator))
    return separator.join(parts)


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    check_date_layout(layout)
    return datetime.now().strftime(layout)


def _make_dict(*pairs: Any, **values: Any) -> dict[Any, Any]:
    return dict(*pairs, **values)


# Methods of strings, lists and mappings that templates may call: none that changes the object or
# reaches beyond it. `format` is Jinja's sandboxed version.
_ATTRIBUTES: dict[type, frozenset[str]] = {
    str: frozenset({
        "capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum",
        "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle",
        "isupper", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix",
        "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines",
        "startswith", "strip", "swapcase", "title", "upper",
    }),
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"get", "items", "keys", "values"}),
}  # fmt: skip
_OWN_KINDS = (Cycler, Joiner, LoopContext, Namespace)

_FILTERS = frozenset({
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "format", "groupby", "indent", "int", "items", "last", "length", "list", "lower", "map", "max",
    "min", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr",
    "sort", "string", "sum", "title", "trim", "unique", "upper", "wordcount",
})  # fmt: skip


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap one of Jinja's filters: check the time, its arguments and its result."""

    @wraps(function)  # keeps the markers for what Jinja passes as the first argument
    def bounded(*arguments: Any, **named: Any) -> Any:
        limits = current_limits.get()
        limits.tick()
        given = arguments[1:] if hasattr(function, "jinja_pass_arg") else arguments
        check_numbers([*given[1:], *named.values()])
        if named and name == "replace":  # the check below identifies arguments by position
            raise TemplateError("it calls `replace` with named arguments")
        check_amplifiers(name, [*given, *named.values()])
        result = function(*arguments, **named)
        if not isinstance(result, Iterator):
            return checked(result)
        # Consumed here to check its size. Returned as an iterator again, which is always truthy.
        taken: list[Any] = []
        size = 0
        for item in result:
            limits.tick()
            size += size_of(item)
            limits.admit(size)
            limits.spend(8)  # its pointer in the list; the item itself is counted already
            taken.append(item)
        return (item for item in taken)

    return bounded


def _timed(items: Iterable[Any]) -> Iterator[Any]:
    limits = current_limits.get()
    for item in items:
        limits.tick()
        yield item


def _concatenated(parts: Sequence[Any]) -> Any:
    current_limits.get().admit(size_of(parts))
    return checked("".join(map(str, parts)))


class _Bounds(NodeTransformer):
    """Wraps every loop, and every expression that makes a larger value, in a check."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja's naming rule)
        self.generic_visit(node)
        node.iter = _around(node.iter, "_timed")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _around(nodes.List(node.nodes, lineno=node.lineno), "_concatenated")

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _around(node, "_checked")

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _around(node, "_checked") if node.ctx == "load" else node


def _around(node: nodes.Node, filter_name: str) -> nodes.Filter:
    expression = cast(nodes.Expr, node)  # the grammar allows only expressions here
    return nodes.Filter(expression, filter_name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}` marks what a model was trained on; it does not change the text."""

    tags = {"generation"}  # noqa: RUF012 (name and type prescribed by Jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates: transformers' syntax, with bounds on every operation."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
        )
        own = {"join": _join, "tojson": _tojson}
        chosen = {name: self.filters[name] for name in _FILTERS} | own
        self.filters = {name: _bounded_filter(name, f) for name, f in chosen.items()}
        self.filters |= {"_timed": _timed, "_checked": checked, "_concatenated": _concatenated}
        self.globals = {
            "cycler": Cycler,
            "dict": _make_dict,
            "joiner": Joiner,
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "range": self.globals["range"],
            "strftime_now": _strftime_now,
        }

    def _generate(self, source: nodes.Template, *arguments: Any, **named: Any) -> str:
        return super()._generate(_Bounds().visit(source), *arguments, **named)

    def run(self, template: Template, variables: Mapping[str, Any], limits: Limits) -> str:
        """Render a template of this environment.

        Raises:
            TemplateError: It fails, refuses, or exceeds its limits.
            Exception: Any other error of its operations.
        """
        token = current_limits.set(limits)
        try:
            # Not `render`: it executes code to add the template's line numbers to errors.
            return self.concat(template.root_render_func(template.new_context(dict(variables))))
        finally:
            current_limits.reset(token)

    def concat(self, parts: Iterable[str]) -> str:
        """Join the pieces of an output, within the limits."""
        limits = current_limits.get()
        taken: list[str] = []
        size = 0
        for part in parts:
            size += len(part)
            limits.admit(size)
            limits.tick()
            taken.append(part)
        output = "".join(taken)
        limits.spend(getsizeof(output))
        return output

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may access an attribute."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, _OWN_KINDS):
            return True
        return any(isinstance(obj, kind) and attr in names for kind, names in _ATTRIBUTES.items())

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a bounded and sandboxed `str.format`, or None if the value is not that method."""
        sandboxed = super().wrap_str_format(value)
        if sandboxed is None:
            return None
        template = value.__self__

        def bounded(*arguments: Any, **named: Any) -> str:
            check_numbers([*arguments, *named.values()])
            check_braces(template, (arguments, named))
            return sandboxed(*arguments, **named)

        return bounded

    def call(self, context: Context, function: Any, /, *arguments: Any, **named: Any) -> Any:
        """Call a function or method for a template."""
        current_limits.get().tick()
        check_numbers([*arguments, *named.values()])
        text = getattr(function, "__self__", None)
        if isinstance(text, str):
            check_amplifiers(function.__name__, [text, *arguments, *named.values()])
        return checked(super().call(context, function, *arguments, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator whose result may be larger than its operands."""
        sequence = (str, list, tuple)
        if operator == "%" and isinstance(left, str):
            check_percent(left, right)
        elif operator == "+" and isinstance(left, sequence):
            current_limits.get().admit(size_of(left) + size_of(right))
        elif operator == "*" and isinstance(left, sequence) and isinstance(right, int):
            current_limits.get().admit(size_of(left) * right)
        elif operator == "*" and isinstance(right, sequence) and isinstance(left, int):
            current_limits.get().admit(size_of(right) * left)
        elif isinstance(left, int) and isinstance(right, int):
            grown = left.bit_length() * (abs(right) if operator == "**" else 1)
            if grown + right.bit_length() > MAX_BITS:
                raise SecurityError("it computes with numbers that are too large")
        return checked(super().call_binop(context, operator, left, right))
