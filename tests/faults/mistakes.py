"""Mistakes that a store could have, built in to see that the tests find them."""

import asyncio
import inspect
import sqlite3
from collections.abc import Callable
from typing import Any

from cache_service.files.directory import DataDirectory
from cache_service.files.publication import Publication, Published
from cache_service.ledger.database import Database, Work
from cache_service.tiers import blocks
from cache_service.tiers.blocks import BlockStore


def row_before_file() -> None:
    """Publishing writes the row first and moves the file then."""
    late: list[tuple[Any, ...]] = []
    place, publish = DataDirectory.place, inspect.unwrap(BlockStore.publish)

    def later(self: DataDirectory, *arguments: Any) -> None:
        late.append((self, *arguments))

    def publish_and_move(self: BlockStore, publication: Publication) -> Published:
        published: Published = publish(self, publication)
        while late:
            place(*late.pop())
        return published

    DataDirectory.sync = lambda self, names: None  # type: ignore[method-assign]
    DataDirectory.place = later  # type: ignore[method-assign, assignment]
    BlockStore.publish = blocks._on_thread_of_files(publish_and_move)  # type: ignore[method-assign]


def no_transaction() -> None:
    """Each statement of a write is durable by itself."""

    def write(self: Database, work: Work[Any], erases: object = None) -> Any:
        return work(self._connection)

    Database._write = write  # type: ignore[method-assign]


def early_acknowledgement() -> None:
    """A write is acknowledged before it is done."""

    async def acknowledged(self: Database, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def dry(connection: sqlite3.Connection) -> Any:
            connection.execute("BEGIN")
            result = work(connection, *args, **kwargs)
            connection.execute("ROLLBACK")
            return result

        result = await asyncio.wrap_future(self._thread.submit(dry, self._connection))
        self.erase(bool, work, *args, **kwargs)
        return result

    Database.write = Database.commit = acknowledged  # type: ignore[method-assign]


MISTAKES: dict[str, Callable[[], None]] = {
    mistake.__name__: mistake for mistake in (row_before_file, no_transaction, early_acknowledgement)
}
