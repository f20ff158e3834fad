"""Coding clients as they are: sessions of five turns with tools, each in a process of its own, and a kill -9 between.

The clients come from npm and PyPI, and ask nobody but this server. The model says what its script has it say: it calls
the client's shell, and answers once the result is there. Its template refuses system messages after the first, as Qwen
3.5's and later do.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.scripted_model import CALL, CHAT, MARKERS, write_scripted
from tests.system.coding_clients.clients import ANSWER, CLIENTS, MODEL, CodingClient, Turn, end
from tests.system.stack import Stack, running

DOCS = Path(__file__).parents[2] / "docs"
TURNS = 5
CONTEXT = 131_072
_TEMPLATE = (
    "<|bos|>{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% set ns = namespace(cue='<|chat|>') %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{% if m.role == 'tool' and '4711' not in m.content %}{{ raise_exception('The shell did not run.') }}{% endif %}"
    "{% if m.role == 'tool' %}{% set ns.cue = '<|chat|>' %}"
    "{% elif m.role == 'user' and loop.previtem is defined and loop.previtem.role == 'tool' %}"
    "{% elif m.role == 'user' %}{% set ns.cue = '<|call|>' if tools else '<|chat|>' %}{% endif %}"
    "{% if m.role == 'assistant' %}{{ '<|call|>' if m.tool_calls else '<|chat|>' }}{% endif %}{{ m.content }}"
    "{% for tool_call in m.tool_calls %}{% set tool_call = tool_call.function %}"
    "{% if m.content or not loop.first %}{{ '\n' }}{% endif %}"
    '<tool_call>{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{{ ns.cue }}{% endif %}"
)


class Answered(NamedTuple):
    status: int
    prompt_tokens: int
    reused_tokens: int


def script(client: CodingClient) -> dict[str, list[str]]:
    call = json.dumps({"name": client.tool, "arguments": client.arguments})
    return {CHAT: list(client.says), CALL: [MARKERS[0], call, MARKERS[1]]}


async def ran(command: Sequence[str], home: Path, environment: Mapping[str, str]) -> str:
    """Return what a program prints, which must end well."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=home / "work",
        env={"PATH": f"{home / 'bin'}:{os.environ['PATH']}", "HOME": str(home), "TERM": "dumb", **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(400):
            said, _ = await process.communicate()
    finally:
        await end(process, home)
    assert process.returncode == 0, said.decode()[-2000:]
    return said.decode()


def answered(stack: Stack) -> list[Answered]:
    """Return what the gateway's log has of requests that ran turns."""
    found = re.finditer(r" answered .*status=(\d+) .*prompt_tokens=(\d+) reused_tokens=(\d+)", stack.logs("gateway"))
    return [Answered(*map(int, each.groups())) for each in found]


async def kept(stack: Stack) -> None:
    """Wait until the KV of all agents is on disk: an answer is told before that."""
    client = await stack.client()
    for agent in await client.listed():
        await stack.on_disk(agent.key.agent_id)


def refused(stack: Stack) -> list[str]:
    """Lines of requests that a client has to work around."""
    return [line for line in stack.logs("gateway").splitlines() if re.search(r" answered .*status=[45]", line)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_session_of_five_turns_is_resumed_and_survives_kill_9(
    client: CodingClient, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    client.asks(Turn("", "", first=True))  # skips before anything runs where its packages cannot be had
    words = [path.read_text() for path in sorted(DOCS.rglob("*.md"))]
    model = write_scripted(
        tmp_path / "m", special_markers=True, template=_TEMPLATE, script=script(client), words=words, context=CONTEXT
    )
    home = tmp_path / "home"
    for folder in ("work", "bin"):
        (home / folder).mkdir(parents=True)
    prompts: list[int] = []
    shares: list[float] = []
    async with (
        running(f"{MODEL}={model}", "store", "worker", "gateway") as stack,
        client.reached(stack.url, home) as url,
    ):
        settings = client.settings(url)
        settings.write(home)
        before = 0
        for number in range(1, TURNS + 1):
            if number == 4:
                await kept(stack)
                stack.kill("store", "worker", "gateway")
                await stack.up("store", "worker", "gateway")
                before = len(answered(stack))
            prompt = f"Please run it, for the {number}. time."
            turn = Turn(url, prompt, first=number == 1, gateway=stack.grpc, programs=home / "bin")
            said = await ran(client.asks(turn), home, settings.environment)
            assert ANSWER in said
            new = answered(stack)[before:]
            if client.users:
                gained = json.loads(said.splitlines()[-1])
                assert (gained["name"], gained["turns"]) == ("work", len(new))
                assert gained["prompt_tokens"] == sum(each.prompt_tokens for each in new)
                assert gained["reused_tokens"] == sum(each.reused_tokens for each in new)
            before += len(new)
            longest = max(each.prompt_tokens for each in new)
            told = [each for each in new if each.prompt_tokens > longest / 2]  # not what asks for a title
            assert len(told) >= client.requests
            prompts += [each.prompt_tokens for each in told]
            shares += [each.reused_tokens / each.prompt_tokens for each in told]
        assert refused(stack) == []
    for name, content in client.users.items():
        assert (home / name.removeprefix("~/")).read_text() == content
    assert not client.writes or "4711" in (home / "work" / client.writes).read_text()
    record_property("prompt_tokens", prompts)
    record_property("shares", [round(share, 4) for share in shares])
    assert min(shares[1:]) > client.share, shares
