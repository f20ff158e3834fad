"""Records of runs as the stores of a cluster keep them, and turns as its workers commit them, in a dictionary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from agentmem.errors import Aborted, NotFound
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cluster_pb2, inference_pb2
from tests.gateway.scripted import delta, finished, started


@dataclass
class Kept:
    """A record, and the node that goes on with its run."""

    record: pb.WorkflowRecord
    events: list[bytes] = field(default_factory=list)
    owner: tuple[str, int] | None = None


class RunRecords:
    """The records of all nodes. With `compares` off it takes every put, whatever the record's version is: a mistake."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Kept] = {}
        self.compares = True

    def put(self, request: pb.PutWorkflowRecordRequest) -> int:
        new = request.record
        key = new.namespace, new.workflow_id
        kept = self.kept.get(key, Kept(pb.WorkflowRecord(namespace=key[0], workflow_id=key[1])))
        if self.compares and kept.record.version != new.version:
            raise Aborted("the record is in another version")
        self.kept[key] = kept
        kept.record.version += 1
        kept.record.summary = new.summary
        if new.HasField("payload"):
            kept.record.payload = new.payload
        kept.events += request.events
        kept.owner = (request.owner.node, request.owner.epoch) if request.HasField("owner") else None
        return kept.record.version

    def get(self, request: Any) -> pb.GetWorkflowRecordResponse:
        if (kept := self.kept.get((request.namespace, request.workflow_id))) is None:
            raise NotFound("workflow", request.workflow_id)
        after = min(request.after_event, len(kept.events))
        return pb.GetWorkflowRecordResponse(record=kept.record, events=kept.events[after:])

    def page(self, namespace: str) -> list[pb.WorkflowRecord]:
        return [kept.record for (of, _), kept in self.kept.items() if of == namespace]

    def delete(self, request: Any) -> None:
        if self.kept.pop((request.namespace, request.workflow_id), None) is None:
            raise NotFound("workflow", request.workflow_id)

    def unattended(self, there: set[tuple[str, int]], own: str) -> list[cluster_pb2.UnattendedRun]:
        return [
            cluster_pb2.UnattendedRun(namespace=namespace, workflow_id=workflow_id, node=kept.owner[0])
            for (namespace, workflow_id), kept in self.kept.items()
            if kept.owner is not None and (kept.owner not in there or kept.owner[0] == own)
        ]


class SharedTurns:
    """Turns that workers of all nodes commit to one ledger, each once, by the names of their requests.

    A turn waits at `gate` before it commits; who finds it committed replays it, and who commits too late is refused.
    """

    def __init__(self) -> None:
        self.committed: list[str] = []
        self.begun: list[str] = []
        self.gate = asyncio.Event()

    async def __call__(self, request: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
        yield started()
        if request.request_id in self.committed:
            yield delta("hello")
            yield finished()
            return
        self.begun.append(request.request_id)
        yield delta("hel")
        await self.gate.wait()
        if request.request_id in self.committed:
            raise Aborted("another writer committed this request_id meanwhile")
        self.committed.append(request.request_id)
        yield delta("lo")
        yield finished()
