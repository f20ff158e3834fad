"""When a model's files change, no KV of before is loaded, and the miss reason says so.

The store is a process of its own, the worker the real one in the test's, so that a fault can be built into it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from safetensors.numpy import load_file

from agentmem.kv.ledger import common_length
from agentmem.v1 import cache_store_pb2, types_pb2
from inference_service.engine import rotation
from inference_service.engine.calibration import Calibration
from inference_service.models import fingerprint
from inference_service.models.fingerprint import ContentHashes, model_fingerprint
from inference_service.models.loading import Loader
from inference_service.models.opening import ModelSpec
from inference_service.settings import WorkerSettings
from inference_service.worker import Worker
from tests.oracle import Oracle
from tests.system.client import Client, Turn, append, chat
from tests.system.recomputed import TOLERANCE, difference
from tests.system.stack import Stack, serving
from tests.tiny_models import write_gemma3, write_llama

LONG = "The colour of the boat is green, and the house by the sea is red. " * 20
ARGUMENTS = {"max_tokens": 12, "top_logprobs": 0, "sampling": types_pb2.Sampling(ignore_eos=True)}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A store. Agents of all tests are in it, so each test's conversation begins otherwise."""
    stack = Stack("tiny=unused")
    asyncio.run(stack.up("store"))
    yield stack
    asyncio.run(stack.destroy())


@dataclass
class Running:
    stack: Stack
    directory: Path
    client: Client
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    @cached_property
    def oracle(self) -> Oracle:
        """The model as its files are now, with the means that were measured by the tokenizer of its first load."""
        return Oracle(self.directory, calibration=load_file(calibration(self.stack, self.directory)))

    async def turn(self, agent: str, text: str = "And now?") -> Turn:
        """A turn that goes on, after a probe that says the same of it; its answer is held against recomputation."""
        return await self.held(agent, append=append(text))

    async def held(self, agent: str, **prompt: object) -> Turn:
        turn = await self.unheld(agent, **prompt)
        assert await self.difference(agent, turn) < TOLERANCE
        return turn

    async def unheld(self, agent: str, **prompt: object) -> Turn:
        probed = await self.client.probe(agent, **prompt)
        turn = await self.client.turn(agent, **prompt, **ARGUMENTS)
        assert turn.started.cache == probed
        return turn

    async def difference(self, agent: str, turn: Turn) -> float:
        assert len(set(turn.token_ids)) > 3, "an output that does not vary proves nothing"
        return await difference(self.stack, self.oracle, turn, agent)

    def lookups(self, **labels: str) -> float:
        return self.registry.get_sample_value("agentmem_cache_lookups_total", {"model_id": "tiny", **labels}) or 0.0


def calibration(stack: Stack, directory: Path) -> Path:
    """Where the means of a model are kept."""
    hashes = ContentHashes(stack.data.parent / "hashes.json")
    name = model_fingerprint(ModelSpec("m", directory), "float32", hashes)
    return stack.data / "worker" / "calibration" / f"{name}.safetensors"


@asynccontextmanager
async def working(stack: Stack, directory: Path, measure_first_bytes: int = 1 << 30) -> AsyncIterator[Running]:
    """A worker that serves the model as its files are; what it has computed is on disk afterwards."""
    settings = WorkerSettings(
        quality_check=False,
        measure_first_bytes=measure_first_bytes,
        model=[f"tiny={directory}"],
        data=stack.data,
        run_dir=stack.run,
        grace=0,
        pool_bytes=1 << 24,
    )
    client = Client(settings.address, stack.model)
    running = Running(stack, directory, client)
    worker = Worker(settings, running.registry)
    try:
        await worker.start()
        while not await serving(settings.address):
            await asyncio.sleep(0.02)
        yield running
    finally:
        await client.close()
        await worker.stop()


async def remember(stack: Stack, directory: Path, agent: str) -> tuple[cache_store_pb2.Ledger, types_pb2.AgentVersion]:
    """A conversation of two turns, over a system prompt that is this agent's alone; its KV is on disk."""
    async with working(stack, directory) as worker:
        await worker.held(agent, messages=chat(("system", f"{agent}! {LONG}"), ("user", "Who told you that?")))
        turn = await worker.turn(agent)
        assert turn.cached["hot"] > 256
    return await stack.ledger(agent), turn.finished.version


