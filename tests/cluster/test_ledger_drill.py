"""Nodes that append to one ledger while their connections break, its server dies, and the standby takes over."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from threading import Event

import pytest

from benchmarks.cluster.history import Append, Operation, Outcome, violations
from benchmarks.proxy import Proxy
from cache_service.cluster.postgres.settings import Settings
from tests.cluster.ledger_nodes import Client, LedgerNode, final
from tests.full_matrix import FULL
from tests.postgres_pair import Pair, until

NODES, CLIENTS = 3, 2
"""Of each node."""
BETWEEN, DURING = (1000, 100) if FULL else (80, 10)
"""Operations that are done between two faults, and while one lasts that lets them be done."""

PAUSE = 0.3
"""Seconds in which nothing can be done."""


class Network:
    def __init__(self, pair: Pair, number: int, stack: ExitStack) -> None:
        sockets = [server.root / ".s.PGSQL.5432" for server in pair]
        self.proxies = [stack.enter_context(closing(Proxy(path))) for path in sockets]
        ports = ",".join(str(proxy.port) for proxy in self.proxies)
        conninfo = f"host=127.0.0.1,127.0.0.1 port={ports} user=agentmem dbname=postgres gssencmode=disable"
        self.settings = Settings(
            conninfo,
            node=f"n{number}",
            survives="crash",
            statement_seconds=5,
            idle_seconds=1,  # as long as an agent is held by a node that is not heard of
            known_seconds=15 * number,  # the first one learns at once that an outcome is unknown
        )

    @contextmanager
    def without(self, failing: Callable[[Proxy], object]) -> Iterator[None]:
        """All of its proxies fail in one way."""
        with ExitStack() as stack:
            for proxy in self.proxies:
                stack.enter_context(failing(proxy))  # type: ignore[arg-type]
            yield


class Drill:
    """A running drill. `wait` for its operations between faults."""

    def __init__(self, pair: Pair, stack: ExitStack, agents: list[str]) -> None:
        self.pair, self.ended = pair, Event()
        self.networks = [Network(pair, number, stack) for number in range(NODES)]
        nodes = [stack.enter_context(closing(LedgerNode(network.settings))) for network in self.networks]
        self.clients = [
            Client(f"{number}.{each}", node, agents, self.ended, seed=10 * number + each)
            for number, node in enumerate(nodes)
            for each in range(CLIENTS)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(len(self.clients)))
        stack.callback(self.ended.set)
        self.running: list[Future[list[Operation]]] = [pool.submit(client.run) for client in self.clients]

    def wait(self, operations: int = BETWEEN) -> None:
        wanted = self._done() + operations
        until(lambda: self._done() >= wanted or any(each.done() for each in self.running))

    def _done(self) -> int:
        return sum(client.done for client in self.clients)

    def history(self) -> list[Operation]:
        self.ended.set()
        return [operation for each in self.running for operation in each.result(120)]


def break_connections(drill: Drill) -> None:
    """Wherever they are in a transaction; most of its time it waits for the end of COMMIT."""
    for _ in range(4):
        for network in drill.networks:
            with network.without(Proxy.cut):
                drill.wait(DURING)
            drill.wait(DURING)


def lose_answers(drill: Drill) -> None:
    """What one node asks arrives, and it never hears what became of it."""
    for network in drill.networks:
        with network.without(Proxy.losing_answers):
            drill.wait(DURING)


def hold_packets(drill: Drill) -> None:
    with drill.networks[0].without(Proxy.holding):
        drill.wait(DURING)


def stop_standby(drill: Drill) -> None:
    """Commits wait; connections break meanwhile."""
    with drill.pair.cut_off():
        drill.pair.waiting()
        with drill.networks[1].without(Proxy.cut):
            time.sleep(PAUSE)


def stop_primary(drill: Drill) -> None:
    drill.pair.primary.signal(signal.SIGSTOP)
    with drill.networks[2].without(Proxy.cut):
        time.sleep(PAUSE)
    drill.pair.primary.signal(signal.SIGCONT)


def restart_primary(drill: Drill) -> None:
    drill.pair.primary.kill()
    drill.pair.primary.start()


def fail_over(drill: Drill) -> None:
    drill.pair.fail_over()


FAULTS = (break_connections, lose_answers, hold_packets, stop_standby, stop_primary, restart_primary, fail_over)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_history_of_broken_connections_and_a_failover_is_one_of_a_single_ledger(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    agents = [f"agent {number}" for number in range(6)]
    with ExitStack() as stack:
        drill = Drill(pair, stack, agents)
        for fault in FAULTS:
            drill.wait()
            fault(drill)
        drill.wait()
        history = drill.history()
        lists = final(replace(drill.networks[0].settings, node="last"), agents)
    assert violations(history, lists) == []
    appends = [each for each in history if isinstance(each, Append)]
    assert any(each.outcome is Outcome.OK for each in appends)
    assert "the outcome of a commit is unknown" in caplog.text, "also where its repetition found out"
    assert sum(map(len, lists.values())) > BETWEEN * len(FAULTS) // 2
