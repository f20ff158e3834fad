"""A PostgreSQL server of the benchmarks and its synchronous standby, which can be cut off."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import psutil
import pytest

from benchmarks.cluster import postgres

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = %s"


class Pair(postgres.Pair):
    @contextmanager
    def cut_off(self) -> Iterator[None]:
        receiver = receiver_of(self.standby)
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

    def on_standby(self) -> bool:
        with self.standby.connect() as connection:
            there = connection.execute("SELECT to_regclass('agentmem.agents')").fetchone() != (None,)
            return there and connection.execute("SELECT 1 FROM agentmem.agents").fetchone() is not None

    def arrives(self) -> bool:
        return until(self.on_standby)


def receiver_of(standby: postgres.Server) -> psutil.Process:
    while True:
        for process in standby.processes():
            with suppress(psutil.NoSuchProcess):
                if "walreceiver" in " ".join(process.cmdline()):
                    return process
        time.sleep(0.01)


def until(condition: Callable[[], object]) -> bool:
    while not condition():
        time.sleep(0.01)
    return True


@contextmanager
def paired(settings: Mapping[str, str] = postgres.DURABLE) -> Iterator[Pair]:
    """Yield both, with the standby in step. The test is skipped where there are no programs for it."""
    try:
        with postgres.paired(settings) as pair:
            yield Pair(*pair)
    except postgres.NoServer as problem:
        pytest.skip(str(problem))
