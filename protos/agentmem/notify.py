"""What a service tells the service manager that started it: the datagrams of systemd's sd_notify(3).

    READY=1      it serves; until then a unit of Type=notify is starting, and what is ordered after it waits
    STATUS=…     a line for people, in `systemctl status`
    STOPPING=1   it was asked to end, and drains
    WATCHDOG=1   it is alive; once it has not said so for the unit's WatchdogSec, it is ended and started again

Where nobody wants to hear of it (no NOTIFY_SOCKET), nothing is sent.
"""

import asyncio
import faulthandler
import logging
import os
import socket
from collections.abc import Callable, MutableMapping
from typing import Final

from agentmem.logs import event

log = logging.getLogger(__name__)

_SOCKET: Final = "NOTIFY_SOCKET"
_PERIOD: Final = "WATCHDOG_USEC"
_FOR: Final = "WATCHDOG_PID"

_SEND_SECONDS: Final = 1.0
"""A manager that takes nothing for so long hears nothing: the service goes on without it."""


class ServiceManager:
    """Whoever started this process. Any thread; a datagram is sent at once."""

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        """`address`: the path of a Unix socket, or "@" and an abstract name; empty: nobody wants to hear.

        `watchdog_seconds`: after how long a silence the process is ended; 0: never.
        """
        self._address = address
        self._watchdog_seconds = watchdog_seconds

    @classmethod
    def of_this_process(cls, environment: MutableMapping[str, str] = os.environ) -> "ServiceManager":
        """The one that the environment names. Its variables are taken away, so that children don't speak for us."""
        address, period, pid = (environment.pop(name, "") for name in (_SOCKET, _PERIOD, _FOR))
        if address and address[0] not in "/@":
            event(log, f"{_SOCKET} is no Unix socket, so nobody is told of readiness", logging.WARNING, address=address)
            address = ""
        meant = bool(address) and period.isdigit() and pid in ("", str(os.getpid()))
        return cls(address, int(period) / 1e6 if meant else 0.0)

    def ready(self, status: str) -> None:
        """It serves now. May be said again."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """What it does now, in one line."""
        self._send(f"STATUS={status}")

    def stopping(self) -> None:
        """It was asked to end, and will."""
        self._send("STOPPING=1", "STATUS=draining")

    async def keep_alive(self, alive: Callable[[], bool]) -> None:
        """Say again and again that the process is alive, until cancelled, as long as this event loop runs it and
        `alive` says so. Where there is no watchdog, it returns at once.

        A process that is ended by its watchdog writes what each of its threads was doing.
        """
        if not self._watchdog_seconds:
            return
        faulthandler.enable()  # the watchdog's signal is SIGABRT
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
            event(log, "the service manager cannot be told", logging.WARNING, told=message, error=str(error))
