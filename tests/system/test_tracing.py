"""One request's id through gateway, worker and store, as their logs have it, and back over HTTP and gRPC."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from agentmem.v1 import inference_pb2, types_pb2
from tests.agentmem.test_tracing import PARENT
from tests.system.stack import Stack, running

SERVICES = ("gateway", "worker", "store")
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "the boat is green"}], "max_tokens": 4}
pytestmark = pytest.mark.asyncio(loop_scope="module")

VERBOSE = ("--log-level", "debug", "--log-format", "json")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tiny: Any) -> AsyncIterator[Stack]:
    async with running(f"tiny={tiny}", worker_flags=VERBOSE, store_flags=VERBOSE) as stack:
        await stack.up("gateway")
        yield stack


def lines(stack: Stack, service: str, request_id: str) -> list[str]:
    named = re.compile(rf'(request_id=|"request_id": ){re.escape(json.dumps(request_id))}')
    return [line for line in stack.logs(service).splitlines() if named.search(line)]


async def published(stack: Stack, request_id: str) -> None:
    """Wait until the store has taken the turn's blocks, which it gets after the answer."""
    async with asyncio.timeout(30):
        while not any("PublishBlocks" in line for line in lines(stack, "store", request_id)):
            await asyncio.sleep(0.02)


async def test_a_request_is_followed_from_door_to_store_and_back(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as http:
        headers = {"X-Agent-ID": "ada", "X-Request-ID": "by-http", "traceparent": PARENT}
        answer = await http.post("/v1/chat/completions", json=BODY, headers=headers)
    assert answer.status_code == 200
    assert (answer.headers["x-request-id"], answer.headers["traceparent"]) == ("by-http", PARENT)

    client = await stack.client("gateway")
    request = inference_pb2.GenerateRequest(
        key=client.key("bob"), append=types_pb2.Append(text="the key is red"), max_tokens=4
    )
    metadata = (("x-request-id", "by-grpc"), ("traceparent", PARENT))
    call = client.inference.Generate(request, metadata=metadata)
    assert [event async for event in call][-1].finished.durable
    returned = dict(await call.initial_metadata())
    assert (returned["x-request-id"], returned["traceparent"]) == ("by-grpc", PARENT)

    for request_id in ("by-http", "by-grpc"):
        await published(stack, request_id)
        for service in SERVICES:
            found = lines(stack, service, request_id)
            assert found, f"{request_id} is not in the log of the {service}"
            assert sum("Generate" in line or "chat/completions" in line for line in found) == (service != "store")
        stored = "".join(lines(stack, "store", request_id))
        assert all(rpc in stored for rpc in ("OpenCache", "CommitTurn", "StageBlocks", "PublishBlocks"))
