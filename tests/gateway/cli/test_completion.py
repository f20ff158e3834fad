"""Completion in real shells, as the printed scripts do it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trustme

from gateway.app import Gateway
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.secured import add_key, secured

PROGRAMS = Path(sys.executable).parent
COMPLETE = """
eval "$(agentmem completion bash)"
complete -p agentmem > /dev/null
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_agentmem_completion "$1"
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""What bash does when Tab is pressed behind the last of the words."""


def environment(**more: str) -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if not name.startswith("AGENTMEM_")}
    return {**given, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", **more}


def completed(*words: str, **more: str) -> list[str]:
    """What bash offers for the last of the words."""
    done = subprocess.run(
        ("bash", "--norc", "-c", COMPLETE, "bash", *words),
        capture_output=True, text=True, check=True, timeout=60, env=environment(**more),
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.mark.slow
def test_commands_and_options() -> None:
    assert completed("agentmem", "mo") == ["models"]
    assert {"search", "pull", "load"} <= {*completed("agentmem", "models", "")}
    assert completed("agentmem", "chat", "--mo") == ["--model"]
    assert "--no-ui" in completed("agentmem", "up", "--no-u") or "--ui" in completed("agentmem", "up", "--u")
    assert completed("agentmem", "doctor", "--off") == ["--offline"]
    assert completed("agentmem", "completion", "f") == ["fish"]


@pytest.mark.slow
async def test_names_of_the_gateway(gateway: Gateway, worker: ScriptedWorker) -> None:
    at = gateway.addresses["grpc"]
    known = await asyncio.to_thread(completed, "agentmem", "models", "load", "", AGENTMEM_ADDRESS=at)
    assert known and all(known)
    first = known[0]
    assert first in await asyncio.to_thread(completed, "agentmem", "chat", "--gateway", at, "--model", first[:2])


@pytest.mark.slow
def test_a_gateway_that_does_not_answer_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections, and says nothing
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        assert completed("agentmem", "chat", "a", AGENTMEM_ADDRESS=at) == [""]
    assert completed("agentmem", "agents", "show", "a", AGENTMEM_ADDRESS="127.0.0.1:9") == [""]


def test_an_ill_formed_address_has_no_names() -> None:
    assert completed("agentmem", "agents", "show", "a", AGENTMEM_ADDRESS="nowhere") == [""]
    assert completed("agentmem", "agents", "show", "--gateway", "127.0.0.1:x", "a") == [""]


@pytest.mark.slow
async def test_it_asks_as_the_command_would(run_dir: Path, tmp_path: Path, worker: ScriptedWorker) -> None:
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    key = add_key(run_dir)
    (tmp_path / "mine").write_text(key)
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}

    async def names(*options: str, **environment: str) -> list[str]:
        words = ("agentmem", "models", *options, "load", "")
        return await asyncio.to_thread(completed, *words, AGENTMEM_ADDRESS=at, **environment)

    async with secured(run_dir, **files) as gateway:
        at, ca_file = gateway.addresses["grpc"], str(tmp_path / "ca.pem")
        assert all(known := await names("--ca", ca_file, AGENTMEM_API_KEY=key)) and known
        assert await names(AGENTMEM_CA=ca_file, AGENTMEM_API_KEY=key) == known
        assert await names("--ca", str(tmp_path / "none"), AGENTMEM_API_KEY=key) == [""]
        assert await names("--key-file", str(tmp_path / "mine"), "--ca", ca_file) == [""]


def test_with_tls_the_key_is_never_sent_in_clear_text() -> None:
    sent: list[bytes] = []

    def hear(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(10)
            sent.append(connection.recv(3))

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        hearing = threading.Thread(target=hear, args=(server,))
        hearing.start()
        at = f"127.0.0.1:{server.getsockname()[1]}"
        assert completed("agentmem", "chat", "--tls", "--gateway", at, "a", AGENTMEM_API_KEY="secret") == [""]
        hearing.join()
    assert sent[0][:1] == b"\x16", "TLS begins with a handshake"


def test_no_key_goes_to_another_machine_in_clear_text() -> None:
    """And nothing is written, as the command's warning would be."""
    at = "gateway.example:9"
    assert completed("agentmem", "chat", "--gateway", at, "a", AGENTMEM_API_KEY="secret") == [""]


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_the_scripts_are_of_their_shells(shell: str, check: str, tmp_path: Path) -> None:
    printed = subprocess.run(
        (PROGRAMS / "agentmem", "completion", shell), capture_output=True, text=True, check=True, env=environment()
    )
    assert "_AGENTMEM_COMPLETE" in printed.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}, to read the script that was printed")
    script = tmp_path / "script"
    script.write_text(printed.stdout)
    subprocess.run((shell, check, str(script)), check=True)


def test_fish_and_zsh_ask_for_the_same() -> None:
    """The scripts differ in what they make of the answer; here the answer, as their protocols have it."""
    for shell, words in (("fish", {"COMP_WORDS": "agentmem mo", "COMP_CWORD": "mo"}),
                         ("zsh", {"COMP_WORDS": "agentmem mo", "COMP_CWORD": "1"})):  # fmt: skip
        said = subprocess.run(
            (PROGRAMS / "agentmem",), capture_output=True, text=True, check=False,
            env=environment(_AGENTMEM_COMPLETE=f"{shell}_complete", **words),
        ).stdout  # fmt: skip
        assert "models" in said and "Show, load or unload models" in said
