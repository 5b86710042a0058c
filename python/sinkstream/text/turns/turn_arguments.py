"""Checks the text and role arguments of sessions."""

from __future__ import annotations

from sinkstream.errors import InvalidArgument
from sinkstream.text.argument_name import ArgumentName
from sinkstream.text.messages import ROLES
from sinkstream.text.plain_text import check_characters

SYSTEM = ArgumentName("session", "system")
TEXT = ArgumentName("session", "text")


def check_text(content: str, argument: ArgumentName) -> str:
    """Return a content as a plain `str`.

    Raises:
        TypeError: It is not a string.
        InvalidArgument: It has a lone surrogate.
    """
    if not isinstance(content, str):
        raise TypeError(f"{argument} must be a string, but is of type {type(content).__name__}.")
    check_characters(content, argument)
    return str.__str__(content)  # templates get plain strings: subclasses may carry methods


def check_role(role: str) -> str:
    """Return a role as a plain `str`.

    Raises:
        InvalidArgument: There is no such role.
    """
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidArgument(
            f"session: `role` must be one of {', '.join(ROLES)}, but is {repr(role)[:40]}.",
            param="role",
        )
    return str.__str__(role)
