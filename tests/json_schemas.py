"""JSON Schemas to hold texts to, made by hypothesis and by ill will."""

import json
from typing import Any

import jsonschema
from hypothesis import strategies as st

Schema = dict[str, Any]

NAMES = st.sampled_from(["a", "b", "name", "größe", "x y", 'qu"ote'])


def fits(text: str, schema: Schema) -> bool:
    """Return whether a text is JSON that fits, by a library that has no part in making it."""
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _bounded(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high)).map(lambda pair: (min(pair), max(pair)))


LEAVES: st.SearchStrategy[Schema] = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    _bounded(-2000, 2000).map(lambda b: {"type": "integer", "minimum": b[0], "maximum": b[1]}),
    _bounded(-9, 9).map(lambda b: {"type": "number", "minimum": b[0], "exclusiveMaximum": b[1] + 1}),
    _bounded(0, 12).map(lambda b: {"type": "string", "minLength": b[0], "maxLength": b[1]}),
    st.sampled_from([r"^[a-c]{1,4}$", r"^\d{2}-\d{2}$", "^(ja|nein|vielleicht)$", "^ü+x{0,3}é$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern, "maxLength": 20}
    ),
    st.sampled_from(["date", "time", "uuid", "ipv4"]).map(lambda name: {"type": "string", "format": name}),
    st.lists(
        st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.text(max_size=5)), min_size=1, max_size=4
    ).map(lambda values: {"enum": values}),
)


def _larger(schemas: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    properties = st.dictionaries(NAMES, schemas, max_size=4)
    objects = properties.flatmap(
        lambda named: (
            st.lists(st.sampled_from(sorted(named)), unique=True).map(
                lambda required: {
                    "type": "object",
                    "properties": named,
                    "required": required,
                    "additionalProperties": False,
                }
            )
            if named
            else st.just({"type": "object", "additionalProperties": False})
        )
    )
    maps = st.tuples(schemas, st.integers(0, 2)).map(
        lambda pair: {"type": "object", "additionalProperties": pair[0], "maxProperties": pair[1]}
    )
    arrays = st.tuples(schemas, _bounded(0, 3)).map(
        lambda pair: {"type": "array", "items": pair[0], "minItems": pair[1][0], "maxItems": pair[1][1]}
    )
    tuples = st.lists(schemas, min_size=1, max_size=3).map(
        lambda items: {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    )
    choices = st.lists(schemas, min_size=1, max_size=3).map(lambda options: {"anyOf": options})
    return st.one_of(objects, maps, arrays, tuples, choices)


def _referred(schema: Schema) -> Schema:
    return {"$defs": {"part": schema}, "type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 2}


_PLAIN = st.recursive(LEAVES, _larger, max_leaves=6)

SCHEMAS: st.SearchStrategy[Schema] = st.one_of(_PLAIN, _PLAIN.map(_referred))


def _nested(depth: int) -> Schema:
    schema: Schema = {"type": "string"}
    for level in range(depth):
        schema = {"type": "object", "properties": {"a": schema, "b": schema if level < 11 else True}, "required": ["a"]}
    return schema


HOSTILE: dict[str, Schema] = {
    "counted in a count": {"type": "string", "pattern": "^(a{1000}){1000}$"},
    "a remembered choice": {"type": "string", "pattern": "^((a|b)*a(a|b){40}){1,50}$"},
    "many alternatives": {"type": "string", "pattern": "(a|b|c|d)?" * 6000},
    "deep groups": {"type": "string", "pattern": "(" * 300 + "a" + ")" * 300},
    "patterns on patterns": {"allOf": [{"type": "string", "pattern": f".*{c}.{{15}}"} for c in "abcdefghijklmnop"]},
    "a long string": {"type": "string", "minLength": 10**9},
    "a long array": {"type": "array", "minItems": 10**9, "items": {"type": "array", "minItems": 10**9}},
    "doubling by nesting": _nested(12),
    "doubling by allOf": {
        "allOf": [{"anyOf": [{"type": "object", "properties": {f"{i}{j}": {}}} for j in "ab"]} for i in range(12)]
    },
    "doubling by $ref": {
        "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)} | {"d30": {}},
        "$ref": "#/$defs/d0",
    },
    "a circle": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "a circle with siblings": {"allOf": [{"$ref": "#"}, {"type": "object"}]},
    "many optional properties": {"type": "object", "properties": {f"p{i}": {} for i in range(3000)}},
    "many ranges": {
        "type": "object",
        "properties": {f"p{i}": {"type": "integer", "minimum": i, "maximum": 10**15 + i} for i in range(900)},
    },
    "a large prime": {"type": "integer", "multipleOf": 999999937},
    "many constants": {"enum": [f"v{i * 7919 % 10007}x" for i in range(5000)]},
}
"""Schemas that cost much, if they are let."""
