"""Many files read at once: each for itself, and in their order, whatever is wrong with some."""

import asyncio
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentmem.kv.blockfile import TENSORS, FileName
from inference_service.memory.speeds import Speeds
from inference_service.metrics import WorkerMetrics
from inference_service.storage import transport
from inference_service.storage.blocks import read_block
from inference_service.storage.transport import READERS_AT_ONCE, read_all
from inference_service.turns.restoring import Restorer
from tests.inference_service.storage.stored import GEOMETRY, World, flip, held, stored


async def test_all_of_them_in_their_order(world: World) -> None:
    files, tensors = await stored(world)
    for order in ([0, 1, 2, 3], [3, 1], [2], []):
        found = await read_all([files[n] for n in order], GEOMETRY)
        assert [held(each) for each in found] == [tensors[n] for n in order]
    many = [0, 1, 2, 3] * READERS_AT_ONCE
    for found in await asyncio.gather(*(read_all([files[n] for n in many], GEOMETRY) for _ in range(2))):
        assert [held(each) for each in found] == [tensors[n] for n in many]


async def test_what_is_no_fault_of_a_file_is_no_miss(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    files, _ = await stored(world)

    def failing(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(transport, "read_block", failing)
    with pytest.raises(ZeroDivisionError):
        await read_all(files, GEOMETRY)


async def test_cancelled_in_the_middle_it_reads_no_more_and_keeps_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads finish the file they are at; later files are not read."""
    files, tensors = await stored(world)
    go_on, begun = threading.Event(), threading.Semaphore(0)
    arrays: list[weakref.ref[Any]] = []

    def slow(*arguments: Any) -> Any:
        begun.release()
        assert go_on.wait(30)
        found = read_block(*arguments)
        arrays.extend(weakref.ref(array) for array in found.values())
        return found

    monkeypatch.setattr(transport, "read_block", slow)
    reading = asyncio.create_task(read_all(files * 50, GEOMETRY))
    assert await asyncio.to_thread(begun.acquire, timeout=30)
    reading.cancel()
    await asyncio.wait([reading], timeout=0.05)
    assert not reading.done(), "a caller's memory may still be written to"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    del reading
    monkeypatch.setattr(transport, "read_block", read_block)
    found = await read_all(files, GEOMETRY)
    assert [held(each) for each in found] == tensors, "others read on as if nothing had been"
    async with asyncio.timeout(30):
        while any(array() is not None for array in arrays):
            await asyncio.sleep(0.001)
            gc.collect()
    assert len(arrays) <= READERS_AT_ONCE * len(TENSORS)


async def test_several_bad_files_of_one_restore_are_all_refused(world: World) -> None:
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    restorer = Restorer(world.store, metrics, 1, Speeds())
    files, tensors = await stored(world)
    for n in (1, 3):
        flip(Path(files[n][1].path))
    Path(files[2][1].path).unlink()
    read, refused = await restorer.read(GEOMETRY, "m", files)
    assert {name: held(each) for name, each in read.items()} == {FileName.of(files[0][0]): tensors[0]}
    assert set(refused) == {FileName.of(header) for header, _ in files[1:]}
    count = {"model_id": "m", "reason": "digest"}
    assert registry.get_sample_value("agentmem_cache_load_failures_total", count) == 2
