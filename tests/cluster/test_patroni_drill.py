"""Nodes that append to one ledger whose primary is killed, and stopped, again and again; Patroni fails over."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Event

import pytest

from benchmarks.cluster.history import Append, violations
from cache_service.cluster.postgres.settings import Settings
from tests import patroni, postgres
from tests.cluster.ledger_nodes import Client, LedgerNode, final
from tests.full_matrix import FULL
from tests.postgres_pair import until

BETWEEN = 300
"""Operations between two failovers."""


@pytest.mark.skipif(not FULL, reason="minutes, most of them Patroni's waiting: AGENTMEM_FULL_MATRIX=1")
@pytest.mark.timeout(900)
def test_a_history_of_failovers_by_patroni_is_one_of_a_single_ledger() -> None:
    try:
        postgres.programs()
    except postgres.NoServer as problem:
        pytest.skip(str(problem))
    agents, ended = [f"agent {number}" for number in range(6)], Event()
    with patroni.serving() as cluster, ExitStack() as stack:
        nodes = [stack.enter_context(closing(LedgerNode(Settings(cluster.conninfo, node=name)))) for name in "abc"]
        clients = [Client(f"{n}.{m}", node, agents, ended, 10 * n + m) for n, node in enumerate(nodes) for m in (0, 1)]
        pool = stack.enter_context(ThreadPoolExecutor(len(clients)))
        stack.callback(ended.set)
        running = [pool.submit(client.run) for client in clients]

        def wait() -> None:
            wanted = sum(client.done for client in clients) + BETWEEN
            until(lambda: sum(client.done for client in clients) >= wanted or any(each.done() for each in running))

        for stopped in (False, True, False):
            wait()
            primary = cluster.primary()
            if stopped:  # it is behind when it goes on, and Patroni makes a standby of it
                primary.signal(signal.SIGSTOP)
                other = next(each for each in cluster.members if each is not primary)
                until(other.writes)
                primary.signal(signal.SIGCONT)
            else:
                primary.kill()
                cluster.primary()
                primary.start()
            cluster.whole()
        wait()
        ended.set()
        history = [operation for each in running for operation in each.result(120)]
        lists = final(Settings(cluster.conninfo), agents)
    # A primary that was stopped answers reads when it goes on, until Patroni has noticed that it is none any more.
    appends = [each for each in history if isinstance(each, Append)]
    assert violations(appends, lists) == []
    assert sum(map(len, lists.values())) > BETWEEN
