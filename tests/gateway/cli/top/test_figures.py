import json
from pathlib import Path

import jsonschema
from click.testing import CliRunner

from gateway.cli.main import main
from gateway.cli.top.figures import json_schema

FILE = Path(__file__).parents[4] / "deploy" / "top.schema.json"


def test_the_file_is_what_the_models_say() -> None:
    made = CliRunner().invoke(main, ["top", "--schema"]).output
    assert FILE.read_text(encoding="utf-8") == made, "run: agentmem top --schema > deploy/top.schema.json"
    jsonschema.Draft202012Validator.check_schema(json.loads(made))


def test_every_name_is_described() -> None:
    schema = json_schema()
    for part in (schema, *schema["$defs"].values()):
        assert all(field.get("description") for field in part["properties"].values()), part
        assert part["required"] == list(part["properties"])
