"""`agentmem top`, the command itself, on real processes under load."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from agentmem.v1 import types_pb2
from tests.system.stack import Stack, Turn

FILE = Path(__file__).parents[2] / "deploy" / "top.schema.json"
SCHEMA = jsonschema.Draft202012Validator(json.loads(FILE.read_text(encoding="utf-8")))
TURN = {"max_tokens": 8, "sampling": types_pb2.Sampling(ignore_eos=True)}
Line = dict[str, Any]


@pytest.fixture
async def served(stack: Stack) -> Stack:
    """The shared stack with a gateway before it."""
    await stack.renew("gateway")
    return stack


def command(stack: Stack, *arguments: str) -> list[str]:
    """`agentmem top` of that stack."""
    where = {"--gateway": "grpc", "--metrics": "gateway", "--worker-metrics": "worker", "--store-metrics": "store"}
    flags = [part for flag, name in where.items() for part in (flag, f"127.0.0.1:{stack.ports[name]}")]
    return [sys.executable, "-m", "gateway.cli.main", "top", *flags, *arguments]


class Watched:
    """`agentmem top --json` while it runs: its lines, each of which is what the schema says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[Line] = []

    async def until(self, wanted: Callable[[Line], bool]) -> Line:
        """The next line that is as wanted."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            async for text in self.process.stdout:
                line = json.loads(text)
                SCHEMA.validate(line)
                self.lines.append(line)
                if wanted(line):
                    return line
        raise AssertionError("it ended")

    def models(self) -> list[Line]:
        """The model's figures in all lines but the first, where its worker's page was read."""
        return [line["models"][0] for line in self.lines[1:] if measured(line)]

    def model_sum(self, rate: str) -> float:
        """What happened after the first line by a rate of the model's."""
        read = [line for line in self.lines[1:] if measured(line)]
        return sum(line["models"][0][rate] * process_of(line, "worker")["interval_seconds"] for line in read)


@asynccontextmanager
async def watching(stack: Stack) -> AsyncIterator[Watched]:
    """It ends well on Ctrl-C."""
    process = await asyncio.create_subprocess_exec(
        *command(stack, "--json", "--interval", "0.3"), stdout=asyncio.subprocess.PIPE, limit=1 << 20
    )
    try:
        yield Watched(process)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def process_of(line: Line, service: str) -> Line:
    """The figures of a process."""
    return next(one for one in line["processes"] if one["service"] == service)


def measured(line: Line) -> bool:
    """Whether the line has rates of the one model: its worker's page was read now and before."""
    return bool(line["models"]) and line["models"][0]["decode_tokens_per_second"] is not None


def idle(line: Line) -> bool:
    """The one model's worker says that it has nothing to do."""
    return bool(line["models"]) and all(line["models"][0][what] == 0 for what in ("running", "waiting"))


def all_up(line: Line) -> bool:
    """All three processes say that they serve."""
    return all(one["state"] == "up" for one in line["processes"])


def ledgers(line: Line) -> dict[str, int]:
    """The agents that are shown, and their tokens."""
    return {one["agent_id"]: one["tokens"] for one in line["recent_agents"]}


def negatives(figures: object) -> list[object]:
    """Numbers below zero, wherever they are."""
    if isinstance(figures, dict):
        return [found for part in figures.values() for found in negatives(part)]
    if isinstance(figures, list):
        return [found for part in figures for found in negatives(part)]
    return [figures] if isinstance(figures, int | float) and figures < 0 else []


