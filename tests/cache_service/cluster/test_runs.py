"""Which workflow runs nobody attends to, as the stores of a cluster find them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from agentmem.v1 import cache_store_pb2 as pb
from cache_service.cluster.postgres.settings import Settings
from tests.cache_service.cluster.several import Node, node


@pytest.fixture
async def two(data: Path, cluster: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Node, Node]]:
    monkeypatch.setattr("cache_service.ledger_home.Holders.is_new", False)
    monkeypatch.setattr("cache_service.cluster.membership.BEAT_SECONDS", 0.1)
    async with AsyncExitStack() as stack:
        yield tuple([await stack.enter_async_context(node(data, cluster, name)) for name in "ab"])  # type: ignore[misc]


async def put(on: Node, name: str, version: int = 0, holder: str = "") -> int:
    """A record that a node's gateway writes."""
    record = pb.WorkflowRecord(
        namespace="n", workflow_id=name, version=version, payload=b"p", summary=b"s", holder=holder
    )
    return (await on.store.cache.PutWorkflowRecord(pb.PutWorkflowRecordRequest(record=record))).version


async def attend(on: Node, holder: str, *, leaving: bool = False) -> tuple[list[str], list[str]]:
    """The runs of a gateway, and those of nobody, as the store of its node says."""
    request = pb.AttendWorkflowRecordsRequest(holder=holder, leaving=leaving)
    found = await on.store.cache.AttendWorkflowRecords(request)
    return [run.workflow_id for run in found.held], [run.workflow_id for run in found.unattended]


async def until_nobody_has(on: Node, *runs: str) -> None:
    async with asyncio.timeout(30):
        while (await attend(on, "of a"))[1] != [*runs]:
            await asyncio.sleep(0.05)


async def test_a_gateway_of_another_node_attends_until_it_leaves_or_is_silent(
    two: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two
    await attend(b, "of b")
    await put(a, "own", holder="of a")
    await put(a, "gone", holder="of c")
    await put(a, "theirs", holder="of b")
    await put(a, "ended")
    assert (await attend(a, "of a"))[0] == ["own"]
    await until_nobody_has(a, "gone")
    [theirs] = [
        record
        for record in (await a.store.cache.ListWorkflowRecords(pb.ListWorkflowRecordsRequest(namespace="n"))).records
        if record.holder == "of b"
    ]
    assert theirs.workflow_id == "theirs"
    await attend(b, "of b", leaving=True)
    await until_nobody_has(a, "theirs", "gone")
    await attend(b, "of b")
    await until_nobody_has(a, "gone")
    monkeypatch.setattr("cache_service.ledger_home.HOLDER_SECONDS", 0.5)
    await until_nobody_has(a, "theirs", "gone")


async def test_of_two_that_take_a_run_over_one_does(two: tuple[Node, Node]) -> None:
    await put(two[0], "run", holder="of c")
    tries = [put(each, "run", 1, holder) for each, holder in zip(two, ("of a", "of b"), strict=True)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    [lost] = [each for each in outcomes if isinstance(each, grpc.aio.AioRpcError)]
    assert 2 in outcomes and lost.code() is grpc.StatusCode.ABORTED
    held = [(await attend(each, holder))[0] for each, holder in zip(two, ("of a", "of b"), strict=True)]
    assert sorted(held) == [[], ["run"]]
