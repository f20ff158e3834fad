"""A run that goes on in another gateway, followed by its record."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final

from agentmem.errors import NotFound
from agentmem.v1 import workflow_run_pb2
from gateway.workflows.log import Event
from gateway.workflows.records import Record, Records
from gateway.workflows.run import ENDED, interrupted

PATIENCE_SECONDS: Final = 60.0
"""How long the record may stay as it is. A request that comes then goes on with the run, wherever it was."""

_INTERVAL: Final = 0.25


async def follow(
    records: Records, namespace: str, workflow_id: str, after: int, patience: float = PATIENCE_SECONDS
) -> AsyncGenerator[Event, None]:
    """All that is logged behind a sequence number, as it comes, until the run has ended.

    Text as it streams is told only where the run is; AgentSpoke has all of it. Raises NotFound where the run is deleted
    meanwhile, and Unavailable where nothing has come for so long.
    """
    seen: Record | None = None
    changed = time.monotonic()
    while True:
        record = await records.get(namespace, workflow_id)
        if record is None:
            raise NotFound("workflow", workflow_id)
        if record != seen:
            seen, changed = record, time.monotonic()
            run = workflow_run_pb2.WorkflowRun.FromString(record.payload)
            for logged in run.events:
                if logged.event.sequence > after:
                    after = logged.event.sequence
                    yield logged.event
            if run.workflow.state in ENDED:
                return
        elif time.monotonic() - changed > patience:
            raise interrupted()
        await asyncio.sleep(_INTERVAL)
