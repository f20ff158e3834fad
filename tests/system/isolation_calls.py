"""Callers in the tests of isolation: bob has something, ada asks for it, and what she gets is checked.

tests/system/isolation.py and isolation_routes.py are the tables of what she asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from agentmem.channels import connect
from agentmem.v1 import agent_pb2, agent_pb2_grpc, inference_pb2, inference_pb2_grpc, workflow_pb2
from tests.system import isolation
from tests.system.client import chat
from tests.system.files import CHUNK
from tests.system.isolation import KEPT, LABEL, PROMPT, RPCS, SNAPSHOT, TURN, Rpc, key
from tests.system.isolation_routes import BOBS_RUN, ROUTES, Http
from tests.system.stack import Stack


class Caller:
    """A caller with one key, or with none."""

    def __init__(self, stack: Stack, secret: str = "") -> None:
        self.channel = connect(stack.grpc, key=secret)
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        self.http = httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=60)
        self.agents: Any = agent_pb2_grpc.AgentServiceStub(self.channel)
        self.inference: Any = inference_pb2_grpc.InferenceServiceStub(self.channel)

    async def call(self, rpc: str, asked: Message | list[Message]) -> list[Any] | grpc.StatusCode:
        service, _, name = rpc.partition("/")
        method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]  # type: ignore[no-untyped-call]
        arity = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        stub = getattr(self.channel, arity)(
            f"/{rpc}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        call = stub(iter(asked) if isinstance(asked, list) else asked, timeout=60)
        try:
            return [message async for message in call] if method.server_streaming else [await call]
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            call.cancel()

    async def request(self, method: str, entry: Http) -> httpx.Response:
        given: dict[str, Any] = {"json": entry.body} if entry.body is not None else {"content": b"".join(entry.content)}
        return await self.http.request(method, entry.url, headers=entry.headers, **given)

    async def close(self) -> None:
        await self.http.aclose()
        await self.channel.close(None)


@asynccontextmanager
async def calling(stack: Stack, *secrets: str) -> AsyncIterator[list[Caller]]:
    callers = [Caller(stack, secret) for secret in secrets]
    try:
        yield callers
    finally:
        for caller in callers:
            await caller.close()


async def settle(bob: Caller) -> None:
    """Wait until all of bob's KV is on disk."""
    async with asyncio.timeout(60):
        while not all(agent.warm_tokens == agent.tokens for agent in await bobs(bob)):
            await asyncio.sleep(0.05)


async def bobs(bob: Caller) -> list[agent_pb2.Agent]:
    return list((await bob.agents.ListAgents(agent_pb2.ListAgentsRequest(page_size=1000))).agents)


async def all_of(bob: Caller) -> dict[str, object]:
    """Return bob's data, as bytes."""
    listed = await bobs(bob)
    runs = await bob.call("agentmem.v1.WorkflowService/ListWorkflows", workflow_pb2.ListWorkflowsRequest())
    assert isinstance(runs, list)
    snapshots = await bob.agents.ListSnapshots(agent_pb2.ListSnapshotsRequest(key=key("")))
    exported = await bob.call("agentmem.v1.AgentService/ExportAgent", agent_pb2.ExportAgentRequest(key=key("")))
    assert isinstance(exported, list)
    return {
        "agents": [agent.SerializeToString(deterministic=True) for agent in listed],
        "snapshots": snapshots.SerializeToString(deterministic=True),
        "runs": runs[0].SerializeToString(deterministic=True),
        "file": b"".join(part.chunk for part in exported),
    }


