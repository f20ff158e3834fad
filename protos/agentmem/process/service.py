"""One service as a process: settings, logs, exit status, and systemd's sd_notify(3) for its manager.

Exit statuses, and whether to start the process again:

    0                 it was asked to end                                       no
    CANNOT_SERVE   1  its model or data directory cannot be served              no
    WRONG_SETTING  2  a wrong setting, or an address that cannot be had         no
    BUG           70  a bug, with its traceback in the log (EX_SOFTWARE)        yes
    DEVICE_LOST   74  the GPU fails until another process uses it (EX_IOERR)    yes
    MAY_PASS      75  something is full, or a peer is silent (EX_TEMPFAIL)      yes
"""

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

from agentmem import errors
from agentmem.process import logs, open_files
from agentmem.process.logs import event
from agentmem.process.otlp import Traces
from agentmem.process.settings import ServiceSettings, SettingsError, load
from agentmem.process.sockets import AddressError

log = logging.getLogger(__name__)

_SOCKET: Final = "NOTIFY_SOCKET"
_PERIOD: Final = "WATCHDOG_USEC"
_FOR: Final = "WATCHDOG_PID"

_SEND_SECONDS: Final = 1.0
"""Limit for a manager that does not read."""


def is_managed() -> bool:
    """True before a ServiceManager takes the variable."""
    return bool(os.environ.get(_SOCKET))


class ServiceManager:
    """Any thread."""

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        """`address`: a Unix socket's path, "@" and an abstract name, or "". The process is ended after
        `watchdog_seconds` of silence; 0: never.
        """
        self._address = address
        self._watchdog_seconds = watchdog_seconds

    @classmethod
    def of_this_process(cls, environment: MutableMapping[str, str] = os.environ) -> "ServiceManager":
        """Take the environment's manager, and remove its variables, so that children don't speak for us."""
        address, period, pid = (environment.pop(name, "") for name in (_SOCKET, _PERIOD, _FOR))
        if address and address[0] not in "/@":
            event(log, f"{_SOCKET} is no Unix socket, so readiness is not reported", logging.WARNING, address=address)
            address = ""
        meant = bool(address) and period.isdigit() and pid in ("", str(os.getpid()))
        return cls(address, int(period) / 1e6 if meant else 0.0)

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        self._send(f"STATUS={status}")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=draining")

    async def keep_alive(self, alive: Callable[[], bool]) -> None:
        """Report that the process lives while `alive` returns True, until cancelled. Returns at once without a
        watchdog, whose signal makes the process write its threads' tracebacks.
        """
        if not self._watchdog_seconds:
            return
        faulthandler.enable()  # for the watchdog's SIGABRT
        while True:
            if alive():
                self._send("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_seconds / 3)

    def _send(self, *assignments: str) -> None:
        if not self._address:
            return
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        message = "\n".join(" ".join(assignment.splitlines()) for assignment in assignments)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_SEND_SECONDS)
                sender.sendto(message.encode(), name)
        except OSError as error:
            event(log, "the service manager takes no message", logging.WARNING, told=message, error=str(error))


CANNOT_SERVE: Final = 1
WRONG_SETTING: Final = 2
BUG: Final = 70
DEVICE_LOST: Final = 74
MAY_PASS: Final = 75

_PASSING = (errors.ResourceExhausted, errors.Unavailable, errors.DeadlineExceeded, errors.Aborted, errors.Cancelled)

_Settings = TypeVar("_Settings", bound=ServiceSettings)


def run_service(
    name: str,
    settings_type: type[_Settings],
    serve: Callable[[_Settings, asyncio.Event], Coroutine[Any, Any, int | None]],
    arguments: Sequence[str] | None = None,
    cannot_serve: tuple[type[Exception], ...] = (),
) -> None:
    """Load the settings, serve until `serve` returns, and end the process with a status from above.

    SIGTERM and SIGINT set `serve`'s event. It may raise SettingsError, errors of the contract, and its own
    `cannot_serve`. A status that it returns ends the process at once, for threads that cannot be waited for. New files
    are their owner's alone, and the limit of open files is raised.
    """
    try:
        settings = load(settings_type, arguments)
        logs.configure(name, settings.log_level, settings.log_format)
        traces = Traces(name, settings.otlp)
    except SettingsError as error:
        _end(name, WRONG_SETTING, error)
    os.umask(0o077)
    open_files.raised()
    try:
        status = asyncio.run(_until_signalled(serve, settings))
    except (SettingsError, AddressError) as error:
        _end(name, WRONG_SETTING, error)
    except cannot_serve as error:
        _end(name, CANNOT_SERVE, error)
    except errors.Internal:
        _end_as_bug(name)
    except errors.AgentmemError as error:
        _end(name, MAY_PASS if isinstance(error, _PASSING) else CANNOT_SERVE, error)
    except Exception:  # noqa: BLE001 - the rim of the process
        _end_as_bug(name)
    finally:
        traces.stop()
    if status is not None:
        os._exit(status)


async def _until_signalled(
    serve: Callable[[_Settings, asyncio.Event], Coroutine[Any, Any, int | None]], settings: _Settings
) -> int | None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return await serve(settings, stopping)


def _end(name: str, status: int, problem: Exception) -> NoReturn:
    logs.write(sys.stderr, f"agentmem-{name}: {problem}\n")
    raise SystemExit(status)


def _end_as_bug(name: str) -> NoReturn:
    log.critical("the %s failed", name, exc_info=True)
    raise SystemExit(BUG) from None
