"""Coding clients, and agents that have a shell: their command lines. Settings are those of the guide."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil

from tests import environments, npm_packages
from tests.system.stack import free_port

HERE = Path(__file__).parent
GUIDE = HERE.parents[2] / "docs" / "guides" / "coding-clients.md"
MODEL = "qwen"
"""Its name in the guide."""
SAYS = "Done", " as", " asked", "."
ANSWER = "".join(SAYS)


class Turn(NamedTuple):
    """A turn of a session: the server's address, and whether the session begins with it."""

    url: str
    prompt: str
    first: bool


class Settings(NamedTuple):
    """Variables, and files by their paths."""

    environment: dict[str, str]
    files: dict[str, str]

    def write(self, home: Path) -> None:
        """Write the files where they belong: below the home directory, or in its directory `work`."""
        for name, content in self.files.items():
            file = home / name.removeprefix("~/") if name.startswith("~/") else home / "work" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)


def settings(section: str, url: str) -> Settings:
    """Return what a section of the guide sets, for a gateway at `url`."""
    [text] = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    here = text.replace("http://127.0.0.1:8080", url)
    exports = re.findall(r"^export (.*)$", here, re.MULTILINE)
    variables = dict(word.split("=", 1) for line in exports for word in shlex.split(line))
    return Settings(variables, dict(re.findall(r'```\w+ title="(.*?)"\n(.*?)```', here, re.DOTALL)))


@contextlib.asynccontextmanager
async def directly(url: str, _home: Path) -> AsyncIterator[str]:
    yield url


@dataclass(frozen=True)
class CodingClient:
    """A client, the call by which the model has its shell say 4711, and what the model says after it.

    `asks` returns the command of a turn. `section` of the guide has its settings, which `own` variables complete.
    `reached` gives the address that the client gets. Memory has at least `share` of the prompt's tokens, but for the
    first request of a session. A turn has `requests` at least. What a shell prints is in the next request; a client
    without one writes it to the file `writes` of its working directory.
    """

    name: str
    section: str
    tool: str
    arguments: Mapping[str, Any]
    asks: Callable[[Turn], Sequence[str]]
    own: Mapping[str, str] | None = None
    reached: Callable[[str, Path], AbstractAsyncContextManager[str]] = directly
    says: Sequence[str] = SAYS
    share: float = 0.9
    requests: int = 2
    writes: str = ""

    def __str__(self) -> str:
        return self.name

    def settings(self, url: str) -> Settings:
        if not self.section:
            return Settings({}, {})
        variables, files = settings(self.section, url)
        return Settings({**variables, **(self.own or {})}, files)


def npm(*parts: str) -> str:
    return str(npm_packages.installed(HERE / "npm").joinpath(*parts))


def claude(turn: Turn) -> list[str]:
    program = npm("@anthropic-ai", "claude-code-linux-x64", "claude")
    return [program, "-p", turn.prompt, "--allowedTools", "Bash", *([] if turn.first else ["--continue"])]


def codex(turn: Turn) -> list[str]:
    program = [npm(".bin", "codex"), "exec", "--skip-git-repo-check"]
    return [*program, turn.prompt] if turn.first else [*program, "resume", "--last", turn.prompt]


def qwen(turn: Turn) -> list[str]:
    resumed = [] if turn.first else ["--continue"]
    return [npm(".bin", "qwen"), "--auth-type", "openai", "-y", *resumed, "-p", turn.prompt]


def opencode(turn: Turn) -> list[str]:
    resumed = [] if turn.first else ["--continue"]
    return [npm("opencode-linux-x64", "bin", "opencode"), "run", *resumed, turn.prompt]


def pi(turn: Turn) -> list[str]:
    resumed = [] if turn.first else ["--continue"]
    return [npm(".bin", "pi"), "--provider", "agentmem", "--model", MODEL, *resumed, "-p", turn.prompt]


