"""Nodes without processes: each has its own connections to the ledger, and takes turns of its clients to it.

`LedgerNode` does as a worker and its store do; the others have a mistake each, which a history has to show.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from agentmem.errors import Aborted, Unavailable
from agentmem.kv.ledger import NO_VERSION, Version
from agentmem.validation import AgentKey
from benchmarks.cluster.history import Append, Outcome, Read
from benchmarks.cluster.lists import ledger_of, listed
from cache_service.cluster.postgres.database import Postgres
from cache_service.cluster.postgres.failures import OutcomeUnknown
from cache_service.cluster.postgres.settings import Settings
from cache_service.connection import Connection
from cache_service.ledger import agents, turns
from cache_service.ledger.clock import Moment
from cache_service.ledger.turns import Commit, Turn

ATTEMPTS: Final = 4
"""So often a client sends a turn, under one request_id."""


class Memory(NamedTuple):
    version: Version = NO_VERSION
    elements: tuple[str, ...] = ()


def key(agent: str) -> AgentKey:
    return AgentKey("n", agent, "m")


def _now() -> Moment:
    return Moment(time.time_ns(), time.monotonic_ns())


class LedgerNode:
    """A node that does all right. Any thread; `close` once."""

    def __init__(self, settings: Settings) -> None:
        self._ledger = self._opened(settings)
        self._hot: dict[str, Memory] = {}

    def _opened(self, settings: Settings) -> Postgres:
        ledger = Postgres(settings)
        ledger.open()
        return ledger

    def close(self) -> None:
        self._ledger.close()

    def read(self, agent: str) -> Read:
        """The agent's list. Raises Unavailable."""
        began = time.monotonic()
        opened = self._ledger.read_blocking(turns.open_agent, key(agent), NO_VERSION, "")
        found = listed(opened.ledger) if opened.ledger is not None else ()
        return Read(agent, began, time.monotonic(), found)

    def append(self, agent: str, request_id: str, attempts: int = ATTEMPTS) -> Append:
        """A client's turn: sent again, a little later, where it had no answer or another turn was faster."""
        began, in_doubt = time.monotonic(), list[tuple[str, ...]]()

        def ended(outcome: Outcome, seen: tuple[str, ...] | None) -> Append:
            return Append(agent, request_id, began, time.monotonic(), outcome, seen)

        for attempt in range(attempts):
            time.sleep(random.uniform(0, 0.02 * attempt))
            seen = None
            try:
                committed, memory = self.open(agent, request_id)
                if committed:
                    return ended(Outcome.OK, in_doubt[0] if len(in_doubt) == 1 else None)
                seen = memory.elements
                commit = self._commit(agent, request_id, memory)
            except OutcomeUnknown:
                in_doubt.append(seen or ())
            except (Aborted, Unavailable):
                continue
            else:
                if commit.replayed is not None:
                    return ended(Outcome.OK, None)
                self._hot[agent] = Memory(commit.version, (*seen, request_id))
                return ended(Outcome.OK, seen)
        if in_doubt:
            return ended(Outcome.UNKNOWN, in_doubt[0] if len(in_doubt) == 1 else None)
        return ended(Outcome.FAILED, None)

    def open(self, agent: str, request_id: str = "") -> tuple[bool, Memory]:
        """Return whether the turn was committed before, and the agent's memory, now hot. Raises Unavailable."""
        hot = self._hot.get(agent, Memory())
        opened = self._ledger.read_blocking(turns.open_agent, key(agent), hot.version, request_id)
        if not self._same(opened.version, hot.version):
            hot = Memory(opened.version, listed(opened.ledger) if opened.ledger is not None else ())
            self._hot[agent] = hot
        return opened.turn is not None, hot

    def _same(self, one: Version, other: Version) -> bool:
        return one == other

    def _commit(self, agent: str, request_id: str, memory: Memory) -> Commit:
        turn = Turn(
            key(agent),
            memory.version,
            len(memory.elements),
            ledger_of([request_id]),
            request_id,
            request_digest=b"",
            record=b"",
            conversation=agents.NO_CONVERSATION,
            commit_id=random.randbytes(16),
        )
        return self._ledger.commit_blocking(self._write, turn)

    def _write(self, connection: Connection, turn: Turn) -> Commit:
        return turns.commit(connection, turn, _now())


def _present(connection: Connection, turn: Turn) -> Version:
    state = agents.find(connection, turn.key)
    return NO_VERSION if state is None else state.version


class ByNumber(LedgerNode):
    """Mistake: states are taken for the same where uid and number are."""

    def _same(self, one: Version, other: Version) -> bool:
        return one[:2] == other[:2]

    def _write(self, connection: Connection, turn: Turn) -> Commit:
        present = _present(connection, turn)
        return super()._write(connection, replace(turn, base=present) if self._same(present, turn.base) else turn)


class _Unheard(list[str]):
    def append(self, warning: str) -> None:
        """Forget it."""


class _DeafPostgres(Postgres):
    def _connected(self) -> Any:
        session = super()._connected()
        session.warnings = _Unheard()
        return session


class Deaf(LedgerNode):
    """Mistake: a commit is taken for one, whatever the server's warning says of the standby."""

    def _opened(self, settings: Settings) -> Postgres:
        ledger = _DeafPostgres(settings)
        ledger.open()
        return ledger


@dataclass
class Lease:
    """The right to write for `seconds`, by one clock for all. `trusted`: it alone allows commits."""

    seconds: float
    trusted: bool
    holder: object = None
    until: float = 0.0

    def is_over(self) -> bool:
        return time.monotonic() >= self.until


class Leased(LedgerNode):
    """Mistake, where its lease is trusted: who holds it commits without a look at what it continues.

    `pause` is between the look at the lease and the commit, where a process may be stopped for any time.
    """

    def __init__(self, settings: Settings, lease: Lease, pause: Callable[[], object] = lambda: None) -> None:
        super().__init__(settings)
        self._lease, self._pause = lease, pause

    def _commit(self, agent: str, request_id: str, memory: Memory) -> Commit:
        if self._lease.holder is not self and not self._lease.is_over():
            raise Aborted("another node holds the lease")
        self._lease.holder, self._lease.until = self, time.monotonic() + self._lease.seconds
        self._pause()
        return super()._commit(agent, request_id, memory)

    def _write(self, connection: Connection, turn: Turn) -> Commit:
        base = _present(connection, turn) if self._lease.trusted else turn.base
        return super()._write(connection, replace(turn, base=base))


def final(settings: Settings, names: list[str]) -> dict[str, tuple[str, ...]]:
    """Return the turns of each agent."""
    with closing(LedgerNode(settings)) as node:
        return {agent: node.read(agent).found for agent in names}
