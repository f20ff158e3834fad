"""Workflow records over the socket."""

import grpc
import pytest

from agentmem.v1 import cache_store_pb2 as pb

from .conftest import Running, code, field_of


def put(workflow: str, version: int = 0, payload: bytes = b"p", namespace: str = "n") -> pb.PutWorkflowRecordRequest:
    record = pb.WorkflowRecord(namespace=namespace, workflow_id=workflow, version=version, payload=payload)
    return pb.PutWorkflowRecordRequest(record=record)


async def test_records_grow_by_one_and_are_read_back(store: Running) -> None:
    assert (await store.cache.PutWorkflowRecord(put("w"))).version == 1
    assert (await store.cache.PutWorkflowRecord(put("w", 1, b"q"))).version == 2
    request = pb.GetWorkflowRecordRequest(namespace="n", workflow_id="w")
    found = (await store.cache.GetWorkflowRecord(request)).record
    assert found == pb.WorkflowRecord(namespace="n", workflow_id="w", version=2, payload=b"q")


@pytest.mark.parametrize("base", [0, 2, 2**64 - 1])
async def test_a_record_in_another_version_is_aborted(store: Running, base: int) -> None:
    await store.cache.PutWorkflowRecord(put("w"))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await store.cache.PutWorkflowRecord(put("w", base))
    assert code(error) is grpc.StatusCode.ABORTED


async def test_another_namespaces_record_is_not_found(store: Running) -> None:
    await store.cache.PutWorkflowRecord(put("w"))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await store.cache.GetWorkflowRecord(pb.GetWorkflowRecordRequest(namespace="m", workflow_id="w"))
    assert code(error) is grpc.StatusCode.NOT_FOUND


async def test_lists_are_newest_first(store: Running) -> None:
    for workflow in "cab":
        await store.cache.PutWorkflowRecord(put(workflow))
    await store.cache.PutWorkflowRecord(put("z", namespace="m"))
    await store.cache.PutWorkflowRecord(put("c", 1))
    seen: list[str] = []
    token = ""
    while True:
        request = pb.ListWorkflowRecordsRequest(namespace="n", page_size=1, page_token=token)
        page = await store.cache.ListWorkflowRecords(request)
        seen += [record.workflow_id for record in page.records]
        token = page.next_page_token
        if not token:
            break
    assert seen == ["b", "a", "c"]
    for bad in ("W10=", "WyItMSJd", "WyLCsiJd", "x"):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await store.cache.ListWorkflowRecords(pb.ListWorkflowRecordsRequest(namespace="n", page_token=bad))
        assert field_of(error) == "page_token"
