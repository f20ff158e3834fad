"""Prefetches over the real engine and a small pool: what they bring, whom they evict for it, and whom never."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentmem.errors import Cancelled, FailedPrecondition, NotFound
from agentmem.kv.blockfile import FileKind
from agentmem.validation import AgentKey
from inference_service.engine.paged import arena
from tests.inference_service.turns.world import Worker, prompt, working
from tests.tiny_models import write_gemma3, write_llama

TOKENS = 304
"""Two blocks of each agent."""


def key(name: str) -> AgentKey:
    return AgentKey("n", name, "m")


def hot(worker: Worker) -> str:
    return "".join(sorted(each.agent_id for each in worker.model.memory.hot))


@asynccontextmanager
async def after_turns(directory: Path, tmp_path: Path, agents: str = "abc") -> AsyncIterator[Worker]:
    """A worker whose pool has blocks for two agents, after a turn of each of these, all written."""
    async with working(directory, tmp_path, pieces=30) as worker:
        for number, name in enumerate(agents):
            await worker.turn(name, prompt(300, number))
            await worker.idle()
        yield worker
        await worker.idle()


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_gemma3], ids=["llama", "gemma3"])
async def test_the_next_turn_finds_all_of_it_in_the_pool(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    (tmp_path / "m").mkdir()
    async with after_turns(write(tmp_path / "m"), tmp_path) as worker:
        assert hot(worker) == "bc"
        tokens, size = await worker.prefetch("a")
        assert tokens == TOKENS and size > 0
        assert hot(worker) == "ac", "b was used before c"
        assert await worker.prefetch("a") == (TOKENS, 0), "it is there"
        ledger = worker.store.ledgers[key("a")][1].token_ids
        turn = await worker.turn("a", [*ledger, 7, 8])
        assert (turn.reused, turn.started.cache.load_bytes) == (TOKENS, 0)


async def test_nobody_goes_for_what_is_not_there(llama: Path, tmp_path: Path) -> None:
    async with after_turns(llama, tmp_path) as worker:
        worker.store.files.clear()
        assert await worker.prefetch("a") == (0, 0)
        assert hot(worker) == "bc"
        with pytest.raises(NotFound):
            await worker.prefetch("nobody")


async def test_only_what_is_there_makes_room_for_itself(llama: Path, tmp_path: Path) -> None:
    """The second of two files is gone; the one free block is enough for the first."""
    async with after_turns(llama, tmp_path) as worker:
        for name in [name for name, file in worker.store.files.items() if file.token_count < 256]:
            del worker.store.files[name]
        tokens, size = await worker.prefetch("a")
        assert tokens == 256 and size > 0
        assert hot(worker) == "abc"


async def test_who_speaks_as_soon_stays(llama: Path, tmp_path: Path) -> None:
    async with after_turns(llama, tmp_path) as worker:
        worker.hints.set({key("a"): 2, key("b"): 1, key("c"): 2})
        assert await worker.prefetch("a") == (0, 0)
        assert hot(worker) == "bc"
        worker.hints.set({key("a"): 2, key("b"): 1, key("c"): 3})
        assert (await worker.prefetch("a")).tokens == TOKENS
        assert hot(worker) == "ab", "c was used last, and speaks last"


async def test_it_waits_for_no_room_and_costs_nobody_what_is_unwritten(llama: Path, tmp_path: Path) -> None:
    async with after_turns(llama, tmp_path) as worker:
        worker.model.memory.admission.last_resort = lambda: pytest.fail("unwritten KV was given up for a prefetch")
        running = worker.start("d", prompt(300, 9), 700)
        events = aiter(running.events())
        await anext(events)
        assert not hot(worker), "the turn takes all of the pool"
        assert await worker.prefetch("a") == (0, 0)
        assert not running.ended
        running.cancel()
        with pytest.raises(Cancelled):
            async for _ in events:
                pass


async def test_nothing_is_restored_that_the_device_has_no_memory_for(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment of its blocks was given back, and cannot be taken again at once."""
    async with after_turns(llama, tmp_path) as worker:
        for name in "bc":
            worker.model.memory.hot.drop(key(name))
        await worker.engine.call(lambda: worker.model.arenas.full.release([0]))
        with monkeypatch.context() as patched:
            patched.setattr(arena, "free_bytes", lambda: 0)
            assert await worker.prefetch("a") == (0, 0)
        assert (await worker.prefetch("a")).tokens == TOKENS


async def test_one_that_no_pool_would_hold_is_refused(llama: Path, tmp_path: Path) -> None:
    async with after_turns(llama, tmp_path) as worker:
        worker.model.memory.pool.full.capacity = 1
        with pytest.raises(FailedPrecondition, match="--pool-bytes"):
            await worker.prefetch("a")
        worker.model.memory.pool.full.capacity = 5


@pytest.mark.slow
async def test_another_agent_may_hold_more_blocks_than_there_is_a_checkpoint_for(tmp_path: Path) -> None:
    """The pool has all blocks of what the two have in common, and only the first checkpoint of it is left."""
    (tmp_path / "m").mkdir()
    async with working(write_gemma3(tmp_path / "m"), tmp_path, blocks=8) as worker:
        for name in "ab":
            first = await worker.turn(name, prompt(300))
            await worker.turn(name, [*prompt(300), *first.token_ids, *prompt(800, 1)])
            await worker.idle()
        ledger = worker.store.ledgers[key("a")][1].token_ids
        await worker.turn("a", [*ledger, *prompt(20, 2)])
        await worker.idle()
        worker.model.memory.hot.drop(key("b"))
        for name, file in [*worker.store.files.items()]:
            if name.kind is FileKind.WINDOW and file.first_token + file.token_count > TOKENS:
                del worker.store.files[name]
        assert (await worker.prefetch("b")).tokens == TOKENS
        await worker.idle()


async def test_one_that_is_cancelled_leaves_nothing_wherever_it_was(llama: Path, tmp_path: Path) -> None:
    """As the end of the worker does to those that run."""
    async with after_turns(llama, tmp_path) as worker:
        cancelled = 0
        for steps in [*range(0, 40, 3), 1_000_000]:
            worker.model.memory.hot.drop(key("a"))
            task = asyncio.create_task(worker.prefetch("a"))
            for _ in range(steps):
                await asyncio.sleep(0.0002)
                if task.done():
                    break
            task.cancel()
            [outcome] = await asyncio.gather(task, return_exceptions=True)
            cancelled += isinstance(outcome, asyncio.CancelledError)
            await worker.idle()
        assert cancelled and not isinstance(outcome, BaseException), "some were, and the last was not"
        assert (await worker.prefetch("a")).tokens == TOKENS
