"""Files from other nodes that the store refuses, and that nothing is left of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentmem.errors import DataLoss, ResourceExhausted
from agentmem.kv import blockfile
from agentmem.kv.blockfile import CHUNK_BYTES
from cache_service.files import publication
from cache_service.files.publication import Spool
from tests.cache_service import kv
from tests.cache_service.conftest import Running
from tests.cache_service.streams import LARGE, chunks, describe, emptied, read, refused, send, write
from tests.cache_service.tiers.test_blocks import found, name, on_disk


def longer(data: bytes) -> bytes:
    return data + b"\0"


def shorter(data: bytes) -> bytes:
    return data[:-1]


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def nothing(data: bytes) -> bytes:
    return b""


def swapped(data: bytes) -> bytes:
    return data[CHUNK_BYTES : 2 * CHUNK_BYTES] + data[:CHUNK_BYTES] + data[2 * CHUNK_BYTES :]


@pytest.mark.parametrize("damage", [longer, shorter, flipped, nothing, swapped])
async def test_other_bytes_than_announced_are_data_loss(store: Running, damage: Callable[[bytes], bytes]) -> None:
    data = kv.content(LARGE)
    assert "send the file again" in await refused(store, describe(LARGE, data), damage(data))
    assert not await found(store, name(LARGE))
    await write(store, describe(LARGE, data), data)
    assert await read(store, name(LARGE)) == data


async def test_a_fetch_that_is_cancelled_leaves_nothing(store: Running) -> None:
    data, staging = kv.content(LARGE), store.data / "staging"

    async def stalled() -> AsyncIterator[bytes]:
        async for chunk in chunks(data[: 2 * CHUNK_BYTES]):
            yield chunk
        await asyncio.Event().wait()

    sending = asyncio.create_task(send(store, describe(LARGE, data), stalled()))
    async with asyncio.timeout(20):
        while not list(staging.iterdir()):
            await asyncio.sleep(0.005)
    sending.cancel()
    await asyncio.wait([sending])
    await emptied(staging)
    assert on_disk(store.data) == [] and not await found(store, name(LARGE))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is there on Linux only")
async def test_a_full_disk_is_resource_exhausted(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    data = kv.content(LARGE)
    with monkeypatch.context() as patch:
        patch.setattr(publication, "open_private", kv.on_a_full_disk)
        await refused(store, describe(LARGE, data), data, ResourceExhausted)
    await write(store, describe(LARGE, data), data)
    assert await read(store, name(LARGE)) == data


async def test_injected_faults_of_spooling_are_found(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the digest's check a flipped bit is published: the test that it is refused is able to fail."""
    data = kv.content(LARGE)
    described = describe(LARGE, data)
    forged = SimpleNamespace(update=lambda _: None, digest=lambda: described.file.digest)
    monkeypatch.setattr(publication, "RunningDigest", lambda: forged)
    await write(store, described, flipped(data))
    assert blockfile.digest(await read(store, name(LARGE))) != described.file.digest


async def test_a_fault_in_the_cleanup_is_found(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cleanup a broken stream leaves its file: the tests that it leaves nothing are able to fail."""
    monkeypatch.setattr(Spool, "discard", lambda self: self._file.close())
    data = kv.content(LARGE)
    with pytest.raises(DataLoss):
        await write(store, describe(LARGE, data), flipped(data))
    assert len(on_disk(store.data)) == 1
