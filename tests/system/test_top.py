from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentmem.v1 import types_pb2
from tests.system.client import Turn
from tests.system.stack import Stack
from tests.terminal import terminal

TURN = {"max_tokens": 8, "sampling": types_pb2.Sampling(ignore_eos=True)}
Line = dict[str, Any]


@pytest.fixture
async def served(stack: Stack) -> Stack:
    await stack.renew("gateway")
    return stack


def command(stack: Stack, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway.cli.main", "top", "--http", stack.url.removeprefix("http://"), *arguments]


class Watched:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[Line] = []

    async def until(self, wanted: Callable[[Line], bool]) -> Line:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            async for text in self.process.stdout:
                line = json.loads(text)
                self.lines.append(line)
                if wanted(line):
                    return line
        raise AssertionError("it ended")

    def sum(self, rate: Callable[[Line], float]) -> float:
        return sum(rate(tiny(line)) * line["interval_seconds"] for line in self.lines[1:])


@asynccontextmanager
async def watching(stack: Stack) -> AsyncIterator[Watched]:
    process = await asyncio.create_subprocess_exec(
        *command(stack, "--json", "--interval", "1"), stdout=asyncio.subprocess.PIPE, limit=1 << 20
    )
    try:
        yield Watched(process)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def tiny(line: Line) -> Line:
    return next(model for model in line["models"] if model["model_id"] == "tiny")


def states(line: Line) -> list[str]:
    return [one["state"] for one in line["processes"]]


@pytest.mark.slow
@pytest.mark.kills
async def test_figures_are_what_was_done_and_a_killed_worker_is_down(served: Stack) -> None:
    client = await served.client("gateway")
    async with watching(served) as top:
        ended = sum(tiny(await top.until(lambda line: bool(line["models"])))["turns"].values())
        turns: list[Turn] = []

        async def talk(agent: str) -> None:
            for number in range(3):
                turns.append(await client.say(agent, f"the key of boat {number} is green", **TURN))

        await asyncio.gather(*(talk(f"agent-{name}") for name in "abc"))
        prompt = sum(turn.finished.usage.prompt_tokens for turn in turns)
        reused = sum(sum(turn.cached.values()) for turn in turns)
        assert reused > 0

        def all_told(line: Line) -> bool:
            done = sum(tiny(line)["turns"].values()) - ended == len(turns)
            return done and line["agents_by_tier"].get("warm") == 3 and states(line) == ["up"] * 3

        line = await top.until(all_told)
        told = tiny(line)
        assert (told["loaded"], told["running"], told["waiting"]) == (True, 0, 0)
        assert sum(told["pool_blocks"].values()) > 0
        assert top.sum(lambda model: model["generated_tokens_per_second"]) == pytest.approx(9 * 8)
        computed = top.sum(lambda model: model["prompt_tokens_per_second"]["computed"])
        assert computed == pytest.approx(prompt - reused)
        asked = top.sum(lambda model: sum(model["prompt_tokens_per_second"].values()))
        assert asked == pytest.approx(prompt)
        firsts = [latency for each in top.lines[1:] for latency in each["time_to_first_token"].values()]
        assert sum(one["count"] for one in firsts) == len(turns)
        assert all(one["p50_seconds"] <= one["p99_seconds"] for one in firsts)
        assert line["disk"]["free_bytes"] > line["disk"]["free_floor_bytes"] > 0

        served.kill("worker")
        reason = f"nothing listens at 127.0.0.1:{served.ports['worker']}"
        down = await top.until(lambda line: line["processes"][1]["why"] == reason)
        assert (states(down)[1], down["models"], down["agents_by_tier"].get("warm")) == ("down", None, 3)
        await top.until(lambda line: line["processes"][0]["why"] == "does not reach the worker")
        await served.renew()
        await top.until(lambda line: states(line) == ["up"] * 3)
        await client.say("agent-a", "hello", **TURN)
        await top.until(lambda line: bool(line["models"]) and tiny(line)["hot_agents"] == 1)


ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
async def test_the_live_view_gives_the_terminal_back(served: Stack, sent: signal.Signals) -> None:
    # COLUMNS and LINES are what some programs leave behind them; the window is what counts.
    program = (*command(served, "--interval", "1")[1:],)
    async with terminal(*program, columns=100, COLUMNS="80", LINES="25") as shown:
        modes = shown.modes()
        await shown.until("· last ", "gateway  up")
        assert shown.raw.index(ENTER) < shown.raw.index(b"agentmem top")
        shown.resize(4, 40)
        while "worker" in await shown.until("gateway  up"):  # the next one fits the window
            pass
        shown.process.send_signal(sent)
        assert await shown.ended() == 0
        rest = shown.raw[shown.raw.index(LEAVE) :]
        assert ENTER not in rest and b"\x1b[?25h" in shown.raw
        assert b"Traceback" not in shown.raw
        assert shown.modes() == modes
