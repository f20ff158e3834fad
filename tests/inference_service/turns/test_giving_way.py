"""Files of KV beside turns: what is copied or written holds up neither the engine nor prompts."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference_service.storage.blocks import read_block
from inference_service.turns import persisting
from tests.inference_service.turns.persisting_world import GEOMETRY, KEY, world


async def test_the_engine_does_not_wait_for_what_is_copied_to_a_file(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        state, computed = await w.state(1)
        awaited, copied = threading.Event(), threading.Event()
        read = w.model.arenas.read_block

        def read_slowly(block: int, tokens: int) -> Callable[[], Any]:
            reading = read(block, tokens)

            def taken() -> Any:
                awaited.set()
                assert copied.wait(10)
                return reading()

            return taken

        w.model.arenas.read_block = read_slowly
        w.persister.publish(state)
        await asyncio.to_thread(awaited.wait, 10)
        async with asyncio.timeout(5):
            await w.engine.call(lambda: None)
        copied.set()
        await w.persister.flush(10)
        [(_, files, _)] = w.store.published
        for file, header in zip(files, state.blocks, strict=False):
            found = read_block(file.path, header, file.digest, GEOMETRY)
            end = header.first_token + header.token_count
            assert all(
                np.array_equal(found[name], part[:, :, header.first_token : end])
                for name, part in computed.full.items()
            )
        w.release(state)


async def test_files_give_way_to_prompts_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most so long, and not where somebody waits for them, or for the memory that they hold."""
    async with world(tmp_path) as w:
        monkeypatch.setattr(persisting, "_GIVE_WAY_SECONDS", 60.0)
        monkeypatch.setattr(persisting, "_LATE_SECONDS", 60.0)
        states = [(await w.state(version, seed=version))[0] for version in (1, 2, 3)]
        w.model.engine.prompts = 1
        w.persister.publish(states[0])
        await asyncio.sleep(0.05)
        assert not list(tmp_path.iterdir())
        w.model.engine.prompts = 0
        await w.persister.flush(10)
        w.model.engine.prompts = 1
        w.persister.publish(states[1])
        await asyncio.sleep(0.05)
        assert len(w.store.published) == 1
        await w.persister.wait_written(KEY)
        w.model.memory.admission.waiting = 1
        state, _ = await w.state(4, seed=4)
        w.persister.publish(state)
        await w.persister.flush(10)
        assert len(w.store.published) == 3
        w.release(state)
        w.model.memory.admission.waiting = 0
        monkeypatch.setattr(persisting, "_LATE_SECONDS", 0.01)
        w.persister.publish(states[2])
        await w.persister.flush(10)
        assert [version.number for version, _, _ in w.store.published] == [1, 2, 4, 3]
        for state in states:
            w.release(state)


async def test_a_file_gives_way_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path) as w:
        monkeypatch.setattr(persisting, "_GIVE_WAY_SECONDS", 0.01)
        w.model.engine.prompts = 1
        state, _ = await w.state(1)
        w.persister.publish(state)
        await w.persister.flush(10)
        assert len(w.store.published) == 1
        w.release(state)


async def test_an_agent_at_work_is_written_once_for_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its newer state takes the place of one that rests while turns run, and has the full blocks of that."""
    async with world(tmp_path) as w:
        monkeypatch.setattr(persisting, "_REST_SECONDS", 60.0)
        w.model.engine.running = 1
        states = [(await w.state(version, tokens))[0] for version, tokens in ((1, 520), (2, 600))]
        for state in states:
            w.persister.publish(state)
            await asyncio.sleep(0.05)
        assert not w.store.asked.is_set()
        w.model.engine.running = 0
        await w.store.asked.wait()
        await w.persister.flush(10)
        assert [(version.number, len(files)) for version, files, _ in w.store.published] == [(2, 5)]
        for state in states:
            w.release(state)


@pytest.mark.parametrize("ends", ["too long", "somebody waits", "memory is waited for", "half of the pool is taken"])
async def test_a_state_rests_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    async with world(tmp_path) as w:
        monkeypatch.setattr(persisting, "_REST_SECONDS", 0.2 if ends == "too long" else 60.0)
        w.model.engine.running = 1
        state, _ = await w.state(1)
        w.persister.publish(state)
        await asyncio.sleep(0.05)
        assert not w.store.asked.is_set()
        if ends == "memory is waited for":
            w.model.memory.admission.waiting = 1
        waiting = asyncio.create_task(w.persister.wait_written(KEY)) if ends == "somebody waits" else None
        taken = w.pool.full.allocate(4) if ends == "half of the pool is taken" else []
        async with asyncio.timeout(10):
            await w.store.asked.wait()
        if waiting is not None:
            await waiting
        await w.persister.flush(10)
        assert len(w.store.published) == 1
        w.pool.full.release(taken)
        w.release(state)
