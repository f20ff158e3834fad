from __future__ import annotations

import os
import plistlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentmem import layout

from .commands import DEPLOY, settings_of

PATH = DEPLOY / "launchd" / "dev.agentmem.up.plist"
MACOS_SOCKET_PATH_BYTES = 103
LONG_NAME = "a-user-with-a-name-of-forty-characters--"


@pytest.fixture(scope="module")
def plist() -> dict[str, Any]:
    loaded: dict[str, Any] = plistlib.loads(PATH.read_bytes())
    return loaded


def test_it_has_time_to_end(plist: dict[str, Any]) -> None:
    grace = settings_of(["agentmem", "up"], plist["EnvironmentVariables"]).model_dump()["grace"]
    assert plist["ExitTimeOut"] > 3 * (grace + layout.END_SECONDS), "the services end one after the other"


@pytest.mark.parametrize("config", [False, True])
def test_what_the_shell_starts(plist: dict[str, Any], config: bool, tmp_path: Path) -> None:
    home = tmp_path / "a home"
    agentmem, logs = home / ".local/bin/agentmem", home / "Library/Logs"
    agentmem.parent.mkdir(parents=True)
    logs.mkdir(parents=True)
    agentmem.write_text('#!/bin/sh\necho "$$ ${AGENTMEM_CONFIG-none} $0 $*"; exit 2\n')
    agentmem.chmod(0o755)
    if config:
        (home / ".agentmem.toml").write_text('[up]\nmodel = ["demo"]\n')
    environment = {"HOME": str(home), "PATH": os.defpath, **plist["EnvironmentVariables"]}
    started = subprocess.Popen(plist["ProgramArguments"], env=environment)
    assert started.wait(30) == 2, "launchd sees agentmem's own status"
    pid, *said = (logs / "agentmem.log").read_text().rstrip("\n").split(" ", 1)
    assert int(pid) == started.pid, "and signals reach it"
    named = home / ".agentmem.toml" if config else "none"
    assert said == [f"{named} {agentmem} up"]
    settings = settings_of(["agentmem", "up"], {**environment, **({"AGENTMEM_CONFIG": str(named)} if config else {})})
    assert settings.model_dump()["model"] == (["demo"] if config else [])


def test_the_sockets_paths_are_short_enough(plist: dict[str, Any]) -> None:
    assert "--run-dir" not in plist["ProgramArguments"][2] and "--data" not in plist["ProgramArguments"][2]
    data = Path("/Users", LONG_NAME, layout.DATA.relative_to("~"))
    for socket in (layout.store_socket, layout.worker_socket):
        assert len(socket(layout.run_directory(data, None)).removeprefix("unix:")) <= MACOS_SOCKET_PATH_BYTES
