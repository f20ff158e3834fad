"""The scripted worker with a mistake: it trusts that an agent is its own, and commits on whatever is there by then.

Run as `python -m tests.cluster.mistaken_worker`.
"""

from typing import Any

from agentmem.v1 import cache_store_pb2 as pb
from agentmem.validation import AgentKey
from benchmarks.cluster.scripted_worker import main
from inference_service.storage.client import StoreClient


def trust() -> None:
    """Let commits name the state that is there, whatever the turn was computed with."""
    commit = StoreClient.commit

    async def trusting(self: StoreClient, request: pb.CommitTurnRequest) -> Any:
        present = (await self.open(AgentKey.from_proto(request.key), peek=True)).version
        request.base.CopyFrom(present.to_proto())
        return await commit(self, request)

    StoreClient.commit = trusting  # type: ignore[method-assign]


if __name__ == "__main__":
    trust()
    main()
