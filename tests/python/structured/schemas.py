"""JSON schemas of every kind, whose instances are short, so that random text ends."""

from __future__ import annotations

from typing import Any

NAME = {"type": "string", "maxLength": 8}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "role": {"enum": ["admin", "user", None]},
    },
    "required": ["name", "age", "role"],
    "additionalProperties": False,
}

SCHEMAS: dict[str, dict[str, Any]] = {
    "object": PERSON,
    "optional": {**PERSON, "required": ["age"]},
    "no properties": {"type": "object", "additionalProperties": False},
    "nested": {
        "type": "object",
        "properties": {"a": {"type": "object", "properties": {"b": PERSON}, "required": ["b"],
                             "additionalProperties": False}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, NAME],
        "items": False,
        "minItems": 2,
    },
    "objects": {"type": "array", "items": PERSON, "maxItems": 2},
    "integer": {"type": "integer"},
    "negative": {"type": "integer", "maximum": -3, "minimum": -400},
    "number": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 999},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "string": NAME,
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "enum": {"enum": ["red", "größer", "\u96ea", "\U0001f600", 7, [1, "two"], {"k": None}]},
    "const": {"const": {"version": 1.5, "tags": ["a", "b"]}},
    "types": {"type": ["integer", "null"]},
    "any of": {"anyOf": [{"type": "integer"},
                         {"type": "array", "items": {"const": 1}, "maxItems": 3}]},
    "all of": {"allOf": [{"type": "integer", "minimum": 10}, {"maximum": 99}]},
    "reference": {
        "$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"},
                                                            "v": {"type": "integer"}},
                           "required": ["v"], "additionalProperties": False}},
        "$ref": "#/$defs/tree",
    },
    "map": {"type": "object", "patternProperties": {"^[a-z]{1,4}$": {"type": "integer"}},
            "additionalProperties": False, "maxProperties": 2},
    "words": {"type": "array", "items": {"enum": ["größer", "\u96ea", "a\"b\\"]}, "minItems": 2,
              "maxItems": 3},
}  # fmt: skip
