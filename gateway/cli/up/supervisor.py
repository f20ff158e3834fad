"""Keeps services running: starts all at once, restarts those that die, stops them in reverse order.

A status of FINAL_STATUSES ends all, unless that service was ready before and its settings are right. Children have
process groups of their own, so that only this process gets a terminal's Ctrl-C, and notice its end by a pipe
(agentmem.process.parent).
"""

import asyncio
import logging
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

from agentmem.process import logs
from agentmem.process.logs import event
from agentmem.process.service import CANNOT_SERVE, DEVICE_LOST, WRONG_SETTING

log = logging.getLogger(__name__)

FINAL_STATUSES = frozenset({CANNOT_SERVE, WRONG_SETTING})
"""A restart would end the same way."""

MAX_EARLY_DEATHS = 5
PROBE_INTERVAL = 0.1
TAIL_LINES = 5
_FIRST_DELAY, _LAST_DELAY = 0.2, 10.0
_CAUSE_SECONDS = 1.0
"""Time for an earlier service to fail, whose failure says more."""
_STEADY_SECONDS = 60.0
"""A GPU that serves for so long has not failed at once."""
_ABORTS = re.compile(r"terminating due to uncaught exception .*\[METAL\]|terminate called .*CUDA")
"""Last words of MLX where nothing can take its error (ml-explore/mlx#3317)."""
_CHUNK = 65536


@dataclass(frozen=True)
class Service:
    """`ready` is polled until True after each start; until then `starting` says what it does."""

    name: str
    module: str
    arguments: Sequence[str]
    ready: Callable[[], Awaitable[bool]]
    environment: Mapping[str, str] = field(default_factory=dict)
    starting: str = "starting"


class ServiceFailed(Exception):
    """Its status says so, or it died repeatedly and was never ready. The message has its last lines."""


def restart_delay(deaths: int) -> float:
    return min(_LAST_DELAY, _FIRST_DELAY * 2.0 ** min(deaths - 1, 16))


