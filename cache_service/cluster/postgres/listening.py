import os
import selectors
import time
from contextlib import suppress
from typing import Any

import psycopg

from cache_service.cluster.postgres.settings import Settings, UnsafeServer, connect

_CHANNEL = "agentmem"
_ASK_SECONDS = 5.0
"""Silence after which the server is asked whether it is there."""


class Listener:
    """`wait` and `close` on one thread, `wake` on any."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._heard = 0.0
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)

    def wake(self) -> None:
        with suppress(BlockingIOError):  # then it is awake
            os.write(self._wake, b"\0")

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, `wake`, or another node's notification."""
        self._connected()
        with selectors.DefaultSelector() as selector:
            for watched in (self._woken, self._connection):
                if watched is not None:
                    selector.register(watched, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(seconds)]
        if self._woken in ready:
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
        if self._connection in ready:
            assert self._connection is not None
            self._hear(self._connection)
        elif self._connection is not None and time.monotonic() - self._heard > _ASK_SECONDS:
            self._hear(self._connection, "SELECT 1")

    def _hear(self, connection: "psycopg.Connection[tuple[Any, ...]]", question: str = "") -> None:
        try:
            if question:
                connection.execute(question.encode())
            for _ in connection.notifies(timeout=0):
                pass
            self._heard = time.monotonic()
        except psycopg.Error:
            self._disconnect()

    def close(self) -> None:
        self._disconnect()
        os.close(self._wake)
        os.close(self._woken)

    def _connected(self) -> None:
        if self._connection is None:
            try:
                self._connection = connect(self._settings)
                self._connection.execute(f"LISTEN {_CHANNEL}")
                self._heard = time.monotonic()
            except (psycopg.Error, UnsafeServer):
                self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
