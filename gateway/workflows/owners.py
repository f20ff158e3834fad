"""Who goes on with a run: in a cluster the gateway of one node, which the run's record names; else this gateway.

A run is taken over by compare-and-set: who writes itself into the record, in the version that it has read, has the run;
the other's next write is refused, and it stops.
"""

from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple, Protocol

import grpc

from agentmem import errors
from agentmem.channels import closing_stream
from agentmem.v1 import cluster_pb2, workflow_pb2, workflow_pb2_grpc, workflow_run_pb2
from gateway import upstream

KEY_ID: Final = "agentmem-key-id"
"""Metadatum of a node's call for a caller: the id of the caller's key."""

_CANCEL_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 1.0

RunKey = tuple[str, str]
"""Namespace and id."""


class Owner(NamedTuple):
    """A node's gateway, for the caller of a key. Without a `node` nobody is known to have the run."""

    node: str = ""
    epoch: int = 0
    key_id: str = ""

    def encoded(self) -> bytes:
        """Return what follows the Workflow in a record's summary; b"" for nobody."""
        return workflow_run_pb2.RunOwner(**self._asdict()).SerializeToString() if self.node else b""


NOBODY: Final = Owner()


def owner_in(summary: bytes) -> Owner:
    found = workflow_run_pb2.RunOwner.FromString(summary)
    return Owner(found.node, found.epoch, found.key_id)


class TakenOver(errors.Unavailable):
    """A run goes on in another gateway now, so this one stops."""

    def __init__(self) -> None:
        super().__init__("the run goes on in another gateway; send the request again to follow it", _AGAIN_SECONDS)


class Nodes(Protocol):
    """A cluster, as one of its gateways knows it."""

    @property
    def name(self) -> str:
        """This node's name."""

    @property
    def epoch(self) -> int:
        """This node's epoch."""

    @property
    def unready(self) -> str:
        """Why nothing new should begin here; empty if it may."""

    def attends(self, name: str, epoch: int) -> bool:
        """Return whether that node's gateway goes on with its runs."""

    async def reach(self, name: str) -> grpc.aio.Channel | None:
        """Return the channel to another node's door, None where it cannot be reached."""

    async def unattended(self) -> list[cluster_pb2.UnattendedRun]:
        """Return the runs whose owner is gone, and those of this node. Raises grpc.aio.AioRpcError."""

    def place(self, namespace: str, workflow_id: str, before: str) -> int:
        """Return how many nodes go before this one where a run of the node `before` is taken over."""


class Owners:
    """Tells this gateway's runs from those of other nodes, and asks these. Event loop only. Without `nodes`, every run
    is this gateway's.
    """

    def __init__(self, nodes: Nodes | None) -> None:
        self._nodes = nodes

    @property
    def shared(self) -> bool:
        return self._nodes is not None

    def own(self, key_id: str) -> Owner:
        return NOBODY if self._nodes is None else Owner(self._nodes.name, self._nodes.epoch, key_id)

    def elsewhere(self, workflow: workflow_pb2.Workflow, owner: Owner) -> bool:
        """Return whether a run goes on at another node that is there."""
        running = workflow.state == workflow_pb2.WorkflowState.WORKFLOW_STATE_RUNNING
        if self._nodes is None or not running or owner.node in ("", self._nodes.name):
            return False
        return self._nodes.attends(owner.node, owner.epoch)

    async def follow(
        self, owner: Owner, key_id: str, key: RunKey, after: int, *, watch: bool = False
    ) -> AsyncGenerator[Any, None]:
        """Yield a run's events after a sequence number from the gateway that has it. Raises AgentmemError. `watch` does
        not resume it there.
        """
        stub = await self._stub(owner)
        request = workflow_pb2.RunWorkflowRequest(namespace=key[0], after_sequence=after)
        if watch:
            request.watch_workflow_id = key[1]
        else:
            request.resume_workflow_id = key[1]
        try:
            async with closing_stream(stub.RunWorkflow(request, metadata=((KEY_ID, key_id),))) as events:
                async for event in events:
                    yield event
        except grpc.aio.AioRpcError as error:
            raise _failure(error, owner) from error

    async def cancel(self, owner: Owner, key_id: str, key: RunKey) -> workflow_pb2.Workflow:
        """Have a run ended by the gateway that has it; return it as it ended. Raises AgentmemError."""
        stub = await self._stub(owner)
        request = workflow_pb2.CancelWorkflowRequest(namespace=key[0], workflow_id=key[1])
        try:
            answer = await stub.CancelWorkflow(request, metadata=((KEY_ID, key_id),), timeout=_CANCEL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise _failure(error, owner) from error
        return answer.workflow

    async def _stub(self, owner: Owner) -> "workflow_pb2_grpc.WorkflowServiceAsyncStub":
        channel = None if self._nodes is None else await self._nodes.reach(owner.node)
        if channel is None:
            raise _silent(owner)
        return workflow_pb2_grpc.WorkflowServiceStub(channel)


def _failure(error: grpc.aio.AioRpcError, owner: Owner) -> errors.AgentmemError:
    return _silent(owner) if errors.is_silence(error) else upstream.failure(error)


def _silent(owner: Owner) -> errors.Unavailable:
    return errors.Unavailable(
        f"the node {owner.node}, which has the run, cannot be reached; send the request again: if the node is gone,"
        " another takes the run over",
        _AGAIN_SECONDS,
    )
