"""A data directory made by real commits and publications: two agents that share a beginning, and a file set aside."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentmem.kv import blockfile
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2

from .. import kv
from ..conftest import Running, running

BLOCK, WINDOW = pb.FILE_KIND_BLOCK, pb.FILE_KIND_WINDOW
SHARED = list(range(1000, 1512))
ADA = [*SHARED, *range(2000, 2100)]
EVE = [*SHARED, *range(3000, 3050)]


def headers(tokens: list[int]) -> list[blockfile.BlockHeader]:
    parent, found = blockfile.NO_PARENT, []
    for first in range(0, len(tokens), blockfile.BLOCK_TOKENS):
        part = tokens[first : first + blockfile.BLOCK_TOKENS]
        header = replace(kv.header(part, parent=parent), first_token=first)
        found.append(header)
        parent = header.chain_hash
    return found


async def publish(
    store: Running, tokens: list[int], version: types_pb2.AgentVersion, agent: str
) -> list[pb.StoredFile]:
    blocks = headers(tokens)
    names = [pb.FileName(kind=BLOCK, chain_hash=header.chain_hash) for header in blocks]
    names.append(pb.FileName(kind=WINDOW, chain_hash=blocks[-1].chain_hash))
    by_hash = {header.chain_hash: header for header in blocks}
    staged = await store.cache.StageBlocks(pb.StageBlocksRequest(namespace="default", names=names))
    files = [kv.write(file, by_hash[file.chain_hash]) for file in staged.files]
    await store.cache.PublishBlocks(
        pb.PublishBlocksRequest(
            key=kv.key(agent), version=version, files=files, references=names, fingerprint=kv.FINGERPRINT
        )
    )
    return files


async def fill(data: Path) -> None:
    async with running(data) as store:
        first = (await store.cache.CommitTurn(kv.turn(ADA[:300]))).version
        await publish(store, ADA[:300], first, "ada")
        wrong = (await store.cache.CommitTurn(kv.turn([7] * 50, first, keep=300))).version
        ada = (await store.cache.CommitTurn(kv.turn(ADA[200:], wrong, keep=200))).version
        await publish(store, ADA, ada, "ada")
        eve = (await store.cache.CommitTurn(kv.turn(EVE, agent=kv.key("eve")))).version
        await publish(store, EVE, eve, "eve")
        bob = (await store.cache.CommitTurn(kv.turn([1, 2], agent=kv.key("bob")))).version
        await publish(store, [1, 2], bob, "bob")
        (aside,) = headers([1, 2])
        name = pb.FileName(kind=BLOCK, chain_hash=aside.chain_hash)
        await store.cache.QuarantineBlock(pb.QuarantineBlockRequest(namespace="default", name=name, reason="digest"))


async def fill_branches(data: Path) -> None:
    """Make a directory with all that branches and limits leave: no store runs afterwards.

    Agents: `ada` with snapshots of her own and automatic ones; her forks `eve`, whole, and `cut`, of a part of a turn
    whose rest was erased with `gone`; `none`, a fork without a token; `idle`, whose KV was evicted; `bob`.
    """
    async with running(data) as store:
        gone = (await store.cache.CommitTurn(kv.turn(EVE, agent=kv.key("gone"), request_id="r"))).version
        await publish(store, EVE, gone, "gone")
        await store.fork("cut", "gone", keep_tokens=300)
        await store.fork("none", "gone", keep_tokens=0)
        first = (await store.cache.CommitTurn(kv.turn(ADA[:300]))).version
        await publish(store, ADA[:300], first, "ada")
        second = (await store.cache.CommitTurn(kv.turn(ADA[300:], first, keep=300))).version
        await publish(store, ADA, second, "ada")
        await store.snapshot("mine")
        await store.fork("eve")
        await store.cache.CommitTurn(kv.turn([5], second, keep=290))  # a branch that is pushed out by what follows
        await store.restore("mine")
        for keep in (600, 550, 530, 520, 513, 290):
            await store.trim(keep)
        await store.restore("mine")
        third = await store.trim(400)
        await store.cache.CommitTurn(kv.turn([6, 7], third.version, keep=256))
        eve = (await store.agent("eve")).version
        await store.cache.CommitTurn(kv.turn([], eve, keep=len(ADA), agent=kv.key("eve")))
        for name in ("idle", "bob"):
            tokens = [*range(1, 400), len(name)]
            version = (await store.cache.CommitTurn(kv.turn(tokens, agent=kv.key(name)))).version
            await publish(store, tokens, version, name)
        await store.evict("idle")
        await store.delete(kv.key("gone"))
        cut = (await store.agent("cut")).version
        await store.cache.CommitTurn(kv.turn([8, 9], cut, keep=300, agent=kv.key("cut")))
        none = (await store.agent("none")).version
        await store.cache.CommitTurn(kv.turn([8, 9], none, agent=kv.key("none"), tokenizer_hash="other"))


def block(data: Path, tokens: list[int], index: int) -> Path:
    name = headers(tokens)[index].chain_hash.hex()
    return data / "blocks" / name[:2] / f"{name}.safetensors"


WARM_TABLES = ("files", "held", "published", "followed")
"""Tables of warm.db; no table of store.db has one of these names."""
_CHANGED = re.compile(r"(?:UPDATE|INTO|FROM) (\w+)")


def change(data: Path, statement: str, *values: Any) -> None:
    """Change the database that has the table, unseen by the store; the other one can be read."""
    changed = _CHANGED.search(statement)
    assert changed is not None
    path = database_of(data, changed[1])
    (other,) = {data / "store.db", data / "warm.db"} - {path}
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("ATTACH ? AS other", (str(other),))  # one that may only read leaves its log
        assert connection.execute(statement, values).rowcount
        connection.execute("PRAGMA main.wal_checkpoint(TRUNCATE)").fetchall()


def query(data: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(data / "store.db")) as connection:
        connection.execute("ATTACH ? AS warm", (str(data / "warm.db"),))
        return connection.execute(statement, values).fetchall()


def database_of(data: Path, table: str) -> Path:
    return data / ("warm.db" if table.startswith(WARM_TABLES) else "store.db")


def ledgers(data: Path) -> list[tuple[Any, ...]]:
    return [
        *query(data, "SELECT * FROM segments ORDER BY id"),
        *query(data, "SELECT * FROM agents ORDER BY uid"),
        *query(data, "SELECT * FROM turns ORDER BY uid, version"),
        *query(data, "SELECT * FROM snapshots ORDER BY id"),
    ]


def zero_page(database: Path, page: int) -> None:
    with closing(sqlite3.connect(database)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with open(database, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))


def zero_table(data: Path, table: str) -> None:
    zero_page(database_of(data, table), root_page(data, table))


def root_page(data: Path, table: str) -> int:
    with closing(sqlite3.connect(database_of(data, table))) as connection:
        return int(connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0])


def pages_of(data: Path, table: str, kind: str) -> list[int]:
    database = database_of(data, table)
    with closing(sqlite3.connect(database)) as connection:
        count, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    content = database.read_bytes()
    root = root_page(data, table)
    found: dict[str, list[int]] = {"leaf": [], "internal": [], "overflow": []}

    def walk(page: int) -> None:
        raw = content[(page - 1) * size : page * size]
        cells = int.from_bytes(raw[3:5], "big")
        if raw[0] == 0x05:
            found["internal"].append(page)
            for cell in range(cells):
                at = int.from_bytes(raw[12 + 2 * cell : 14 + 2 * cell], "big")
                walk(int.from_bytes(raw[at : at + 4], "big"))
            walk(int.from_bytes(raw[8:12], "big"))
        else:
            assert raw[0] == 0x0D and page <= count
            found["leaf"].append(page)

    walk(root)
    return found[kind]


def flip(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def everything(data: Path) -> dict[str, tuple[int, bytes]]:
    """Modes and bytes of all that is in the directory, but for SQLite's shared memory, which is scratch."""
    return {
        str(path): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in (data, *data.rglob("*"))
        if not path.name.endswith("-shm") and not (path.name.endswith("-wal") and not path.stat().st_size)
    }


Fault = Callable[[Path], None]
"""Does damage to a directory."""
