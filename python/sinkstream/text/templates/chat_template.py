"""Compiles a checkpoint's chat template, and explains why one fails."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError, UndefinedError
from jinja2.meta import find_undeclared_variables

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import PROMPT, ArgumentName
from sinkstream.text.templates.sandbox import TemplateSandbox

MAX_TEMPLATE_CHARACTERS = 64 << 10


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template."""

    template: Template
    constants: frozenset[str]
    """The strings in its expressions. It may search messages for some of them."""
    names: frozenset[str]
    """The variables and functions that it refers to."""
    variables: frozenset[str]
    """The variables that it reads without having set them, at least not in all cases."""


SANDBOX = TemplateSandbox()


@lru_cache(maxsize=16)
def compile_template(source: str, argument: ArgumentName = PROMPT) -> ChatTemplate:
    """Compile a chat template.

    Raises:
        InvalidArgument: It is too long, or has a syntax error.
    """
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise InvalidArgument(
            f"{argument.call}: the checkpoint's chat template must have at most "
            f"{MAX_TEMPLATE_CHARACTERS} characters, but has {len(source)}.",
            param=argument.name,
        )
    try:
        tree = SANDBOX.parse(source)
        constants = {constant.value for constant in tree.find_all(nodes.Const)}
        texts = frozenset(value for value in constants if isinstance(value, str))
        names = frozenset(name.name for name in tree.find_all(nodes.Name))
        template = SANDBOX.from_string(tree)
        # Last: the search generates code, which changes the tree.
        variables = frozenset(find_undeclared_variables(tree))
        return ChatTemplate(template, texts, names, variables)
    except Exception as error:
        raise template_error(error, source, argument) from None


def template_error(error: Exception, source: str, argument: ArgumentName) -> InvalidArgument:
    """Return the error of a failed template, without quoting the messages."""
    reason = type(error).__name__
    if isinstance(error, TemplateError) and error.message:
        # Jinja quotes undefined names, which the template may have taken from a message.
        quoted = re.findall(r"'(.*?)'", error.message) if isinstance(error, UndefinedError) else []
        if all(text in source or text.endswith(" object") for text in quoted):
            reason = error.message[:200]
    return InvalidArgument(
        f"{argument.call}: the checkpoint's chat template fails on these messages, or refuses "
        f"them: {reason.rstrip('.')}.",
        param=argument.name,
    )
