from __future__ import annotations

from pathlib import Path

import pytest

from agentmem.console import Mistake
from agentmem.v1 import model_pb2
from gateway.cli.launch.clients import CLIENTS
from gateway.cli.launch.command import check, directory_name

MODEL = model_pb2.Model(
    model_id="m", state=model_pb2.MODEL_STATE_LOADED, tool_parser="json_tools", context_length=32_768
)


@pytest.mark.parametrize(
    ("path", "name"), [("/home/me/my app", "my app"), ("/", "root"), ("/a/" + "é" * 101, "é" * 100)]
)
def test_name_of_a_directory(path: str, name: str) -> None:
    assert directory_name(Path(path)) == name


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"state": model_pb2.MODEL_STATE_REGISTERED}, "m is not loaded, and this key may not load it"),
        ({"tool_parser": ""}, "m cannot call tools, which Claude Code needs"),
        ({"context_length": 8192}, "m has a context of 8,192 tokens, and Claude Code needs 32,768"),
    ],
)
def test_model_that_cannot_serve_a_client_is_refused(fields: dict[str, object], told: str) -> None:
    check(CLIENTS["claude"], MODEL)
    model = model_pb2.Model()
    model.CopyFrom(MODEL)
    for field, value in fields.items():
        setattr(model, field, value)
    with pytest.raises(Mistake, match=told):
        check(CLIENTS["claude"], model)