@pytest.mark.slow
@pytest.mark.kills
async def test_figures_are_what_was_done_through_a_killed_worker(served: Stack) -> None:
    client = await served.client("gateway")
    async with watching(served) as top:
        await top.until(measured)
        turns: list[Turn] = []

        async def talk(agent: str) -> None:
            for number in range(3):
                turns.append(await client.say(agent, f"the key of boat {number} is green", **TURN))

        await asyncio.gather(*(talk(f"agent-{name}") for name in "abc"))
        prompt = sum(turn.finished.usage.prompt_tokens for turn in turns)
        reused = sum(sum(turn.cached.values()) for turn in turns)
        generated = sum(turn.finished.usage.completion_tokens for turn in turns)
        assert reused > 0
        assert generated == 9 * 8

        ledger = (await client.agent("agent-a")).tokens
        expected = dict.fromkeys(["agent-a", "agent-b", "agent-c"], ledger)

        def all_told(line: Line) -> bool:
            ended = round(top.model_sum("requests_per_second")) == len(turns)
            warm = line["cache"]["agents_by_tier"].get("warm") == 3
            return ended and warm and ledgers(line) == expected and idle(line) and all_up(line)

        line = await top.until(all_told)
        told = line["models"][0]
        assert (told["model_id"], told["state"], told["default"]) == ("tiny", "loaded", True)
        assert told["pool_used_blocks"] + told["pool_free_blocks"] > 0
        assert top.model_sum("reused_tokens_per_second") == pytest.approx(reused)
        assert top.model_sum("decode_tokens_per_second") == pytest.approx(generated)
        assert top.model_sum("prefill_tokens_per_second") == pytest.approx(prompt - reused)
        assert top.model_sum("requests_per_second") == pytest.approx(len(turns))
        first = [latency for one in top.models() for latency in one["time_to_first_token"].values()]
        assert sum(one["count"] for one in first) == len(turns)
        between = [one["inter_token_latency"] for one in top.models() if one["inter_token_latency"]]
        assert sum(one["count"] for one in between) == generated - len(turns)
        assert all(one["p50_seconds"] <= one["p99_seconds"] for one in between)
        shares = [one["hit_rate"] for one in top.models()]
        assert any(0 < share < 1 for share in shares if share is not None)
        assert line["cache"]["disk_bytes"]["blocks"] > 0
        assert line["cache"]["disk_free_bytes"] > line["cache"]["disk_free_floor_bytes"] > 0
        assert [one["restarts"] for one in line["processes"]] == [0, 0, 0]

        served.kill("worker")
        reason = f"nothing listens at 127.0.0.1:{served.ports['worker']}"

        def nobody_knows_models(line: Line) -> bool:  # what was asked just before the end may have been answered
            return process_of(line, "worker")["why"] == reason and bool(line["models_error"])

        down = await top.until(nobody_knows_models)
        assert process_of(down, "worker")["state"] == "down"
        assert down["models"] == []
        told_by_the_store = await top.until(lambda line: bool(line["cache"]["agents_by_tier"]))
        assert told_by_the_store["cache"]["agents_by_tier"].get("warm") == 3
        await top.until(lambda line: process_of(line, "gateway")["why"] == "does not reach the worker")
        await served.renew()
        await top.until(all_up)
        await client.say("agent-a", "hello", **TURN)
        again = await top.until(lambda line: ledgers(line).get("agent-a", 0) > ledger and all_up(line))
        assert [one["restarts"] for one in again["processes"]] == [0, 1, 0]
        await top.until(lambda line: bool(line["models"]) and line["models"][0]["hot_agents"] == 1)
        assert [found for line in top.lines for found in negatives(line)] == []


@pytest.mark.slow
async def test_without_a_terminal_there_is_one_view(served: Stack) -> None:
    client = await served.client("gateway")
    await client.say("ada", "the boat is green", **TURN)
    once = await asyncio.create_subprocess_exec(
        *command(served, "--interval", "0.2"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, complained = await once.communicate()
    assert (once.returncode, complained) == (0, b"")
    lines = said.decode().splitlines()
    for service in ("gateway", "worker", "store"):
        assert any(line.split()[:2] == [service, "up"] for line in lines)
    assert any(line.split()[:2] == ["tiny", "loaded"] for line in lines)
    assert any(line.split()[:2] == ["ada", "tiny"] for line in lines)
    assert "\x1b" not in said.decode()


@contextmanager
def terminal(columns: int, rows: int) -> Iterator[tuple[int, int]]:
    """Both ends of one: ours, and the one that programs have."""
    ours, theirs = os.openpty()
    try:
        termios.tcsetwinsize(theirs, (rows, columns))
        os.set_blocking(ours, False)
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


class Shown:
    """What a terminal was told, without colours."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._bytes = b""
        self.text = ""

    async def until(self, *wanted: str) -> str:
        """Wait until all of these have come, and take everything up to now."""
        deadline = time.monotonic() + 60
        while not all(part in self.text for part in wanted):
            assert time.monotonic() < deadline, f"{wanted} did not come: {self.text[-3000:]!r}"
            await asyncio.sleep(0.02)
            with suppress(BlockingIOError):
                self._bytes += os.read(self._end, 1 << 16)
            self.text = STYLE.sub("", self._bytes.decode(errors="replace"))
        told, self.text, self._bytes = self.text, "", b""
        return told


STYLE = re.compile(r"\x1b\[[0-9;]*m")
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


@pytest.mark.slow
async def test_the_live_view_gives_the_terminal_back(served: Stack) -> None:
    client = await served.client("gateway")
    await client.say("ada", "the boat is green", **TURN)
    # The two are what some programs leave behind; the window is what counts.
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "25"}
    with terminal(100, 40) as (ours, theirs):
        modes = termios.tcgetattr(theirs)
        process = await asyncio.create_subprocess_exec(
            *command(served, "--interval", "0.2"), stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        shown = Shown(ours)
        try:
            first = await shown.until("· last ", "ada")
            assert first.index(ENTER) < first.index("agentmem top")
            termios.tcsetwinsize(theirs, (5, 40))
            process.send_signal(signal.SIGWINCH)
            await shown.until("gateway  up")
            process.send_signal(signal.SIGTSTP)
            await shown.until(LEAVE)
            while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
                await asyncio.sleep(0.02)
            process.send_signal(signal.SIGCONT)
            await shown.until(ENTER, "gateway  up")
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), 60) == 0
            rest = await shown.until(LEAVE, "\x1b[?25h")
            assert ENTER not in rest[rest.rindex(LEAVE) :]
            assert "Traceback" not in rest
            assert termios.tcgetattr(theirs) == modes
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
