"""The header with which a peer authenticates."""

from __future__ import annotations

import hmac
from typing import Any

HEADER = b"x-sinkstream-peer"


def is_peer(scope: Any, secret: str) -> bool:
    """Return whether a request comes from a peer; never without a secret."""
    given = [value for name, value in scope["headers"] if name == HEADER]
    return bool(secret) and len(given) == 1 and hmac.compare_digest(given[0], secret.encode())
