"""A GPU that fails: the worker ends with a status of its own, and all that was committed is there afterwards."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import mlx.core as mx
import pytest

from agentmem import AsyncClient
from agentmem.errors import Unavailable, from_rpc
from agentmem.process.service import DEVICE_LOST
from agentmem.v1 import types_pb2
from benchmarks.demo import BOAT, KEY, LOCKER, QUESTIONS, dialogue
from tests.system.client import Client, Turn, append, chat, refused
from tests.system.stack import Stack, hosting
from tests.system.supervised import Supervised, supervised

log = logging.getLogger(__name__)

METAL = "[METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002)"
FOLDER = Path(__file__).with_name("lost_gpu")
LONG = {"max_tokens": 300, "sampling": types_pb2.Sampling(ignore_eos=True), "top_logprobs": 0}
SHORT = {"max_tokens": 24, "top_logprobs": 0}
ROUNDING = 0.25
"""In log-probabilities: BLAS rounds by the number of rows, and what was computed again had others."""


@pytest.mark.slow("idle")
@pytest.mark.parametrize("running", [True, False], ids=["stream", "idle"])
async def test_a_worker_whose_gpu_fails_says_so_and_ends(
    running: bool, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(f"tiny={tiny}") as stack:
        client = await stack.client()
        first = await client.say("a", "The boat is green.", max_tokens=4)
        call = client.inference.Generate(client.request("b", prompt="hello", max_tokens=3500)) if running else None
        while call is not None and not (await call.read()).HasField("delta"):
            pass

        def fails(*_: object) -> None:
            raise RuntimeError(METAL)

        with monkeypatch.context() as patched:
            for name in ("eval", "async_eval"):
                patched.setattr(mx, name, fails)
            if call is not None:
                error = await refused(to_end(call), grpc.StatusCode.UNAVAILABLE, "GPU failed", "Timeout", "is kept")
            else:
                error = await refused(client.say("a", "And?", max_tokens=4), grpc.StatusCode.UNAVAILABLE, "GPU failed")
            assert passes(error)
            assert await asyncio.to_thread(stack.processes["worker"].wait, 30) == DEVICE_LOST == 74
        stack.start("worker")
        await stack.ready()
        again = await client.say("a", "And?", max_tokens=4)
        assert again.match == "EXTEND" and again.finished.version.version == first.finished.version.version + 1
        assert not (await stack.ledger("b")).token_ids


def passes(error: grpc.aio.AioRpcError) -> bool:
    failure = from_rpc(error)
    return isinstance(failure, Unavailable) and failure.retry_after > 0


async def to_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


@dataclass
class Drill:
    """The same turns on a stack whose GPU fails, and on one whose GPU never does."""

    stack: Supervised
    control: Stack
    client: Client
    controls: Client
    fails: Path
    seconds: dict[str, float] = field(default_factory=dict)

    async def told(self, agent: str, turn: Callable[[Client, str], Any]) -> Turn:
        """Take a turn on both, in which they answer alike."""
        mine, its = await turn(self.client, agent), await turn(self.controls, agent)
        await self.alike(agent, mine, its)
        return mine

    async def alike(self, agent: str, mine: Turn, its: Turn) -> None:
        assert (mine.text, mine.token_ids) == (its.text, its.token_ids)
        assert mine.logprobs == pytest.approx(its.logprobs, abs=ROUNDING)
        ledgers = [await stack.ledger(agent) for stack in (self.stack, self.control)]
        assert ledgers[0].token_ids == ledgers[1].token_ids, "no turn is lost, and none is doubled"
        assert len(ledgers[0].turns) == len(ledgers[1].turns)

    async def until_failed(self, times: int) -> None:
        """Wait until `up` has said for the n-th time that the GPU failed."""
        async with asyncio.timeout(60):
            while self.said.count("worker ended: the GPU failed; starting it again in") < times:
                await asyncio.sleep(0.02)

    @property
    def said(self) -> str:
        return (self.stack.root / "up.log").read_text(errors="replace")

    async def patiently(self, turn: Callable[[Client, str], Any], agent: str) -> Turn:
        """Send a turn again and again, as clients do."""
        async with asyncio.timeout(60):
            while True:
                try:
                    return await turn(self.client, agent)
                except grpc.aio.AioRpcError as error:
                    if not passes(error):
                        raise
                    await asyncio.sleep(0.05)


def asked(what: Any, request_id: str) -> Callable[[Client, str], Any]:
    return lambda client, agent: client.turn(agent, append=append(QUESTIONS[what]), request_id=request_id, **SHORT)


@asynccontextmanager
async def drilling(demo: Stack, folder: Path, agents: str) -> AsyncIterator[Drill]:
    """Agents that were told facts, whose KV is on disk."""
    fails = folder / "fails"
    async with supervised(PYTHONPATH=str(FOLDER), LOST_GPU=str(fails)) as stack:
        clients = await stack.client("gateway"), await demo.client("gateway")
        drill = Drill(stack, demo, *clients, fails)
        for seed, agent in enumerate(agents):
            messages = chat(*dialogue(seed, 900), ("user", QUESTIONS[BOAT]))
            turn = await drill.told(agent, lambda client, agent, m=messages: client.turn(agent, messages=m, **SHORT))
            assert turn.text.strip() == BOAT.answer
            await stack.on_disk(agent)
        yield drill


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_turns_under_way_fail_in_words_and_are_retried(demo: Stack, tmp_path: Path) -> None:
    """A stream of the contract, two of HTTP, and the client of the package, which gets its answer."""
    async with drilling(demo, tmp_path, "abcd") as drill:
        async with AsyncClient(drill.stack.grpc) as own, httpx.AsyncClient(base_url=drill.stack.url) as http:
            call = drill.client.inference.Generate(
                drill.client.request("a", append=append("Go on."), request_id="1", **LONG)
            )
            body = {"model": "demo", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 300}
            posts = [
                asyncio.create_task(
                    http.post(
                        "/v1/chat/completions",
                        json={**body, "logit_bias": {"2": -100}, "stream": stream},
                        headers={"X-Agent-ID": agent},
                        timeout=60,
                    )
                )
                for agent, stream in (("x", False), ("y", True))
            ]
            asking = asyncio.create_task(own.agent("b").ask("Go on.", max_tokens=300, ignore_eos=True))
            await drill.stack.until_running(4)
            while not (await call.read()).HasField("delta"):
                pass
            drill.fails.write_text("eval")
            error = await refused(to_end(call), grpc.StatusCode.UNAVAILABLE, "the GPU failed", "what was committed")
            began = time.monotonic()
            assert passes(error)
            whole, streamed = await asyncio.gather(*posts)
            assert whole.status_code == 503 and float(whole.headers["Retry-After"]) > 0
            assert "the GPU failed" in whole.text and "the GPU failed" in streamed.text
            assert "[DONE]" not in streamed.text and '"finish_reason":"' not in streamed.text
            warm = await drill.patiently(asked(KEY, "c-2"), "c")
            log.info("the first warm answer came %.1f s after the error", time.monotonic() - began)
            await drill.alike("c", warm, await asked(KEY, "c-2")(drill.controls, "c"))
            assert warm.cached.get("warm", 0) > 0 and warm.text.strip() == KEY.answer
            answer = await asking
        await drill.until_failed(1)
        expected = await drill.controls.say("b", "Go on.", **LONG)
        assert answer.text == expected.text and len((await drill.stack.ledger("b")).turns) == 2
        again = await drill.told("a", lambda client, agent: client.say(agent, "Go on.", request_id="1", **LONG))
        assert not again.finished.replayed, "it was not committed before"
        assert (await drill.told("d", asked(LOCKER, "d-2"))).cached.get("warm", 0) > 0
        for agent in "abcd":
            await drill.told(agent, asked(LOCKER, f"{agent}-3"))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_gpu_that_fails_in_a_write_an_idle_moment_and_a_load(demo: Stack, tmp_path: Path) -> None:
    async with drilling(demo, tmp_path, "efg") as drill:
        drill.fails.write_text("write")
        await drill.told("e", asked(KEY, "e-2"))
        await drill.until_failed(1)
        await drill.stack.ready()
        assert not drill.fails.exists()
        assert (await drill.told("e", asked(LOCKER, "e-3"))).cached.get("warm", 0) > 0
        await drill.stack.on_disk("e")

        drill.fails.write_text("eval")
        turn = asked(KEY, "f-2")
        await drill.alike("f", await drill.patiently(turn, "f"), await turn(drill.controls, "f"))
        await drill.until_failed(2)

        await drill.stack.on_disk("f")
        drill.fails.write_text("eval")
        await drill.stack.signal("worker")
        turn = asked(KEY, "g-2")
        await drill.alike("g", await drill.patiently(turn, "g"), await turn(drill.controls, "g"))
        await drill.until_failed(3)
        for agent in "efg":
            await drill.told(agent, asked(BOAT, f"{agent}-4"))
