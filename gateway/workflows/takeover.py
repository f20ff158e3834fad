"""Upkeep of runs in a cluster: what nobody attends to is found in the ledger, and gone on with.

Runs of a node that is gone wait a moment: after a failover of the database all nodes are gone until each is heard of.
Then gateways come one after the other, in an order that differs by run, so that a dead node's runs spread; the record's
version decides.
"""

import asyncio
import logging
import time
from typing import Final

import grpc

from agentmem import errors
from agentmem.process.logs import event
from agentmem.v1 import cluster_pb2
from gateway.workflows.owners import Nodes, RunKey
from gateway.workflows.runs import Runs

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 1.0
SURE_SECONDS: Final = 2.0
"""How long nobody must have attended to another node's run."""
TURN_SECONDS: Final = 3.0
"""How much later each further gateway in the order comes."""
AGAIN_SECONDS: Final = 15.0
"""When a run is tried again that could not be taken over."""
_AT_ONCE: Final = 4


class Takeover:
    """Event loop only."""

    def __init__(self, runs: Runs, nodes: Nodes) -> None:
        self._runs = runs
        self._nodes = nodes
        self._since: dict[RunKey, float] = {}
        self._not_before: dict[RunKey, float] = {}

    async def watch(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            await self._runs.live.restate()
            if not self._nodes.unready:
                await self.look()

    async def look(self) -> None:
        """Take over what this gateway is to take over now. No failure raises: the next look finds it again."""
        try:
            found = await self._nodes.unattended()
        except grpc.aio.AioRpcError as error:
            log.debug("runs that nobody attends to were not found: %s", error.details())
            return
        now = time.monotonic()
        lost = [run for run in found if not self._runs.live.goes_on(run.namespace, run.workflow_id)]
        self._since = {_key(run): self._since.get(_key(run), now) for run in lost}
        self._not_before = {key: at for key, at in self._not_before.items() if at > now}
        due = [_key(run) for run in lost if self._is_due(run, now)]
        for first in range(0, len(due), _AT_ONCE):
            await asyncio.gather(*(self._take_over(key) for key in due[first : first + _AT_ONCE]))

    def _is_due(self, run: cluster_pb2.UnattendedRun, now: float) -> bool:
        key = _key(run)
        if key in self._not_before:
            return False
        if run.node == self._nodes.name:
            return True
        return now - self._since[key] >= SURE_SECONDS + TURN_SECONDS * self._nodes.place(*key, run.node)

    async def _take_over(self, key: RunKey) -> None:
        self._not_before[key] = time.monotonic() + AGAIN_SECONDS
        try:
            await self._runs.take_over(*key)
        except errors.AgentmemError as error:
            event(log, "workflow not taken over", logging.WARNING, workflow_id=key[1], reason=error.message)


def _key(run: cluster_pb2.UnattendedRun) -> RunKey:
    return run.namespace, run.workflow_id
