"""What a model that has come is bound to, over the real engine."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agentmem.kv.blockfile import FileName
from agentmem.validation import AgentKey
from inference_service.metrics import WorkerMetrics
from inference_service.turns.presence import Presence
from tests.inference_service.turns.world import prompt, working
from tests.tiny_models import write_gemma3


@pytest.mark.slow
async def test_checkpoints_that_are_to_be_written_are_held_until_they_are(tmp_path: Path) -> None:
    """Their turns are over and their agents gone, and their pieces are not free before."""
    async with working(write_gemma3(tmp_path / "gemma3"), tmp_path, blocks=12, checkpoints=10) as worker:
        model, stage, writing = worker.model, worker.store.stage, asyncio.Event()

        async def held(namespace: str, names: Iterable[FileName]) -> dict[FileName, str]:
            await writing.wait()
            return await stage(namespace, names)

        setattr(worker.store, "stage", held)  # noqa: B010 - a method
        presence = Presence(worker.persister, WorkerMetrics(CollectorRegistry(), ["m"]), asyncio.Event())
        presence.arrived(model, 0.0)
        before = model.promised_bytes
        for number, agent in enumerate("ab"):
            await worker.turn(agent, prompt(600, number))
        async with asyncio.timeout(60):
            while worker.runner._turns:
                await asyncio.sleep(0.001)
        model.memory.hot.drop(AgentKey("n", "a", "m"))
        model.memory.hot.drop(AgentKey("n", "b", "m"))
        tables = worker.persister.tables(model)
        assert len([table for table in tables if not table.blocks]) >= 2, (
            "one that is being written, and one that waits"
        )
        assert model.memory.pool.pieces.used == len({piece for table in tables for piece in table.pieces})
        assert model.promised_bytes == before, "all of the pool is"
        writing.set()
        await worker.idle()
        assert model.memory.pool.pieces.used == 0
        await presence.leaving(model, 1)
