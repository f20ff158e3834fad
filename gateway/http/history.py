"""GET /v1/overview/history, for admins: what the page's charts begin with."""

import asyncio
import logging
import time
from collections import deque
from datetime import UTC, datetime
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.validation import Json
from gateway.edge.authorization import require_admin
from gateway.edge.callers import caller
from gateway.http.charts import point
from gateway.http.overview import Pages, metrics_address, overview_of
from gateway.scraping import Samples, scrape
from gateway.settings import GatewaySettings

log = logging.getLogger(__name__)

WINDOW_SECONDS: Final = 900
INTERVAL_SECONDS: Final = 5
_POINTS: Final = WINDOW_SECONDS // INTERVAL_SECONDS

SERIES: Final = (
    *("agentmem_build_info", "process_start_time_seconds", "agentmem_model_info", "agentmem_pool_blocks"),
    *("agentmem_num_requests_running", "agentmem_num_requests_waiting", "agentmem_generation_tokens_total"),
    *("agentmem_prompt_tokens_total", "agentmem_prompt_tokens_cached_total"),
    *(f"agentmem_time_to_first_token_seconds_{part}" for part in ("bucket", "count")),
)
"""Series of the worker that a point needs."""


class History:
    """Keeps the points of the last 15 minutes. Event loop only: `watch` until it is cancelled."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._worker = metrics_address(settings, "worker")
        self._points: deque[Json] = deque(maxlen=_POINTS)

    async def serve(self, _: Request) -> Response:
        require_admin(caller())
        return JSONResponse({"interval_seconds": INTERVAL_SECONDS, "points": list(self._points)})

    async def watch(self) -> None:
        if not self._worker:
            await asyncio.Event().wait()
        last: _Page | None = None
        while True:
            try:
                before, last = last, await self._read()
                if before is not None:
                    await self._add(before, last)
            except Exception:  # charts must not end the gateway
                log.exception("unexpected error in the points of charts")
            await asyncio.sleep(INTERVAL_SECONDS)

    async def _add(self, before: "_Page", now: "_Page") -> None:
        if isinstance(before.worker, Samples) or isinstance(now.worker, Samples):
            was: Pages = {"worker": before.worker}
            pages: Pages = {"worker": now.worker}
            seconds = now.time - before.time
            self._points.append(point(await asyncio.to_thread(overview_of, pages, was, seconds, datetime.now(UTC))))

    async def _read(self) -> "_Page":
        return _Page(await scrape("worker", self._worker, SERIES), time.monotonic())


class _Page(NamedTuple):
    worker: Samples | str
    time: float