async def furnish(bob: Caller, settled: Callable[[Caller], Awaitable[None]] = settle) -> None:
    """Bob's agents, a snapshot, a conversation that is found by its content, and an export. `settled` waits until all
    his KV is on disk.
    """
    turn = {"messages": PROMPT, "request_id": TURN, "label": LABEL, "max_tokens": 4}
    assert (await finished(bob, key=key(""), **turn)).durable
    await bob.agents.CreateSnapshot(agent_pb2.CreateSnapshotRequest(key=key(""), name=SNAPSHOT))
    for name, messages in KEPT.items():
        await finished(bob, key=key("", name), messages=messages, max_tokens=1)
    events = await bob.call("agentmem.v1.WorkflowService/RunWorkflow", isolation.run_workflow(""))
    assert isinstance(events, list)
    isolation.WORKFLOW_IDS[:] = [events[-1].finished.workflow.workflow_id]
    assert isolation.WORKFLOW_IDS == [BOBS_RUN]
    # The table is worth nothing unless bob himself is told what ada must not be. Where there are several nodes, a turn
    # of an agent that is new, or of none, runs on any of them, which has what another turn computed there.
    async with asyncio.timeout(60):
        while True:
            again = await finished(bob, key=key("", ""), messages=PROMPT, max_tokens=1)
            if sum(part.tokens for part in again.usage.cached) == 256:
                break
    same = [(method, entry, "") for (method, _), entries in ROUTES.items() for entry in entries if entry.bobs]
    for _ in range(20):
        answers = [(method, entry, await bob.request(method, entry)) for method, entry, _ in same]
        same = [(method, entry, got.text[:500]) for method, entry, got in answers if entry.fits(got)]
    assert not same, "what ada must be told is told to bob, too"
    await settled(bob)
    file_of_bobs = (await all_of(bob))["file"]
    assert isinstance(file_of_bobs, bytes)
    isolation.EXPORTED[:] = [file_of_bobs[at : at + CHUNK] for at in range(0, min(4 * CHUNK, len(file_of_bobs)), CHUNK)]


async def finished(bob: Caller, **fields: Any) -> inference_pb2.Finished:
    events = [event async for event in bob.inference.Generate(inference_pb2.GenerateRequest(**fields))]
    return events[-1].finished  # type: ignore[no-any-return]


async def try_all(ada: Caller, bob: Caller, nobody: Caller) -> list[str]:
    """All that is wrong with what ada, and who has no key, get of what bob has, whichever way they ask."""
    wrong: list[str] = []
    for rpc, entries in RPCS.items():
        async with bobs_running_turn(bob) if rpc.endswith("/Abort") else nullcontext():
            for entry in entries:
                wrong += await try_rpc(ada, nobody, rpc, entry)
    for (method, path), requests in ROUTES.items():
        async with bobs_running_turn(bob) if path.endswith("/abort") else nullcontext():
            for request in requests:
                wrong += await try_route(ada, nobody, method, request)
    if (got := await nobody.http.get("/v1/no-such-route")).status_code != 401:
        wrong.append(f"no such route, without a key: {got.status_code}")
    return wrong


async def try_rpc(ada: Caller, nobody: Caller, rpc: str, entry: Rpc) -> list[str]:
    """All that is wrong with what ada, and who has no key, get."""
    wrong = []
    if (got := await nobody.call(rpc, entry.ask(""))) is not grpc.StatusCode.UNAUTHENTICATED:
        wrong.append(f"{rpc} without a key: {got}")
    if not entry.names_none and (got := await ada.call(rpc, entry.ask("bob"))) is not isolation.DENIED:
        wrong.append(f"{rpc} that names bob's namespace: {got}")
    got = await ada.call(rpc, entry.ask(""))
    fine = got is entry.says if isinstance(entry.says, grpc.StatusCode) else isinstance(got, list) and entry.says(got)
    if not fine:
        wrong.append(f"{rpc} that names no namespace: {got}")
    return wrong


async def try_route(ada: Caller, nobody: Caller, method: str, entry: Http) -> list[str]:
    """All that is wrong with what ada, and who has no key, get."""
    wrong = []
    unasked = await nobody.request(method, entry)
    if entry.open == (unasked.status_code == 401):
        wrong.append(f"{method} {entry.url} without a key: {unasked.status_code}")
    got = await ada.request(method, entry)
    if not entry.fits(got):
        wrong.append(f"{method} {entry.url}: {got.status_code} {got.text[:500]}")
    if "purple" in got.text:
        wrong.append(f"{method} {entry.url} tells what bob was told")
    return wrong


@asynccontextmanager
async def bobs_running_turn(bob: Caller) -> AsyncIterator[None]:
    """A turn of bob's that runs throughout the block, and that he, after it, can abort."""
    request = inference_pb2.GenerateRequest(
        key=key("", ""),
        messages=chat(("user", "Go on.")),
        request_id="bobs-running-turn",
        max_tokens=3000,
    )
    request.sampling.ignore_eos = True
    call = bob.inference.Generate(request)

    async def read() -> None:
        async for _ in call:
            pass

    reading = asyncio.create_task(read())
    try:
        yield
        assert not reading.done()
        abort = inference_pb2.AbortRequest(request_id="bobs-running-turn")
        assert (await bob.inference.Abort(abort)).aborted
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await reading
        assert ended.value.code() is grpc.StatusCode.CANCELLED
    finally:
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