class Supervisor:
    """Runs `services`. Call `run` once, on one event loop. `report` takes a line, and does not raise.

    `grace`: seconds between SIGTERM and SIGKILL. Descriptors `held` stay open in the children.
    """

    def __init__(
        self,
        services: Sequence[Service],
        grace: float,
        report: Callable[[str], None],
        held: Sequence[int] = (),
        *,
        course: Callable[[str], None] | None = None,
        relay: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        """`course`, by default `report`, gets the start's lines, `relay` the services'."""
        self._course = course or report
        self._lifeline, self._parent_end = os.pipe()
        shared = self._lifeline, grace, report, held, relay or to_standard_error
        self._kept = [_Kept(service, *shared) for service in services]

    @property
    def unready(self) -> bool:
        return not all(kept.ready.is_set() for kept in self._kept)

    @property
    def pids(self) -> dict[str, int]:
        return {kept.service.name: kept.process.pid for kept in self._kept if kept.process is not None}

    async def run(self, stopping: asyncio.Event, started: Callable[[], Awaitable[None]]) -> None:
        """Start all, call `started` when all are ready, and keep them until `stopping` is set or one fails. Raises
        ServiceFailed, after stopping all.
        """
        keeping: list[asyncio.Task[None]] = []
        before = ""
        async with AsyncExitStack() as ending:
            for descriptor in (self._lifeline, self._parent_end):
                ending.callback(os.close, descriptor)
            stop = asyncio.create_task(stopping.wait())
            ending.callback(stop.cancel)
            for kept in self._kept:
                keeping.append(asyncio.create_task(kept.keep()))
                ending.push_async_callback(kept.stop, keeping[-1])
            for kept in self._kept:
                self._course(f"{before}{kept.service.name} {kept.service.starting}…")
                before = f"{kept.service.name} ready, "
                if not await _first(kept.ready.wait(), stop, keeping):
                    return
            await started()
            await _first(asyncio.Event().wait(), stop, keeping)


async def _first(wanted: Awaitable[object], stop: "asyncio.Task[bool]", keeping: "list[asyncio.Task[None]]") -> bool:
    """Wait for `wanted` (True) or `stop` (False). Raises the first failure of a kept service."""
    waiting = asyncio.ensure_future(wanted)
    try:
        done, _ = await asyncio.wait({waiting, stop, *keeping}, return_when=asyncio.FIRST_COMPLETED)
        if failed := [task for task in keeping if task in done]:
            # One failure may cause others; the first service in order says it best.
            if earlier := keeping[: keeping.index(failed[0])]:
                await asyncio.wait(earlier, timeout=_CAUSE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            next(task for task in keeping if task.done()).result()
        return waiting in done and stop not in done
    finally:
        waiting.cancel()


def to_standard_error(lines: Sequence[str]) -> None:
    logs.write(sys.stderr, "".join(f"{line}\n" for line in lines))


@dataclass
class _Kept:
    service: Service
    lifeline: int
    grace: float
    report: Callable[[str], None]
    held: Sequence[int]
    relay: Callable[[Sequence[str]], None]
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ready_since: float = 0.0
    process: asyncio.subprocess.Process | None = None
    copying: asyncio.Task[None] | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))

    async def keep(self) -> None:
        """Raises ServiceFailed."""
        deaths, ever_ready = 0, False
        while True:
            process = await self._spawn()
            probing = asyncio.create_task(self._probe(process.pid, again=ever_ready))
            try:
                status = await process.wait()
            finally:
                probing.cancel()
            was_ready, lost = self.ready.is_set(), await self._lost_its_device(status)
            if was_ready:
                deaths, ever_ready = deaths if lost and not self._steady else 0, True
                self.ready.clear()
            deaths += 1
            outcome = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            said = f"{self.service.name} ended{': the GPU failed' if lost else f' with {outcome}'}"
            self._log("service ended", process.pid, logging.WARNING, outcome=outcome)
            # It could serve a moment ago: a single model or request must not end the other services.
            final = status in FINAL_STATUSES and not (was_ready and status == CANNOT_SERVE)
            if final or (not ever_ready and deaths >= MAX_EARLY_DEATHS):
                again = "" if final else f", the {deaths}th time, and was never ready"
                await self._relayed()
                raise ServiceFailed("\n".join([f"{said}{again}; it wrote:", *self.tail]))
            delay = restart_delay(deaths)
            self.report(f"{said}; starting it again in {delay:g} s")
            self._log("service starts again", process.pid, delay=delay)
            await asyncio.sleep(delay)

    async def _lost_its_device(self, status: int) -> bool:
        if status == -signal.SIGABRT:
            await self._relayed()
        aborted = status == -signal.SIGABRT and any(map(_ABORTS.search, self.tail))
        return aborted or status == DEVICE_LOST

    @property
    def _steady(self) -> bool:
        return time.monotonic() - self.ready_since >= _STEADY_SECONDS

    async def stop(self, keeping: "asyncio.Task[None]") -> None:
        keeping.cancel()
        await asyncio.wait({keeping})
        if not keeping.cancelled():
            keeping.exception()  # another's was raised first, or this one is raised
        process = self.process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), self.grace)
            except TimeoutError:
                self.report(f"{self.service.name} did not end within {self.grace:g} s; killing it")
                self._log("service killed", process.pid, logging.WARNING, grace=self.grace)
                with suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        await self._relayed()

    async def _spawn(self) -> asyncio.subprocess.Process:
        service = self.service
        self.tail.clear()
        watched = (sys.executable, "-m", "agentmem.process.parent", str(self.lifeline), str(self.grace))
        self.process = process = await asyncio.create_subprocess_exec(
            *watched,
            service.module,
            *service.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **service.environment},
            pass_fds=(self.lifeline, *self.held),
            process_group=0,
        )
        self._log("service started", process.pid)
        assert process.stdout is not None
        self.copying = asyncio.create_task(self._copy_output(process.stdout))
        return process

    async def _probe(self, pid: int, *, again: bool) -> None:
        while not await self.service.ready():  # noqa: ASYNC110 - another process's state sends no event
            await asyncio.sleep(PROBE_INTERVAL)
        if again:
            self.report(f"{self.service.name} ready again")
        self._log("service ready again" if again else "service ready", pid)
        self.ready_since = time.monotonic()
        self.ready.set()

    async def _copy_output(self, written: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await written.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            self._write(lines)
        self._write([rest] if rest else [])

    def _write(self, lines: list[bytes]) -> None:
        decoded = [line.decode("utf-8", "replace") for line in lines]
        self.tail.extend(decoded)
        self.relay(decoded)

    async def _relayed(self) -> None:
        """Wait until an ended child's output is written; a grandchild may hold the pipe."""
        if self.copying is not None:
            await asyncio.wait({self.copying}, timeout=1.0)
            self.copying.cancel()

    def _log(self, message: str, pid: int, level: int = logging.INFO, **fields: object) -> None:
        event(log, message, level, name=self.service.name, pid=pid, **fields)
