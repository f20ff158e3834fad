"""Every HTTP request is counted, traced and logged, and every error is a page of its dialect.

The log has one line per request, with its x-request-id, and nothing that was said.
"""

import asyncio
import json
import logging
import math
import re
import time
import uuid
from http import HTTPStatus
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentmem import errors, tracing
from agentmem.process.logs import event
from gateway.api.errors import Dialect, dialect_of
from gateway.http.connections import IDLE_SECONDS, SURPLUS
from gateway.metrics import GatewayMetrics
from gateway.ui.files import PAGE

ALIVE: Final = "/healthz"
READY: Final = "/readyz"
HEALTH: Final = "/health"
"""READY, by the name that other servers have."""
ROOT: Final = "/"
METRICS: Final = "/metrics"

PROBES: Final = frozenset({ALIVE, READY, HEALTH})
"""They answer to any name and among any number of connections: who restarts a gateway must not wait."""

POLLED: Final = PROBES | {METRICS}
"""Their lines in the log are DEBUG."""


log = logging.getLogger(__name__)

CLIENT_CLOSED = 499

_FIELDS = "agentmem.log_fields"
_WHOLE = "agentmem.whole"
_BROKE_OFF = "agentmem.broke_off"
_TURN_ATTRIBUTES: Final = {
    "agent": tracing.AGENT,
    "model": tracing.MODEL,
    **{name: f"agentmem.{name}" for name in ("match", "prompt_tokens", "reused_tokens", "generated_tokens")},
}
"""Fields of a turn in the log, by attributes of the span."""
_REQUEST_ID = "agentmem.request_id"
_ANTHROPICS_NAME = b"request-id"


def speaks_anthropic(scope: Scope) -> bool:
    return "anthropic-version" in Headers(scope=scope)


def is_keyless(path: str) -> bool:
    """Probes, and the page's files, are everybody's."""
    return path in PROBES or path == ROOT or path == PAGE.rstrip("/") or path.startswith(PAGE)


def _dialect(scope: Scope) -> Dialect:
    return dialect_of(scope["path"], anthropic=speaks_anthropic(scope))


class ErrorPage(JSONResponse):
    def __init__(self, error: errors.AgentmemError | HTTPException, scope: Scope) -> None:
        dialect, request_id = _dialect(scope), scope.get(_REQUEST_ID, "")
        if isinstance(error, HTTPException):
            body = dialect.http_body(error.status_code, _advice(error, scope["path"]), request_id)
            super().__init__(body, error.status_code, error.headers)
            return
        headers = {}
        if isinstance(error, errors.ResourceExhausted | errors.Unavailable):
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
        if isinstance(error, errors.Unauthenticated):
            headers["www-authenticate"] = "Bearer"
        super().__init__(dialect.body(error, request_id), dialect.status(error), headers)

    def render(self, content: Any) -> bytes:
        # ASCII, because a name in a message may hold a lone surrogate.
        return json.dumps(content).encode("ascii")


def _advice(error: HTTPException, path: str) -> str:
    """Say what to do where Starlette gives only the phrase of the status."""
    if error.detail != HTTPStatus(error.status_code).phrase:
        return error.detail
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"this path takes {(error.headers or {}).get('Allow', 'another method')}; /openapi.json lists the routes"
    for pattern, meant in _MISPLACED if error.status_code == HTTPStatus.NOT_FOUND else ():
        if found := pattern.fullmatch(path):
            return f"{error.detail}: {found.expand(meant)}"
    return f"{error.detail}; /openapi.json lists the routes"


_ENDPOINTS: Final = r"(chat/completions|completions|responses|messages(?:/count_tokens)?|models)"
_MISPLACED: Final = (
    (
        re.compile("/api(/.*)?", re.DOTALL),
        "this is Ollama's API, which is not served; have the client speak OpenAI's, with the base URL "
        "http://HOST:PORT/v1",
    ),
    (re.compile(f"/{_ENDPOINTS}"), r"the base URL lacks /v1; this endpoint is /v1/\1"),
    (re.compile(f"/v1(?:/v1)+/{_ENDPOINTS}"), r"the base URL has /v1 once too often; this endpoint is /v1/\1"),
    (re.compile(f"/v1/{_ENDPOINTS}/+"), r"the path ends with a slash too many; this endpoint is /v1/\1"),
)
"""Unknown paths, and what was meant."""


