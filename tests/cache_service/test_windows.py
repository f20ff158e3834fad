"""A window at a block's end has the block's chain hash: what happens to one of the two files leaves the other alone."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from agentmem.kv import blockfile
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from tests.cache_service.tiers.test_blocks import BLOCK, WINDOW, found, name, on_disk, publish, stage

from . import kv
from .conftest import Running, code, running

HEADER = kv.header([1, 2])
BOTH = (name(HEADER), name(HEADER, WINDOW))


async def add_both(store: Running, version: types_pb2.AgentVersion | None = None, agent: str = "ada") -> None:
    """Publish a block and a window of one chain hash, as an agent's state if there is a version."""
    files = [kv.write(file, HEADER) for file in await stage(store, *BOTH)]
    await publish(store, files, version, list(BOTH) if version else [], kv.key(agent))


def kinds(files: list[pb.StoredFile]) -> list[pb.FileKind.ValueType]:
    return sorted(file.kind for file in files)


def used(data: Path) -> dict[int, int]:
    """Last use by kind."""
    connection = sqlite3.connect(data / "warm.db")
    rows = connection.execute("SELECT kind, used FROM files").fetchall()
    connection.close()
    return dict(rows)


@pytest.mark.parametrize("kind", [BLOCK, WINDOW])
async def test_only_what_is_asked_for_is_found(store: Running, kind: pb.FileKind.ValueType) -> None:
    await add_both(store)
    (file,) = await found(store, name(HEADER, kind))
    assert file.kind == kind
    assert blockfile.digest(kv.read(file.path)) == file.digest
    assert not await found(store, name(HEADER, kind), namespace="other")


@pytest.mark.parametrize("kind", [BLOCK, WINDOW])
async def test_one_that_exists_does_not_stand_for_the_other(store: Running, kind: pb.FileKind.ValueType) -> None:
    (staged,) = await stage(store, name(HEADER, kind))
    await publish(store, [kv.write(staged, HEADER)])
    (other,) = await stage(store, *BOTH)
    assert other.kind != kind
    assert await publish(store, [kv.write(other, HEADER)]) == (1, 0)
    assert kinds(await found(store, *BOTH)) == [BLOCK, WINDOW]


@pytest.mark.parametrize("kind", [BLOCK, WINDOW])
async def test_a_file_of_the_other_kind_is_refused(store: Running, kind: pb.FileKind.ValueType) -> None:
    """All else in their headers may be the same, and their shapes too."""
    (staged,) = await stage(store, name(HEADER, kind))
    other = kv.content(replace(HEADER, window=kind == BLOCK))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await publish(store, [kv.write(staged, HEADER, other)])
    assert code(error) is grpc.StatusCode.DATA_LOSS
    assert on_disk(store.data) == []


@pytest.mark.parametrize("kind", [BLOCK, WINDOW])
async def test_quarantine_takes_one(store: Running, kind: pb.FileKind.ValueType) -> None:
    await add_both(store)
    await store.cache.QuarantineBlock(
        pb.QuarantineBlockRequest(namespace="default", name=name(HEADER, kind), reason="digest")
    )
    assert kinds(await found(store, *BOTH)) == [WINDOW if kind == BLOCK else BLOCK]
    await add_both(store)
    assert kinds(await found(store, *BOTH)) == [BLOCK, WINDOW], "computed again"


@pytest.mark.parametrize("kind", [BLOCK, WINDOW])
async def test_what_a_state_no_longer_consists_of_goes_and_the_other_stays(
    store: Running, kind: pb.FileKind.ValueType
) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1, 2]))).version
    await add_both(store, version)
    await publish(store, [], version, [name(HEADER, kind)])
    assert kinds(await found(store, *BOTH)) == [kind]
    assert len(on_disk(store.data)) == 1


async def test_a_window_that_a_fork_shares_stays(store: Running) -> None:
    ada = (await store.cache.CommitTurn(kv.turn([1, 2]))).version
    eve = (await store.cache.CommitTurn(kv.turn([1, 2], agent=kv.key("eve")))).version
    await add_both(store, ada)
    await publish(store, [], eve, [BOTH[1]], kv.key("eve"))
    await store.delete(kv.key("ada"))
    assert kinds(await found(store, *BOTH)) == [WINDOW]
    await store.delete(kv.key("eve"))
    assert on_disk(store.data) == []


@pytest.mark.parametrize("kind", [BLOCK, WINDOW])
async def test_use_is_noted_of_one(store: Running, kind: pb.FileKind.ValueType) -> None:
    await add_both(store)
    before = used(store.data)
    await found(store, name(HEADER, kind))
    await publish(store, [], None, [])  # what is written next takes the note along
    after = used(store.data)
    assert {each for each in after if after[each] > before[each]} == {kind}


async def test_a_start_deletes_the_one_without_a_row(data: Path) -> None:
    async with running(data) as store:
        (staged,) = await stage(store, BOTH[0])
        await publish(store, [kv.write(staged, HEADER)])
        (block,) = await found(store, BOTH[0])
        kv.copy(block.path, Path(block.path.replace("/blocks/", "/windows/")))
    async with running(data) as store:
        assert kinds(await found(store, *BOTH)) == [BLOCK]
        assert on_disk(data) == [Path(block.path).relative_to(data).as_posix()]
