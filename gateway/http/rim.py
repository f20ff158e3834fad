"""The rim of the HTTP door: every request is counted and logged, and every error becomes a page in the dialect's shape.

The log has one line per request, with the id that the answer carries as x-request-id, and nothing that was said. All
that is done for the request is done under that id (`agentmem.tracing`).
"""

import asyncio
import json
import logging
import math
import time
import uuid
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentmem import errors, spans, tracing
from agentmem.logs import event
from gateway.http.dialects import dialect_of
from gateway.http.probes import PROBES
from gateway.metrics import GatewayMetrics

log = logging.getLogger(__name__)

CLIENT_CLOSED = 499

_TOLD = "agentmem.told"
_WHOLE = "agentmem.whole"
_BROKE_OFF = "agentmem.broke_off"
_TOLD_OF_TURNS: Final = {
    "agent": spans.AGENT,
    "model": spans.MODEL,
    **{name: f"agentmem.{name}" for name in ("match", "prompt_tokens", "reused_tokens", "generated_tokens")},
}
"""What the line in the log tells of a turn, and its name in the span."""
_REQUEST_ID = "agentmem.request_id"
_ANTHROPICS_NAME = b"request-id"
"""The header in which Anthropic's SDK looks for the request's id."""


class ErrorPage(JSONResponse):
    """An error as a response in the shape of the request's dialect, with the headers that say what helps."""

    def __init__(self, error: errors.AgentmemError, scope: Scope) -> None:
        headers = {}
        if isinstance(error, errors.ResourceExhausted | errors.Unavailable):
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
        if isinstance(error, errors.Unauthenticated):
            headers["www-authenticate"] = "Bearer"
        page = dialect_of(scope).page(error, scope.get(_REQUEST_ID, ""))
        super().__init__(page.body, page.status, headers)

    def render(self, content: Any) -> bytes:
        # ASCII, because a name in a message may hold a lone surrogate.
        return json.dumps(content).encode("ascii")


def as_our_error(error: BaseException) -> errors.AgentmemError:
    """`error` itself, or an Internal with an incident id; then the log has the cause and the caller has not."""
    if isinstance(error, errors.AgentmemError):
        return error
    incident = uuid.uuid4().hex[:12]
    log.error("unexpected error at the HTTP door, incident %s", incident, exc_info=error)
    return errors.Internal(f"internal error; the server's log has it as incident {incident}")


async def error_page(request: Request, error: Exception) -> Response:
    """Starlette's handler for AgentmemError."""
    return ErrorPage(as_our_error(error), request.scope)


async def http_error_page(request: Request, error: Exception) -> Response:
    """Starlette's handler for its own errors: no such route, no such method, and the door's own 413 and 415."""
    assert isinstance(error, HTTPException)
    body = dialect_of(request.scope).http_body(error.status_code, error.detail, request.scope.get(_REQUEST_ID, ""))
    return JSONResponse(body, error.status_code, error.headers)


def tell(scope: Scope, **fields: str | int) -> None:
    """Add fields to the request's line in the log, such as its agent. A key in a wrong place stays out of it."""
    told = {name: spans.identifier(value) if isinstance(value, str) else value for name, value in fields.items()}
    scope[_TOLD].update(told)


def whole(scope: Scope) -> None:
    """All that the request asked for is known, and only has to be sent: who leaves now has left nothing unfinished."""
    scope[_WHOLE] = True


def broke_off(scope: Scope, error: errors.AgentmemError) -> None:
    """`error` ended an answer whose status, 200, was sent when it began.

    That stands in the log, which says `failed` besides; the metrics have the status of the page that the error would
    have been, or else nobody who counts would see that streams fail. The first error is the cause of others.
    """
    if _BROKE_OFF not in scope:
        scope[_BROKE_OFF] = dialect_of(scope).page(error, "").status
        tell(scope, failed=error.code.name.lower())


def _end_span(scope: Scope, route: str, status: int) -> None:
    """End the request's span, by what the request's line in the log says."""
    if (span := spans.present()) is None:
        return
    told = scope[_TOLD]
    known = {attribute: told[name] for name, attribute in _TOLD_OF_TURNS.items() if told.get(name, "") != ""}
    span.rename(f"{spans.identifier(scope['method'])} {route}")
    span.set({"http.route": route, "http.response.status_code": status, **known})
    failure = "CANCELLED" if status == CLIENT_CLOSED else str(status) if status >= 400 else ""
    span.end(told.get("failed", "").upper() or failure)


class Rim:
    """ASGI middleware: counts, traces and logs requests, and answers what nobody caught."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace = tracing.received((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        within = trace
        if scope["path"] not in PROBES:  # the route is known only at the end
            method = spans.identifier(scope["method"])
            within = spans.served(method, trace, {"http.request.method": method})
        with tracing.serving(within):
            await self._serve(trace, scope, receive, send)

    async def _serve(self, trace: tracing.Trace, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        status = 0
        answer = [(name.encode("ascii"), value.encode("ascii")) for name, value in trace.answer]
        answer.append((_ANTHROPICS_NAME, trace.request_id.encode("ascii")))
        scope[_TOLD] = {}
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
        except Exception as error:  # noqa: BLE001 - the rim: what nobody caught is logged and answered
            # Starlette hides what it has a page for, but could not send, behind an error of its own.
            cause = error.__cause__ if isinstance(error.__cause__, errors.AgentmemError) else error
            ours = as_our_error(cause)
            if status:
                broke_off(scope, ours)
            else:
                await ErrorPage(ours, scope)(scope, receive, counting)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            self._metrics.http_answered(route, scope["method"], scope.get(_BROKE_OFF, status or CLIENT_CLOSED))
            _end_span(scope, route, status or CLIENT_CLOSED)
            event(
                log,
                "answered",
                logging.DEBUG if route in PROBES else logging.INFO,
                method=scope["method"],
                route=route,
                status=status or CLIENT_CLOSED,
                ms=round((time.monotonic() - began) * 1000),
                request_id=trace.request_id,
                **scope[_TOLD],
            )
