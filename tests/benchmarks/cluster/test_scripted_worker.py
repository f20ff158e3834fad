"""The scripted worker beside a real store: what it tells its clients, and that it computes nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from agentmem.v1 import agent_pb2, types_pb2
from tests.cluster.nodes import Node
from tests.system.client import Client

APPEND = types_pb2.Append(text="go on")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node(worker_flags=("--cold-seconds=0.01",))
    try:
        node.start()
        asyncio.run(node.ready())
        yield node
    finally:
        node.destroy()


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with node.client() as client:
        yield client


def test_it_imports_no_mlx() -> None:
    program = (
        "import sys, benchmarks.cluster.scripted_worker;"
        "print({'mlx', 'mlx_lm', 'transformers'} & {each.partition('.')[0] for each in sys.modules})"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert ended.stdout == "set()\n"


async def test_a_turn_appends_its_name_and_answers_with_the_list(client: Client) -> None:
    first = await client.turn("ada", request_id="one", append=APPEND)
    second = await client.turn("ada", request_id="two", append=APPEND)
    assert (first.text, second.text) == ("one", "one\ntwo")
    assert (first.match, second.match, second.cached) == ("NEW", "EXTEND", {"hot": 1})
    assert second.finished.durable and second.started.base == first.finished.version
    assert (await client.agent("ada")).tokens == 2


async def test_a_retry_is_replayed(client: Client) -> None:
    first = await client.turn("bob", request_id="one", append=APPEND)
    await client.turn("bob", request_id="two", append=APPEND)
    again = await client.turn("bob", request_id="one", append=APPEND)
    assert again.finished.replayed and again.text == "one" and again.finished.version == first.finished.version
    assert (await client.agent("bob")).tokens == 2
    with pytest.raises(grpc.aio.AioRpcError, match="other arguments"):
        await client.turn("bob", request_id="one", append=types_pb2.Append(text="something else"))


async def test_memory_follows_what_the_store_says(client: Client) -> None:
    for name in ("one", "two", "three"):
        await client.turn("cleo", request_id=name, append=APPEND)
    await client.agents.TrimAgent(agent_pb2.TrimAgentRequest(key=client.key("cleo"), keep_tokens=1))
    behind = await client.turn("cleo", request_id="four", append=APPEND)
    assert behind.text == "one\nfour" and behind.cached == {}
    with pytest.raises(grpc.aio.AioRpcError, match="ABORTED"):
        await client.turn("cleo", request_id="five", append=APPEND, if_version=1)
