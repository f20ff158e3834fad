"""Publishing in the background: what a failure leaves behind."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest
from prometheus_client import CollectorRegistry

from agentmem.blockfile import NO_PARENT, BlockHeader
from agentmem.errors import Unavailable
from agentmem.keys import AgentKey
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.hot import HotState
from inference_service.memory.ledger import Ledger, Version
from inference_service.metrics import WorkerMetrics
from inference_service.storage.client import FileName
from inference_service.turns import persisting
from inference_service.turns.persisting import Block, Persister

KEY, VERSION = AgentKey("n", "a", "m"), Version("u", 1)
GEOMETRY = Geometry(1, mx.float32, 4, 64, LayerGroup((0,), 1, 64, 64))


def block(number: int) -> Block:
    header = BlockHeader("f", "n", bytes([number]) * 32, NO_PARENT, 0, 3)
    sizes = {name: 4 * shape[2] * shape[3] for name, (_, shape) in GEOMETRY.block_shapes(3).items()}
    return header, {name: bytes(size) for name, size in sizes.items()}


class Store:
    """Stages in a directory and remembers what was published."""

    def __init__(self, directory: Path, fail: Exception | None = None) -> None:
        self.directory = directory
        self.fail = fail
        self.published: list[str] = []

    async def stage(self, namespace: str, names: list[FileName]) -> dict[FileName, str]:
        return {name: str(self.directory / f"{name.chain_hash[0]}.safetensors") for name in names}

    async def publish(self, key: Any, version: Any, files: list[Any], references: Any, fingerprint: str) -> None:
        if self.fail:
            raise self.fail
        self.published += [file.path for file in files]


def state() -> HotState:
    return HotState(VERSION, Ledger(), [])


async def publish(store: Store) -> tuple[HotState, CollectorRegistry, Persister]:
    registry = CollectorRegistry()
    persister, hot = Persister(cast(Any, store), WorkerMetrics(registry)), state()
    blocks = [block(n) for n in (1, 2, 3)]
    persister.publish(KEY, VERSION, hot, blocks, [header.chain_hash for header, _ in blocks], GEOMETRY)
    assert len(hot.published) == 3, "what is on its way is not copied again"
    await persister.flush(10)
    await asyncio.sleep(0)
    return hot, registry, persister


async def test_published_files_stay(tmp_path: Path) -> None:
    store = Store(tmp_path)
    hot, registry, persister = await publish(store)
    assert len(store.published) == len(hot.published) == len(list(tmp_path.iterdir())) == 3
    assert registry.get_sample_value("agentmem_cache_store_bytes_total") == sum(
        path.stat().st_size for path in tmp_path.iterdir()
    )
    assert persister.has_room


def _third_write_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = persisting.write_block, []

    def full(path: str, *arguments: Any) -> Any:
        calls.append(path)
        if len(calls) == 3:
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *arguments)

    monkeypatch.setattr(persisting, "write_block", full)


@pytest.mark.parametrize(
    ("fail", "break_writes"),
    [(Unavailable("gone"), None), (ZeroDivisionError("a bug"), None), (None, _third_write_fails)],
)
async def test_a_failed_publish_leaves_no_file_and_is_counted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fail: Exception | None,
    break_writes: Callable[[pytest.MonkeyPatch], None] | None,
) -> None:
    if break_writes:
        break_writes(monkeypatch)
    hot, registry, persister = await publish(Store(tmp_path, fail))
    assert not list(tmp_path.iterdir())
    assert not hot.published, "the next turn writes them again"
    assert registry.get_sample_value("agentmem_cache_store_failures_total") == 1
    assert "blocks were not written" in caplog.text
    assert persister.has_room


async def test_a_slow_disk_bounds_the_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persisting, "MAX_PENDING_BYTES", 100)
    persister = Persister(cast(Any, Store(tmp_path)), WorkerMetrics(CollectorRegistry()))
    persister.publish(KEY, VERSION, state(), [block(1)], [], GEOMETRY)
    assert not persister.has_room
    await persister.flush(10)
    await asyncio.sleep(0)
    assert persister.has_room
