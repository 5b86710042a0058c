"""Schemas of tools as generators write them, and which keywords of each cannot be enforced."""

from __future__ import annotations

from typing import Any


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


_A = {"type": "string", "maxLength": 3}
_CAT = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
_DOG = {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}
_NO_EXTRA: dict[str, Any] = {"additionalProperties": False}

GENERATED: dict[str, tuple[dict[str, Any], set[str]]] = {
    # pydantic
    "optional": (_object(a={"anyOf": [_A, {"type": "null"}], "default": None}), set()),
    "set": (_object(a={"type": "array", "items": _A, "uniqueItems": True}), {"uniqueItems"}),
    "conset": (_object(a={"type": "array", "items": _A, "uniqueItems": False}), set()),
    "phone": (_object(a={"type": "string", "format": "phone"}), {"format"}),
    "binary": (_object(a={"type": "string", "format": "binary"}), {"format"}),
    "path": (_object(a={"type": "string", "format": "path"}), {"format"}),
    "json-string": (_object(a={"type": "string", "contentMediaType": "application/json",
                               "contentSchema": {"not": {}}}), set()),
    "decimal": (_object(a={"anyOf": [{"type": "number"}, {
        "type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]}), {"pattern"}),
    "constr": (_object(a={"type": "string", "pattern": "^(?=a)a", "minLength": 1}), {"pattern"}),
    "discriminated": (_object(a={"discriminator": {"propertyName": "kind"},
                                 "oneOf": [_CAT, _DOG]}), set()),
    "tuple": (_object(a={"type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [_A, _A]}),
              set()),
    "reference": ({"$defs": {"A": _A},
                   **_object(a={"$ref": "#/$defs/A", "description": "x"})}, set()),
    "enum": ({"$defs": {"E": {"enum": ["a"], "type": "string", "title": "E"}},
              **_object(a={"allOf": [{"$ref": "#/$defs/E"}], "default": "a"})}, set()),
    "positive": (_object(a={"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}), set()),
    "timedelta": (_object(a={"type": "string", "format": "duration"}), set()),
    "uri": (_object(a={"type": "string", "format": "uri", "minLength": 1}), set()),
    "map": (_object(a={"type": "object", "additionalProperties": _A,
                       "propertyNames": {"pattern": "^a"}}), {"propertyNames"}),
    # zod
    "record": (_object(a={"type": "object", "propertyNames": {"type": "string"},
                          "additionalProperties": _A}), set()),
    "int": (_object(a={"type": "integer", "minimum": -9007199254740991,
                       "maximum": 9007199254740991}), set()),
    "cuid": (_object(a={"type": "string", "format": "cuid", "pattern": "^c[^\\s-]{8,}$"}),
             {"format"}),
    "not": (_object(a={"not": {}}), {"not"}),
    "draft-7 tuple": (_object(a={"type": "array", "items": [_A], "additionalItems": False}), set()),
    "draft-4 bound": (_object(a={"type": "number", "minimum": 0, "exclusiveMinimum": True,
                                 "maximum": 1}), set()),
    "union": (_object(a={"oneOf": [_A, {"type": "string"}]}), {"oneOf"}),
    "intersection": (_object(a={"allOf": [_CAT, {"type": "object", "properties": {"b": _A}}],
                                "unevaluatedProperties": False}), {"unevaluatedProperties"}),
    "sealed": ({**_object(a=_A), "unevaluatedProperties": False}, set()),
    # TypeScript, OpenAPI, Go
    "int64": (_object(a={"type": "integer", "format": "int64", "minimum": -(2**63),
                         "maximum": 2**63 - 1}), set()),
    "uint64": (_object(a={"type": "integer", "minimum": 0, "maximum": 2**64 - 1}), set()),
    "int32": (_object(a={"type": "integer", "format": "int32"}), set()),
    "nullable": (_object(a={"type": "string", "nullable": True, "maxLength": 3}), set()),
    "definitions": ({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"A": _A},
                     **_object(a={"$ref": "#/definitions/A"})}, set()),
    "remote": (_object(a={"$ref": "https://example.org/a.json"}), {"$ref"}),
    "components": (_object(a={"$ref": "#/components/schemas/A"}), {"$ref"}),
    "anchor": (_object(a={"$ref": "#a"}), {"$ref"}),
    "dependent": ({**_object(a=_A, b=_A), "dependentRequired": {"a": ["b"]}},
                  {"dependentRequired"}),
    "dependencies": ({**_object(a=_A, b=_A), "dependencies": {"a": ["b"]}}, {"dependencies"}),
    # MCP servers, and by hand. A property without instances is just never written.
    "conditional": ({**_object(a=_A), "if": {"required": ["a"]}, "then": {"required": ["b"]},
                     "else": {}}, {"if", "then", "else"}),
    "any": (_object(a={"type": "any"}), {"type"}),
    "float": (_object(a={"type": "float", "description": "x"}), {"type"}),
    "contains": (_object(a={"type": "array", "contains": _A, "minContains": 1}),
                 {"contains", "minContains"}),
    "at least one": ({**_object(a=_A, b=_A), "minProperties": 1}, {"minProperties"}),
    "two of a pattern": ({"type": "object", "patternProperties": {"^a$": _A}, "minProperties": 2,
                          **_NO_EXTRA}, {"minProperties"}),
    "missing": ({"type": "object", "properties": {}, "required": ["a"], **_NO_EXTRA},
                {"additionalProperties"}),
    "backwards": (_object(a={"type": "string", "minLength": 4, "maxLength": 2}), set()),
    "empty enum": (_object(a={"type": "string", "enum": []}), set()),
    "word boundary": (_object(a={"type": "string", "pattern": r"^\w+\b"}), {"pattern"}),
    "recursion": ({"$defs": {"N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}}},
                   **_object(a={"$ref": "#/$defs/N"})}, set()),
}  # fmt: skip
