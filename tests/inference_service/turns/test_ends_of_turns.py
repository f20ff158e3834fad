"""Answers that are committed before the KV of their last token is computed, over the real engine."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from agentmem.errors import Aborted, Cancelled, Unavailable
from agentmem.validation import AgentKey
from inference_service.engine import lost_device, thread
from inference_service.engine.batching import BatchEngine
from inference_service.engine.generation import TurnJob
from tests.inference_service.turns.world import answer, prompt, working


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The KV of a turn's last token is there only when it is set."""
    gate, finish = threading.Event(), TurnJob.finish

    def late(self: TurnJob) -> None:
        gate.wait(30)
        finish(self)

    monkeypatch.setattr(TurnJob, "finish", late)
    yield gate
    gate.set()


async def test_an_answer_does_not_wait_for_the_kv_of_its_end(
    llama: Path, tmp_path: Path, held: threading.Event
) -> None:
    """It is committed as soon as the last token is known; its memory is its own until the engine lets go of it."""
    key = AgentKey("n", "a", "m")
    async with working(llama, tmp_path) as worker:
        said = await worker.turn("a", ids := prompt(300))
        assert said.version == 1
        assert not held.is_set() and key in worker.store.ledgers
        assert not worker.model.memory.admission.idle
        assert key not in worker.model.memory.hot
        settled = asyncio.create_task(worker.locks.settled(key))
        await asyncio.sleep(0.05)
        assert not settled.done(), "who asks what is in memory waits for it"
        held.set()
        await settled
        assert worker.model.memory.hot.get(key).table.tokens == 304  # type: ignore[union-attr]
        await worker.idle()
        assert (await worker.turn("a", [*ids, *said.token_ids, 7])).reused == 304
        await worker.idle()


async def test_a_turn_that_was_answered_is_not_aborted(llama: Path, tmp_path: Path, held: threading.Event) -> None:
    """Its KV is still to be kept; nothing of it runs or waits for its caller any more."""
    async with working(llama, tmp_path) as worker:
        await worker.turn("a", prompt(300), request_id="answered")
        assert worker.runner._turns and not worker.runner.abort("n", "answered")
        held.set()
        await worker.idle()
        running = worker.start("b", prompt(300, 1), 500, request_id="running")
        assert worker.runner.abort("n", "running")
        with pytest.raises(Cancelled):
            await answer(running)
        await worker.idle()


async def test_a_turn_that_is_being_committed_is_not_aborted(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    async with working(llama, tmp_path) as worker:
        commit = worker.store.commit

        async def slowly(*arguments: Any) -> Any:
            begun.set()
            await gate.wait()
            return await commit(*arguments)

        monkeypatch.setattr(worker.store, "commit", slowly)
        turn = asyncio.create_task(worker.turn("a", prompt(300), request_id="committed"))
        await begun.wait()
        assert not worker.runner.abort("n", "committed")
        gate.set()
        assert (await turn).version == 1
        await worker.idle()


async def test_a_turn_that_is_not_committed_has_its_memory_as_long_as_its_kv_is_computed(
    llama: Path, tmp_path: Path, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = asyncio.Event()

    async def commit(_: object) -> NoReturn:
        failed.set()
        raise Aborted("another writer was first")

    async with working(llama, tmp_path) as worker:
        monkeypatch.setattr(worker.store, "commit", commit)
        turn = asyncio.create_task(worker.turn("a", prompt(300)))
        await failed.wait()
        await asyncio.sleep(0.05)
        assert not worker.model.memory.admission.idle
        held.set()
        with pytest.raises(Aborted):
            await turn
        await worker.idle()
        assert AgentKey("n", "a", "m") not in worker.model.memory.hot


async def test_kv_of_an_answers_end_that_cannot_be_computed_is_no_matter_for_the_answer(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(llama, tmp_path) as worker:
        take = BatchEngine._take

        def fail(self: BatchEngine, flight: Any) -> None:
            if any(job.over for job in flight.jobs):
                raise RuntimeError("no memory")
            take(self, flight)

        monkeypatch.setattr(BatchEngine, "_take", fail)
        said = await worker.turn("a", ids := prompt(300))
        await worker.idle()
        assert said.version == 1 and AgentKey("n", "a", "m") not in worker.model.memory.hot
        monkeypatch.undo()
        assert (await worker.turn("a", [*ids, *said.token_ids, 7])).reused == 0
        await worker.idle()


async def test_an_answer_that_metal_calls_wrong_after_its_last_token_is_not_committed(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> NoReturn:
        raise RuntimeError("[METAL] Command buffer execution failed: Internal Error")

    async with working(llama, tmp_path) as worker:
        monkeypatch.setattr(thread, "on_metal", lambda: True)
        monkeypatch.setattr(lost_device, "ask", fails)
        with pytest.raises(Unavailable, match="the GPU failed"):
            await worker.turn("a", prompt(300))
        assert not worker.store.ledgers