def cline(turn: Turn) -> list[str]:
    program = npm("@cline", "cli-linux-x64", "bin", "cline")
    if turn.first:
        return [program, turn.prompt]
    return [sys.executable, str(HERE / "cline_resumed.py"), ANSWER, turn.prompt, program]


def continues(turn: Turn) -> list[str]:
    resumed = [] if turn.first else ["--resume"]
    return [npm(".bin", "cn"), "-p", "--config", "../.continue/config.yaml", "--auto", *resumed, turn.prompt]


def aider(turn: Turn) -> list[str]:
    program = environments.holding("aider-chat==0.86.2").with_name("aider")
    quiet = ("--no-check-update", "--no-show-model-warnings", "--analytics-disable", "--no-show-release-notes")
    options = ("--model", f"openai/{MODEL}", "--yes-always", "--no-git", "--restore-chat-history", "--no-pretty")
    return [str(program), *options, *quiet, "notes.txt", "--message", turn.prompt]


@contextlib.asynccontextmanager
async def through_litellm(url: str, home: Path) -> AsyncIterator[str]:
    """LiteLLM's proxy, which has the model from the server."""
    program = environments.holding("litellm[proxy]==1.108.0").with_name("litellm")
    variables, files = (found := settings("LiteLLM's proxy", url))
    found.write(home)
    port, log, own_home = free_port(), home / "litellm.log", home / "litellm"
    own_home.mkdir()
    with log.open("w") as output:
        proxy = await asyncio.create_subprocess_exec(
            *(str(program), "--config", *files, "--host", "127.0.0.1", "--port", str(port)),
            cwd=home / "work",
            env={"PATH": os.environ["PATH"], "HOME": str(own_home), **variables},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(200), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            while not await alive(http):
                assert proxy.returncode is None, log.read_text()[-2000:]
                await asyncio.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        await end(proxy, own_home)


async def end(process: asyncio.subprocess.Process, home: Path) -> None:
    """Kill a process that leads a session, and the daemons that it has left behind: all whose home is this one."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    for other in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if other.environ().get("HOME") == str(home):
                other.kill()


async def alive(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/health/liveliness")).is_success
    except httpx.TransportError:
        return False


ECHO = {"command": "echo 4711"}
CLAUDE = functools.partial(
    CodingClient, section="Claude Code", tool="Bash", arguments={**ECHO, "description": "Say it"}, asks=claude
)
CLIENTS = [
    CLAUDE("claude-code"),
    CLAUDE(
        "claude-code-through-litellm",
        own={"ANTHROPIC_AUTH_TOKEN": settings("LiteLLM's proxy", "").environment["LITELLM_MASTER_KEY"]},
        reached=through_litellm,
    ),
    CodingClient("codex", "Codex CLI", "exec_command", {"cmd": "echo 4711"}, codex),
    CodingClient("qwen-code", "Qwen Code", "run_shell_command", {**ECHO, "is_background": False}, qwen),
    CodingClient("opencode", "opencode", "bash", ECHO, opencode),
    CodingClient("pi", "pi", "bash", ECHO, pi),
    # Without its variable a daemon outlives it.
    CodingClient(
        "cline",
        "Cline",
        "run_commands",
        {"commands": ["echo 4711"]},
        cline,
        own={"CLINE_SESSION_BACKEND_MODE": "local"},
    ),
    CodingClient("continue", "Continue", "Bash", ECHO, continues),
    CodingClient(
        "aider",
        "aider",
        "",
        {},
        aider,
        says=["notes.txt\n```\n4711\n```\n\n", *SAYS],  # its tool: a file in the text
        share=0.5,  # it writes its files and rules after the history, which grows before them
        requests=1,
        writes="notes.txt",
    ),
    CodingClient(
        "ai-sdk",
        "",
        "shell",
        ECHO,
        lambda turn: ["node", str(HERE / "ai_sdk.mjs"), npm(), turn.url, turn.prompt],
        share=0.75,  # short prompts: what is new in them is more of the whole
    ),
]
