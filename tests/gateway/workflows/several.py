"""Gateways that share a store of records in a dictionary, and turns that are committed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from agentmem.errors import Aborted
from agentmem.v1 import inference_pb2, workflow_pb2
from gateway.edge.callers import Caller
from gateway.upstream import ChannelWorker
from gateway.workflows.attendance import Attendance
from gateway.workflows.event_log import Event
from gateway.workflows.live import LiveRuns, WorkflowMetrics
from gateway.workflows.runs import Runs
from gateway.workflows.worker import PatientWorker
from tests.gateway.running import eventually
from tests.gateway.scripted import delta, finished, started
from tests.gateway.workflows.test_runs import Kept, RecordsIn, all_of

FILE = """
workflow: talk
agents: {ada: {system: You are ada.}, bob: {}}
phases: [{name: only, agents: [ada, bob], rounds: 2, prompts: speak}]
"""
TURNS = 4
WHO = Caller("n", "k1")


class SharedTurns:
    """Turns that are committed to one ledger, each once, by the names of their requests.

    A turn waits at `gate` before it commits; who finds it committed replays it, and who commits too late is refused.
    """

    def __init__(self) -> None:
        self.committed: list[str] = []
        self.begun: list[str] = []
        self.gate = asyncio.Event()

    async def __call__(self, request: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
        yield started()
        if request.request_id not in self.committed:
            self.begun.append(request.request_id)
            yield delta("hel")
            await self.gate.wait()
            if request.request_id in self.committed:
                raise Aborted("another writer committed this request_id meanwhile")
            self.committed.append(request.request_id)
        yield delta("lo")
        yield finished()


class Keys:
    def __init__(self, *known: str) -> None:
        self.known = set(known)

    def authenticate(self, credential: str | None) -> Caller:
        raise NotImplementedError

    def stands(self, who: Caller) -> bool:
        return who.key_id in self.known


class Gateway:
    def __init__(self, kept: Kept, channel: grpc.aio.Channel, most: int = 4) -> None:
        self.kept, self.keys, self.unready = kept, Keys("k1"), ""
        self.records, self.metrics = RecordsIn(kept), WorkflowMetrics(None)
        worker = PatientWorker(ChannelWorker(channel))
        self.runs = Runs(LiveRuns(self.records, worker, self.keys, self.metrics, most))
        self.attendance = Attendance(self.runs, lambda: self.unready)

    @property
    def going_on(self) -> list[str]:
        return [workflow_id for _, workflow_id in self.runs.live.by_key]

    async def begin(self, name: str = "r") -> str:
        before = set(self.going_on)
        await self.runs.begin(WHO, name, FILE, {}, 0)
        [workflow_id] = set(self.going_on) - before
        return workflow_id

    async def vanish(self) -> None:
        """It is killed: its records stay as they are, and the store hears no more of it."""
        for run in self.runs.live.by_key.values():
            run.task.cancel()
        await eventually(lambda: not self.going_on)
        self.kept.there.discard(self.records.holder)

    async def look(self) -> None:
        for key in await self.attendance.look():
            await self.attendance.take_over(key)

    async def follow(self, workflow_id: str) -> list[Event]:
        return await all_of(await self.runs.resume(WHO, workflow_id, 0))

    async def state(self, workflow_id: str) -> int:
        got, (listed, _) = await self.runs.get("n", workflow_id), await self.runs.page("n", 10, "")
        assert {run.state for run in listed} == {got.state}
        return got.state


def end(events: list[Event]) -> workflow_pb2.Workflow:
    return events[-1].finished.workflow


def once(turns: SharedTurns) -> bool:
    return len(turns.committed) == len(set(turns.committed)) == TURNS
