"""Whether a service serves, as an exit status, for supervisors that run a command to know: containers.

    python -m agentmem.healthcheck TARGET

TARGET is a gRPC target (unix:PATH or HOST:PORT), which is asked for its health, or an address of HTTP that answers 200,
such as http://127.0.0.1:8080/readyz. Ends with 0 if it serves, else with 1 and the reason on standard error.
"""

import asyncio
import ssl
import sys
import urllib.error
import urllib.request
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem.channels import connect

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
        raise SystemExit("usage: python -m agentmem.healthcheck unix:PATH | HOST:PORT | http://HOST:PORT/readyz")
    if found := problem(sys.argv[1]):
        raise SystemExit(found)


if __name__ == "__main__":
    main()
