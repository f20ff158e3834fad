from __future__ import annotations

import getpass
import socket
from pathlib import Path

import pytest

from gateway.cli.bench.machine.page import page
from gateway.cli.bench.machine.privacy import names, scrubbed, text
from tests.gateway.cli.bench.machine.test_page import whole

WORDS = {
    "/Users/jane": "~",
    "jane": "USER",
    "janes-mac.local": "HOST",
    "janes-mac": "HOST",
    "/tmp/agentmem-x": "FOLDER",
}


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("/Users/jane/models/qwen/config.json is no JSON", "…/config.json is no JSON"),
        ("~/Clients/ACME Corp/models/x, ~/x", "…/x, ~/x"),
        ("cannot read '/Volumes/Big Disk/m/x.safetensors'", "cannot read '…/x.safetensors'"),
        ("open '~/A, B (C)/my model' or \"/Users/ann/it's/b c\"", "open '…/my model' or \"…/b c\""),
        ("no /Volumes/My Disk/ACME/models/q here", "no …/q here"),
        ("file:///Users/other/secret/x and file:///srv/ACME/x", "…/x and …/x"),
        ("'/Volumes/My Disk' of /Users/other, /HOME/other: 5", "'…' of …, …: 5"),
        ("JANE on Janes-Mac: /USERS/JANE/x", "USER on HOST: ~/x"),
        ('"POST /v1/chat/completions HTTP/1.1" 200', '"POST …/completions HTTP/1.1" 200'),
        ('File "/srv/x/y.py", line 3, in a/b', 'File "…/y.py", line 3, in a/b'),
        ("jane@janes-mac.local:/opt/homebrew/bin/python3", "USER@HOST:…/python3"),
        ("unix:/tmp/agentmem-x/run/worker.sock", "unix:FOLDER/run/worker.sock"),
        ("/private/tmp/agentmem-x/data", "…/data"),
        ("http://127.0.0.1:8080/v1/chat and mlx-community/Qwen3-4B-4bit", None),
        ("919 tokens/s, janet, 4/8", None),
    ],
)
def test_texts_lose_names_and_directories(said: str, shown: str | None) -> None:
    found = text(said, WORDS)
    assert found == (said if shown is None else shown)


def test_free_texts_are_scrubbed_and_keys_stay() -> None:
    given = {
        "settings": {"AGENTMEM_WORKER_JANE": "jane", "jane": "/home/x/y"},
        "versions": {"jane": "jane"},
        "parts": [
            {"part": "jane", "server": "jane", "error": "by jane"},
            {"part": "jane", "found": {"jane": {"notes": ["janes-mac"], "skipped": "jane", "n": 1.5, "no": None}}},
            {"found": {"findings": [{"check": "model jane", "found": "of jane", "facts": {"jane": ["jane"]}}]}},
        ],
        "warnings": {"jane": ["WARNING jane"]},
    }
    assert scrubbed(given, WORDS) == {
        "settings": {"AGENTMEM_WORKER_JANE": "USER", "jane": "…/y"},
        "versions": {"jane": "jane"},
        "parts": [
            {"part": "jane", "server": "jane", "error": "by USER"},
            {"part": "jane", "found": {"jane": {"notes": ["HOST"], "skipped": "USER", "n": 1.5, "no": None}}},
            {"found": {"findings": [{"check": "model USER", "found": "of USER", "facts": {"jane": ["USER"]}}]}},
        ],
        "warnings": {"jane": ["WARNING USER"]},
    }


@pytest.mark.parametrize(
    "user", ["model", "agentmem", "mlx-lm", "work", "start", "part", "found", "backend", "decode", "python", "samples"]
)
def test_page_is_whole_whatever_the_user_is_named(user: str) -> None:
    found = whole()
    found["parts"][0]["found"]["findings"].append({"state": "ok", "check": "backend", "found": "Metal"})
    assert page(scrubbed(found, {user: "USER"})).replace("USER", user) == page(found)
    assert "| first start, to an answer |" in page(scrubbed(found, {user: "USER"}))


def test_this_user_host_and_home_are_known(tmp_path: Path) -> None:
    said = f"{getpass.getuser()} on {socket.gethostname()}: {Path.home()}/x, {tmp_path}/run/worker.sock"
    words = names(tmp_path, output=Path("/"), model=Path("/"))
    assert text(said, words) == "USER on HOST: ~/x, FOLDER/run/worker.sock"


def test_directories_of_the_model_and_of_the_output_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv/jane d")
    (tmp_path / "A, Inc" / "m").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    model, output = Path("/srv/jane d/ACME, Inc (old) of all our clients/m q"), Path("/data/Our Results/of, may")
    words = names(tmp_path / "f", output=output, model=model, source="A, Inc/m")
    for said, shown in (
        (f"{model}/config.json and {str(model).lower()}: bad", "…/config.json and …/m q: bad"),
        ("~/ACME, Inc (old) of all our clients/m q", "…/m q"),
        (f"{output}: full; {output.parent}/x", "…: full; …/x"),
        ("file:///data/Our%20Results/of%2C%20may/x", "file://…/x"),
        ("A, Inc/m is no model", "…/m is no model"),
    ):
        assert text(said, words) == shown
