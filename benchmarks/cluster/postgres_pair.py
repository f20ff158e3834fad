"""A PostgreSQL server and its synchronous standby, which can be cut off, and can take over."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

import psutil

from benchmarks.cluster import postgres
from benchmarks.cluster.postgres import Server

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = %s"


class Pair(NamedTuple):
    primary: Server
    standby: Server

    @property
    def url(self) -> str:
        """The address of whichever can be written, for libpq."""
        return f"host={self.primary.root},{self.standby.root} user=agentmem dbname=postgres"

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        receiver = self.standby.receiver()
        receiver.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(psutil.NoSuchProcess):
                receiver.send_signal(signal.SIGCONT)

    def waiting(self, name: str = "agentmem") -> int:
        with self.primary.connect() as connection:
            while (row := connection.execute(WAITING, (name,)).fetchone()) is None:
                time.sleep(0.01)
        return int(row[0])

    def cancel(self, session: int) -> None:
        with self.primary.connect() as connection:
            connection.execute("SELECT pg_cancel_backend(%s)", (session,))

    def fail_over(self) -> None:
        """Kill the primary and promote the standby, cut off or not."""
        self.primary.kill()
        self.promote()

    def promote(self) -> None:
        for process in self.standby.processes():
            with suppress(psutil.NoSuchProcess):
                if "walreceiver" in " ".join(process.cmdline()) and process.status() == psutil.STATUS_STOPPED:
                    process.kill()  # or it would keep the promotion waiting
                    process.wait()
        self.standby.answers()  # its other processes may be starting again, of which one promotes it
        with self.standby.connect() as connection:
            connection.execute("SELECT pg_promote()")

    def on_standby(self) -> bool:
        with self.standby.connect() as connection:
            there = connection.execute("SELECT to_regclass('agentmem.agents')").fetchone() != (None,)
            return there and connection.execute("SELECT 1 FROM agentmem.agents").fetchone() is not None

    def arrives(self) -> bool:
        return until(self.on_standby)


def until(condition: Callable[[], object]) -> bool:
    while not condition():
        time.sleep(0.01)
    return True


@contextmanager
def paired(settings: Mapping[str, str] = postgres.DURABLE) -> Iterator[Pair]:
    """Yield both, with the standby in step. Raises NoServer."""
    settings = {**settings, "synchronous_standby_names": "beside"}
    with postgres.serving(settings) as primary, postgres.standby(primary, "beside", settings) as standby:
        with primary.connect() as connection:
            synchronous = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            until(lambda: connection.execute(synchronous).fetchone())
        yield Pair(primary, standby)
