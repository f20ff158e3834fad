"""Coding clients as they are: sessions of five turns with tools, each in a process of its own, and a kill -9 between.

The clients come from npm, and ask nobody but this server. The model says what its script has it say: it calls the
client's shell, and answers once the result is there. Its template refuses system messages after the first, as Qwen
3.5's and later do.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.packages import Unavailable, kept
from tests.scripted_model import CALL, CHAT, MARKERS, write_scripted
from tests.system.stack import Stack, running

PACKAGES = Path(__file__).parent / "coding_clients"
DOCS = Path(__file__).parents[2] / "docs"
TURNS = 5
SHARE = 0.9
"""Share of a prompt's tokens that memory has, but for the first request of a session."""
CONTEXT = 131_072
_SAYS = "Done", " as", " asked", "."
_TEMPLATE = (
    "<|bos|>{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% set ns = namespace(cue='<|chat|>') %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{% if m.role == 'tool' %}{% set ns.cue = '<|chat|>' %}"
    "{% elif m.role == 'user' and loop.previtem is defined and loop.previtem.role == 'tool' %}"
    "{% elif m.role == 'user' %}{% set ns.cue = '<|call|>' if tools else '<|chat|>' %}{% endif %}"
    "{% if m.role == 'assistant' %}{{ '<|call|>' if m.tool_calls else '<|chat|>' }}{% endif %}{{ m.content }}"
    "{% for tool_call in m.tool_calls %}{% set tool_call = tool_call.function %}"
    "{% if m.content or not loop.first %}{{ '\n' }}{% endif %}"
    '<tool_call>{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{{ ns.cue }}{% endif %}"
)


@dataclass(frozen=True)
class CodingClient:
    """A client's command line: `asks` returns the command of a turn, by its prompt and whether it is the first."""

    name: str
    tool: str
    arguments: Mapping[str, Any]
    asks: Callable[[Path, str, bool], Sequence[str]]
    environment: Callable[[str], Mapping[str, str]] = lambda url: {}
    files: Callable[[str], Mapping[str, str]] = field(default=lambda url: {})

    def __str__(self) -> str:
        return self.name


def claude(packages: Path, prompt: str, first: bool) -> list[str]:
    program = packages / "node_modules" / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
    resumed = [] if first else ["--continue"]
    return [str(program), "-p", prompt, "--model", "scripted", "--allowedTools", "Bash", *resumed]


def codex(packages: Path, prompt: str, first: bool) -> list[str]:
    program = [str(packages / "node_modules" / ".bin" / "codex"), "exec", "--skip-git-repo-check"]
    return [*program, prompt] if first else [*program, "resume", "--last", prompt]


def qwen(packages: Path, prompt: str, first: bool) -> list[str]:
    resumed = [] if first else ["--continue"]
    return [str(packages / "node_modules" / ".bin" / "qwen"), "--auth-type", "openai", "-y", *resumed, "-p", prompt]


def opencode(packages: Path, prompt: str, first: bool) -> list[str]:
    program = packages / "node_modules" / "opencode-linux-x64" / "bin" / "opencode"
    return [str(program), "run", *([] if first else ["--continue"]), prompt]


def pi(packages: Path, prompt: str, first: bool) -> list[str]:
    resumed = [] if first else ["--continue"]
    program = str(packages / "node_modules" / ".bin" / "pi")
    return [program, "--provider", "here", "--model", "scripted", *resumed, "-p", prompt]


def opencode_files(url: str) -> dict[str, str]:
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"scripted": {"name": "scripted"}}}
    settings = {"provider": {"here": provider}, "model": "here/scripted", "small_model": "here/scripted"}
    return {"work/opencode.json": json.dumps({**settings, "share": "disabled", "autoupdate": False})}


def pi_files(url: str) -> dict[str, str]:
    model = {"id": "scripted", "name": "scripted", "reasoning": False, "input": ["text"], "contextWindow": CONTEXT}
    cost = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0)
    models = [{**model, "maxTokens": 8192, "cost": cost}]
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "none", "models": models}
    return {".pi/agent/models.json": json.dumps({"providers": {"here": provider}})}


