"""Records of runs over a channel, with stores that stop, and answers that are lost."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentmem.channels import connect
from agentmem.errors import Aborted, AlreadyExists, DataLoss, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc, workflow_pb2
from cache_service.ledger_home import Holders
from cache_service.tiers.quotas import Quotas
from gateway.workflows.event_log import Event, LoggedEvent
from gateway.workflows.records import Records, State, StoredRun, TakenOver
from tests.cache_service.conftest import running


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory with a path short enough for a socket."""
    parent = Path(tempfile.mkdtemp(dir="/tmp", prefix="am"))
    yield parent / "d"
    shutil.rmtree(parent)


@asynccontextmanager
async def records(socket: Path, patience: float = 60.0) -> AsyncIterator[Records]:
    async with connect(f"unix:{socket}") as channel:
        yield Records(channel, patience)


@pytest.fixture
async def runs(data: Path) -> AsyncIterator[Records]:
    async with running(data), records(data / "store.sock") as found:
        yield found


class Wire:
    """A gateway's calls to a store, where the answer to the next write can be lost.

    The store has done what it was asked for, unless the call was `cut`, too. `meanwhile` is awaited before it is asked
    again.
    """

    def __init__(self, runs: Records) -> None:
        self._calls, self._loses = runs._store, False
        runs._store = self  # type: ignore[assignment]

    def lose(
        self,
        meanwhile: Callable[[], Awaitable[object]] | None = None,
        status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
        *,
        cut: bool = False,
    ) -> None:
        self._loses, self._meanwhile, self._status, self._cut = True, meanwhile, status, cut

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        rpc = getattr(self._calls, name)

        async def call(request: Any, timeout: float) -> Any:
            if name == "GetWorkflowRecord" or not self._loses:
                return await rpc(request, timeout=timeout)
            self._loses = False
            if not self._cut:
                await rpc(request, timeout=timeout)
            if self._meanwhile is not None:
                await self._meanwhile()
            raise grpc.aio.AioRpcError(self._status, grpc.aio.Metadata(), grpc.aio.Metadata(), "lost")

        return call


def run(workflow_id: str = "w", text: str = "p", **fields: Any) -> StoredRun:
    workflow = workflow_pb2.Workflow(namespace="n", workflow_id=workflow_id, **fields)
    return StoredRun(workflow, text, {"a": "b"})


def logged(text: str) -> LoggedEvent:
    return LoggedEvent(key=text, event=Event(agent_spoke=workflow_pb2.AgentSpoke(text=text)))


async def test_a_run_is_made_changed_listed_and_erased(runs: Records) -> None:
    agent = workflow_pb2.WorkflowAgent(name="ann", persists=True)
    made = run(state=State.WORKFLOW_STATE_RUNNING, agents=[agent], name="talk")
    await runs.create(made)
    made.workflow.turns, made.workflow.phase = 2, "p"
    await runs.append(made, [logged("one"), logged("two")])
    made.workflow.state, made.workflow.error = State.WORKFLOW_STATE_FAILED, "é" * 10_000
    await runs.append(made, ())
    assert (made.version, made.stored_events) == (3, 2)
    found = await runs.get("n", "w")
    assert found is not None
    made.workflow.error = "é" * 3000  # what a summary has room for
    assert found == StoredRun(made.workflow, "p", {"a": "b"}, 3, 2, [logged("one"), logged("two")])
    behind = await runs.get("n", "w", 1)
    assert behind is not None
    assert behind.events == [logged("two")]
    head = await runs.head("n", "w")
    assert head is not None and head.workflow == made.workflow
    bare = await runs.get("n", "w", 1, payload=False)
    assert bare is not None and (bare.definition_yaml, bare.events) == ("", [logged("two")])
    assert [each.stored_events for each in (behind, head, bare)] == [2, 2, 2]
    assert await runs.get("n", "other") is None and await runs.head("m", "w") is None
    await runs.create(run("x"))
    first, token = await runs.page("n", 1)
    second, end = await runs.page("n", 1, token)
    made.workflow.ClearField("agents")
    assert ([each.workflow for each in (*first, *second)], end) == ([run("x").workflow, made.workflow], "")
    await runs.delete("n", "w", 3)
    assert await runs.get("n", "w") is None
    await runs.create(run())


