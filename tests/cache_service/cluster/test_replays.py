"""A turn that was committed before, and may not be on the standby yet, is not answered as committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentmem.v1 import cache_store_pb2 as pb
from cache_service.cluster.postgres.database import Postgres
from cache_service.cluster.postgres.failures import OutcomeUnknown
from cache_service.cluster.postgres.settings import Settings
from cache_service.ledger import turns
from cache_service.rpc import conversions
from tests.cache_service import kv
from tests.cache_service.conftest import running
from tests.cache_service.ledger.rows import NOW
from tests.postgres_pair import Pair


@pytest.fixture
def another(pair: Pair) -> Iterator[Postgres]:
    """Yield another node's ledger."""
    ledger = Postgres(Settings(pair.primary.conninfo))
    ledger.open()
    yield ledger
    ledger.close()


@pytest.mark.slow
async def test_a_turn_that_is_in_doubt_is_replayed_when_the_standby_has_it(
    pair: Pair, another: Postgres, data: Path
) -> None:
    cluster = Settings(pair.primary.conninfo, node="a")
    committed = kv.turn([1, 2, 3], request_id="r", request_digest=b"d")
    opening = pb.OpenCacheRequest(key=kv.key(), request_id="r")
    async with running(data, cluster=cluster) as store:
        with pair.cut_off(), ThreadPoolExecutor(1) as pool:
            made = pool.submit(another.write_blocking, turns.commit, conversions.turn(committed), NOW)
            pair.cancel(await asyncio.to_thread(pair.waiting))
            with pytest.raises(OutcomeUnknown):
                await asyncio.wrap_future(made)
            seen = await store.open()
            assert seen.version.version == 1 and not pair.on_standby()
            replay = asyncio.ensure_future(store.cache.OpenCache(opening))
            await asyncio.to_thread(pair.waiting)
            assert not replay.done()
        assert (await replay).turn.version == seen.version and pair.arrives()
        assert (await store.cache.CommitTurn(committed)).replayed.version == seen.version