CLIENTS = [
    CodingClient(
        "claude-code",
        "Bash",
        {"command": "echo 4711", "description": "Say it"},
        claude,
        lambda url: {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    ),
    CodingClient(
        "codex",
        "exec_command",
        {"cmd": "echo 4711"},
        codex,
        files=lambda url: {
            ".codex/config.toml": 'model = "scripted"\nmodel_provider = "here"\n[model_providers.here]\n'
            f'name = "here"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
        },
    ),
    CodingClient(
        "qwen-code",
        "run_shell_command",
        {"command": "echo 4711", "is_background": False},
        qwen,
        lambda url: {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "scripted"},
    ),
    CodingClient("opencode", "bash", {"command": "echo 4711"}, opencode, files=opencode_files),
    CodingClient("pi", "bash", {"command": "echo 4711"}, pi, files=pi_files),
]


@pytest.fixture(scope="module")
def packages() -> Path:
    """A directory with the packages that package-lock.json pins."""

    def install(scratch: Path) -> Path:
        npm, made = shutil.which("npm"), scratch / "made"
        if npm is None or shutil.which("node") is None:
            raise Unavailable("no node and npm in PATH")
        shutil.copytree(PACKAGES, made)
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(scratch / "cache"))
        # Not `ci`: the registry lacks optional packages of other platforms, and so does the lock.
        done = subprocess.run(
            [npm, "install", *quiet], cwd=made, capture_output=True, text=True, check=False, timeout=800
        )
        if done.returncode:
            raise Unavailable(f"npm install failed: {done.stderr[-500:]}")
        return made

    wanted = json.loads((PACKAGES / "package.json").read_text())["dependencies"]
    try:
        return kept("npm-tools", "coding-" + "-".join(wanted.values()), install)
    except Unavailable as problem:
        pytest.skip(str(problem))


class Answered(NamedTuple):
    """A request that ran a turn."""

    status: int
    prompt_tokens: int
    reused_tokens: int


def script(client: CodingClient) -> dict[str, list[str]]:
    call = json.dumps({"name": client.tool, "arguments": client.arguments})
    return {CHAT: list(_SAYS), CALL: [MARKERS[0], call, MARKERS[1]]}


async def turn(client: CodingClient, packages: Path, home: Path, url: str, number: int) -> str:
    """Have the client take a turn in a process of its own; return what it prints."""
    command = client.asks(packages, f"Please run it, for the {number}. time.", number == 1)
    return await ran(command, home, client.environment(url))


async def ran(command: Sequence[str], home: Path, environment: Mapping[str, str]) -> str:
    """Return what a program prints, which must end well."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=home / "work",
        env={"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(400):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, said.decode()[-2000:]
    return said.decode()


def answered(stack: Stack) -> list[Answered]:
    """Return what the gateway's log has of requests that ran turns."""
    found = re.finditer(r" answered .*status=(\d+) .*prompt_tokens=(\d+) reused_tokens=(\d+)", stack.logs("gateway"))
    return [Answered(*map(int, each.groups())) for each in found]


def refused(stack: Stack) -> list[str]:
    """Lines of requests that a client has to work around."""
    return [line for line in stack.logs("gateway").splitlines() if re.search(r" answered .*status=[45]", line)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_session_of_five_turns_is_resumed_and_survives_kill_9(
    client: CodingClient, packages: Path, tmp_path: Path
) -> None:
    words = [path.read_text() for path in sorted(DOCS.rglob("*.md"))]
    model = write_scripted(
        tmp_path / "m", special_markers=True, template=_TEMPLATE, script=script(client), words=words, context=CONTEXT
    )
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    shares: list[list[float]] = []
    async with running(f"scripted={model}", "store", "worker", "gateway") as stack:
        for name, content in client.files(stack.url).items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(content)
        before = 0
        for number in range(1, TURNS + 1):
            if number == 4:
                stack.kill("store", "worker", "gateway")
                await stack.up("store", "worker", "gateway")
                before = len(answered(stack))
            assert "Done as asked." in await turn(client, packages, home, stack.url, number)
            new = answered(stack)[before:]
            before += len(new)
            longest = max(each.prompt_tokens for each in new)
            told = [each for each in new if each.prompt_tokens > longest / 2]  # not what asks for a title
            assert len(told) >= 2, "one request that calls the shell, one with its result"
            shares.append([each.reused_tokens / each.prompt_tokens for each in told])
        assert refused(stack) == []
    for number, (asked, *later) in enumerate(shares):
        assert number == 0 or asked > SHARE, f"turn {number + 1} of {shares}"
        assert min(later) > SHARE, f"turn {number + 1} of {shares}"


AI_SDK = CodingClient("ai-sdk", "shell", {"command": "echo 4711"}, lambda program, url, _: ["node", str(program), url])


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_ai_sdk_refers_to_items_of_responses(packages: Path, tmp_path: Path) -> None:
    model = write_scripted(tmp_path / "m", special_markers=True, template=_TEMPLATE, script=script(AI_SDK))
    (tmp_path / "home" / "work").mkdir(parents=True)
    async with running(f"scripted={model}", "store", "worker", "gateway") as stack:
        program = packages / "ai_sdk.mjs"
        shutil.copy(PACKAGES / "ai_sdk.mjs", program)
        said = await ran(AI_SDK.asks(program, f"{stack.url}/v1", True), tmp_path / "home", {})
        assert said.split("\n") == ["Done as asked."] * TURNS + [""]
        assert refused(stack) == []
        told = answered(stack)
    assert len(told) == 2 * TURNS
    assert min(each.reused_tokens / each.prompt_tokens for each in told[2:]) > 0.8
