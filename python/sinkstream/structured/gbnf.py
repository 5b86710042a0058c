"""Converts grammars from GBNF, llama.cpp's format, to the Lark syntax that llguidance reads."""

from __future__ import annotations

import re

from sinkstream.errors import InvalidArgument

_IS_GBNF = re.compile(r"^\s*root\s*::=", re.MULTILINE)
MAX_BYTES = 16384
"""The converter's time grows with the square of the number of rules."""


def as_lark(text: str) -> str:
    """Return a grammar in Lark syntax; llguidance's own converter reads GBNF.

    Raises:
        InvalidArgument: It is GBNF, but too long or not valid.
    """
    if not _IS_GBNF.search(text):
        return text
    size = len(text.encode())
    if size > MAX_BYTES:
        raise InvalidArgument(
            f"stream: `grammar` in GBNF must have at most {MAX_BYTES} bytes, but has {size}. "
            "A grammar in Lark syntax may be longer.",
            param="grammar",
        )
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(text)
    except Exception as error:  # its own, a bare Exception, or that of an index or of recursion
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidArgument(
            f"stream: `grammar` must be valid GBNF, but is not: {reason}.", param="grammar"
        ) from None
