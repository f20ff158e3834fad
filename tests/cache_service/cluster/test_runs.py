"""Which workflow runs nobody attends to, as the stores of a cluster find them."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cluster_pb2
from tests.cache_service.cluster.several import Node
from tests.cache_service.conftest import code


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache_service.cluster.membership.BEAT_SECONDS", 0.1)


async def epochs(a: Node, b: Node) -> dict[str, int]:
    """The epochs of both, once each knows that both gateways speak."""
    async with asyncio.timeout(30):
        while True:
            seen = [await each.sync() for each in (a, b)]
            if all(len(one) == 2 and not any(node.silent for node in one.values()) for one in seen):
                return {name: node.epoch for name, node in seen[0].items()}
            await asyncio.sleep(0.05)


async def put(on: Node, name: str, version: int, owner: tuple[str, int] | None, namespace: str = "n") -> int:
    """A record that a node's gateway writes, and who goes on with the run."""
    record = pb.WorkflowRecord(namespace=namespace, workflow_id=name, version=version, payload=b"p", summary=b"s")
    request = pb.PutWorkflowRecordRequest(record=record)
    if owner is not None:
        request.owner.node, request.owner.epoch = owner
    return (await on.store.cache.PutWorkflowRecord(request)).version


async def unattended(on: Node) -> list[tuple[str, str, str]]:
    """The runs that a node's gateway is to look at."""
    found = await on.cluster.ListUnattendedRuns(cluster_pb2.ListUnattendedRunsRequest())
    return [(run.namespace, run.workflow_id, run.node) for run in found.runs]


async def test_runs_of_nodes_that_are_there_are_attended_to(two: tuple[Node, Node]) -> None:
    a, b = two
    epoch = await epochs(a, b)
    await put(a, "one", 0, ("a", epoch["a"]))
    await put(b, "two", 0, ("b", epoch["b"]), "other")
    assert await unattended(a) == [("n", "one", "a")], "its own, which its gateway knows whether it has"
    assert await unattended(b) == [("other", "two", "b")]


async def test_runs_of_nodes_that_are_gone_or_were_started_again_are_found(two: tuple[Node, Node]) -> None:
    a, b = two
    epoch = await epochs(a, b)
    await put(a, "own", 0, ("a", epoch["a"]))
    await put(a, "gone", 0, ("c", 1))
    await put(a, "earlier", 0, ("b", epoch["b"] - 1), "other")
    assert await unattended(a) == [("other", "earlier", "b"), ("n", "gone", "c"), ("n", "own", "a")]
    assert await put(b, "gone", 1, ("b", epoch["b"])) == 2
    assert await unattended(a) == [("other", "earlier", "b"), ("n", "own", "a")]


async def test_runs_of_a_node_whose_gateway_is_silent_are_found(
    two: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two
    epoch = await epochs(a, b)
    await put(b, "lost", 0, ("b", epoch["b"]))
    assert await unattended(a) == []
    monkeypatch.setattr("cache_service.cluster.membership.SILENT_SECONDS", 0.5)
    async with asyncio.timeout(30):
        while await unattended(a) != [("n", "lost", "b")]:
            await a.sync()
            await asyncio.sleep(0.05)


async def test_what_has_ended_or_is_deleted_has_no_owner(two: tuple[Node, Node]) -> None:
    a, _ = two
    for name in ("ended", "deleted"):
        await put(a, name, 0, ("c", 1))
    await put(a, "ended", 1, None)
    await a.store.cache.DeleteWorkflowRecord(
        pb.DeleteWorkflowRecordRequest(namespace="n", workflow_id="deleted", version=1)
    )
    assert await unattended(a) == []
    await put(a, "never", 0, None)
    assert await unattended(a) == []


async def test_of_two_that_take_a_run_over_one_does(two: tuple[Node, Node]) -> None:
    a, b = two
    epoch = await epochs(a, b)
    await put(a, "run", 0, ("c", 1))
    tries = [put(each, "run", 1, (name, epoch[name])) for each, name in ((a, "a"), (b, "b"))]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    [won] = [each for each in outcomes if each == 2]
    [lost] = [each for each in outcomes if isinstance(each, grpc.aio.AioRpcError)]
    assert won == 2 and lost.code() is grpc.StatusCode.ABORTED
    assert len(await unattended(a)) + len(await unattended(b)) == 1, "whose run it is now"


async def test_an_owner_has_a_name(two: tuple[Node, Node]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await put(two[0], "run", 0, ("", 1))
    assert code(refused) is grpc.StatusCode.INVALID_ARGUMENT
