import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gateway.cli.habits import understood
from gateway.cli.main import main
from gateway.cli.up.lock import LOCK_FILE
from tests.gateway.cli.test_main import agentmem


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's, and a directory without files of these names."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AGENTMEM_UP_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("serve", "up"),
        ("serve smol --port 8000", "up smol --port 8000"),
        ("start --http 8080", "up --http 8080"),
        ("server start --port 1234", "up --port 1234"),
        ("pull org/smol", "models pull org/smol"),
        ("get org/smol", "models pull org/smol"),
        ("list", "models list"),
        ("ls --json", "models list --json"),
        ("ps", "models list"),
        ("load smol", "models load smol"),
        ("unload smol", "models unload smol"),
        ("stop smol", "models unload smol"),
        ("show smol", "models show smol"),
        ("search qwen 4bit", "models search qwen 4bit"),
        ("run smol", "chat --model smol"),
        ("run org/smol hello", "chat --model org/smol --message hello"),
        ("run smol --keep", "chat --model smol --keep"),
        ("run smol hi --keep", "chat --model smol --message hi --keep"),
        ("run ./folder", "chat --model ./folder"),
        ("run story.yaml", "run story.yaml"),
        ("run story", "run story"),
        ("run smol --check", "run smol --check"),
        ("run --resume wf-1", "run --resume wf-1"),
        ("run .", "run ."),
        ("run", "run"),
        ("up smol", "up smol"),
        ("caht", "caht"),
    ],
)
def test_commands_of_others_are_understood(typed: str, meant: str) -> None:
    Path("folder").mkdir()
    Path("folder", "config.json").touch()
    Path("story").touch()
    assert understood(typed.split(), main.commands) == meant.split()


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("rm smol", "hf cache rm model/OWNER/NAME"),
        ("create smol -f Modelfile", "agentmem up --model NAME=DIRECTORY"),
        ("down", "Ctrl-C where `agentmem up` runs"),
        ("stop", "Ctrl-C where `agentmem up` runs"),
        ("server stop", "Ctrl-C where `agentmem up` runs"),
        ("status", "agentmem doctor"),
        ("logs", "logs/up.log"),
        ("version", "agentmem --version"),
        ("models smol", "agentmem models pull smol"),
        ("agents bob", "agentmem agents show bob"),
        ("up --api-key x", "agentmem keys create"),
        ("up --dtype half", "AGENTMEM_WORKER_DTYPE"),
        ("serve smol --host 0.0.0.0", "set --keys"),
        ("serve --http 99999", "is not HOST:PORT"),
        ("up --http 8080 --port 8000", "leave --host and --port out"),
        ("up --ctx-size few", "context_length: 'few' is not a whole number"),
        ("up --ctx-size 1 --context-length 2", "leave one out"),
        ("up --modle x", "'--model', '--models', '--node'?). `agentmem up --help` says more."),
        ("up --data", "Option '--data' requires an argument."),
        ("mdoels", "Did you mean 'models'? `agentmem --help` says more."),
        ("agents show", "Missing argument 'AGENT'. `agentmem agents show --help` says more."),
    ],
)
def test_others_are_answered_in_one_line(typed: str, command: str) -> None:
    answered = CliRunner().invoke(main, typed.split(), prog_name="agentmem")
    assert (answered.exit_code, answered.output.count("\n")) == (2, 1)
    assert answered.output.startswith("Error: ") and command in answered.output


def test_what_is_understood_runs() -> None:
    assert "up [OPTIONS] [MODEL]..." in agentmem("serve", "--help").stdout
    ended = agentmem("list", "--gateway", "127.0.0.1:1")
    assert ended.returncode == 1 and "no gateway answers at 127.0.0.1:1" in ended.stderr


@pytest.mark.parametrize("data", [".agentmem", "elsewhere"])
def test_a_stack_that_runs_is_named_by_its_pid(tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / data).mkdir()
    if data == "elsewhere":
        (tmp_path / "agentmem.toml").write_text(f'[up]\ndata = "{tmp_path / data}"\n')
        monkeypatch.setenv("AGENTMEM_CONFIG", str(tmp_path / "agentmem.toml"))
    (tmp_path / data / LOCK_FILE).write_text(json.dumps({"pid": os.getpid()}))
    with pytest.raises(click.ClickException, match=f"agentmem down: `kill {os.getpid()}`, or Ctrl-C"):
        understood(["down"], main.commands)
