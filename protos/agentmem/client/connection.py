from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import grpc

from agentmem import errors, layout
from agentmem.addresses import is_loopback, parse_address
from agentmem.channels import ClientTls, closing_stream, connect
from agentmem.client.inputs import Timeout, Unset
from agentmem.retries import Failure, Patience, retry_delay
from agentmem.rpcs import rpc_of

log = logging.getLogger("agentmem.client")

PATIENCE: Final = 60.0

ADDRESS: Final = "AGENTMEM_ADDRESS"
KEY: Final = "AGENTMEM_API_KEY"
_TLS: Final = "AGENTMEM_TLS"
_FILES: Final = {"ca": "AGENTMEM_CA", "cert": "AGENTMEM_CLIENT_CERT", "key": "AGENTMEM_CLIENT_KEY"}
"""Variables for parameters that are not given."""

_LOST: Final = "the connection to the gateway was lost"

_T = TypeVar("_T")


class Deadline(NamedTuple):
    """The time limit of a call, including outages and preparatory calls."""

    seconds: float | None
    """None: no limit."""
    ends: float
    """By time.monotonic()."""


Within: TypeAlias = Timeout | Deadline
OnOutage = Callable[[str], None]
"""Gets an outage's reason when its first wait begins. On the event loop."""


class GatewayUnreachable(errors.Unavailable):
    """No gateway answers, or the connection was lost. The request may have been carried out."""

    def __init__(self, gateway: str, *, tls: bool = False) -> None:
        hint = "; if it does, TLS failed: `ca` names who signed its certificate" if tls else ""
        super().__init__(
            f"no gateway answers at {gateway}; start one with `agentmem up`, or name another: Client('HOST:PORT')"
            + (hint or "; if it has TLS, say so: tls=True")
        )
        self.gateway = gateway


def credentials(tls: bool | ClientTls | None) -> ClientTls | None:
    """Return TLS settings, from the environment if None. Raises OSError."""
    if isinstance(tls, ClientTls):
        return tls
    if tls is False:
        return None
    named = {part: os.environ.get(variable, "") for part, variable in _FILES.items()}
    wanted = os.environ.get(_TLS, "").lower() not in ("", "0", "false", "no", "off")
    if not (tls or wanted or any(named.values())):
        return None
    return ClientTls(**{part: Path(file).read_bytes() if file else None for part, file in named.items()})


class Connection:
    """A channel to one gateway, which reconnects by itself. Event loop."""

    def __init__(
        self,
        gateway: str,
        key: str | None,
        tls: bool | ClientTls | None,
        timeout: float | None,
        patience: float,
        on_outage: OnOutage | None,
    ) -> None:
        self.gateway = gateway or os.environ.get(ADDRESS, "") or layout.GRPC
        self.timeout, self.patience = timeout, patience
        self.on_outage: OnOutage = on_outage or (lambda why: log.warning("waiting: %s", why))
        self._key = (os.environ.get(KEY, "") if key is None else key).strip()
        if not (self._key.isascii() and (self._key.isprintable() or not self._key)):
            raise errors.InvalidArgument("key", "is none: it has other than printable ASCII")
        self._tls = credentials(tls)
        if self._key and self._tls is None and not _is_here(self.gateway):
            log.warning("the key goes to %s in clear text; use tls", self.gateway)
        self._channel: grpc.aio.Channel | None = None
        self.closed = False
        self.waits: set[asyncio.Event] = set()
        """Calls that wait through outages, which `close` ends."""
        self.answered = False
        """A gateway has answered: a later failure to connect is an outage, not a wrong address."""

    @property
    def channel(self) -> grpc.aio.Channel:
        """Raises RuntimeError after `close`."""
        if self.closed:
            raise RuntimeError("the client is closed")
        if self._channel is None:
            self._channel = connect(self.gateway, key=self._key, tls=self._tls)
        return self._channel

    async def close(self) -> None:
        """End all calls, which raise Cancelled."""
        self.closed = True
        for waited in self.waits:
            waited.set()
        if self._channel is not None:
            await self._channel.close(None)

    def deadline(self, timeout: Within) -> Deadline:
        """Return the deadline of a call that begins now; a Deadline is unchanged."""
        if isinstance(timeout, Deadline):
            return timeout
        seconds = self.timeout if isinstance(timeout, Unset) else timeout
        return Deadline(seconds, math.inf if seconds is None else time.monotonic() + seconds)

    def start(self, request: Any, seconds: float | None) -> Any:
        return rpc_of(request).on(self.channel)(request, timeout=seconds)

    async def call(self, request: Any, timeout: Within) -> Any:
        """Raises AgentmemError."""
        return await self.run(lambda seconds: self.start(request, seconds), timeout)

    async def erase(self, request: Any, timeout: Within) -> Any:
        """Return the response of an erasing RPC, or None if an attempt whose answer was lost did it.

        Raises AgentmemError; NotFound only if there was nothing at first.
        """
        unknown = False

        async def attempt(seconds: float | None) -> Any:
            nonlocal unknown
            try:
                return await self.start(request, seconds)
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                gone = isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.NOT_FOUND
                if unknown and gone:
                    return None
                unknown = True
                raise

        return await self.run(attempt, timeout)

    async def run(self, attempt: Callable[[float | None], Awaitable[_T]], timeout: Within) -> _T:
        """Return the result of `attempt`, which gets the seconds left. Raises AgentmemError."""
        attempts = Attempts(self, timeout)
        while True:
            try:
                result = await attempt(attempts.begin())
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                await attempts.wait(attempts.delay(error))
            else:
                self.answered = True
                return result

    def failure(self, error: grpc.aio.AioRpcError) -> errors.AgentmemError:
        if errors.is_silence(error):
            return GatewayUnreachable(self.gateway, tls=self._tls is not None)
        self.answered = True
        return errors.from_rpc(error)


