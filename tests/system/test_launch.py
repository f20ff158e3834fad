"""`agentmem launch` with a program in the place of Claude Code; the clients are run by `test_coding_clients.py`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.certificates import of_server
from tests.gateway.running import eventually, running
from tests.gateway.secured import add_key
from tests.scripted_model import write_scripted
from tests.system.shared import of_module
from tests.system.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

stack = of_module("scripted", partial(write_scripted, context=32_768))

CLAUDE = """\
#!{python}
import json, os, signal, ssl, sys, time, urllib.request
settings = json.load(open(sys.argv[2]))
assert settings["env"].items() <= os.environ.items()
match sys.argv[3:]:
    case ["ask", *said]:
        messages = [{{"role": "user", "content": said[0]}}]
        body = json.dumps({{"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 9, "messages": messages}})
        name, _, value = os.environ["ANTHROPIC_CUSTOM_HEADERS"].partition(": ")
        key = "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"]
        headers = {{"content-type": "application/json", "authorization": key, name: value}}
        url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
        request = urllib.request.Request(url, body.encode(), headers)
        trusted = ssl.create_default_context(cafile=os.environ.get("NODE_EXTRA_CA_CERTS"))
        print(urllib.request.urlopen(request, context=trusted).headers["x-agent-id"])
        sys.exit(7)
    case ["wait"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(8))
        print("waits", flush=True)
        time.sleep(600)
    case ["stop"]:
        os.kill(os.getpid(), signal.SIGSTOP)
"""


class Ended(NamedTuple):
    status: int
    out: str
    err: str


class Directory(NamedTuple):
    """A user's working directory, its programs in PATH, flags that name a gateway, and the user's key."""

    path: Path
    programs: Path
    where: tuple[str, ...]
    key: str = ""

    async def begin(self, *arguments: str) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "gateway.cli.main", "launch", *arguments[:1], *self.where, *arguments[1:]]
        variables = {"PATH": f"{self.programs}:/usr/bin:/bin", "AGENTMEM_API_KEY": self.key}
        return await asyncio.create_subprocess_exec(
            *command, cwd=self.path, env={**os.environ, **variables},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def launch(self, *arguments: str) -> Ended:
        process = await self.begin(*arguments)
        out, err = await process.communicate()
        assert process.returncode is not None
        return Ended(process.returncode, out.decode(), err.decode())


@pytest.fixture
def directory(tmp_path: Path, stack: Stack) -> Directory:
    working, programs = tmp_path / "my app", tmp_path / "bin"
    working.mkdir()
    programs.mkdir()
    (programs / "claude").write_text(CLAUDE.format(python=sys.executable))
    (programs / "claude").chmod(0o755)
    return Directory(working, programs, gateway_at(stack.grpc, stack.url.removeprefix("http://")))


def gateway_at(grpc: str, http: str) -> tuple[str, ...]:
    return "--gateway", grpc, "--http", http


async def test_agents_are_named_after_the_directory_and_what_memory_gave_is_told(directory: Directory) -> None:
    first = await directory.launch("claude", "--", "ask", "Where is it?")
    assert first.status == 7, first.err
    assert re.fullmatch("conv-my%20app-[0-9a-f]{32}\n", first.out)
    again = await directory.launch("claude", "--json", "--", "ask", "Where is it? Now?")
    gained = json.loads(again.out.splitlines()[-1])
    assert (gained["name"], gained["turns"]) == ("my app", 1), "those of this run"
    assert f"1 turn: cache hit 0/{gained['prompt_tokens'] - 5}" in first.err


async def test_client_gets_key_and_ca_of_its_gateway(directory: Directory, stack: Stack, tmp_path: Path) -> None:
    of_server(tmp_path)
    key = add_key(tmp_path, "default")
    files = {"keys": "keys.json", "tls_cert": "server.pem", "tls_key": "server.key"}
    async with running(stack.run, **{name: tmp_path / file for name, file in files.items()}) as gateway:
        where = (*gateway_at(gateway.addresses["grpc"], gateway.addresses["http"]), "--ca", str(tmp_path / "ca.pem"))
        secured = directory._replace(where=where, key=key)
        ended = await secured.launch("claude", "--", "ask", "What is it?")
        assert ended.status == 7 and "1 turn: cache hit" in ended.err, ended.err
        stranger = await secured._replace(key="").launch("claude", "--", "ask", "What is it?")
        assert "asks for an API key; give one in AGENTMEM_API_KEY" in stranger.err


async def test_signals_are_passed_on(directory: Directory) -> None:
    process = await directory.begin("claude", "--", "wait")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"waits\n"
    process.send_signal(signal.SIGINT)  # which a terminal gives the client, too: it decides
    process.send_signal(signal.SIGTERM)
    _, err = await process.communicate()
    assert process.returncode == 8 and b"no turns" in err


async def test_command_is_suspended_with_its_client(directory: Directory) -> None:
    process = await directory.begin("claude", "--", "stop")
    launched = psutil.Process(process.pid)
    await eventually(lambda: launched.status() == psutil.STATUS_STOPPED, within=60)
    process.send_signal(signal.SIGCONT)
    assert await asyncio.wait_for(process.wait(), 60) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("pi",), "pi is not installed: no 'pi' in PATH; `npm install -g @mariozechner/pi-coding-agent`"),
        (("claude", "--continue"), "agentmem launch CLIENT -- --continue"),
        (("claude", "--model", "other"), "has no model 'other', but scripted, demo"),
        (("claude", "--http", "127.0.0.1:1"), "name its HTTP door with --http"),
    ],
    ids=str,
)
async def test_mistake_is_one_line(directory: Directory, arguments: tuple[str, ...], told: str) -> None:
    ended = await directory.launch(*arguments)
    assert told in ended.err and ended.err.count("Error") == 1 and ended.status in (1, 2)
