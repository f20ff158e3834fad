import json
from typing import Any

import jsonschema
import pytest

from gateway.workflows.definition.parser import MalformedDefinition, load, read
from gateway.workflows.definition.schema import json_schema
from tests.gateway.workflows.definition.test_parser import GOOD, SCHEMA


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    made = json.loads(json.dumps(json_schema()))
    assert made["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)


def test_it_takes_what_load_takes(schema: jsonschema.Draft202012Validator) -> None:
    load(GOOD, {})
    schema.validate(read(GOOD).data)


@pytest.mark.parametrize("text", SCHEMA.values(), ids=SCHEMA)
def test_it_refuses_what_has_not_its_form(schema: jsonschema.Draft202012Validator, text: str) -> None:
    assert not schema.is_valid(read(text).data)


LEAST: dict[str, Any] = {"workflow": "w", "agents": {"a": {}}, "phases": [{"name": "p", "agents": ["a"]}]}


@pytest.mark.parametrize(
    "phase",
    [
        {"outcome": {"kind": "vote", "options": ["x", "y"], "voters": []}},
        {"outcome": {"kind": "vote", "options": ["x", ""]}},
        {"outcome": {"kind": "text", "agent": "a", "schema": {}}},
        {"to": {"a b": ["a"]}},
        {"to": {"a": []}},
        {"prompts": {"**": "x"}},
        {"prompts": "x" * 16385},
        {"pairs": [["a", "b", "c"]]},
        {"rounds": True},
        {"agents": ["a"] * 65},
        {"until": {"said": ""}},
        {"until": {"by": "not a name"}},
    ],
    ids=lambda phase: json.dumps(phase)[:50],
)
def test_both_refuse(schema: jsonschema.Draft202012Validator, phase: dict[str, Any]) -> None:
    schema.validate(LEAST)
    assert load(json.dumps(LEAST), {}).phases
    data = {**LEAST, "phases": [{**LEAST["phases"][0], **phase}]}
    assert not schema.is_valid(data)
    with pytest.raises(MalformedDefinition):
        load(json.dumps(data), {})
