"""Blocks named in the pool are all there, or none: real arenas on a real engine."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest

from agentmem.validation import AgentKey
from benchmarks.loading import load
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.sequence import Sequence
from inference_service.engine.thread import EngineThread
from inference_service.memory.restore import headers
from inference_service.models.fingerprint import ContentHashes
from inference_service.pool.admission import MemoryRequest
from inference_service.threads import WorkerThreads
from inference_service.turns.pool_writer import PoolWriter
from inference_service.turns.restored import Restored
from tests.tiny_models import write_gemma3, write_llama

TOKENS = 600


@pytest.mark.parametrize(("write", "cancelled"), [(write_llama, False), (write_gemma3, False), (write_gemma3, True)])
async def test_a_keep_that_is_cancelled_while_its_end_is_captured_loses_no_blocks(
    tmp_path: Path, cancelled: bool, write: Callable[[Path], Path]
) -> None:
    """Blocks that nobody has a reference to would be missing in the count, and the pool would be given up. A model of
    full attention has no end to be captured, and waits for nothing.
    """
    engine = EngineThread()
    engine.start()
    try:
        directory, hashes = write(tmp_path / "m"), ContentHashes(tmp_path / "hashes.json")
        model = await engine.call(lambda: load("m", str(directory), hashes=hashes, pool_bytes=1 << 22))

        room = await model.memory.admission.reserve(MemoryRequest(AgentKey("n", "a", "m"), (), TOKENS), 1)

        def compute() -> Sequence:
            kv, store, heads = Restored(model, room=room).sequence(), model.arenas, model.geometry.groups[0].kv_heads
            of = Pass([Piece(kv, TOKENS)])
            caches = store.caches(of)
            for cache in caches:
                cache.update_and_fetch(*(mx.random.normal((1, heads, TOKENS, 64)) for _ in range(2)))
            written = store.taken(of, caches)
            mx.eval(written.state)
            written.put()
            return kv

        kv = await engine.call(compute)
        keeper = PoolWriter(engine, WorkerThreads(), cast(Any, SimpleNamespace()))
        held = threading.Event()
        engine.submit(lambda: held.wait(30))
        named = list(headers(model.fingerprint, "n", range(TOKENS)))
        keeping = asyncio.create_task(keeper.write(model, room, kv, np.arange(TOKENS, dtype=np.uint32), named))
        await asyncio.sleep(0.02)
        assert keeping.done() == model.geometry.resumes_anywhere
        if cancelled:
            keeping.cancel()
            await asyncio.sleep(0.02)
            assert not keeping.done(), "nobody may have the blocks before they are written"
        held.set()
        await asyncio.wait([keeping])
        assert keeping.cancelled() == cancelled
        model.memory.admission.release(room)
        table = None if cancelled else keeping.result()
        assert (table is None) == cancelled
        model.memory.pool.check_integrity([table] if table is not None else [])
    finally:
        await engine.stop(10)
