"""Coding clients, and agents that have a shell: their command lines. Settings are those of `agentmem launch`, or of the
guide.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
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
    """A turn of a session: the server's addresses, and whether the session begins with it. Programs that have to be in
    PATH are in `programs`.
    """

    url: str
    prompt: str
    first: bool
    gateway: str = ""
    programs: Path | None = None


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
    Without one `agentmem launch` runs it, and `own` and the files `users` are what its user has for another server.
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
    users: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def settings(self, url: str) -> Settings:
        variables, files = settings(self.section, url) if self.section else Settings({}, dict(self.users))
        return Settings({**variables, **(self.own or {})}, files)


def npm(*parts: str) -> str:
    return str(npm_packages.installed(HERE / "npm").joinpath(*parts))


def by_hand(turn: Turn) -> list[str]:
    """Claude Code, with the settings of the guide."""
    program = npm("@anthropic-ai", "claude-code-linux-x64", "claude")
    return [program, "-p", turn.prompt, "--allowedTools", "Bash", *([] if turn.first else ["--continue"])]


def launching(name: str, *places: str) -> Callable[[Callable[[Turn], list[str]]], Callable[[Turn], list[str]]]:
    """Return a decorator: the client is run by `agentmem launch`, with its own arguments. `places` lead to its program
    in node_modules.
    """

    def launched(arguments: Callable[[Turn], list[str]]) -> Callable[[Turn], list[str]]:
        def command(turn: Turn) -> list[str]:
            program = npm(*places)
            if turn.programs is not None and turn.first:
                (turn.programs / name).symlink_to(program)
            where = ("--gateway", turn.gateway, "--http", turn.url.removeprefix("http://"), "--model", MODEL)
            return [sys.executable, "-m", "gateway.cli.main", "launch", name, *where, "--json", "--", *arguments(turn)]

        return command

    return launched


@launching("claude", "@anthropic-ai", "claude-code-linux-x64", "claude")
def claude(turn: Turn) -> list[str]:
    return ["-p", turn.prompt, "--allowedTools", "Bash", *([] if turn.first else ["--continue"])]


@launching("codex", ".bin", "codex")
def codex(turn: Turn) -> list[str]:
    return ["exec", "--skip-git-repo-check", *([] if turn.first else ["resume", "--last"]), turn.prompt]


@launching("qwen", ".bin", "qwen")
def qwen(turn: Turn) -> list[str]:
    return ["-y", *([] if turn.first else ["--continue"]), "-p", turn.prompt]


@launching("opencode", "opencode-linux-x64", "bin", "opencode")
def opencode(turn: Turn) -> list[str]:
    return ["run", *([] if turn.first else ["--continue"]), turn.prompt]


@launching("pi", ".bin", "pi")
def pi(turn: Turn) -> list[str]:
    return [*([] if turn.first else ["--continue"]), "-p", turn.prompt]


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


ELSEWHERE = "http://127.0.0.1:9"
USERS = {
    "claude": {"~/.claude/settings.json": json.dumps({"env": {"ANTHROPIC_BASE_URL": ELSEWHERE}})},
    "codex": {
        "~/.codex/config.toml": 'model = "other"\nmodel_provider = "other"\n'
        f'[model_providers.other]\nname = "other"\nbase_url = "{ELSEWHERE}"\nwire_api = "responses"\n'
    },
    "qwen": {
        "~/.qwen/settings.json": json.dumps(
            {
                "$version": 4,
                "model": {"name": "other"},
                "modelProviders": {"openai": [{"id": MODEL, "envKey": "OPENAI_API_KEY", "baseUrl": ELSEWHERE}]},
            }
        )
    },
    "opencode": {
        "~/.config/opencode/opencode.json": json.dumps(
            {
                "$schema": "https://opencode.ai/config.json",
                "model": "agentmem/other",
                "agent": {"build": {"model": "corp/other"}},
                "provider": {
                    "agentmem": {"options": {"baseURL": ELSEWHERE}},
                    "corp": {
                        "npm": "@ai-sdk/openai-compatible",
                        "options": {"baseURL": ELSEWHERE},
                        "models": {"other": {}},
                    },
                },
            }
        )
    },
    "pi": {
        "~/.pi/agent/models.json": json.dumps(
            {
                "providers": {
                    "agentmem": {
                        "baseUrl": ELSEWHERE,
                        "api": "openai-completions",
                        "apiKey": "other",
                        "models": [{"id": "other"}],
                    }
                }
            }
        )
    },
}
"""Settings of users, by client: all of them lead to a server that does not answer."""

ECHO = {"command": "echo 4711"}
CLAUDE = functools.partial(CodingClient, tool="Bash", arguments={**ECHO, "description": "Say it"})
CLIENTS = [
    CLAUDE("claude-code", "", asks=claude, own={"ANTHROPIC_API_KEY": "sk-ant-other"}, users=USERS["claude"]),
    CLAUDE(
        "claude-code-through-litellm",
        "Claude Code",
        asks=by_hand,
        own={"ANTHROPIC_AUTH_TOKEN": settings("LiteLLM's proxy", "").environment["LITELLM_MASTER_KEY"]},
        reached=through_litellm,
    ),
    CodingClient("codex", "", "exec_command", {"cmd": "echo 4711"}, codex, users=USERS["codex"]),
    CodingClient(
        "qwen-code",
        "",
        "run_shell_command",
        {**ECHO, "is_background": False},
        qwen,
        own={"OPENAI_MODEL": "other", "OPENAI_BASE_URL": ELSEWHERE, "HTTPS_PROXY": ELSEWHERE},
        users=USERS["qwen"],
    ),
    CodingClient("opencode", "", "bash", ECHO, opencode, users=USERS["opencode"]),
    CodingClient("pi", "", "bash", ECHO, pi, users=USERS["pi"]),
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
