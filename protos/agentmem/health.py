"""gRPC health with a reason, and `python -m agentmem.health TARGET` for supervisors that run a command (containers).

A service that is NOT_SERVING may give its reason in the trailing metadata of the health check's answer.

TARGET is a gRPC target (unix:PATH or HOST:PORT), whose health is checked, or an HTTP address that answers 200, such as
http://127.0.0.1:8080/readyz. The exit status is 0 if it serves, else 1 with the reason on standard error.
"""

import asyncio
import ssl
import sys
import urllib.error
import urllib.request
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from agentmem.channels import connect

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


_SECONDS: Final = 2.0


def problem(target: str, seconds: float = _SECONDS) -> str:
    """Why `target` does not serve, asked live; empty if it does. Blocks for `seconds` at most."""
    if target.startswith(("http:", "https:")):
        return _http_problem(target, seconds)
    return asyncio.run(_grpc_problem(target, seconds))


def _http_problem(url: str, seconds: float) -> str:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its certificate names it as others know it
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=seconds):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return f"{url}: {error.code} {error.read(1000).decode('utf-8', 'replace')}"
    except OSError as error:
        return f"{url}: {error}"


async def _grpc_problem(target: str, seconds: float) -> str:
    async with connect(target) as channel:
        try:
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=seconds)
            answer = await check
        except grpc.aio.AioRpcError as error:
            return f"{target}: {error.code().name}: {error.details()}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return f"{target} is {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"


def main() -> None:
    """Ask what the command line names."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m agentmem.health unix:PATH | HOST:PORT | http://HOST:PORT/readyz")
    if found := problem(sys.argv[1]):
        raise SystemExit(found)


if __name__ == "__main__":
    main()
