"""gRPC health with a reason, and `python -m agentmem.process.health TARGET` for supervisors.

TARGET is unix:PATH, HOST:PORT, or an HTTP address that answers 200. The exit status is 0 if it serves, else 1 with the
reason on standard error. Reasons travel in trailing metadata.
"""

import asyncio
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from http.client import HTTPException
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem.channels import connect

WRITES: Final = "agentmem.store.writes"
"""The health of writing ledgers: a store that only reads still serves."""

_REASON: Final = "agentmem-reason"


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no types
    """The standard service with reasons. Event loop only.

    grpcio's own leaves Watch streams open, so that a stopping server waits for their clients.
    """

    def __init__(self, asked: Callable[[], str | None] = lambda: None) -> None:
        """`asked` is called at each check, and returns why the process does not serve."""
        self._asked = asked
        self._said: dict[str, tuple[bool, str]] = {}
        self._changed = asyncio.Event()  # of the next change, which makes a new one
        self._ended = False

    def say(self, name: str, serving: bool, reason: str = "") -> None:
        """Set the status of `name`, and why it does not serve."""
        if not self._ended:
            self._said[name] = (serving, reason)
            self._tell()

    def end(self) -> None:
        """Set all to NOT_SERVING, which streams send last."""
        self._said = {name: (False, "") for name in self._said}
        self._ended = True
        self._tell()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        why = self._asked()
        if request.service not in self._said:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        serving, problem = self._said[request.service]
        if not serving and (problem := problem or why or ""):
            ascii_only = problem.encode("ascii", "backslashreplace").decode()
            context.set_trailing_metadata(((_REASON, ascii_only),))
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: Any, _: Any) -> AsyncIterator[Any]:  # noqa: N802 - gRPC's name
        told = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != told:
                yield health_pb2.HealthCheckResponse(status=status)
                told = status
            elif self._ended:
                return
            else:
                await changed.wait()

    def _status(self, name: str) -> Any:
        status = health_pb2.HealthCheckResponse
        if name not in self._said:
            return status.SERVICE_UNKNOWN
        return status.SERVING if self._said[name][0] else status.NOT_SERVING

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def reason(call: grpc.aio.UnaryUnaryCall[Any, Any]) -> str:
    return next((str(value) for key, value in await call.trailing_metadata() or () if key == _REASON), "")


_SECONDS: Final = 2.0


def problem(target: str, seconds: float = _SECONDS) -> str:
    """Return why `target` does not serve, or "". Blocks for `seconds` at most."""
    if target.startswith(("http:", "https:")):
        return _http_problem(target, seconds)
    return asyncio.run(_grpc_problem(target, seconds))


def _http_problem(url: str, seconds: float) -> str:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its certificate has its public name
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=seconds):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return f"{url}: {error.code} {error.read(1000).decode('utf-8', 'replace')}"
    except (OSError, ValueError) as error:
        return f"{url}: {error}"
    except HTTPException as error:
        return f"{url}: {type(error).__name__}: is that the address of a server of HTTP?"


async def _grpc_problem(target: str, seconds: float) -> str:
    async with connect(target) as channel:
        try:
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=seconds)
            answer = await check
            why = await reason(check)
        except grpc.aio.AioRpcError as error:
            return f"{target}: {error.code().name}: {error.details()}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return f"{target} is {state}: {why}" if why else f"{target} is {state}"


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m agentmem.process.health unix:PATH | HOST:PORT | http://HOST:PORT/readyz")
    if found := problem(sys.argv[1]):
        raise SystemExit(found)


if __name__ == "__main__":
    main()
