"""Three mistakes that several nodes on one ledger can make, which the checker finds, beside nodes without them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from threading import Event

import pytest

from benchmarks.cluster.history import Append, Kind, Outcome, violations
from cache_service.cluster.postgres.settings import Settings
from tests.cluster.ledger_nodes import ByNumber, Deaf, Lease, Leased, LedgerNode, final
from tests.postgres import Server
from tests.postgres_pair import WAITING, Pair, until

WRONG, RIGHT = "wrong", "right"


@pytest.fixture
def settings(pair: Pair) -> Settings:
    """Return settings of the writable server."""
    return Settings(f"host={pair.primary.root},{pair.standby.root} user=agentmem dbname=postgres", survives="crash")


def cancelled_commits(pair: Pair, number: int) -> None:
    """Cancel the waits of so many commits for the standby, as an operator can, or a client that cancels its call."""
    with pair.primary.connect() as connection:
        until(lambda: len(connection.execute(WAITING, ("agentmem",)).fetchall()) == number)
        for (session,) in connection.execute(WAITING, ("agentmem",)).fetchall():
            connection.execute("SELECT pg_cancel_backend(%s)", (session,))


def found(history: list[Append], settings: Settings) -> dict[str, set[Kind]]:
    wrong: dict[str, set[Kind]] = {}
    for violation in violations(history, final(settings, [WRONG, RIGHT])):
        wrong.setdefault(violation.agent, set()).add(violation.kind)
    return wrong


@pytest.mark.slow
def test_states_that_are_compared_by_number_are_found(pair: Pair, settings: Settings) -> None:
    """A commit that no standby has is seen, and lost with the server; the number comes back with other content."""
    with ExitStack() as stack:

        def opened(kind: type[LedgerNode], **changed: object) -> LedgerNode:
            return stack.enter_context(closing(kind(replace(settings, **changed))))  # type: ignore[arg-type]

        writer, other = opened(LedgerNode, known_seconds=0), opened(LedgerNode)
        reading = {WRONG: opened(ByNumber), RIGHT: opened(LedgerNode)}
        history = [other.append(agent, f"{agent} kept") for agent in reading]
        with ThreadPoolExecutor() as pool, pair.cut_off():
            lost = [pool.submit(writer.append, agent, f"{agent} lost", 1) for agent in reading]
            cancelled_commits(pair, 2)
            history += [each.result(60) for each in lost]
            for agent, node in reading.items():
                assert node.open(agent)[1].elements == (f"{agent} kept", f"{agent} lost")
            pair.fail_over()
        history += [other.append(agent, f"{agent} instead") for agent in reading]
        history += [node.append(agent, f"{agent} behind") for agent, node in reading.items()]
        assert {each.outcome for each in history} == {Outcome.OK, Outcome.UNKNOWN}
        assert found(history, settings) == {WRONG: {Kind.BLIND}}


@pytest.mark.slow
def test_commits_that_were_cancelled_and_are_counted_are_found(pair: Pair, settings: Settings) -> None:
    """The row is there, and only a warning says that the standby has it not."""
    with closing(Deaf(settings)) as deaf, closing(LedgerNode(settings)) as careful:
        nodes: dict[str, LedgerNode] = {WRONG: deaf, RIGHT: careful}
        history = [node.append(agent, f"{agent} first") for agent, node in nodes.items()]
        with ThreadPoolExecutor() as pool, pair.cut_off():
            turns: dict[str, Future[Append]] = {
                agent: pool.submit(node.append, agent, f"{agent} second") for agent, node in nodes.items()
            }
            cancelled_commits(pair, 2)
            history.append(turns[WRONG].result(60))
            pair.waiting()  # for the repetition of the other one
            pair.fail_over()
            history.append(turns[RIGHT].result(60))
        assert {each.outcome for each in history} == {Outcome.OK}
        assert found(history, settings) == {WRONG: {Kind.LOST}}


class Stopped:
    def __init__(self) -> None:
        self.reached, self.continued = Event(), Event()

    def pause(self) -> None:
        self.reached.set()
        self.continued.wait(60)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_lease_that_is_trusted_is_found(postgres_server: Server, trusted: bool) -> None:
    """A writer that is paused while its lease ends writes over what another one has appended since."""
    settings = Settings(postgres_server.conninfo, f"lease {trusted}", survives="nothing")
    agent, stopped, lease = WRONG if trusted else RIGHT, Stopped(), Lease(seconds=0.05, trusted=trusted)
    with (
        closing(Leased(settings, lease, stopped.pause)) as first,
        closing(Leased(settings, lease)) as second,
        ThreadPoolExecutor() as pool,
    ):
        slow = pool.submit(first.append, agent, "slow", 1)
        stopped.reached.wait()
        refused = second.append(agent, "too early", 1)
        until(lease.is_over)
        quick = second.append(agent, "quick")
        stopped.continued.set()
        history = [refused, quick, slow.result(60)]
    assert found(history, settings) == ({WRONG: {Kind.LOST}} if trusted else {})
