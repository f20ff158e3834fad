from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentmem.console import Mistake
from agentmem.v1 import model_pb2
from gateway.cli.launch.clients import CLIENTS
from gateway.cli.launch.command import _http, check, directory_name
from gateway.cli.main import main
from gateway.cli.up.lock import LOCK_FILE

MODEL = model_pb2.Model(
    model_id="m", state=model_pb2.MODEL_STATE_LOADED, tool_parser="json_tools", context_length=32_768
)


@pytest.mark.parametrize(
    ("path", "name"),
    [("/home/me/my app", "my app"), ("/", "root"), ("/a/" + "é" * 101, "é" * 100), ("/a/Bu\u0308ro", "Büro")],
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


def test_http_address_is_the_one_of_what_runs_on_the_configured_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agentmem.toml").write_text(f'[up]\ndata = "{tmp_path}"\n')
    monkeypatch.setenv("AGENTMEM_CONFIG", str(tmp_path / "agentmem.toml"))
    monkeypatch.delenv("AGENTMEM_UP_DATA", raising=False)
    lock = tmp_path / LOCK_FILE
    lock.write_text(json.dumps({"pid": os.getpid(), "grpc": "127.0.0.1:1", "http": "127.0.0.1:2"}))
    assert _http("127.0.0.1:1") == "127.0.0.1:2"
    assert _http("127.0.0.1:3") == "127.0.0.1:8080"
    os.utime(lock, (0, 0))  # of a process whose number this one got later
    assert _http("127.0.0.1:1") == "127.0.0.1:8080"


def test_working_directory_that_is_deleted_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, working = tmp_path / "bin", tmp_path / "working"
    programs.mkdir()
    working.mkdir()
    (programs / "pi").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.chdir(working)
    working.rmdir()
    answered = CliRunner().invoke(main, ["launch", "pi"], prog_name="agentmem")
    assert answered.exit_code == 2 and "the working directory is deleted" in answered.output
    monkeypatch.chdir(tmp_path)
