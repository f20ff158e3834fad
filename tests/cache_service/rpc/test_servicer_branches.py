"""What drops a branch and its files, for a caller that goes away in the middle."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cache_service.conftest import Running
from tests.cache_service.tiers.test_blocks import add, on_disk

from .conftest import one_machines

_SECONDS = 30.0


class Held:
    """A transaction that is held right before its commit."""

    def __init__(self) -> None:
        self.is_there = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, _: sqlite3.Connection) -> None:
        self.is_there.set()
        assert self.go_on.wait(_SECONDS)


@contextmanager
def next_transaction(store: Running) -> Iterator[Held]:
    """Hold the next transaction, at most until the end of the block."""
    held, hooks = Held(), store.store._database.before_commit
    hooks.append(held)
    try:
        yield held
    finally:
        held.go_on.set()
        hooks.remove(held)


@one_machines
@pytest.mark.parametrize("act", ["commit", "trim", "restore", "forget"])
async def test_files_of_what_is_dropped_go_also_if_nobody_waits_for_it(store: Running, act: str) -> None:
    """Their rows are gone, so nothing would count them, and nothing delete them before the next start."""
    await add(store, [1], await store.commit([1]))
    await store.snapshot("kept")
    for token in range(2, 6):
        await add(store, [token], await store.commit([token], keep=0))
    before = len(on_disk(store.data))
    await store.forget("kept")
    assert len(on_disk(store.data)) == before, "an automatic snapshot has its file, too, and is the oldest of four"
    call = {
        "commit": lambda: store.commit([9], keep=0),
        "trim": lambda: store.trim(0),
        "restore": lambda: store.restore("auto-2"),
        "forget": lambda: store.forget("auto-1"),
    }[act]
    with next_transaction(store) as held:
        task = asyncio.ensure_future(call())
        assert await asyncio.to_thread(held.is_there.wait, _SECONDS)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0.2)  # until the store has heard of it, or this would test nothing
    assert task.cancelled()
    await store.store._database.read(lambda _: None)  # behind the transaction
    async with asyncio.timeout(_SECONDS):
        while len(on_disk(store.data)) >= before:
            await asyncio.sleep(0.01)
