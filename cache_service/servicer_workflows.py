"""The records of workflow runs, which the gateway asks for: the part of CacheStoreService that no worker calls."""

from functools import partial
from typing import Any

import grpc

from agentmem import paging
from agentmem.errors import NotFound
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc
from cache_service import conversions, workflow_records
from cache_service.database import Database
from cache_service.erasure import Erased, Erasures
from cache_service.ledger_writer import LedgerWriter

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
        record = request.record
        namespace, workflow_id = conversions.workflow_name("record.", record)
        put = partial(
            workflow_records.put,
            namespace=namespace,
            workflow_id=workflow_id,
            version=record.version,
            content=conversions.workflow_content("record.", record),
        )
        return pb.PutWorkflowRecordResponse(version=await self._ledgers.write(namespace, put))

    async def GetWorkflowRecord(
        self, request: pb.GetWorkflowRecordRequest, context: Context
    ) -> pb.GetWorkflowRecordResponse:
        namespace, workflow_id = conversions.workflow_name("", request)
        get = partial(workflow_records.get, namespace=namespace, workflow_id=workflow_id)
        record = await self._database.read(get)
        if record is None:
            raise NotFound("workflow", workflow_id)
        return pb.GetWorkflowRecordResponse(record=conversions.workflow_message(namespace, record))

    async def ListWorkflowRecords(
        self, request: pb.ListWorkflowRecordsRequest, context: Context
    ) -> pb.ListWorkflowRecordsResponse:
        namespace = conversions.namespace(request.namespace)
        size = paging.asked_size(request)
        last = paging.number(request.page_token)
        before = workflow_records.NEWEST if last is None else last
        list_page = partial(workflow_records.page, namespace=namespace, before=before, limit=size + 1)
        found = await self._database.read(list_page)
        page, following = paging.cut(found, size, lambda record: (str(record.id),))
        return pb.ListWorkflowRecordsResponse(
            records=[conversions.workflow_message(namespace, record) for record in page], next_page_token=following
        )

    async def DeleteWorkflowRecord(
        self, request: pb.DeleteWorkflowRecordRequest, context: Context
    ) -> pb.DeleteWorkflowRecordResponse:
        namespace, workflow_id = conversions.workflow_name("", request)
        delete = partial(workflow_records.delete, namespace=namespace, workflow_id=workflow_id, version=request.version)
        missing = None
        try:
            await self._database.write(delete, erases=lambda _: True)
        except NotFound as error:  # perhaps because it was erased before, and could not be scrubbed
            missing = error
        erased = await self._erasures.finish(("workflow", namespace, workflow_id), Erased(missing is None))
        if missing is not None and not erased.things:
            raise missing
        return pb.DeleteWorkflowRecordResponse()