def replace_weights(directory: Path) -> None:
    """Other weights in a file of the same name, size and mtime."""
    path = directory / "model.safetensors"
    before = path.stat()
    write = write_gemma3 if "gemma3" in (directory / "config.json").read_text() else write_llama
    other = write(directory.with_name("other"), seed=7) / path.name
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    after = path.stat()
    assert (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    assert before.st_ino != after.st_ino


def change_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_rope(directory: Path) -> None:
    change_json(directory / "config.json", rope_theta=5000.0)


def split_more(directory: Path) -> None:
    """A tokenizer that merges less: other tokens for the same text."""
    path = directory / "tokenizer.json"
    model = json.loads(path.read_text())["model"]
    change_json(path, model={**model, "merges": model["merges"][: len(model["merges"]) // 3]})


def add_token(directory: Path) -> None:
    """A tokenizer that knows one more special token, and makes the same tokens of all text that doesn't have it."""
    path = directory / "tokenizer.json"
    added = json.loads(path.read_text())["added_tokens"]
    change_json(path, added_tokens=[*added, {**added[0], "id": 319, "content": "<|new|>"}])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "change"),
    [(write_llama, replace_weights), (write_gemma3, replace_weights), (write_llama, change_rope)],
    ids=["weights", "weights of a hybrid", "rope"],
)
async def test_kv_of_another_model_is_computed_again_from_the_ledger(
    stack: Stack, tmp_path: Path, write: Callable[[Path], Path], change: Callable[[Path], None]
) -> None:
    agent, directory = f"{write.__name__} {change.__name__}", write(tmp_path / "m")
    ledger, _ = await remember(stack, directory, agent)
    change(directory)
    async with working(stack, directory) as worker:
        turn = await worker.turn(agent)
        assert (turn.match, turn.miss, turn.cached) == ("EXTEND", "INCOMPATIBLE", {})
        assert worker.lookups(match="extend", tier="none", reason="incompatible") == 1
        after = await stack.ledger(agent)
        assert after.token_ids[: len(ledger.token_ids)] == ledger.token_ids, "no token was made anew"
        again = await worker.turn(agent)
        assert (again.miss, again.cached) == ("UNSPECIFIED", {"hot": len(after.token_ids)})
    async with working(stack, directory) as worker:
        tokens = len((await stack.ledger(agent)).token_ids)
        warm = await worker.turn(agent)
        assert (warm.miss, warm.cached) == ("UNSPECIFIED", {"warm": tokens})


@pytest.mark.slow
async def test_what_an_agent_said_before_the_model_was_measured_is_computed_again_once(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, measure = asyncio.Event(), Loader.measure

    async def later(*of: Any) -> None:
        await held.wait()
        await measure(*of)

    monkeypatch.setattr(Loader, "measure", later)
    agent, directory = "met before", write_llama(tmp_path / "m", seed=45)  # no other test has measured it
    async with working(stack, directory, measure_first_bytes=0) as worker:
        said = chat(("system", f"{agent}! {LONG}"), ("user", "Who told you that?"))
        for prompt in ({"messages": said}, {"append": append("And now?")}):
            turn = await worker.unheld(agent, **prompt)
        assert turn.cached["hot"] > 256
        before = await stack.ledger(agent)
        held.set()
        async with asyncio.timeout(60):
            while not worker.registry.get_sample_value(
                "agentmem_model_unloads_total", {"model_id": "tiny", "reason": "measured"}
            ):
                await asyncio.sleep(0.05)
        turn = await worker.turn(agent)
        assert (turn.match, turn.miss, turn.cached) == ("EXTEND", "INCOMPATIBLE", {})
        after = await stack.ledger(agent)
        assert after.token_ids[: len(before.token_ids)] == before.token_ids
        assert (await worker.turn(agent)).cached == {"hot": len(after.token_ids)}
    async with working(stack, directory, measure_first_bytes=0) as worker:
        assert list((await worker.turn(agent)).cached) == ["warm"], "the next start knows the model"


@pytest.mark.slow
async def test_a_fingerprint_that_ignores_content_would_be_found_out(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that the test above is for: old KV under new weights gives other answers."""
    monkeypatch.setattr(fingerprint, "_content_hash", lambda file: "the same for all")
    directory = write_llama(tmp_path / "m")
    await remember(stack, directory, "deceived")
    replace_weights(directory)
    async with working(stack, directory) as worker:
        turn = await worker.unheld("deceived", append=append("And now?"))
        assert (turn.miss, list(turn.cached)) == ("UNSPECIFIED", ["warm"])
        assert await worker.difference("deceived", turn) > 100 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["signs", "means"])
async def test_what_reads_otherwise_than_was_written_would_be_found_out(
    fault: str, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faults that the fingerprint cannot name, or would no more: other signs, or other means, after a restart."""
    agent, directory = f"read with other {fault}", write_llama(tmp_path / "m")
    await remember(stack, directory, agent)
    if fault == "signs":
        others = [sign * (-1 if at % 3 else 1) for at, sign in enumerate(rotation.signs(64))]
        monkeypatch.setattr(rotation, "signs", lambda width: others[:width])
        rotation._signs.cache_clear()
    else:
        monkeypatch.setattr(Calibration, "codecs", lambda self, geometry: geometry.codecs())
    async with working(stack, directory) as worker:
        turn = await worker.unheld(agent, append=append("And now?"))
        assert (turn.miss, list(turn.cached)) == ("UNSPECIFIED", ["warm"])
        assert await worker.difference(agent, turn) > 100 * TOLERANCE
    monkeypatch.undo()
    rotation._signs.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("change", [split_more, add_token])
async def test_another_tokenizer_makes_a_new_version_of_the_same_text(
    stack: Stack, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    agent, directory = change.__name__, write_llama(tmp_path / "m", vocab_size=320)
    before, version = await remember(stack, directory, agent)
    change(directory)
    async with working(stack, directory) as worker:
        turn = await worker.turn(agent)
        assert (turn.match, turn.miss, turn.cached) == ("EXTEND", "INCOMPATIBLE", {})
        assert turn.started.base == version
        made = turn.finished.version
        assert (made.uid, made.version) == (version.uid, version.version + 1) and made.revision != version.revision
        after = await stack.ledger(agent)
        assert after.text.startswith(before.text), "what the agent remembers is the same"
        assert after.tokenizer_hash != before.tokenizer_hash
        same = common_length(before.token_ids, after.token_ids)
        assert same < 256 if change is split_more else same >= 256
        (kept,) = await worker.client.snapshots(agent)
        assert (kept.automatic, kept.tokens, kept.version) == (True, len(before.token_ids), version)
        assert (await worker.turn(agent)).cached == {"hot": len(after.token_ids)}
        await worker.client.restore(agent, kept.name)
        assert (await stack.ledger(agent)).token_ids == before.token_ids
        turn = await worker.turn(agent)
        assert (turn.match, turn.miss, turn.cached) == ("EXTEND", "INCOMPATIBLE", {}), "the old branch, once more"
        assert (await stack.ledger(agent)).text.startswith(before.text)
