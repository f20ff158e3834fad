"""The requests of the page at /ui/, without a browser: three tabs, in a process of their own with the lowest priority.

`RECORDED` has a real Chromium's; `tests/system/page/test_page_requests.py` compares it with today's, and writes it with
AGENTMEM_SCREENSHOTS=1. Answers questions on stdin (`benchmarks.children`): `open` and `close`.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from benchmarks.children import answer

RECORDED = Path(__file__).parent / "page_requests.json"
"""By view: `opening`, requests and the seconds at which they begin; `again`, and the seconds after each answer."""

OVERVIEW = "v1/overview"
_SECONDS = 60.0


def recorded() -> dict[str, dict[str, list[dict[str, Any]]]]:
    found: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(RECORDED.read_text())
    return found


class Tab:
    """One view that is open. Raises RuntimeError for an answer that is none."""

    def __init__(self, http: httpx.AsyncClient, view: Mapping[str, Sequence[Mapping[str, Any]]], names: dict[str, str]):
        self._http = http
        self._view = view
        self._names = names
        self._tokens: dict[str, asyncio.Future[str]] = {}
        self.seconds: list[tuple[str, float]] = []
        """Each answer's path without its query, and its seconds."""
        self.agents = 0
        self.opened = threading.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            opening = [tasks.create_task(self._once(**request)) for request in self._view["opening"]]
            for request in self._view["again"]:
                tasks.create_task(self._again(**request))
            await asyncio.gather(*opening)
            self.opened.set()

    async def _once(self, at: float, path: str) -> None:
        await asyncio.sleep(at)
        await self._ask(path)

    async def _again(self, every: float, path: str) -> None:
        while True:
            await asyncio.sleep(every)
            await self._ask(path)

    async def _ask(self, path: str) -> None:
        for name, value in self._names.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        bare, _, query = path.partition("?")
        if "{token}" in query:  # of the page before
            path = path.replace("{token}", quote(await self._next(bare), safe=""))
        began = time.monotonic()
        got = await self._http.get(path)
        self.seconds.append((bare, time.monotonic() - began))
        if got.status_code != 200:
            raise RuntimeError(f"{path} was answered {got.status_code}: {got.text[:200]}")
        if bare == "v1/agents":
            told = got.json()
            self.agents += len(told["agents"])
            self._tokens[bare] = asyncio.get_running_loop().create_future()
            self._tokens[bare].set_result(told["next_page_token"])
        if bare == OVERVIEW and got.json()["models"] is None:
            raise RuntimeError("the overview has nothing of the worker; start the stack with its pages of metrics")

    async def _next(self, path: str) -> str:
        while path not in self._tokens:
            await asyncio.sleep(0.005)
        return await self._tokens.pop(path)


class Browser:
    """All tabs, on a thread's event loop, while the process waits for questions."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def open(self, url: str, model: str, agent: str, agents: int) -> None:
        self._wanted = agents
        self._used = time.process_time()
        names = {"model": model, "agent": agent}
        limits = httpx.Limits(max_connections=6)  # as many as a browser has to one server
        http = httpx.AsyncClient(base_url=url, timeout=60, limits=limits)
        self._tabs = [Tab(http, view, names) for view in recorded().values()]
        self._running = asyncio.run_coroutine_threadsafe(self._opened(http), self._loop)

    def close(self) -> dict[str, Any]:
        """Return counts; `late` where the page's first requests were not all answered. Raises RuntimeError."""
        late = not all(tab.opened.is_set() for tab in self._tabs)
        until = time.monotonic() + _SECONDS
        while not self._running.done() and not all(tab.opened.wait(0.05) for tab in self._tabs):
            if time.monotonic() > until:
                raise RuntimeError(f"what the page shows first did not come within {_SECONDS:g} seconds")
        if self._running.done():
            self._running.result()
        self._running.cancel()
        seconds = [each for tab in self._tabs for each in tab.seconds]
        if max(tab.agents for tab in self._tabs) < self._wanted:
            raise RuntimeError("the view of all agents has too few of them; record the page's requests anew")
        polls = [took for path, took in seconds if path == OVERVIEW]
        used = time.process_time() - self._used
        return {
            **{"requests": len(seconds), "overviews": len(polls), "overview_seconds": polls},
            **{"page_cpu_seconds": used, "late": late},
        }

    async def _opened(self, http: httpx.AsyncClient) -> None:
        async with http, asyncio.TaskGroup() as tasks:
            for tab in self._tabs:
                tasks.create_task(tab.run())


if __name__ == "__main__":
    os.nice(19)
    browser = Browser()
    answer({"open": browser.open, "close": browser.close})
