from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path

import pytest

from gateway.cli.bench.machine.privacy import names, scrubbed

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
        ("/Users/jane/models/qwen/config.json is no JSON", "~/models/qwen/config.json is no JSON"),
        ("cannot read '/Volumes/Big Disk/m/x.safetensors'", "cannot read '…/Big Disk/m/x.safetensors'"),
        ("jane@janes-mac.local:/opt/homebrew/bin/python3", "USER@HOST:…/python3"),
        ("unix:/tmp/agentmem-x/run/worker.sock", "unix:FOLDER/run/worker.sock"),
        ("/private/tmp/agentmem-x/data", "…/data"),
        ("http://127.0.0.1:8080/v1/chat and mlx-community/Qwen3-4B-4bit", None),
        ("919 tokens/s, janet, 4/8", None),
    ],
)
def test_texts_lose_names_and_directories(said: str, shown: str | None) -> None:
    found = scrubbed(said, WORDS)
    assert found == (said if shown is None else shown)


def test_all_that_json_has_is_looked_at() -> None:
    given = {"jane": [{"at": "/home/x/y", "n": 1.5, "no": None, "is": True}], "janes-mac": "janes-mac"}
    assert scrubbed(given, WORDS) == {"USER": [{"at": "…/y", "n": 1.5, "no": None, "is": True}], "HOST": "HOST"}


def test_this_user_host_and_home_are_known(tmp_path: Path) -> None:
    text = f"{getpass.getuser()} on {socket.gethostname()}: {Path.home()}/x, {tmp_path}/run/worker.sock"
    shown = json.dumps(scrubbed([text], names(tmp_path)), ensure_ascii=False)
    assert shown == '["USER on HOST: ~/x, FOLDER/run/worker.sock"]'
