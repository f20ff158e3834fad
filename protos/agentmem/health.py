"""gRPC health that says why: a service that is NOT_SERVING may have its reason in the answer's trailing metadata."""

from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

WRITES: Final = "agentmem.store.writes"
"""The name under which a store says whether it can write ledgers. It serves also where it cannot: reads go on."""

_REASON: Final = "agentmem-reason"


class Health(HealthServicer):  # type: ignore[misc]  # it has no types
    """The standard servicer, with reasons."""

    def __init__(self) -> None:
        super().__init__()
        self._reasons: dict[str, str] = {}

    async def say(self, name: str, problem: str) -> None:
        """`name` is NOT_SERVING for this reason, in ASCII; SERVING where it is empty."""
        self._reasons[name] = problem
        status = health_pb2.HealthCheckResponse
        await self.set(name, status.NOT_SERVING if problem else status.SERVING)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        if problem := self._reasons.get(request.service):
            context.set_trailing_metadata(((_REASON, problem),))
        return await super().Check(request, context)


async def reason(call: grpc.aio.UnaryUnaryCall[Any, Any]) -> str:
    """What the answer to a Check had as the reason; empty where it had none."""
    return next((str(value) for key, value in await call.trailing_metadata() or () if key == _REASON), "")
