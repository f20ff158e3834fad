"""What the RPCs on agents have in common."""

from agentmem.hints import TurnHints
from agentmem.v1 import agent_pb2_grpc
from cache_service.blocks import BlockStore
from cache_service.clock import Clock
from cache_service.database import Database
from cache_service.replication import Replicator


class AgentServicerBase(agent_pb2_grpc.AgentServiceServicer):
    """The storage half of AgentService without an RPC. Event loop."""

    def __init__(
        self, database: Database, clock: Clock, blocks: BlockStore, hints: TurnHints, replicator: Replicator | None
    ) -> None:
        """`replicator` is None where there is no remote tier."""
        self._database = database
        self._clock = clock
        self._blocks = blocks
        self._hints = hints
        self._replicator = replicator
