"""Writes the server's log to standard error: lines for people, or JSON for programs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import orjson

from sinkstream.server.request_log import FACTS, logger
from sinkstream.structured.grammars import logger as schema_logger


class _AsJson(logging.Formatter):
    """Writes an object in each line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record with its facts, if it is a request's, else with its message."""
        facts = getattr(record, FACTS, None)
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **({"message": record.getMessage()} if facts is None else facts),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


def log_to_stderr(level: str, form: str) -> None:
    """Write what has at least this level, as "text" or "json"."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_AsJson() if form == "json" else text)
    for one in (logger, schema_logger):
        one.addHandler(handler)
        one.setLevel(level.upper())
        one.propagate = False
