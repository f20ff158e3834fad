"""Publishing in the background, from a real arena to real files: what is written, what a failure leaves behind."""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentmem import tracing
from agentmem.errors import Unavailable
from agentmem.kv.blockfile import FileName, digest
from inference_service.pool.kv import Table
from inference_service.storage import transport
from inference_service.storage.blocks import read_block
from inference_service.turns.persisting import State
from tests.inference_service.loop import settle
from tests.inference_service.turns.persisting_world import GEOMETRY, KEY, blocks_of, pieces_of, world


async def test_files_are_what_the_arena_held_although_it_is_overwritten_meanwhile(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        state, computed = await w.state(1)
        w.store.gate.clear()
        w.persister.publish(state)
        w.release(state)
        others = [await w.state(2, seed=seed) for seed in range(3)]
        for of in (blocks_of, pieces_of):
            assert not any(of(state) & of(other) for other, _ in others), "held until written"
        w.store.gate.set()
        await w.persister.flush(10)
        _, files, references = w.store.published[0]
        assert [FileName(f.kind, f.chain_hash) for f in files] == references
        assert len(files) == 3 + 2
        by_name = {FileName(f.kind, f.chain_hash): f for f in files}
        for header in (*state.blocks, *state.windows):
            file = by_name[FileName.of(header)]
            whole = computed.sliding if header.window else computed.full
            read = read_block(file.path, header, file.digest, GEOMETRY)
            assert read.keys() == whole.keys()
            for name, tensor in read.items():
                stop = header.first_token + header.token_count
                assert np.array_equal(tensor, whole[name][:, :, header.first_token : stop])
        size = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert w.registry.get_sample_value("agentmem_cache_store_bytes_total", {"model_id": "m"}) == size
        assert digest(Path(files[0].path).read_bytes()) == files[0].digest
        for other, _ in others:
            w.release(other)


async def test_what_exists_is_not_written_and_what_is_lost_is_not_referred_to(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        state, _ = await w.state(1)
        w.release(state)
        first, lost = FileName.of(state.blocks[0]), FileName.of(state.windows[0])

        state = State(KEY, state.version, w.model, Table(0, ()), state.blocks[:1], state.windows[:1])
        w.store.existing.add(first)
        w.persister.publish(state)
        await w.persister.flush(10)
        assert w.store.published == [(state.version, [], [first])]
        assert lost not in w.store.published[0][2]


async def test_a_newer_state_replaces_one_that_waits_and_takes_over_its_windows(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.store.gate.clear()
        states = [(await w.state(version))[0] for version in (1, 2, 3)]
        w.persister.publish(states[0])
        await asyncio.sleep(0)
        w.persister.publish(states[1])
        w.persister.publish(replace(states[2], captured={}))
        for state in states:
            w.release(state)
        w.store.gate.set()
        await w.persister.flush(10)
        assert [version.number for version, _, _ in w.store.published] == [1, 3]
        assert FileName.of(states[1].windows[0]) in w.store.published[1][2]


async def test_each_state_is_written_for_the_turn_that_made_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.store.gate.clear()
        for version in (1, 2, 3):
            with tracing.serving(tracing.Trace(f"turn {version}")):
                state, _ = await w.state(version, seed=version)
                w.persister.publish(state)
            w.release(state)
            await asyncio.sleep(0)
        w.store.gate.set()
        await w.persister.flush(10)
        assert w.store.traces == [tracing.Trace(f"turn {version}") for version in (1, 2, 3)]


async def test_a_branch_that_was_left_is_written_too_and_can_be_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.store.gate.clear()
        states = [(await w.state(version, seed=seed))[0] for version, seed in ((1, 0), (2, 1), (3, 2))]
        for state in states:
            w.persister.publish(state)
            w.release(state)
            await asyncio.sleep(0)
        await w.persister.wait_written(KEY, 0.01)
        assert not w.store.published, "waits no longer than that"
        settling = asyncio.create_task(w.persister.wait_written(KEY))
        await w.persister.wait_written(KEY._replace(agent_id="other"))
        w.store.gate.set()
        await settling
        assert [version.number for version, _, _ in w.store.published] == [1, 2, 3]


async def test_a_turn_waits_where_its_only_checkpoint_is_one_to_be_written(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.store.gate.clear()
        state, _ = await w.state(1)
        w.persister.publish(state)
        w.release(state)
        await w.persister.wait_resumable(KEY)  # The pool has one.
        await w.persister.wait_resumable(KEY, {state.windows[1].chain_hash})
        earlier = asyncio.create_task(w.persister.wait_resumable(KEY, {b"none", *state.captured}))
        cut, _ = await w.state(2, seed=1)
        cut = replace(cut, table=replace(cut.table, pieces=()), windows=cut.windows[:1])
        w.persister.publish(cut)
        w.release(cut)
        waiting = asyncio.create_task(w.persister.wait_resumable(KEY))
        await w.persister.wait_resumable(KEY._replace(agent_id="other"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert not earlier.done(), "a prompt that leaves the conversation needs the one before"
        w.store.gate.set()
        await waiting
        await earlier
        assert [version.number for version, _, _ in w.store.published] == [1, 2]


def _third_write_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = transport.write_block, []

    def full(path: str, *arguments: Any) -> Any:
        calls.append(path)
        if len(calls) == 3:
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *arguments)

    monkeypatch.setattr(transport, "write_block", full)


async def test_what_is_forgotten_is_not_written_and_what_is_being_written_is_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.store.gate.clear()
        states = [(await w.state(version, seed=seed))[0] for version, seed in ((1, 0), (2, 1))]
        for state in states:
            w.persister.publish(state)
            w.release(state)
        await w.store.asked.wait()
        forgetting = asyncio.create_task(w.persister.forget(KEY))
        await settle()
        assert not forgetting.done(), "the first is being written"
        w.store.gate.set()
        await forgetting
        await w.persister.flush(5)
        assert [version.number for version, _, _ in w.store.published] == [1]
        assert w.persister.tables(w.model) == [] and w.pool.full.free == 12


async def test_nobody_waits_for_a_state_that_was_given_up(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.store.gate.clear()
        states = [(await w.state(version, seed=seed))[0] for version, seed in ((1, 0), (2, 1))]
        states[1] = replace(states[1], key=KEY._replace(agent_id="other"))
        for state in states:
            w.persister.publish(state)
            w.release(state)
        await w.store.asked.wait()
        waiting = asyncio.create_task(w.persister.wait_written(states[1].key))
        await asyncio.sleep(0)
        w.persister.give_up(w.model)
        async with asyncio.timeout(1):
            await waiting
        assert not w.store.published, "the other is being written"
        w.store.gate.set()
        await w.persister.flush(5)


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
    async with world(tmp_path, fail) as w:
        state, _ = await w.state(1)
        w.persister.publish(state)
        await w.persister.flush(10)
        w.release(state)
        assert not list(tmp_path.iterdir())
        assert w.registry.get_sample_value("agentmem_cache_store_failures_total", {"model_id": "m"}) == 1
        assert "blocks were not written" in caplog.text


async def test_nothing_of_a_lost_device_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is being written then, nor what waits: what was read may be wrong."""
    async with world(tmp_path) as w:
        write, states = transport.write, [(await w.state(version, seed=version))[0] for version in (1, 2)]
        left = len(states[0].blocks) + len(states[0].windows)

        async def written(*arguments: Any) -> Any:
            nonlocal left
            file = await write(*arguments)
            left -= 1
            if not left:
                with pytest.raises(Unavailable, match="the GPU failed"):
                    await w.engine.call(_loses_its_device)
            return file

        monkeypatch.setattr(transport, "write", written)
        for state in states:
            w.persister.publish(state)
            w.release(state)
        await w.persister.flush(10)
        assert w.store.published == [] and not w.engine.alive
        assert w.registry.get_sample_value("agentmem_cache_store_failures_total", {"model_id": "m"}) == 2


def _loses_its_device() -> None:
    raise RuntimeError("[METAL] Command buffer execution failed: Caused GPU Timeout Error")
