"""Records of runs over a channel, with stores that stop, die, and answer into nothing."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentmem.channels import connect
from agentmem.errors import Aborted, AlreadyExists, DataLoss, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc, workflow_pb2
from cache_service.ledger_home import Holders
from cache_service.tiers.quotas import Quotas
from gateway.workflows import records as records_module
from gateway.workflows.event_log import Event, LoggedEvent
from gateway.workflows.records import Records, State, StoredRun, TakenOver
from tests.cache_service.conftest import running
from tests.cache_service.process import ready


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


class Line:
    """A wire between a client and a store, from which answers can be taken."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self._answering = asyncio.Event()
        self._answering.set()

    def mute(self) -> None:
        """From now on requests arrive and answers do not."""
        self._answering.clear()

    def unmute(self) -> None:
        self._answering.set()

    def cut(self) -> None:
        """What was connected is not any more; who connects anew is answered."""
        for connection in self._connections:
            connection.cancel()
        self._answering = asyncio.Event()
        self._answering.set()

    async def serve(self, path: Path) -> asyncio.Server:
        self._connections: set[asyncio.Task[Any]] = set()
        return await asyncio.start_unix_server(self._connect, path)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        to_store = None
        try:
            from_store, to_store = await asyncio.open_unix_connection(self.store)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, to_store, None))
                both.create_task(self._pump(from_store, writer, self._answering))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            for each in (writer, to_store):
                if each is not None:
                    each.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, allowed: asyncio.Event | None
    ) -> None:
        while chunk := await source.read(65536):
            if allowed is not None:
                await allowed.wait()
            target.write(chunk)
            await target.drain()
        target.close()


@asynccontextmanager
async def line(data: Path, store: Path) -> AsyncIterator[tuple[Line, Path]]:
    """A line to a store's socket, and where it is."""
    made, path = Line(store), data.parent / "line.sock"
    server = await made.serve(path)
    try:
        yield made, path
    finally:
        made.cut()
        server.close()


async def reaches(runs: Records, version: int) -> None:
    async with asyncio.timeout(20):
        while (found.version if (found := await runs.get("n", "w")) else 0) != version:
            await asyncio.sleep(0.01)


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
    listed, _ = await runs.page("n", 10)
    assert [each.key[1] for each in listed if each.key[1]] == ["other"]
    assert (len(listed), "is not listed" in caplog.text) == ((1, True) if part == "summary" else (2, False))


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


@pytest.mark.slow
async def test_a_store_killed_between_a_write_and_its_answer(data: Path) -> None:
    socket = data / "run" / "store.sock"
    async with line(data, socket) as (wire, path), records(path) as runs, records(socket) as beside:
        made = run()
        async with ready(data) as (process, _):
            await runs.create(made)
            wire.mute()
            append = asyncio.create_task(runs.append(made, [logged("two")]))
            await reaches(beside, 2)
            process.kill()
            await process.wait()
            wire.cut()
            assert not append.done()
        async with ready(data):
            await append
            await runs.append(made, [logged("three")])
            found = await runs.get("n", "w")
            assert found is not None
            assert (found.version, found.events) == (3, [logged("two"), logged("three")])


async def test_calls_whose_answers_were_lost_were_done_once(data: Path) -> None:
    socket = data / "store.sock"
    async with running(data), line(data, socket) as (wire, path), records(path) as runs, records(socket) as beside:
        assert await runs.get("n", "w") is None
        made = run()
        wire.mute()
        call: asyncio.Task[Any] = asyncio.create_task(runs.create(made))
        await reaches(beside, 1)
        wire.cut()
        await call
        wire.mute()
        call = asyncio.create_task(runs.append(made, ()))
        await reaches(beside, 2)
        wire.cut()
        await call
        assert made.version == 2
        wire.mute()
        call = asyncio.create_task(runs.delete("n", "w", 2))
        await reaches(beside, 0)
        wire.cut()
        await call


async def test_a_store_that_hangs_is_asked_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "_TIMEOUT_SECONDS", 0.2)
    socket = data / "store.sock"
    async with (
        running(data),
        line(data, socket) as (wire, path),
        records(path) as runs,
        connect(f"unix:{socket}") as by,
    ):
        store = cache_store_pb2_grpc.CacheStoreServiceStub(by)
        made = run()
        await runs.create(made)
        wire.mute()
        append = asyncio.create_task(runs.append(made, [logged("x")]))
        request = pb.GetWorkflowRecordRequest(namespace="n", workflow_id="w")
        while (await store.GetWorkflowRecord(request)).record.version != 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert not append.done()
        wire.unmute()
        monkeypatch.undo()
        await append
        assert made.version == 2


@pytest.mark.parametrize("theirs", ["ours", "theirs"])
async def test_who_was_overtaken_after_a_lost_answer_is_told_so(data: Path, theirs: str) -> None:
    socket = data / "store.sock"
    async with running(data), line(data, socket) as (wire, path), records(path) as runs, records(socket) as beside:
        made = run()
        await runs.create(made)
        wire.mute()
        append = asyncio.create_task(runs.append(made, [logged("ours")]))
        await reaches(beside, 2)
        other = await beside.get("n", "w")
        assert other is not None
        await beside.append(other, [logged(theirs)])
        wire.cut()
        with pytest.raises(TakenOver):
            await append


async def test_a_call_that_was_never_done_is_not_taken_for_anothers(data: Path) -> None:
    async with running(data), line(data, data / "nobody.sock") as (wire, path), records(path) as runs:
        create = asyncio.create_task(runs.create(run(text="ours")))
        await asyncio.sleep(0.1)
        async with records(data / "store.sock") as beside:
            await beside.create(run(text="theirs"))
        wire.store = data / "store.sock"
        with pytest.raises(AlreadyExists):
            await create
