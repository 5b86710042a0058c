"""The secret that replicas of one Ray cluster use to talk to each other.

It is kept in Ray's key-value store rather than in the deployment's arguments: with a new secret for
each `serve deploy`, Ray would replace all replicas each time.
"""

from __future__ import annotations

import secrets

from ray.experimental import internal_kv

_KEY = b"sinkstream:peer_secret"


def shared_secret() -> str:
    """Return the cluster's secret. Blocks briefly."""
    internal_kv._internal_kv_put(_KEY, secrets.token_hex(16).encode(), overwrite=False)
    secret: bytes = internal_kv._internal_kv_get(_KEY)
    return secret.decode()
