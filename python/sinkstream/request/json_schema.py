"""The text of a JSON schema, from any of the forms in which Python programs hold one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import as_text


def as_schema_text(where: str, name: str, value: Any) -> str:
    """Return the text of a schema, given as a mapping, a JSON string or a pydantic class.

    Raises:
        TypeError: It is something else, or holds values that JSON does not have.
        InvalidArgument: It is not JSON.
    """
    if isinstance(value, str):
        return as_text(where, name, value)
    describe = getattr(value, "model_json_schema", None) if isinstance(value, type) else None
    schema = value if describe is None else describe()
    if not isinstance(schema, Mapping):
        raise TypeError(
            f"{where}: `{name}` must be a dict, a JSON string or a class with "
            f"`model_json_schema`, but is of type {type(value).__name__}."
        )
    try:
        text = json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise TypeError(f"{where}: `{name}` must hold only JSON, but does not: {error}.") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{where}: `{name}` must hold only JSON, but does not: {error}.", param=name
        ) from None
    return as_text(where, name, text)