def _is_here(gateway: str) -> bool:
    if gateway.startswith("unix:"):
        return True
    try:
        return is_loopback(parse_address(gateway).host)
    except ValueError:
        return False


class Attempts:
    """The attempts of one call. Event loop."""

    def __init__(self, connection: Connection, timeout: Within) -> None:
        self._connection = connection
        self._deadline = connection.deadline(timeout)
        self._last: errors.AgentmemError | None = None
        self._call: Any = None
        self._closed = False
        self._awake = asyncio.Event()
        patience = connection.patience
        self._patience = Patience(patience, well_after=patience, on_outage=self._tell)
        self.renew = self._patience.renew

    def begin(self) -> float | None:
        """Return the seconds that the next attempt may take. Raises DeadlineExceeded; Cancelled after `close`."""
        if self._closed or (self._last is not None and self._connection.closed):
            raise self._ended() from self._last
        self._patience.begin()
        if self._deadline.seconds is None:
            return None
        left = self._deadline.ends - time.monotonic()
        if left <= 0:
            raise self._late() from self._last
        return left

    def close(self) -> None:
        """Make no more attempts, and cancel a running `stream`."""
        self._closed = True
        self._awake.set()
        if self._call is not None:
            self._call.cancel()

    async def stream(self, request: Any, is_last: Callable[[Any], bool]) -> AsyncGenerator[Any, None]:
        """Yield the responses; None before another attempt, whose `request` may change. Raises as `delay`."""
        ended = False
        while not ended:
            seconds = self.begin()
            try:
                self._call = self._connection.start(request, seconds)
                async with aclosing(messages(self._connection, self._call)) as responses:
                    async for response in responses:
                        ended = ended or is_last(response)
                        yield response
                if not ended:
                    raise errors.Unavailable(_LOST)
            except (grpc.aio.AioRpcError, errors.Unavailable, asyncio.CancelledError) as error:
                if not ended or isinstance(error, asyncio.CancelledError):
                    delay = self.delay(error)
                    yield None
                    await self.wait(delay)

    async def wait(self, delay: float) -> None:
        """Wait some seconds, or until `close`."""
        self._connection.waits.add(self._awake)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._awake.wait()
        finally:
            self._connection.waits.discard(self._awake)

    def delay(self, error: BaseException) -> float:
        """Return the seconds until the next attempt. Raises the failure if there is none, and CancelledError unchanged;
        a call that no one here cancelled was cut off by `close`.
        """
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is None or task.cancelling() or not (self._closed or self._connection.closed):
                raise error
            raise self._ended() from None
        if isinstance(error, grpc.aio.AioRpcError):
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and errors.is_silence(error)
            if late and self._deadline.seconds is not None:
                raise self._late() from self._last
            failure = self._connection.failure(error)
        elif isinstance(error, errors.AgentmemError):
            failure = error
        else:
            raise error
        self._last = failure
        delay = self._passes(failure)
        if delay is None or not self._patience.has(failure, delay):
            raise failure from (error if failure is not error else None)
        if time.monotonic() + delay > self._deadline.ends:
            raise self._late() from failure
        return delay

    def _passes(self, failure: errors.AgentmemError) -> float | None:
        """Return the seconds before a retry; None: permanent."""
        lost = isinstance(failure, GatewayUnreachable)
        if not isinstance(failure, errors.Unavailable) or (lost and not self._connection.answered):
            return None
        return retry_delay(failure)

    def _tell(self, failure: Failure) -> None:
        assert isinstance(failure, errors.AgentmemError)
        lost = isinstance(failure, GatewayUnreachable)
        self._connection.on_outage(_LOST if lost else failure.message)

    def _late(self) -> errors.DeadlineExceeded:
        return errors.DeadlineExceeded(f"it was not done within {self._deadline.seconds:g} s")

    def _ended(self) -> errors.Cancelled:
        return errors.Cancelled("the client was closed" if self._connection.closed else "the stream was closed")


async def pages(
    connection: Connection, request: Any, field: str, value: Callable[[Any], _T], timeout: Timeout
) -> AsyncGenerator[_T, None]:
    """Yield the values in `field` of all pages, read as needed."""
    while True:
        page = await connection.call(request, timeout)
        items: Sequence[Any] = getattr(page, field)
        for item in items:
            yield value(item)
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return


async def messages(connection: Connection, call: Any) -> AsyncGenerator[Any, None]:
    """Yield the responses of one attempt. Closing it, or a failure, cancels the call."""
    async with closing_stream(call) as responses:
        async for response in responses:
            connection.answered = True
            yield response
