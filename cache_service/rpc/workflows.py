"""The records of workflow runs, which the gateway asks for: the part of CacheStoreService that no worker calls."""

import asyncio
from typing import Any

import grpc

from agentmem import paging
from agentmem.errors import NotFound
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc
from agentmem.validation import check_text
from cache_service.ledger import workflow_records
from cache_service.ledger.database import Database
from cache_service.ledger.erasure import Erased, Erasures
from cache_service.rpc import conversions
from cache_service.tiers.quotas import LedgerWriter

Context = grpc.aio.ServicerContext[Any, Any]


class WorkflowRecordServicer(cache_store_pb2_grpc.CacheStoreServiceServicer):
    """Each RPC is one transaction of `workflow_records`. Event loop."""

    def __init__(self, database: Database, ledgers: LedgerWriter, erasures: Erasures) -> None:
        self._database = database
        self._ledgers = ledgers
        self._erasures = erasures

    async def PutWorkflowRecord(
        self, request: pb.PutWorkflowRecordRequest, context: Context
    ) -> pb.PutWorkflowRecordResponse:
        new = conversions.workflow_put(request)
        version = await self._ledgers.write(new.namespace, workflow_records.put, new=new)
        return pb.PutWorkflowRecordResponse(version=version)

    async def GetWorkflowRecord(
        self, request: pb.GetWorkflowRecordRequest, context: Context
    ) -> pb.GetWorkflowRecordResponse:
        namespace, workflow_id = conversions.workflow_name("", request)
        found = await self._database.read(workflow_records.read, namespace, workflow_id, request.after_event)
        if found is None:
            raise NotFound("workflow", workflow_id)
        record = conversions.workflow_message(namespace, found.record, found.payload)
        return pb.GetWorkflowRecordResponse(record=record, events=found.events)

    async def ListWorkflowRecords(
        self, request: pb.ListWorkflowRecordsRequest, context: Context
    ) -> pb.ListWorkflowRecordsResponse:
        namespace = check_text("namespace", request.namespace)
        size = paging.asked_size(request)
        last = paging.number(request.page_token)
        before = workflow_records.NEWEST if last is None else last
        found = await self._database.read(workflow_records.page, namespace, before, size + 1)
        page, following = paging.cut(found, size, lambda record: (str(record.id),))
        return pb.ListWorkflowRecordsResponse(
            records=[conversions.workflow_message(namespace, record) for record in page], next_page_token=following
        )

    async def DeleteWorkflowRecord(
        self, request: pb.DeleteWorkflowRecordRequest, context: Context
    ) -> pb.DeleteWorkflowRecordResponse:
        namespace, workflow_id = conversions.workflow_name("", request)

        async def erase() -> Erased:
            delete, version = workflow_records.delete, request.version
            await asyncio.wrap_future(self._database.erase(lambda _: True, delete, namespace, workflow_id, version))
            return Erased(1)

        await self._erasures.erase(("workflow", namespace, workflow_id), erase)
        return pb.DeleteWorkflowRecordResponse()
