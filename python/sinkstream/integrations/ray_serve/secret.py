"""The secret with which replicas of one Ray cluster ask each other.

It lies in Ray's key-value store, not in the arguments of the deployment: with a new secret for each
`serve deploy`, Ray would replace all replicas each time.
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
