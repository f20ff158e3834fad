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
    assert text(said, names(tmp_path)) == "USER on HOST: ~/x, FOLDER/run/worker.sock"
