"""`encrypted_content` of reasoning items: the thought, in a form for clients to send back.

The thought is readable in the same item, so there is nothing to hide, and it is not encrypted.
"""

from __future__ import annotations

import base64
import binascii

_KIND = "sinkstream-1."


def encode_thought(thought: str) -> str:
    """Return the encoded form."""
    return _KIND + base64.urlsafe_b64encode(thought.encode()).decode()


def decode_thought(given: str) -> str | None:
    """Return the thought; None if this server did not encode it."""
    if not given.startswith(_KIND):
        return None
    try:
        return base64.b64decode(given[len(_KIND) :], b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        return None
