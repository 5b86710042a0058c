"""Runs a checkpoint's Jinja templates, which may be hostile.

Jinja's own sandbox keeps a template away from Python's internals. This one exposes even less, and
bounds the cost: every loop, call and filter checks the time, and every operation that makes a
larger value out of smaller ones is checked before it runs. The output says where each of its
characters comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from sys import getsizeof
from typing import Any, cast

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from sinkstream.text.templates.filters import FILTERS
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
from sinkstream.text.templates.traced_text import (
    TracedText,
    origin_of_string,
    origins_of,
    traced,
    traced_result,
)
from sinkstream.text.templates.writing import (
    brace_formatted,
    joined,
    percent_formatted,
    written,
)


class _Namespace(Namespace):
    """Holds variables. Templates can change only this, so it must never be written out."""

    def __init__(*arguments: Any, **named: Any) -> None:  # so that `self` can be a variable
        self, *rest = arguments
        values = dict(*rest, **named)
        for name in values:
            _check_variable(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_variable(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _check_variable(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("it names a namespace variable that starts with an underscore")


class _Dict:
    """Makes dictionaries; unlike the type, it has no other attributes."""

    def __call__(self, *pairs: Any, **values: Any) -> dict[Any, Any]:
        return dict(*pairs, **values)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


def _raise_exception(message: Any) -> None:
    raise TemplateError(str.__str__(str(message)))


_moment: ContextVar[datetime | None] = ContextVar("moment", default=None)


@contextmanager
def written_at(seconds: float | None = None) -> Iterator[None]:
    """Let templates write the date of one moment, in seconds since the epoch.

    What a conversation has read keeps its date, and so must what is rendered of it later. None: the
    same in all renderings, of now unless a moment is set.
    """
    now = _moment.get() or datetime.now()
    token = _moment.set(now if seconds is None else datetime.fromtimestamp(seconds))
    try:
        yield
    finally:
        _moment.reset(token)


def _strftime_now(layout: str) -> str:
    check_date_layout(layout)
    return (_moment.get() or datetime.now()).strftime(layout)


# Methods of strings, lists and mappings that templates may call: none that changes the object or
# reaches beyond it. `format` is Jinja's sandboxed version.
_ATTRIBUTES: dict[type, frozenset[str]] = {
    str: frozenset({
        "capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format",
        "format_map", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
        "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper",
        "join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix",
        "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split",
        "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill",
    }),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
}  # fmt: skip
_OWN_KINDS = (Cycler, Joiner, LoopContext, Namespace, _Dict)


def _timed(items: Iterable[Any]) -> Iterator[Any]:
    limits = current_limits.get()
    for item in items:
        limits.tick()
        yield item


def _concatenated(parts: Sequence[Any]) -> Any:
    current_limits.get().admit(size_of(parts))
    return checked(joined("", parts))


@pass_context  # so that Jinja does not compute it at compile time, and join it to other strings
def _own(_: Context, text: str, number: int) -> str:
    return traced(text, origin_of_string(number))


@pass_context
def _finalize(_: Context, value: Any) -> Any:
    return written(value)


class _Bounds(NodeTransformer):
    """Wraps every loop, and every expression that makes a larger value, in a check.

    It also marks the template's own strings.
    """

    def __init__(self) -> None:
        self._strings = 0

    def _marked(self, text: str, lineno: int) -> nodes.Node:
        self._strings += 1
        number = nodes.Const(self._strings, lineno=lineno)
        text_node = nodes.Const(text, lineno=lineno)
        return nodes.Filter(text_node, "_own", [number], [], None, None, lineno=lineno)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802 (Jinja's naming rule)
        return self._marked(node.value, node.lineno) if isinstance(node.value, str) else node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        return self._marked(node.data, node.lineno)

    def visit_ScopedEvalContextModifier(  # noqa: N802
        self, node: nodes.ScopedEvalContextModifier
    ) -> nodes.Node:
        # Where strings are escaped, the template's own would be, too.
        inner = _BoundsOnly()
        node.body = [inner.visit(child) for child in node.body]
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
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


class _BoundsOnly(_Bounds):
    """Wraps the same, and marks nothing."""

    def _marked(self, text: str, lineno: int) -> nodes.Node:
        raise NotImplementedError

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        return node


def _around(node: nodes.Node, filter_name: str) -> nodes.Filter:
    expression = cast(nodes.Expr, node)  # the grammar allows only expressions here
    return nodes.Filter(expression, filter_name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}` marks what a model was trained on; it does not change the text."""

    tags = {"generation"}  # noqa: RUF012 (name and type prescribed by Jinja)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("write"), [], [], body).set_lineno(lineno)

    def write(self, caller: Macro) -> str:
        """Return the body's text. As a call, it keeps its variables to itself."""
        return caller()


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates: transformers' syntax, with bounds on every operation."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _Generation],
            finalize=_finalize,
        )
        self.filters = FILTERS | {
            "_timed": _timed, "_checked": checked, "_concatenated": _concatenated, "_own": _own
        }  # fmt: skip
        self.globals = {
            "cycler": Cycler,
            "dict": _Dict(),
            "joiner": Joiner,
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "range": self.globals["range"],
            "strftime_now": _strftime_now,
        }

    def _generate(self, source: nodes.Template, *arguments: Any, **named: Any) -> str:
        return super()._generate(_Bounds().visit(source), *arguments, **named)

    def run(self, template: Template, variables: Mapping[str, Any], limits: Limits) -> TracedText:
        """Render a template of this environment. Untraced strings are of unknown origin.

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

    def concat(self, parts: Iterable[str]) -> TracedText:
        """Join the pieces of an output, within the limits."""
        limits = current_limits.get()
        taken: list[str] = []
        size = 0
        for part in parts:
            size += len(part)
            limits.admit(size)
            limits.tick()
            taken.append(part)
        output = TracedText("".join(taken), "".join(map(origins_of, taken)))
        limits.spend(getsizeof(output) + getsizeof(output.origins))
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
            if value.__name__ == "format_map" and len(arguments) == 1 and not named:
                given, keys = (), arguments[0]
            else:
                given, keys = arguments, named
            check_numbers([*given, *keys.values()])
            check_braces(template, (given, keys))
            made = sandboxed(*arguments, **named)
            if isinstance(template, TracedText):
                return brace_formatted(SandboxedFormatter(self), template, given, keys)
            return cast(str, traced_result(made, [template, *given, *keys.values()]))

        return bounded

    def call(self, context: Context, function: Any, /, *arguments: Any, **named: Any) -> Any:
        """Call a function or method for a template."""
        current_limits.get().tick()
        check_numbers([*arguments, *named.values()])
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            check_amplifiers(function.__name__, [owner, *arguments, *named.values()])
        result = super().call(context, function, *arguments, **named)
        # Other functions may return what they were given earlier.
        if function is _strftime_now or isinstance(owner, str | list | tuple | dict):
            result = traced_result(result, [owner, *arguments, *named.values()])
        return checked(result)

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
        if operator == "%" and isinstance(left, TracedText):
            return checked(percent_formatted(left, right))
        result = super().call_binop(context, operator, left, right)
        return checked(traced_result(result, [left, right]))
