"""store.db is removed or replaced while a store serves it: the store ends, and says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from agentmem.v1 import cache_store_pb2_grpc

from . import kv
from .process import ready


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_store_ends_whose_database_is_not_there_any_more(data: Path, is_replaced: bool) -> None:
    async with ready(data) as (process, channel):
        stub: Any = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        await stub.CommitTurn(kv.turn([1, 2, 3]))
        if is_replaced:
            shutil.copy(data / "store.db", data / "other")
            (data / "other").replace(data / "store.db")
        else:
            (data / "store.db").unlink()
        await process.wait()
        assert process.returncode == 1, "who started it must not start it again"