async def test_a_store_that_has_just_started_takes_every_holder_for_there_unless_it_left(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run(state=State.WORKFLOW_STATE_RUNNING)
    socket = data / "store.sock"
    async with records(socket) as runs, records(socket) as other:
        async with running(data):
            await runs.create(made)
        async with running(data):
            found, (listed, _) = await other.get("n", "w"), await other.page("n", 1)
            assert found is not None and found.holder == listed[0].holder == runs.holder
            assert await other.attend() == (set(), [])
            await runs.attend(leaving=True)
            found = await other.head("n", "w")
            assert found is not None and found.holder == ""
            monkeypatch.setattr(Holders, "is_new", False)
            assert await other.attend() == (set(), [("n", "w")])


async def test_whose_a_run_is(runs: Records, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway's that wrote it last, as long as that says so; what does not go on is nobody's."""
    monkeypatch.setattr(Holders, "is_new", False)
    made = run(state=State.WORKFLOW_STATE_RUNNING)
    made.key_id = "k1"
    await runs.create(made)
    async with records(data / "store.sock") as other:
        assert await other.attend() == (set(), [("n", "w")])
        assert await runs.attend() == ({("n", "w")}, [])
        assert (await other.attend())[1] == []
        [listed], _ = await other.page("n", 1)
        head = await other.head("n", "w")
        assert head is not None and other.elsewhere(head) and not runs.elsewhere(head)
        assert (listed.holder, listed.key_id) == (head.holder, head.key_id) == (runs.holder, "k1")
        await runs.attend(leaving=True)
        head = await other.head("n", "w")
        assert head is not None and head.holder == ""
        assert (await other.attend())[1] == [("n", "w")]
    made.workflow.state = State.WORKFLOW_STATE_FAILED
    await runs.append(made, ())
    assert await runs.attend() == (set(), [])


async def test_who_is_not_at_the_present_version_changes_nothing(runs: Records) -> None:
    await runs.create(run())
    with pytest.raises(AlreadyExists, match="choose another id"):
        await runs.create(run())  # the same bytes, but no repetition
    for version in (0, 2):
        behind = run()
        behind.version = version
        with pytest.raises(TakenOver):
            await runs.append(behind, [logged("x")])
    with pytest.raises(Aborted):
        await runs.delete("n", "w", 2)
    with pytest.raises(NotFound):
        await runs.delete("n", "absent", 1)
    found = await runs.get("n", "w")
    assert found is not None
    assert (found.version, found.events) == (1, [])
    await runs.delete("n", "w", 0)
    assert await runs.get("n", "w") is None


@pytest.mark.parametrize("part", ["payload", "events", "summary"])
async def test_an_unreadable_record_is_data_loss_and_not_listed(
    runs: Records, data: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    await runs.create(run("other"))
    record = pb.WorkflowRecord(namespace="n", workflow_id="w", payload=b"", holder="gone")
    request = pb.PutWorkflowRecordRequest(record=record)
    if part == "events":
        request.events.append(b"\xff")
    else:
        setattr(request.record, part, b"\xff")
    async with connect(f"unix:{data / 'store.sock'}") as channel:
        await cache_store_pb2_grpc.CacheStoreServiceStub(channel).PutWorkflowRecord(request)
    with pytest.raises(DataLoss, match="'w'"):
        await runs.get("n", "w")
    for _ in range(2):
        listed, _ = await runs.page("n", 10)
        assert [each.key[1] for each in listed if each.key[1]] == ["other"]
        assert (len(listed), caplog.text.count("is not listed")) == ((1, 1) if part == "summary" else (2, 0))


async def test_what_the_store_refuses_is_told_at_once(data: Path) -> None:
    async with running(data, quotas=Quotas(1000)), records(data / "store.sock") as runs:
        with pytest.raises(InvalidArgument) as refused:
            await runs.create(run(text="x" * (16 * 1024 * 1024 + 1)))
        assert refused.value.field == "record.payload"
        with pytest.raises(ResourceExhausted, match="workflow"):
            await runs.create(run(text="x" * 1001))


async def test_a_store_that_is_down_is_waited_for(data: Path) -> None:
    data.mkdir(mode=0o700)
    async with records(data / "store.sock") as runs:
        made = run()
        waiting = asyncio.create_task(runs.create(made))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        async with running(data):
            await waiting
        waiting = asyncio.create_task(runs.append(made, [logged("x")]))
        async with running(data):
            await waiting
        assert made.version == 2


async def test_a_store_that_stays_down_is_told_when_the_patience_is_over(data: Path) -> None:
    async with records(data / "store.sock", patience=0.2) as runs:
        for call in (runs.get("n", "w"), runs.create(run()), runs.page("n", 1), runs.delete("n", "w", 1)):
            with pytest.raises(Unavailable, match="the cache store cannot be reached"):
                await call


async def test_a_store_that_ends_between_a_write_and_its_answer(data: Path) -> None:
    async with records(data / "store.sock") as runs:
        made, wire, ended = run(), Wire(runs), asyncio.Event()
        async with running(data):
            await runs.create(made)
            wire.lose(ended.wait)
            append = asyncio.create_task(runs.append(made, [logged("two")]))
            while (found := await runs.get("n", "w")) is None or found.version != 2:
                await asyncio.sleep(0.01)
        ended.set()
        async with running(data):
            await append
            await runs.append(made, [logged("three")])
            found = await runs.get("n", "w")
            assert found is not None
            assert (found.version, found.events) == (3, [logged("two"), logged("three")])


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
async def test_calls_whose_answers_were_lost_were_done_once(runs: Records, status: grpc.StatusCode) -> None:
    made, wire = run(), Wire(runs)
    wire.lose(status=status)
    await runs.create(made)
    wire.lose(status=status)
    await runs.append(made, [logged("x")])
    found = await runs.get("n", "w")
    assert found is not None and found.events == [logged("x")]
    assert found.version == made.version == 2
    wire.lose(status=status)
    await runs.delete("n", "w", 2)
    assert await runs.get("n", "w") is None


@pytest.mark.parametrize("theirs", ["ours", "theirs"])
async def test_who_was_overtaken_after_a_lost_answer_is_told_so(runs: Records, data: Path, theirs: str) -> None:
    made = run()
    await runs.create(made)
    async with records(data / "store.sock") as beside:

        async def overtake() -> None:
            other = await beside.get("n", "w")
            assert other is not None
            await beside.append(other, [logged(theirs)])

        Wire(runs).lose(overtake)
        with pytest.raises(TakenOver):
            await runs.append(made, [logged("ours")])


async def test_a_call_that_was_never_done_is_not_taken_for_anothers(runs: Records, data: Path) -> None:
    async with records(data / "store.sock") as beside:
        Wire(runs).lose(lambda: beside.create(run(text="theirs")), cut=True)
        with pytest.raises(AlreadyExists):
            await runs.create(run(text="ours"))
