"""Files that are elsewhere: fetched where that is faster than to compute, and either way the turn is what it was."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from agentmem.kv.blockfile import BLOCK_TOKENS, FileName
from agentmem.v1 import cache_store_pb2, types_pb2
from agentmem.validation import AgentKey
from inference_service.memory.speeds import Source
from tests.inference_service.directories import written_by
from tests.inference_service.turns.world import Worker, prompt, working
from tests.tiny_models import write_gemma3, write_llama

TOKENS = 700
AGENTS = "abcd"
SLOWER = types_pb2.MISS_REASON_FETCH_SLOWER


directory = written_by([write_llama, write_gemma3], ["full attention", "with windows"])


class Elsewhere:
    """Lets files of a worker's store be elsewhere, from where they come after `seconds`."""

    def __init__(self, worker: Worker, *, on_node: bool = False) -> None:
        self.seconds = 0.0
        self.asked: list[set[FileName]] = []
        self._files = worker.store.files
        self._here = dict[FileName, cache_store_pb2.StoredFile]()
        self._on_node = on_node
        worker.store.fetch = self.fetch  # type: ignore[attr-defined]

    def takes(self, names: Iterable[FileName]) -> None:
        for name in list(names):
            file = self._here[name] = self._files[name]
            away = cache_store_pb2.StoredFile()
            away.CopyFrom(file)
            away.path, away.tier, away.on_node = "", types_pb2.TIER_REMOTE, self._on_node
            self._files[name] = away

    def takes_all(self) -> None:
        self.takes(name for name, file in self._files.items() if file.path)

    def returns_all(self) -> None:
        self._files |= self._here
        self._here.clear()

    async def fetch(self, _: str, names: Iterable[FileName]) -> dict[FileName, cache_store_pb2.StoredFile]:
        self.asked.append(set(names))
        await asyncio.sleep(self.seconds)
        found = {name: self._here.pop(name) for name in self.asked[-1]}
        self._files |= found
        return found


def slow_to_fetch(worker: Worker, source: Source = Source.OBJECTS) -> None:
    worker.speeds.begin_fetch(source, asyncio.get_running_loop().time())
    for _ in range(50):
        worker.speeds.end_fetch(source, 1 << 20, 1 << 20, 3600.0, asyncio.get_running_loop().time())


def slow_to_compute(worker: Worker) -> None:
    for _ in range(50):
        worker.speeds.computed("m", 1 << 16, 1e6)


async def first_turns(worker: Worker) -> list[int]:
    """Agents that have said the same; what all of them will be told next."""
    ids = prompt(TOKENS)
    said = [await worker.turn(agent, ids) for agent in AGENTS]
    return [*ids, *said[0].token_ids, 5, 6]


async def forgotten(worker: Worker, elsewhere: Elsewhere) -> None:
    await worker.at_rest()
    for agent in AGENTS:
        worker.model.memory.hot.drop(AgentKey("n", agent, "m"))
    elsewhere.takes_all()


@pytest.mark.slow("full attention-node", "with windows-node", "with windows-objects")
@pytest.mark.parametrize("source", Source)
async def test_a_turn_fetches_or_computes_and_is_the_same(directory: Path, tmp_path: Path, source: Source) -> None:
    async with working(directory, tmp_path) as worker:
        ids = await first_turns(worker)
        elsewhere = Elsewhere(worker, on_node=source is Source.NODE)
        await forgotten(worker, elsewhere)
        unknown = await worker.turn("a", ids)
        assert unknown.started.cache.cached[0].tier == types_pb2.TIER_REMOTE
        assert unknown.reused > 2 * BLOCK_TOKENS and len(elsewhere.asked) == 1, "the first fetch is how it is measured"
        assert worker.speeds.fetch_seconds({source: 1}) is not None

        slow_to_fetch(worker, source)
        await forgotten(worker, elsewhere)
        computed = await worker.turn("b", ids)
        assert (computed.reused, computed.started.cache.miss_reason) == (0, SLOWER)
        assert len(elsewhere.asked) == 1, "nothing was asked for"
        assert worker.speeds.prefill_seconds("m", TOKENS) is not None

        slow_to_compute(worker)
        await forgotten(worker, elsewhere)
        fetched = await worker.turn("c", ids)
        assert (fetched.reused, fetched.started.cache.miss_reason) == (
            unknown.reused,
            unknown.started.cache.miss_reason,
        )
        assert len(elsewhere.asked) == 2
        assert computed.token_ids == fetched.token_ids == unknown.token_ids
        assert np.allclose(computed.logprobs, fetched.logprobs, atol=1e-3)
        registry = worker.registry
        assert registry.get_sample_value("agentmem_cache_fetch_seconds_count", {"source": source}) == 2
        assert registry.get_sample_value("agentmem_cache_fetch_bytes_total", {"source": source})
        choices = ({"model_id": "m", "choice": choice} for choice in ("fetch", "compute"))
        assert [registry.get_sample_value("agentmem_cache_fetch_choices_total", each) for each in choices] == [2, 1]
        await worker.idle()


async def test_what_is_here_is_used_up_to_where_it_is_slow(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with working(write_llama(tmp_path_factory.mktemp("llama")), tmp_path) as worker:
        ids = await first_turns(worker)
        elsewhere = Elsewhere(worker)
        await forgotten(worker, elsewhere)
        elsewhere.returns_all()
        elsewhere.takes(name for name, file in worker.store.files.items() if file.first_token == BLOCK_TOKENS)
        slow_to_fetch(worker)
        turn = await worker.turn("b", ids)
        assert (turn.reused, turn.started.cache.miss_reason) == (BLOCK_TOKENS, SLOWER)
        assert [tier.tier for tier in turn.started.cache.cached] == [types_pb2.TIER_WARM]
        await worker.idle()


@pytest.mark.slow("with windows")
async def test_ahead_of_a_turn_it_is_always_fetched(directory: Path, tmp_path: Path) -> None:
    async with working(directory, tmp_path) as worker:
        await first_turns(worker)
        elsewhere = Elsewhere(worker)
        await forgotten(worker, elsewhere)
        slow_to_fetch(worker)
        assert (await worker.prefetch("a")).tokens > 2 * BLOCK_TOKENS
        assert len(elsewhere.asked) == 1
        await worker.idle()
