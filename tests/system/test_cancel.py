"""A client that cancels, or is gone, frees the engine; a dead engine is told, not hidden."""

import asyncio
import signal
import sys
from pathlib import Path

import grpc
import httpx
import pytest

from agentmem.v1 import inference_pb2, types_pb2
from tests.system.client import Client, refused, until
from tests.system.stack import Stack, running, serving

LONG = {"max_tokens": 3500, "sampling": types_pb2.Sampling(ignore_eos=True)}
"""Minutes of decoding on a slow machine: nothing below waits for its end."""


async def begin(client: Client, agent: str, tokens: int = 3, **arguments: object) -> "grpc.aio.UnaryStreamCall":
    request = inference_pb2.GenerateRequest(key=client.key(agent), prompt="hello", **LONG, **arguments)  # type: ignore[arg-type]
    call = client.inference.Generate(request)
    for _ in range(tokens):
        await call.read()
    return call


async def to_end(call: "grpc.aio.UnaryStreamCall") -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_cancelled_turn_frees_the_engine_and_leaves_ledger_and_memory(stack: Stack, client: Client) -> None:
    before = await client.say("a", "The boat is green.", max_tokens=4)
    cancelled = await stack.metric("worker", "agentmem_requests_finished_total", reason="cancelled")
    ledger = await stack.ledger("a")
    for agent in ("a", "b"):
        (await begin(client, agent)).cancel()
    await stack.until_running(0)
    assert await stack.ledger("a") == ledger and not (await stack.ledger("b")).token_ids
    after = await client.say("a", "And?", max_tokens=3)
    assert after.cached == {"hot": len(ledger.token_ids)}
    assert after.finished.version.version == before.finished.version.version + 1
    assert await stack.metric("worker", "agentmem_requests_finished_total", reason="cancelled") == cancelled + 2


VANISHING = """
import sys, time, httpx
body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3500, "stream": True}
body["logit_bias"] = {"2": -100}  # no end of turn
with httpx.stream("POST", f"{sys.argv[1]}/v1/chat/completions", json=body, headers={"X-Agent-ID": "gone"}) as response:
    for number, _ in enumerate(response.iter_lines()):
        if number == 3:
            print("under way", flush=True)
            time.sleep(600)
"""


@pytest.mark.slow
async def test_cancelled_waiters_leave_their_places_at_once(tiny: Path) -> None:
    async with running(f"tiny={tiny}", worker_flags=("--max-requests", "4")) as stack:
        client = await stack.client()
        long = await begin(client, "a")
        waiting = [
            client.inference.Generate(inference_pb2.GenerateRequest(key=client.key(agent), prompt="x", **LONG))
            for agent in ("a", "a", "a")
        ]

        async def wait(requests: int) -> None:
            async def so_many() -> bool:
                return await stack.metric("worker", "agentmem_num_requests_waiting") == requests

            await until(so_many)

        await wait(3)
        full = client.say("c", "hello", max_tokens=2)
        await refused(full, grpc.StatusCode.RESOURCE_EXHAUSTED, "4 requests run or wait already")
        for call in waiting:
            call.cancel()
        await wait(0)
        assert (await client.say("c", "hello", max_tokens=2)).finished.durable, "while the long turn still runs"
        assert await stack.metric("worker", "agentmem_num_requests_running") == 1
        long.cancel()


@pytest.mark.slow
@pytest.mark.kills
async def test_shutdown_answers_unavailable(stack: Stack, client: Client) -> None:
    call = await begin(client, "a")
    stack.processes["worker"].terminate()
    await refused(to_end(call), grpc.StatusCode.UNAVAILABLE, "shutting down")
    assert await asyncio.to_thread(stack.processes["worker"].wait, 30) == 0


@pytest.mark.slow
async def test_a_client_that_is_killed_frees_the_engine(stack: Stack) -> None:
    await stack.renew("gateway")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", VANISHING, stack.url), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"under way\n"
    assert await stack.metric("worker", "agentmem_num_requests_running") == 1
    process.kill()
    await process.wait()
    await stack.until_running(0)
    assert not (await stack.ledger("gone")).token_ids


@pytest.mark.slow
async def test_a_dead_engine_is_not_serving(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "engine_dies")
    monkeypatch.setenv("FAULT_EXIT_SECONDS", "600")
    options = {"worker_module": "tests.system.faulty_worker"}
    async with running(f"tiny={tiny}", "store", "worker", "gateway", **options) as stack:
        client = await stack.client("gateway")
        worker = f"unix:{stack.run}/worker.sock"
        async with httpx.AsyncClient(base_url=stack.url) as http:
            assert (await http.get("/readyz")).status_code == 200
            await client.say("a", "hello", max_tokens=3)
            waiting = [asyncio.create_task(client.say(f"w{n}", "boat " * 300, max_tokens=3)) for n in range(3)]
            for call in (*waiting, client.say("a", "hello", max_tokens=3)):
                await refused(call, grpc.StatusCode.UNAVAILABLE)

            await stack.until_ready(503)
            assert not await serving(worker, "agentmem.v1.InferenceService") and not await serving(worker)
            assert (await http.get("/healthz")).status_code == 200
        assert stack.processes["worker"].poll() is None


@pytest.mark.slow
async def test_a_worker_whose_engine_died_ends_to_be_restarted(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "engine_dies")
    monkeypatch.setenv("FAULT_EXIT_SECONDS", "0.1")
    options = {"worker_module": "tests.system.faulty_worker"}
    async with running(f"tiny={tiny}", **options) as stack:
        client = await stack.client()
        await refused(client.say("a", "boat " * 300, max_tokens=3), grpc.StatusCode.UNAVAILABLE)
        assert await asyncio.to_thread(stack.processes["worker"].wait, 30) == 70


@pytest.mark.slow("stopped")
@pytest.mark.kills
@pytest.mark.parametrize("cancels", [False, True], ids=["stopped", "cancelled"])
async def test_a_turn_whose_commit_is_not_answered_in_time_is_there_once(
    stack: Stack, client: Client, cancels: bool
) -> None:
    """The store stops while the turn is computed; whether the turn is kept is for its retry to say."""
    first = await client.say("a", "The boat is green.", max_tokens=2)
    again = {"append": types_pb2.Append(text="Which?"), "request_id": "late", "max_tokens": 2}
    call = client.inference.Generate(client.request("a", **again), timeout=60)
    store = stack.processes["store"]
    try:
        assert (await call.read()).HasField("started")
        store.send_signal(signal.SIGSTOP)
        tokens = 0
        while tokens < 2:
            tokens += len((await call.read()).delta.token_ids)
        if cancels:
            call.cancel()
            await asyncio.sleep(0)
    finally:
        store.send_signal(signal.SIGCONT)
    if not cancels:
        await to_end(call)
    await stack.until_running(0)
    version = (await client.agent("a")).version.version
    retried = await client.turn("a", **again)
    assert retried.finished.replayed == (version == first.finished.version.version + 1)
    assert retried.finished.replayed or cancels
    assert (await client.agent("a")).version.version == first.finished.version.version + 1
    assert (await stack.ledger("a")).text.count(b"Which?") == 1
    assert (await client.turn("a", **again)).finished.replayed
