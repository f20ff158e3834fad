"""Commands on a real stack: memories are read and branched, and doctor looks at what runs."""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64decode
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner

from agentmem.v1 import types_pb2
from gateway.cli.main import main
from tests.system.client import chat
from tests.system.stack import Stack

FACT = "The colour of the boat is green."
QUESTION = "What is the colour of the boat?"
ANSWER = "The colour of the boat is green."
SYSTEM = "You are marco."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(demo: Stack) -> Stack:
    client = await demo.client("gateway")
    await client.turn("marco", messages=chat(("system", SYSTEM), ("user", FACT)), max_tokens=20)
    await client.turn("marco", append=types_pb2.Append(messages=chat(("user", QUESTION))), request_id="asked")
    return demo


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def agentmem(stack: Stack, *arguments: str, fails: bool = False) -> str:
    """Return the output of `agentmem agents …`."""
    given = ["agents", *arguments, "--gateway", stack.grpc]
    said = await asyncio.to_thread(CliRunner().invoke, main, given)
    assert said.exit_code == (1 if fails else 0), said.output
    return said.output if fails else said.stdout


async def told(stack: Stack, *arguments: str) -> Any:
    return json.loads(await agentmem(stack, *arguments, "--json"))


async def test_a_memory_is_read_turn_by_turn(stack: Stack) -> None:
    lines = (await agentmem(stack, "show", "marco", "--text")).splitlines()
    first, second = (number for number, line in enumerate(lines) if line.startswith("version ") and "·" in line)
    assert lines[first + 1 : first + 3] == [f"system: {SYSTEM}", f"user: {FACT}"]
    assert "asked" in lines[second]
    assert lines[second + 1 :] == [f"user: {QUESTION}", f"assistant: {ANSWER}"]
    assert not any("<|im_" in line for line in lines), "markup of the template"
    assert FACT not in await agentmem(stack, "show", "marco")


async def test_json_has_the_exact_text_too(stack: Stack) -> None:
    (marco,) = await told(stack, "show", "marco", "--text")
    ledger = await stack.ledger("marco")
    assert b"".join(b64decode(turn["text"]) for turn in marco["history"]) == ledger.text
    assert [turn["first_token"] for turn in marco["history"]] == [0, ledger.turns[0].end_token]
    assert [turn["generated_tokens"] for turn in marco["history"]] == [t.generated_tokens for t in ledger.turns]
    roles = [[message["role"] for message in turn["messages"]] for turn in marco["history"]]
    assert roles == [["system", "user", "assistant"], ["user", "assistant"]]


async def test_branches(stack: Stack) -> None:
    assert "has the memory of marco" in await agentmem(stack, "fork", "marco", "polo")
    assert "exists" in await agentmem(stack, "fork", "marco", "polo", fails=True)
    before = (await told(stack, "show", "polo"))[0]["tokens"]
    assert (await told(stack, "snapshot", "polo", "first"))["tokens"] == before
    trimmed = await agentmem(stack, "trim", "polo", "7")
    assert trimmed == f"polo has 7 tokens of {before}; the snapshot auto-1 keeps what it had\n"
    assert await agentmem(stack, "trim", "polo", "7") == "polo has 7 tokens\n"
    assert "the ledger has 7 tokens" in await agentmem(stack, "trim", "polo", "8", fails=True)
    assert [each["name"] for each in await told(stack, "snapshots", "polo")] == ["auto-1", "first"]
    (polo,) = await told(stack, "show", "polo", "--text")
    assert [turn["cut"] for turn in polo["history"]] == [True]
    assert "is as in first" in await agentmem(stack, "restore", "polo", "first")
    assert (await told(stack, "show", "polo"))[0]["tokens"] == before
    assert "'none' does not exist" in await agentmem(stack, "restore", "polo", "none", fails=True)
    assert [each["name"] for each in await told(stack, "snapshots", "polo", "--delete", "auto-1")] == ["first"]
    at = await told(stack, "fork", "marco", "young", "--at-version", "1")
    assert at["turns"] == 1
    assert "no snapshots" in await agentmem(stack, "snapshots", "young")


async def test_a_context_policy_is_set_and_shown(stack: Stack) -> None:
    (shown,) = await told(stack, "show", "marco")
    assert shown["context_policy"] == "trim"
    assert datetime.fromisoformat(shown["template_time"]).year > 2000, "what dates in its template are"
    said = await agentmem(stack, "context-policy", "marco", "summarize")
    assert said == "marco will replace its oldest turns by a note when its memory outgrows the context\n"
    assert (await told(stack, "show", "marco"))[0]["context_policy"] == "summarize"
    assert (await told(stack, "context-policy", "marco", "trim"))["context_policy"] == "trim"


async def test_pins_and_probes(stack: Stack) -> None:
    assert await agentmem(stack, "pin", "marco") == "marco is pinned\n"
    assert (await told(stack, "show", "marco"))[0]["pinned"]
    assert not (await told(stack, "unpin", "marco"))["pinned"]
    held = (await told(stack, "show", "marco"))[0]["tokens"]
    assert (await agentmem(stack, "probe", "marco", QUESTION)).startswith(f"EXTEND · cache hit {held}/")
    assert (await told(stack, "probe", "marco", QUESTION))["cache"]["match"] == "extend"
    assert (await told(stack, "show", "marco"))[0]["tokens"] == held
    assert "agent 'nobody' does not exist" in await agentmem(stack, "probe", "nobody", "x", fails=True)


def files(data: Path) -> dict[str, int]:
    """Files and their sizes, but for SQLite's, which it keeps as it likes."""
    found = (path for path in data.rglob("*") if not path.name.startswith(("store.db-", "warm.db-")))
    return {str(path): path.stat().st_size for path in found if path.is_file()}


@pytest.mark.slow
async def test_doctor_changes_nothing_while_all_runs(stack: Stack) -> None:
    client = await stack.client("gateway")
    assert (await client.say("ada", "hello")).finished.durable
    await stack.on_disk("ada")
    before = files(stack.data)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli.main", "doctor", "--json"),
        *("--data", str(stack.data), "--run-dir", str(stack.run), "--http", f"127.0.0.1:{stack.ports['http']}"),
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    assert files(stack.data) == before
    found = {each["check"]: each for each in json.loads(told)["findings"]}
    assert process.returncode == 0, found
    assert found["running"]["facts"] == dict.fromkeys(("store", "worker", "gateway"), "ready")
    assert "services run here" in found["ports"]["found"]
    assert "besides a worker that runs" in found["memory"]["found"]
    assert (await client.say("ada", "again")).finished.durable
