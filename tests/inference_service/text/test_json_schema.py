"""Schemas that cannot be honoured are refused, by keyword, and what they say stays unsaid."""

import json
from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from inference_service.text.grammar import Grammars
from inference_service.text.json_schema import check, problem
from tests.inference_service.real_tokenizers import byte_level

SECRET = "s3cr3t"
GRAMMARS = Grammars(byte_level(), byte_level().vocab_size)

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"x-guidance": {"lenient": True}, "not": {"const": SECRET}}, "x-guidance"),
    ({"not": {"const": SECRET}}, "not cannot"),
    ({"if": {"const": SECRET}, "then": {}, "else": {}}, "else, if, then cannot"),
    ({"type": "array", "uniqueItems": True, "title": SECRET}, "uniqueItems cannot"),
    ({"type": "array", "contains": {"const": SECRET}}, "contains cannot"),
    ({"propertyNames": {"pattern": SECRET}}, "propertyNames cannot"),
    ({"dependentRequired": {SECRET: [SECRET]}}, "dependentRequired cannot"),
    ({"dependentSchemas": {SECRET: {}}}, "dependentSchemas cannot"),
    ({"unevaluatedProperties": False}, "unevaluatedProperties cannot"),
    ({"$dynamicRef": f"#{SECRET}"}, "$dynamicRef cannot"),
    ({"properties": {SECRET: {"not": {}}}}, "not cannot"),
    ({"type": "string", "format": SECRET}, "format"),
    ({"type": "string", "pattern": f"(?={SECRET})"}, "pattern"),
    ({"type": "string", "pattern": f"(?<{SECRET}>a)\\1"}, "pattern"),
    ({"patternProperties": {f"({SECRET}": {}}}, "pattern"),
    ({"patternProperties": {SECRET: {}, f"{SECRET}.*": {}}}, "patternProperties"),
    ({"$ref": f"http://127.0.0.1/{SECRET}"}, "another document"),
    ({"$ref": f"file:///{SECRET}"}, "another document"),
    ({"$ref": f"#/$defs/{SECRET}"}, "not there"),
    ({"type": SECRET}, "type"),
    ({"type": "number", "minimum": SECRET}, "minimum"),
    ({"type": "number", "exclusiveMinimum": True, "minimum": 1, "title": SECRET}, "exclusiveMinimum"),
    ({"required": SECRET}, "required"),
    ({"properties": [SECRET]}, "properties"),
    ({"enum": []}, "no JSON"),
    ({"enum": [SECRET], "const": f"{SECRET}2"}, "no JSON"),
    ({"type": "object", "required": [SECRET], "properties": {SECRET: False}}, "no JSON"),
    ({"type": "string", "minLength": 3, "maxLength": 2, "title": SECRET}, "no JSON"),
    ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 4, "title": SECRET}]}, "oneOf"),
    ({"type": "object", "properties": {SECRET: {}}, "maxProperties": 1}, "maxProperties"),
    ({"type": "object", "minProperties": 2, "title": SECRET}, "minProperties"),
    ({"properties": {SECRET: {"anyOf": [{"required": ["a", "a"], "minProperties": 3}]}}}, "minProperties"),
    ({"additionalProperties": SECRET}, "cannot be honoured"),
]


def accept(schema: dict[str, Any]) -> None:
    check(schema)
    GRAMMARS.compile(json.dumps(schema))


@pytest.mark.parametrize(("schema", "said"), REFUSED, ids=[json.dumps(schema)[:40] for schema, _ in REFUSED])
def test_what_cannot_be_honoured_is_named_and_not_quoted(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        accept(schema)
    assert error.value.field == "json_schema"
    assert said in error.value.problem
    assert SECRET not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize("text", ["", "nothing", '{"minimum": 1e999}', '{"minimum": NaN}', '{"a": 1} {'])
def test_what_the_library_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        GRAMMARS.compile(text)


def test_names_of_properties_are_no_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {"not": {"type": "null"}, "minProperties": {"type": "integer"}, "x-guidance": True},
        "required": ["not"],
        "minProperties": 1,
        "x-mine": SECRET,
    }
    check({"type": "object", "minProperties": 2, "required": ["a"], "additionalProperties": {"type": "null"}})
    check(schema)
    schema["required"] = ["not", "minProperties", "x-guidance"]
    GRAMMARS.compile(json.dumps(schema))


def test_a_name_that_nobody_knows_is_not_repeated() -> None:
    assert SECRET not in problem(f'Unimplemented keys: ["{SECRET}", "not"]').problem
    assert "not cannot" in problem(f'Unimplemented keys: ["{SECRET}", "not"]').problem
    assert SECRET not in problem(f"{SECRET} must be a string").problem
    assert SECRET not in problem(SECRET).problem
