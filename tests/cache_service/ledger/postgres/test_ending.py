"""A server that is restarted ends its sessions with a word, also one that is in the middle of a COMMIT."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cache_service.ledger.postgres.database import Postgres
from cache_service.ledger.postgres.failures import OutcomeUnknown
from cache_service.ledger.postgres.settings import Settings, Survives
from cache_service.ledger.workflow_records import Put, put, read
from tests import postgres

_SLOW_SYNC = "options='-c commit_delay=100000 -c commit_siblings=0'"
"""Each COMMIT takes a tenth of a second to reach the disk."""
_COMMITTING = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'agentmem' AND (query, state) = ('COMMIT', 'active')"
)


def test_what_was_committed_when_its_session_ended_is_not_done_again() -> None:
    """Else a run's record is ABORTED by itself. It is in doubt: that it was done is not said to the end."""
    try:
        with postgres.serving(postgres.DURABLE) as server, server.connect() as other, ThreadPoolExecutor(1) as pool:
            database = Postgres(Settings(f"{server.conninfo} {_SLOW_SYNC}", survives=Survives.NOTHING, writers=1))
            database.open()
            call = pool.submit(database.write_blocking, put, Put("n", "w", 0, b"", b"p", []))
            while (session := other.execute(_COMMITTING).fetchone()) is None and not call.done():
                time.sleep(0.001)
            time.sleep(0.02)  # into the sync
            other.execute("SELECT pg_terminate_backend(%s)", session)
            with pytest.raises(OutcomeUnknown, match="lost during a commit"):
                call.result(60)
            found = database.read_blocking(read, "n", "w", 0)
            assert found is not None and found.record.version == 1
            database.close()
    except postgres.NoServer as problem:
        pytest.skip(str(problem))