def as_our_error(error: BaseException) -> errors.AgentmemError:
    """Other errors become an Internal with an incident id, under which the log has the cause."""
    if isinstance(error, errors.AgentmemError):
        return error
    incident = uuid.uuid4().hex[:12]
    log.error("unexpected error in an HTTP request, incident %s", incident, exc_info=error)
    return errors.Internal(f"internal error; the server's log has it as incident {incident}")


async def error_page(request: Request, error: Exception) -> Response:
    return ErrorPage(error if isinstance(error, HTTPException) else as_our_error(error), request.scope)


def log_fields(scope: Scope, **fields: str | int) -> None:
    """A key in a wrong place stays out of the log."""
    added = {name: tracing.identifier(value) if isinstance(value, str) else value for name, value in fields.items()}
    scope[_FIELDS].update(added)


def whole(scope: Scope) -> None:
    """The answer only has to be sent: a client that leaves now leaves nothing undone."""
    scope[_WHOLE] = True


def broke_off(scope: Scope, error: errors.AgentmemError) -> None:
    """`error` ended an answer that had begun with status 200; the metrics have the error's. The first counts."""
    if _BROKE_OFF not in scope:
        scope[_BROKE_OFF] = _dialect(scope).status(error)
        log_fields(scope, failed=error.code.name.lower())


def _end_span(scope: Scope, route: str, status: int) -> None:
    if (span := tracing.present()) is None:
        return
    fields = scope[_FIELDS]
    known = {attribute: fields[name] for name, attribute in _TURN_ATTRIBUTES.items() if fields.get(name, "") != ""}
    span.rename(f"{tracing.identifier(scope['method'])} {route}")
    span.set({"http.route": route, "http.response.status_code": status, **known})
    failure = "CANCELLED" if status == CLIENT_CLOSED else str(status) if status >= 400 else ""
    span.end(fields.get("failed", "").upper() or failure)


class AccessLogMiddleware:
    """Answers what was not caught further in, too."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = tracing.received((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        within = trace
        if scope["path"] not in POLLED:  # the route is known only at the end
            method = tracing.identifier(scope["method"])
            within = tracing.served(method, trace, {"http.request.method": method})
        with tracing.serving(within):
            began = time.monotonic()
            status = 0
            answer = [(name.encode("ascii"), value.encode("ascii")) for name, value in trace.answer]
            answer.append((_ANTHROPICS_NAME, trace.request_id.encode("ascii")))
            answer.append((b"keep-alive", b"timeout=%d" % IDLE_SECONDS))
            if scope.get("state", {}).get(SURPLUS):
                answer.append((b"connection", b"close"))
            scope[_FIELDS] = {}
            scope[_REQUEST_ID] = trace.request_id

            async def counting(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                    message["headers"] = [*message.get("headers", ()), *answer]
                await send(message)

            try:
                await self._app(scope, receive, counting)
            except ClientDisconnect:
                if status and _WHOLE not in scope:
                    broke_off(scope, errors.Cancelled("the client went away"))
                status = status or CLIENT_CLOSED
            except asyncio.CancelledError:
                if status:
                    broke_off(scope, errors.Unavailable("the grace of a shutdown is over"))
                status = status or 503
                raise
            except Exception as error:  # noqa: BLE001 - the outermost: every error is logged and answered
                # Starlette hides a page that it could not send in an error of its own.
                cause = error.__cause__ if isinstance(error.__cause__, errors.AgentmemError) else error
                if status:
                    broke_off(scope, as_our_error(cause))
                else:
                    await (await error_page(Request(scope), cause))(scope, receive, counting)
            finally:
                route = getattr(scope.get("route"), "path", "unmatched")
                self._metrics.http_answered(route, scope["method"], scope.get(_BROKE_OFF, status or CLIENT_CLOSED))
                _end_span(scope, route, status or CLIENT_CLOSED)
                event(
                    log,
                    "answered",
                    logging.DEBUG if route in POLLED else logging.INFO,
                    method=scope["method"],
                    route=route,
                    status=status or CLIENT_CLOSED,
                    ms=round((time.monotonic() - began) * 1000),
                    request_id=trace.request_id,
                    **scope[_FIELDS],
                )
