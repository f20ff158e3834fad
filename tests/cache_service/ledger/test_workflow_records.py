"""Workflow records over the socket."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from agentmem import validation
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.offline.check import check
from cache_service.offline.recover import recover
from tests.cache_service.conftest import Running, fails, running, wrong_field
from tests.cache_service.invariants import holds
from tests.cache_service.ledger.test_erasure import hasty

__all__ = ["hasty"]
SECRET = b"said in confidence, "


def put(
    workflow: str,
    version: int = 0,
    payload: bytes | None = b"p",
    namespace: str = "n",
    summary: bytes = b"",
    events: Sequence[bytes] = (),
) -> pb.PutWorkflowRecordRequest:
    record = pb.WorkflowRecord(
        namespace=namespace, workflow_id=workflow, version=version, payload=payload, summary=summary
    )
    return pb.PutWorkflowRecordRequest(record=record, events=events)


def get(workflow: str = "w", namespace: str = "n", after: int = 0) -> pb.GetWorkflowRecordRequest:
    return pb.GetWorkflowRecordRequest(namespace=namespace, workflow_id=workflow, after_event=after)


def delete(workflow: str = "w", version: int = 1, namespace: str = "n") -> pb.DeleteWorkflowRecordRequest:
    return pb.DeleteWorkflowRecordRequest(namespace=namespace, workflow_id=workflow, version=version)


async def listed(store: Running, size: int | None = None) -> list[list[pb.WorkflowRecord]]:
    pages: list[list[pb.WorkflowRecord]] = []
    token = ""
    while not pages or token:
        request = pb.ListWorkflowRecordsRequest(namespace="n", page_size=size, page_token=token)
        page = await store.cache.ListWorkflowRecords(request)
        pages.append(list(page.records))
        token = page.next_page_token
    return pages


async def test_another_namespaces_record_is_not_found(store: Running) -> None:
    await store.cache.PutWorkflowRecord(put("w"))
    for call in (
        store.cache.GetWorkflowRecord(get(namespace="m")),
        store.cache.DeleteWorkflowRecord(delete(namespace="m")),
    ):
        await fails(call, "NOT_FOUND")
    assert (await store.cache.GetWorkflowRecord(get())).record.version == 1


@pytest.mark.parametrize(
    ("field", "limit"), [("payload", validation.MAX_RECORD_BYTES), ("summary", validation.MAX_SUMMARY_BYTES)]
)
async def test_what_is_as_large_as_it_may_be_is_kept_and_what_is_larger_refused(
    store: Running, field: str, limit: int
) -> None:
    whole = put("w")
    setattr(whole.record, field, b"x" * limit)
    await store.cache.PutWorkflowRecord(whole)
    larger = put("w", 1)
    setattr(larger.record, field, b"x" * (limit + 1))
    assert await wrong_field(store.cache.PutWorkflowRecord(larger)) == f"record.{field}"
    assert getattr((await store.cache.GetWorkflowRecord(get())).record, field) == b"x" * limit


async def test_lists_are_newest_first_and_tell_no_payload(store: Running) -> None:
    for workflow in "cab":
        await store.cache.PutWorkflowRecord(put(workflow, summary=workflow.encode()))
    await store.cache.PutWorkflowRecord(put("z", namespace="m"))
    await store.cache.PutWorkflowRecord(put("c", 1, b"longer", summary=b"changed"))
    pages = await listed(store, 1)
    assert [(each.workflow_id, each.version, each.summary, each.payload) for page in pages for each in page] == [
        ("b", 1, b"b", b""),
        ("a", 1, b"a", b""),
        ("c", 2, b"changed", b""),
    ]
    for bad in ("W10=", "WyItMSJd", "WyLCsiJd", "x"):
        request = pb.ListWorkflowRecordsRequest(namespace="n", page_token=bad)
        assert await wrong_field(store.cache.ListWorkflowRecords(request)) == "page_token"


async def test_pages_of_many_records_while_some_come_and_go(store: Running) -> None:
    for number in range(105):
        await store.cache.PutWorkflowRecord(put(f"w{number}"))
    first = await store.cache.ListWorkflowRecords(pb.ListWorkflowRecordsRequest(namespace="n"))
    assert [each.workflow_id for each in first.records] == [f"w{number}" for number in range(104, 4, -1)]
    await store.cache.PutWorkflowRecord(put("new"))
    for number in (3, 5):  # one of the page to come, and the one that its token names
        await store.cache.DeleteWorkflowRecord(delete(f"w{number}"))
    request = pb.ListWorkflowRecordsRequest(namespace="n", page_token=first.next_page_token)
    rest = await store.cache.ListWorkflowRecords(request)
    assert [each.workflow_id for each in rest.records] == ["w4", "w2", "w1", "w0"] and not rest.next_page_token


async def test_a_deleted_record_is_gone_from_the_files(store: Running) -> None:
    """With all that it said before, also where a shorter text has replaced it."""
    for version, size in enumerate((3000, 70_000, 10)):
        await store.cache.PutWorkflowRecord(
            put("w", version, SECRET * size, summary=SECRET * 9, events=[SECRET, SECRET * 400])
        )
        await store.cache.PutWorkflowRecord(put(f"kept {version}", payload=b"others'" * 1000))
    assert holds(store.data, SECRET)
    await store.cache.DeleteWorkflowRecord(delete("w", 3))
    assert holds(store.data, SECRET) == []
    await fails(store.cache.DeleteWorkflowRecord(delete("w", 3)), "NOT_FOUND")
    assert (await store.cache.PutWorkflowRecord(put("w"))).version == 1
    assert [len(page) for page in await listed(store)] == [4]


async def test_events_are_appended_and_read_from_any_of_them_on(store: Running) -> None:
    events = [f"event {number}".encode() for number in range(5)]
    await store.cache.PutWorkflowRecord(put("w", payload=b"p", events=events[:2]))
    kept = put("w", 1, None, summary=b"s", events=events[2:])
    assert (await store.cache.PutWorkflowRecord(kept)).version == 2
    for after in (0, 2, 4, 5, 99, 2**64 - 1):
        found = await store.cache.GetWorkflowRecord(get(after=after))
        assert list(found.events) == events[after:]
        assert (found.record.version, found.record.payload, found.record.summary) == (2, b"p", b"s")
    await store.cache.PutWorkflowRecord(put("w", 2, b"other"))
    found = await store.cache.GetWorkflowRecord(get())
    assert (found.record.payload, list(found.events)) == (b"other", events)
    (listed_record,) = (await listed(store))[0]
    assert not listed_record.HasField("payload")


async def test_what_is_no_put(store: Running) -> None:
    await store.cache.PutWorkflowRecord(put("v", payload=b"x" * (validation.MAX_RECORD_BYTES - 3), events=[b"xy"]))
    for request, field in (
        (put("w", payload=None), "record.payload"),
        (put("w", events=[b"one", b""]), "events"),
        (put("w", events=[b"x" * 1024] * (validation.MAX_RECORD_BYTES // 1024 + 1)), "events"),
        (put("v", 1, None, events=[b"xy"]), "events"),
    ):
        assert await wrong_field(store.cache.PutWorkflowRecord(request)) == field
    await store.cache.PutWorkflowRecord(put("v", 1, None, events=[b"x"]))


async def test_a_put_writes_what_it_brings_and_not_the_record(store: Running) -> None:
    """An event of 1.5 KB in a record of a megabyte changes a few pages."""
    await store.cache.PutWorkflowRecord(put("w", payload=bytes(500_000), events=[bytes(500_000)]))
    wal = store.data / "store.db-wal"
    await asyncio.wrap_future(store.store._database.scrub())
    for version in range(1, 21):
        await store.cache.PutWorkflowRecord(put("w", version, None, summary=b"s" * 100, events=[bytes(1500)]))
    assert wal.stat().st_size < 20 * 40_000


async def test_a_torn_record_is_not_served_and_may_be_deleted(data: Path) -> None:
    async with running(data) as store:
        for workflow in "vw":
            await store.cache.PutWorkflowRecord(put(workflow, events=[b"one", b"two"]))
    with closing(sqlite3.connect(data / "store.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM workflow_parts WHERE record = 2 AND number = 1")
    findings = check(data).findings
    assert "table workflow_records, row 2" in {finding.where for finding in findings}
    assert all("delete the run" in finding.repair for finding in findings)
    recovered = recover(data, data.with_name("new"))
    assert recovered.workflow_records == 1 and recovered.damaged == ["workflow_records"]
    assert check(data.with_name("new")).is_clean
    async with running(data) as store:
        assert "workflow 'w'" in await fails(store.cache.GetWorkflowRecord(get()), "DATA_LOSS")
        assert (await store.cache.GetWorkflowRecord(get("v"))).record.version == 1
        await store.cache.DeleteWorkflowRecord(delete())
    assert check(data).is_clean
